"""The forgetting curve inside a task: what it tests, and that the run does not know of it."""

from dataclasses import replace
from pathlib import Path

import pytest

import kinoray
from kinoray.errors import UsageError
from kinoray.execution.live_curve import Curve
from kinoray.monitoring.run_monitor import RunMonitor
from kinoray.runs.result import Result
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
    found = Curve(spec, note=lambda text: None).scores((1, 0), weights)
    assert run_spec(spec)
    result = kinoray.load(Path(spec.folder))
    measured = result.outcome["validation_matrix"]["R@1"][0][0]
    assert found == {"0": pytest.approx(measured, abs=1e-3)}


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


def test_it_needs_a_process_beside_the_training() -> None:
    with pytest.raises(UsageError, match="a process beside the training"):
        kinoray.dry_run("base_moco", watch=5, num_workers=0)


@pytest.mark.ray
@pytest.mark.slow
def test_a_watched_run_ends_the_same(cluster: None, micro: Stream, tmp_path: Path) -> None:
    longer = replace(micro, recipe=replace(micro.recipe, epochs=8))
    options = {"stream": longer, "settings": {"queue_size": 16, "max_steps": 40}, "quiet": True}
    plain = kinoray.run("base_moco", runs=tmp_path / "plain", num_workers=0, **options)
    watched = kinoray.run("base_moco", runs=tmp_path / "watched", watch=1, **options)
    assert plain.outcome["state_digest"] == watched.outcome["state_digest"]
    assert not len(plain.watched)
    frame = watched.watched
    assert len(frame) and (frame["earlier"] < frame["task"]).all() and frame["score"].between(0, 100).all()
