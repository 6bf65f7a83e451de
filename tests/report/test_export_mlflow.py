"""Finished runs copied into an MLflow store in an SQLite file, read back through MLflow's own client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.run_folders import TASKS, make_run

from kinoray.disk.durable import write_json
from kinoray.errors import UsageError
from kinoray.report.export_mlflow import export_mlflow
from kinoray.runs.result import Result
from kinoray.sweeps.study import open_study
from kinoray.tracking.exported import scores_of

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own


@pytest.fixture
def uri(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/m.db"


def logged(uri: str, experiment: str = "moving-cvlm") -> list[Any]:
    """All runs that MLflow has."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    home = client.get_experiment_by_name(experiment)
    return client.search_runs([home.experiment_id]) if home else []


def test_a_run_arrives_with_settings_matrices_files_and_digests(tmp_path, uri: str) -> None:
    folder = make_run(tmp_path / "runs", "bmu_moco", seed=3)
    (done,) = export_mlflow([folder], uri)
    (run,) = logged(uri)
    assert (done.mlflow_run, done.new) == (run.info.run_id, True)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "bmu_moco-moving-cvlm-0a1b2c3d/seed-3"
    assert {"temperature": "0.07", "epochs": "2", "method": "bmu_moco", "seed": "3"}.items() <= run.data.params.items()
    assert run.data.tags["kinoray.state_digest"] == "d" * 64
    assert run.data.tags["kinoray.digest.code"] == "c" * 64
    result = Result(folder)
    client = mlflow.MlflowClient(tracking_uri=uri)
    for t, task in enumerate(TASKS):
        history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, f"R1/{task}")}
        assert history == {i + 1: result.matrix.iloc[i, t] for i in range(t, 5)}
    assert run.data.metrics["HM"] == result.metrics["HM"]
    assert run.data.metrics["MedR"] == result.metrics["MedR"]
    assert {m.step for m in client.get_metric_history(run.info.run_id, "HM")} == {1, 2, 3, 4, 5}
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"matrix.parquet", "matrix.csv", "run.json", "result.json"} <= files
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(tmp_path), "files lie beside the store"


def test_headlines_after_each_task_are_those_of_a_run_that_ended_there(tmp_path) -> None:
    result = Result(make_run(tmp_path))
    told = {(name, step): value for name, value, step in scores_of(result)}
    matrix = result.matrix.to_numpy()
    assert told["R@1", 2] == pytest.approx(matrix[1, :2].mean())
    assert told["FR", 2] == pytest.approx(matrix[0, 0] - matrix[1, 0])
    assert told["cost/train_s", 5] == 60.0


def test_the_same_run_twice_is_one_run_and_another_result_is_another(tmp_path, uri: str) -> None:
    folder = make_run(tmp_path / "runs")
    first = export_mlflow([folder, folder], uri)
    assert [exported.new for exported in first] == [True, False]
    assert [exported.new for exported in export_mlflow([folder.parent], uri)] == [False]
    assert len(logged(uri)) == 1
    outcome = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", outcome | {"state_digest": "e" * 64})
    assert export_mlflow([folder], uri)[0].new
    assert len(logged(uri)) == 2


def test_a_copy_that_was_cut_short_is_made_again(tmp_path, uri: str, monkeypatch) -> None:
    folder = make_run(tmp_path / "runs")
    with monkeypatch.context() as patch:
        patch.setattr("kinoray.report.export_mlflow.log_numbers", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_mlflow([folder], uri)
    assert export_mlflow([folder], uri)[0].new
    (run,) = logged(uri)
    assert run.info.status == "FINISHED"
    assert "HM" in run.data.metrics


def test_a_sweeps_complete_trials_arrive_with_their_numbers(tmp_path, uri: str) -> None:
    runs = tmp_path / "runs"
    record = {"name": "s", "method": "bmu_moco", "stream": "moving-cvlm", "protocol": "cvlm"}
    record |= {"objectives": ["HM"], "storage": None}
    (runs / "s").mkdir(parents=True)
    write_json(runs / "s" / "sweep.json", record)
    study, _ = open_study(runs / "s", record, create=True)
    for number in range(3):
        trial = study.ask()
        seeds = [make_run(runs, "bmu_moco", seed, overrides={"m": number}) for seed in (0, 1)]
        trial.set_user_attr("folders", [str(folder) for folder in seeds])
        study.tell(trial, float(number)) if number else study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    export_mlflow([runs / "s"], uri)
    assert sorted(run.data.tags["kinoray.sweep.s"] for run in logged(uri)) == ["1", "1", "2", "2"]
    alone = export_mlflow([runs / "bmu_moco-1-moving-cvlm-0a1b2c3d"], uri)
    assert [exported.new for exported in alone] == [False, False]


def test_the_command_and_its_mistakes(kino: Callable[..., Any], tmp_path, uri: str, monkeypatch) -> None:
    folder = make_run(tmp_path / "runs")
    code, out, _ = kino("export", "mlflow", folder.parent.name, "--to", uri, "--runs", tmp_path / "runs", "--json")
    assert code == 0
    assert [row["new"] for row in json.loads(out)["runs"]] == [True]
    stopped = make_run(tmp_path / "runs", "moco", state="stopped")
    for words, message in (
        ([stopped, "--to", uri], "is stopped, and only finished"),
        ([tmp_path, "--to", uri], "is no run"),
        ([folder, "--to", "ftp://host/x"], "MLflow at ftp://host/x"),
        ([folder, "--to", "sqlite:////proc/m.db"], "MLflow at sqlite"),
    ):
        code, out, err = kino("export", "mlflow", *words)
        assert (code, out) == (2, ""), err
        assert message in err and len(err.splitlines()) == 1, err
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"pip install 'kinoray\[mlflow\]'"):
        export_mlflow([folder], uri)
