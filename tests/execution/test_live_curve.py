"""The forgetting curve inside a task: what it tests, and that the run does not know of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.patient import patient

import kinoray
from kinoray.errors import UsageError
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.workers import Curve, start_watcher
from kinoray.runs.result import Result
from kinoray.runs.run_spec import RunSpec
from kinoray.streams import Stream
from kinoray.testing.engine import resumed, run_spec, spec_of, stages_of

SETTINGS = {"max_steps": 4, "queue_size": 16, "validations": 0}


def test_it_scores_the_earlier_tasks_as_the_run_itself_would(micro: Stream, tmp_path: Path) -> None:
    """After the first task's last step its weights rank its validation split as the run did."""
    spec = spec_of("base_moco", micro, tmp_path, settings=SETTINGS)
    stages = stages_of(spec)
    next(stages)
    weights = {name: value.numpy() for name, value in resumed(spec).state_dict().items()}
    stages.close()
    scores = Curve(spec, note=lambda text: None).scores((1, 0), weights)
    assert run_spec(spec)
    result = kinoray.load(Path(spec.folder))
    measured = result.outcome["validation_matrix"]["R@1"][0][0]
    assert scores == {"0": pytest.approx(measured, abs=1e-3)}


def test_a_method_that_grows_grows_along(tmp_path: Path, micro: Stream) -> None:
    spec = spec_of("base_moco", micro, tmp_path, settings=SETTINGS)
    curve = Curve(spec, note=lambda text: None)
    weights = {name: value.numpy() for name, value in curve.method.state_dict().items()}
    assert set(curve.scores((1, 2), weights)) == {"0"} and curve.grown == 2
    assert curve.scores((0, 2), weights) == {} and curve.grown == 1


def test_a_resumed_run_drops_what_was_watched_after_its_checkpoint(micro: Stream, tmp_path: Path) -> None:
    folder = Path(spec_of("base_moco", micro, tmp_path, settings=SETTINGS).folder)
    monitor = RunMonitor(str(folder))
    for step in (2, 4, 6):
        monitor.log_watched({"task": 1, "step": step, "scores": {"0": 50.0 + step}})
    assert monitor.latest()["watched"] == {"0": 56.0}
    monitor.rewind(1, 4)
    assert Result(folder).watched["score"].tolist() == [52.0, 54.0]


@pytest.mark.parametrize(
    ("device", "free", "placed", "started"),
    [
        ("cpu", 0.0, True, [("cpu", 0.0)]),
        ("cuda", 2.0, True, [("cpu", 0.0)]),
        ("cuda", 3.0, True, [("cuda", 1.0)]),
        ("cuda", 3.0, False, [("cuda", 1.0), ("cpu", 0.0)]),
    ],
)
def test_it_takes_a_gpu_that_two_ranks_leave(
    micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device, free, placed, started
) -> None:
    spec = replace(spec_of("base_moco", micro, tmp_path, settings=SETTINGS), device=device, autocast=device == "cuda")
    actors: list[tuple[str, str, float]] = []
    killed = []

    def start(cls: type, name: str, spec: RunSpec, monitor: None, momentum: None, gpus: float = 0.0) -> Any:
        actors.append((spec.device, name, gpus))
        assert spec.autocast == (spec.device == "cuda") and spec.decode_slots == 0
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: "ready"))

    monkeypatch.setattr("kinoray.execution.workers.start_actor", start)
    monkeypatch.setattr("ray.available_resources", lambda: {"GPU": free})
    monkeypatch.setattr("ray.wait", lambda refs, timeout: (refs, []) if placed else ([], refs))
    monkeypatch.setattr("ray.kill", killed.append)
    assert start_watcher(spec, "watcher", None, None, gpus=2.0)
    assert [(device, gpus) for device, _, gpus in actors] == started
    assert len({name for _, name, _ in actors}) == len(actors) == len(killed) + 1


def test_it_needs_a_process_beside_the_training() -> None:
    with pytest.raises(UsageError, match="`watch` needs Ray"):
        kinoray.dry_run("base_moco", watch=5, num_workers=0)


@pytest.mark.ray
@pytest.mark.slow
def test_a_watched_run_ends_the_same(cluster: None, micro: Stream, tmp_path: Path) -> None:
    """The process beside has the lowest priority; the run waits for its first scores."""
    waits = patient("base_moco", tmp_path / "waits.py", tmp_path / "watched", "watched.jsonl")
    options = {"stream": micro, "settings": SETTINGS, "quiet": True}
    watched = kinoray.run(waits, runs=tmp_path / "watched", watch=1, **options)
    plain = kinoray.run(waits, runs=tmp_path / "plain", num_workers=0, **options)
    assert plain.outcome["state_digest"] == watched.outcome["state_digest"]
    assert not len(plain.watched)
    frame = watched.watched
    assert len(frame) and (frame["earlier"] < frame["task"]).all() and frame["score"].between(0, 100).all()
