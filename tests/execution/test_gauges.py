"""What is exported to Prometheus: the allowed list, its table, and the dashboard and alerts that read it."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.metrics_driver import metrics_driver
from support.places import REPOSITORY
from support.waiting import wait_until
from torch import nn

from kinoray.backbones.experts import Gates, top_k_gates
from kinoray.execution.run_monitor import METRICS, Gauges, MonitorClient, RunMonitor
from kinoray.execution.vitals import Vitals, drift, gate_values, gradient_norm
from kinoray.momentum import Momentum, Queue, average_into
from kinoray.sweeps.trial import TrialMonitor

MONITORING = REPOSITORY / "cluster" / "monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
BOARD = json.loads((MONITORING / "grafana-kinoray.json").read_text(encoding="utf-8"))
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{panel["title"]: target["expr"] for panel in BOARD["panels"] for target in panel["targets"]},
    **{variable["name"]: variable["definition"] for variable in BOARD["templating"]["list"]},
}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], float]:
    """What Ray's gauges were given: (name, label values...) -> value."""
    values: dict[tuple[str, ...], float] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.tag_keys = name, tag_keys
            assert description

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.tag_keys)
            values[self.name, *tags.values()] = value

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    return values


def test_the_table_says_what_the_code_exports() -> None:
    text = (REPOSITORY / "cluster" / "README.md").read_text(encoding="utf-8").split("## Watch one")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `ray_kinoray_(\w+)` \| ([\w, ]+) \| (.+) \|$", text, re.M)
    assert rows == [
        (name, ", ".join(filter(None, (metric.owner, metric.label))), metric.about) for name, metric in METRICS.items()
    ]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_panels_and_alerts_ask_for_metrics_of_the_table_alone(name: str) -> None:
    expression = EXPRESSIONS[name]
    named = re.findall(r"\bray_kinoray_(\w+)", expression)
    assert named and set(named) <= set(METRICS)
    assert expression.count("(") == expression.count(")")
    for label in re.findall(r"\{(\w+)=~", expression):
        assert all(label in (METRICS[metric].owner, METRICS[metric].label) for metric in named)


def test_every_metric_is_on_the_dashboard_and_its_panels_do_not_overlap() -> None:
    shown = {
        metric
        for panel in BOARD["panels"]
        for t in panel["targets"]
        for metric in re.findall(r"ray_kinoray_(\w+)", t["expr"])
    }
    assert shown == set(METRICS)
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_files_of_the_monitoring_find_each_other() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    files = {f"./{file.name}" for file in MONITORING.iterdir()}
    assert mounted == (files - {"./compose.yaml"}) | {"/tmp/ray"}
    (source,) = yaml.safe_load((MONITORING / "grafana-datasource.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {source["uid"]}
    prometheus = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert prometheus["rule_files"] == ["alerts.yml"]
    assert "127.0.0.1" in services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"]
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]


def test_prometheus_accepts_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on this machine")
    subprocess.run([promtool, "check", "rules", MONITORING / "alerts.yml"], check=True)


def test_a_trial_exports_what_a_run_does_and_a_run_without_ray_nothing(exported, tmp_path) -> None:
    folder = tmp_path / "trial" / "seed-0"
    folder.mkdir(parents=True)
    for monitor in (RunMonitor(str(folder)), TrialMonitor(str(folder), tmp_path / "stop")):
        assert not exported
        client = MonitorClient(monitor)
        client.vitals = lambda: {"clips_per_second": 8.0}
        client.log({"task": 0, "step": monitor.newest[1] + 1, "loss": 2.5})
        client.flush()
    assert exported["kinoray_loss", "trial/seed-0"] == 2.5
    assert exported["kinoray_clips_per_second", "trial/seed-0"] == 8.0


def test_what_a_method_logs_beside_the_allowed_list_becomes_no_series(exported) -> None:
    gauges = Gauges("run", "a/seed-0")
    gauges.set({"loss": 1.5, "loss/video_to_text": 2.0, "temperature_of_clip_17": 3.0, "trials": {"running": 1}})
    gauges.set({"validation": None, "score": {"paper": 43.0, "neon": None}})
    assert exported == {("kinoray_loss", "a/seed-0"): 1.5, ("kinoray_score", "a/seed-0", "paper"): 43.0}
    Gauges("sweep", "s").set({"trials": {"running": 2}, "best_trial": 61.0, "loss": 1.0})
    assert exported["kinoray_trials", "s", "running"] == 2 and exported["kinoray_best_trial", "s"] == 61


def test_the_monitor_exports_the_newest_record_and_the_ranks_vitals_and_writes_only_the_record(
    exported, tmp_path
) -> None:
    folder = tmp_path / "a" / "seed-0"
    folder.mkdir(parents=True)
    monitor = RunMonitor(str(folder), gauges=True)
    monitor.report_bad([{"task": "x", "id": "1", "uri": "1.mp4"}])
    monitor.log([{"task": 0, "step": step, "loss": 3.0 - step} for step in range(2)], {"step_seconds": 0.25})
    values = {name.removeprefix("kinoray_"): value for (name, run), value in exported.items() if run == "a/seed-0"}
    assert values.pop("free_disk_bytes") > 0
    assert values == {"task": 0, "step": 1, "loss": 2.0, "step_seconds": 0.25, "decode_errors": 1}
    assert "step_seconds" not in (folder / "metrics.jsonl").read_text()
    monitor.show_scores({"score": {"x": 50.0}, "forgetting": None})
    assert exported["kinoray_score", "a/seed-0", "x"] == 50


def test_vitals_go_with_what_is_sent_to_an_actor() -> None:
    sent: list[Any] = []
    client = MonitorClient(SimpleNamespace(log=SimpleNamespace(remote=lambda *words: sent.append(words))))
    client.vitals = lambda: {"clips_per_second": 9.0}
    client._send()
    assert sent == [([], {"clips_per_second": 9.0})]


class Encoding(nn.Module):
    """As much of a method as has an encoder and averages of it."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.Linear(3, 2)
        self.near, self.far = Momentum(self.towers), Momentum(self.towers)
        self.of_a_part = Momentum(nn.Linear(2, 2))

    def encoder(self) -> nn.Module:
        return self.towers


def test_drift_is_the_relative_distance_from_each_average_of_the_encoder() -> None:
    method = Encoding()
    assert drift(method) == {"near": 0.0, "far": 0.0}  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in method.towers.parameters():
            weight.fill_(2.0)
    average_into(method.near, method.towers, keep=0.0)
    for weight in method.far.module.parameters():
        weight.fill_(1.0)
    assert drift(method) == pytest.approx({"near": 0.0, "far": 0.5})  # type: ignore[arg-type]


def test_vitals_count_training_alone_and_only_where_a_step_was_made() -> None:
    clock = SimpleNamespace(now=0.0, eval_s=0.0, commits_s=0.0)
    clock.now_s = lambda: clock.now
    reader = SimpleNamespace(cached=6, decoded=2, wait_s={"a": 1.0})
    vitals = Vitals(Encoding(), reader, clock, batch_size=8)  # type: ignore[arg-type]
    vitals.steps, clock.now, clock.eval_s = 4, 10.0, 2.0
    looked = vitals()
    assert looked["drift"].keys() == {"near", "far"}
    counts = {"clips_cached": 6, "clips_decoded": 2, "queue_age": {}}
    counts |= {"drift": looked["drift"], "gradient_norm": None}
    assert looked == counts | {"step_seconds": 2.0, "data_wait_seconds": 0.25, "clips_per_second": 4.0}
    assert vitals() == counts
    vitals.steps, clock.now, clock.commits_s = 5, 12.0, 1.0
    assert vitals() == counts | {"step_seconds": 1.0, "data_wait_seconds": 0.0, "clips_per_second": 8.0}


def test_a_gradients_length_is_that_of_all_weights_together() -> None:
    method = Encoding()
    assert gradient_norm(method) is None  # type: ignore[arg-type]
    for weight in method.towers.parameters():
        weight.grad = torch.full_like(weight, 0.5)
    assert gradient_norm(method) == pytest.approx(0.5 * 8**0.5)  # type: ignore[arg-type]


def test_looks_at_weights_that_take_long_are_rarer(monkeypatch) -> None:
    clock = SimpleNamespace(now_s=lambda: 0.0, eval_s=0.0, commits_s=0.0)
    reader = SimpleNamespace(cached=0, decoded=0, wait_s={})
    vitals = Vitals(Encoding(), reader, clock, batch_size=4)  # type: ignore[arg-type]
    now, looks = [100.0], []
    monkeypatch.setattr("kinoray.execution.vitals.time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(method: Any) -> dict[str, float]:
        looks.append(now[0])
        now[0] += 0.5
        return {}

    monkeypatch.setattr("kinoray.execution.vitals.drift", slow)
    for at in (100.0, 111.0, 149.0, 151.0):
        now[0] = at
        vitals()
    assert looks == [100.0, 151.0], "half a second of fifty is a hundredth"


def test_gates_have_an_entropy_and_a_busiest_expert() -> None:
    even, alone = torch.full((3, 4), 0.25), torch.eye(4)[[1, 1, 1]]
    assert gate_values([even]) == pytest.approx({"router_entropy": np.log(4), "expert_load": 0.25})
    assert gate_values([even, alone]) == pytest.approx({"router_entropy": np.log(4) / 2, "expert_load": 0.625})
    assert gate_values([torch.eye(4)]) == pytest.approx({"router_entropy": 0.0, "expert_load": 0.25})
    assert gate_values([]) == {}


def test_the_gates_of_one_training_step_are_looked_at_and_queues_count_what_a_step_puts_in() -> None:
    method = Encoding()
    method.queue = Queue(12, 2)
    clock = SimpleNamespace(now_s=lambda: 0.0, eval_s=0.0, commits_s=0.0)
    reader = SimpleNamespace(cached=0, decoded=0, wait_s={})
    vitals = Vitals(method, reader, clock, batch_size=4)  # type: ignore[arg-type]

    def step(sends: bool = False) -> dict[str, Any]:
        """As in a run: a step's numbers are sent before it is counted."""
        top_k_gates(torch.zeros(4, 3), k=3)
        method.queue.enqueue(torch.ones(4, 2))
        looked = vitals() if sends else {}
        vitals.step_made()
        return looked

    assert step(sends=True)["queue_age"] == {} and Gates.seen_by is not None
    with torch.no_grad():
        top_k_gates(torch.zeros(4, 3), k=1)  # of a test
    step()
    assert Gates.seen_by is None, "one step is enough"
    looked = step(sends=True)
    assert looked["queue_age"] == {"queue": 3.0}
    assert looked["router_entropy"] == pytest.approx(np.log(3)) and looked["expert_load"] == pytest.approx(1 / 3)
    assert step(sends=True)["router_entropy"] == looked["router_entropy"]


SERVED = """
from kinoray.execution.run_monitor import RunMonitor
from kinoray.system.actors import call, start_actor

monitor = start_actor(RunMonitor, "monitor-of-metrics", sys.argv[1], True)
call(monitor, "log", [{"task": 0, "step": 7, "loss": 2.5}], {"drift": {"average": 0.25}})
print("logged", flush=True)
sys.stdin.readline()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_rays_agent_serves_them_under_the_names_of_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "served" / "seed-0"
    folder.mkdir(parents=True)
    with metrics_driver(SERVED, str(folder)) as driver:
        assert driver.hear() == "logged"
        served = wait_until(
            lambda: lines if "ray_kinoray_drift" in (lines := served_at(driver.address)) else {}, every_s=0.5
        )
        assert served["ray_kinoray_loss"].endswith(" 2.5") and 'momentum="average"' in served["ray_kinoray_drift"]
        driver.go_on()


def served_at(address: str) -> dict[str, str]:
    """The lines of the run above, by metric."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.split("{")[0]: line for line in lines if 'run="served/seed-0"' in line}
