"""A real Prometheus with our rules beside a real run and sweep: what panels and alerts ask for is there."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.metrics_driver import metrics_driver
from support.patient import patient
from support.places import REPOSITORY

PROGRAM = shutil.which("prometheus") or ""
MONITORING = REPOSITORY / "cluster" / "monitoring"
BOARD = json.loads((MONITORING / "grafana-kinoray.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
DRIVER = """
import threading, time
from contextlib import suppress
from pathlib import Path
from kinoray.testing.small_stream import small_stream, suited


def ask_its_store(folder, answers):  # while the run is on, once it was watched; for as long as Prometheus looks twice
    while len(answers) < 10:
        time.sleep(0.3)
        with suppress(ValueError, kinoray.errors.KinorayError):
            (run,) = folder.glob("waits*/seed-0")
            store = kinoray.feature_store(run)
            if isinstance(store, kinoray.execution.feature_store.LiveFeatureStore) and len(kinoray.load(run).watched):
                answers.append(store.search(store.block(0).features[:1], 1))
    (folder / "asked").touch()


folder = Path(sys.argv[1])
stream = small_stream(folder / "videos")
sys.stdin.readline()
kinoray.run("bmu_moco", stream=stream, runs=folder, num_workers=1, quiet=True)
kinoray.sweep("bmu_moco", stream=stream, space="momenta", settings={"queue_size": 16}, trials=2, sampler="random",
              name="s", runs=folder, quiet=True)
mixtures = suited("frame_fusion_moe", stream)
answers = []
threading.Thread(target=ask_its_store, args=(folder, answers), daemon=True).start()
kinoray.run(sys.argv[2], stream=mixtures, runs=folder, num_workers=1, watch=1, quiet=True)
assert answers
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with the project's configuration, which asks a target every second; its address."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "targets.json").write_text(json.dumps([{"labels": {"job": "ray"}, "targets": [target]}]))
    config["scrape_configs"][0]["file_sd_configs"] = [{"files": [str(folder / "targets.json")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    words = [PROGRAM, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"]  # fmt: skip
    with (folder / "log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as server:
        try:
            yield f"http://{address}"
        finally:
            server.terminate()


def ask(address: str, path: str, **words: str | float) -> Any:
    with urllib.request.urlopen(f"{address}/api/v1/{path}?{urllib.parse.urlencode(words)}", timeout=30) as answer:
        return json.load(answer)["data"]


def asked() -> dict[str, str]:
    """What is asked for, by name: each panel's queries, and of the alerts, which are silent, the metrics in them."""
    panels = {target["expr"]: target["expr"] for panel in BOARD["panels"] for target in panel["targets"]}
    alerts = {metric: metric for rule in RULES for metric in re.findall(r"ray_kinoray_\w+", rule["expr"])}
    return {name: re.sub(r'=~"\$\w+"', '=~".+"', expression) for name, expression in (panels | alerts).items()}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM, reason="prometheus is not on this machine")
def test_every_panel_and_alert_has_data_of_a_run_and_a_sweep(tmp_path: Path) -> None:
    begun = time.time()
    waits = patient("frame_fusion_moe", tmp_path / "waits.py", tmp_path, "asked")
    with metrics_driver(DRIVER, str(tmp_path), waits) as driver, prometheus(tmp_path, driver.address) as address:
        driver.go_on()
        assert driver.hear() == "done"
        missing, end = set(asked()), time.monotonic() + 120  # the last numbers are on their way
        while missing and time.monotonic() < end:
            span = {"start": begun, "end": time.time(), "step": 1}
            expressions = {name: asked()[name] for name in missing}
            missing -= {
                n for n, expr in expressions.items() if ask(address, "query_range", query=expr, **span)["result"]
            }
        assert not missing
        (group,) = ask(address, "rules")["groups"]
        assert {rule["name"]: rule["health"] for rule in group["rules"]} == {r["alert"]: "ok" for r in RULES}
        driver.go_on()
