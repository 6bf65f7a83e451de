"""A sweep's folder, read: Optuna's figures of its study, its page, and the line that shows it in optuna-dashboard."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
import optuna
import psutil
import pytest
from optuna.trial import TrialState
from support.places import REPOSITORY
from support.ray_head import free_ports
from support.sockets import listening
from support.waiting import wait_until

from kinoray.errors import UsageError
from kinoray.report import page
from kinoray.report.page import write_report
from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.study import open_study
from kinoray.sweeps.sweep import study_in_browser, sweep
from kinoray.system.durable import write_json


def make_sweep(root: Path, trials: int = 7) -> Path:
    """The folder of a sweep whose trials are made up: two of them pruned, the last one running."""
    folder = root / "made-up"
    folder.mkdir(parents=True)
    space = {"m": {"low": 0.9, "high": 1.0}, "variant": {"choices": ["local", "full"]}}
    record = {"name": "made-up", "method": "bmu_moco", "stream": "x", "protocol": "cvlm", "objectives": ["HM"],
              "num_tasks": 3, "space": space, "storage": None, "sampler": "tpe"}  # fmt: skip
    write_json(folder / "sweep.json", record)
    study, _ = open_study(folder, record, create=True)
    for number in range(trials):
        trial = study.ask()
        m, variant = trial.suggest_float("m", 0.9, 1.0), trial.suggest_categorical("variant", ["local", "full"])
        value = 100 * m - 70 + (variant == "full")
        for task in (1, 2, 3):
            trial.report(value - 3 + task, task)
            if task == 1 and number in (3, 4):
                break
        trial.set_user_attr("metrics", {"HM": value, "wall_s": 20.0 + number})
        if number in (3, 4):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif number < trials - 1:
            study.tell(trial, value)
    return folder


@pytest.mark.parametrize(("objective", "better"), [("HM", max), ("step_s", min)])
def test_the_best_trial_is_the_best_of_the_complete_ones(tmp_path: Path, objective: str, better: Any) -> None:
    folder = make_sweep(tmp_path)
    values = {t.number: t.values[0] for t in SweepResult(folder).study.trials if t.state is TrialState.COMPLETE}
    record = json.loads((folder / "sweep.json").read_text())
    write_json(folder / "sweep.json", record | {"objectives": [objective]})
    best = SweepResult(folder).best
    assert best is not None and values[best.number] == better(values.values()) and len(set(values.values())) > 1


def test_figures_are_optunas_and_stand_on_the_page(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, 14)
    result, style = SweepResult(folder), dict(mpl.rcParams)
    titles = ["Optimisation history", "After each task", "Slices", "Parallel coordinates", "Importance"]
    assert list(result.figures()) == titles
    assert {axes.get_xlabel() for axes in result.plot().axes} >= {"m", "variant"}
    page = write_report(folder).read_text()
    assert page.count("<svg") == len(titles) and "Best: trial " in page
    for title in ("HM on the validation splits", *titles, "Trials", "What was searched"):
        assert f"<h2>{title}" in page, title
    assert dict(mpl.rcParams) == style, "Optuna's style is not the reader's"
    empty = SweepResult(make_sweep(tmp_path / "empty", 1))
    assert empty.figures() == {}
    with pytest.raises(UsageError, match="no complete trial yet"):
        empty.plot()


def test_the_report_does_not_tell_the_data_bases_password(tmp_path: Path) -> None:
    record = json.loads((make_sweep(tmp_path) / "sweep.json").read_text())
    shown = page.without_password(record | {"storage": "postgresql+psycopg://me:secret@host/db"})
    assert shown == record | {"storage": "postgresql+psycopg://me:***@host/db"}
    assert page.without_password(record) == record


def test_the_documented_line_shows_a_copy_of_the_study(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    make_sweep(tmp_path).rename(tmp_path / "SWEEP")
    documented = (REPOSITORY / "docs" / "sweeps.md").read_text()
    (line,) = [line for line in documented.splitlines() if line.startswith("cp SWEEP/")]
    assert line.split("  #")[0].strip() == study_in_browser(Path("SWEEP"))
    (port,) = free_ports(1)
    program = f"{Path(sys.executable).parent}/optuna-dashboard"
    command = line.split("  #")[0].strip().replace("&& optuna-dashboard", f"&& exec {program} --port {port}")
    with subprocess.Popen(
        command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:

            def studies() -> list[str]:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=30) as answer:
                        return [study["study_name"] for study in json.load(answer)["study_summaries"]]
                except OSError:
                    return []

            wait_until(lambda: studies() == ["made-up"], server)
            assert {address for address, _ in listening(psutil.Process(server.pid))} == {"127.0.0.1"}
        finally:
            server.terminate()


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_says_how_to_look_at_it(cluster, micro, tmp_path, capsys) -> None:
    swept = sweep("bmu_moco", stream=micro, trials=2, space="momenta", settings={"queue_size": 16}, runs=tmp_path,
                  name="s", sampler="random", prune=False)  # fmt: skip
    assert study_in_browser(swept.folder) in capsys.readouterr().err
