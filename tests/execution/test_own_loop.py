"""`kinoray.loop`: a loop of one's own makes the run that `run` makes, and either goes on with what the other left."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.toys import PerBlock

import kinoray
from kinoray.errors import Busy, KinorayError, RunFailed, UsageError
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.system.signals import Stopped
from kinoray.testing.small_stream import on_protocol

SHORT = {"max_steps": 4, "validations": 1}


def options(stream: Stream, runs: Path, **others: Any) -> dict[str, Any]:
    return {"stream": stream, "runs": runs, "settings": SHORT, "quiet": True, **others}


def run(method: Any, stream: Stream, runs: Path, **others: Any) -> Result:
    done = kinoray.run(method, num_workers=0, **options(stream, runs, **others))
    assert isinstance(done, Result)
    return done


def ended(method: Any, stream: Stream, runs: Path, **others: Any) -> tuple[Result, list[dict[str, float]]]:
    """A loop to its end, and what each test said."""
    with kinoray.loop(method, **options(stream, runs, **others)) as walk:
        scores = []
        for task in walk:
            task.train()
            scores.append(task.test())
    return walk.result, scores


def outcome(result: Result) -> tuple[Any, ...]:
    assert result.state == "finished" and result.outcome["state_digest"]
    return result.outcome["state_digest"], result.metrics, result.outcome["chain"]


@pytest.mark.parametrize(
    ("method", "protocol", "others"),
    [
        ("bmu_moco", "cvlm", {}),
        ("der:base_moco", "cvlm", {}),
        ("base_moco", "cvlm", {"joint": True}),
        ("base_moco", "cvlm", {"zero_shot": True}),
        (PerBlock, "ctvr", {}),
    ],
)
def test_it_is_the_run_of_run_bit_for_bit(method, protocol, others, micro, tmp_path: Path) -> None:
    stream = on_protocol(micro, protocol)
    whole = run(method, stream, tmp_path / "run", **others)
    walked, scores = ended(method, stream, tmp_path / "loop", **others)
    assert outcome(walked) == outcome(whole)
    assert list(scores[-1].values()) == pytest.approx(whole.matrix.to_numpy()[-1].tolist())
    assert [len(score) for score in scores] == ([1, 2] if not others else [2])
    with kinoray.loop(method, **options(stream, tmp_path / "loop", **others)) as again:
        assert len(again) == 0 and [*again] == [] and outcome(again.result) == outcome(whole)


@pytest.mark.parametrize(("method", "protocol"), [("base_moco", "cvlm"), (PerBlock, "ctvr")])
def test_a_test_before_training_says_scores_and_changes_nothing(method, protocol, micro, tmp_path: Path) -> None:
    stream = on_protocol(micro, protocol)
    untrained = run(method, stream, tmp_path / "untrained", zero_shot=True).matrix.to_numpy()[-1]
    with kinoray.loop(method, **options(stream, tmp_path / "loop")) as walk:
        for number, task in enumerate(walk):
            before = task.test()
            assert [*before] == walk.result.tasks[: number + 1] and not task.is_learned
            assert before == task.test() and (number or protocol == "ctvr" or before[task.name] == untrained[0])
            task.train()
            assert task.test() == task.test()
    assert outcome(walk.result) == outcome(run(method, stream, tmp_path / "run"))


def test_either_goes_on_with_what_the_other_left(micro, tmp_path: Path) -> None:
    whole = outcome(run("bmu_moco", micro, tmp_path / "whole"))
    with kinoray.loop("bmu_moco", **options(micro, tmp_path / "a")) as walk:
        for task in walk:
            task.train()
            break
    assert walk.result.state == "stopped"
    assert outcome(run("bmu_moco", micro, tmp_path / "a")) == whole
    with pytest.raises(ZeroDivisionError), kinoray.loop("bmu_moco", **options(micro, tmp_path / "b")) as walk:
        for task in walk:
            task.train()
            task.test()
            raise ZeroDivisionError
    assert walk.result.state == "stopped"
    with kinoray.loop("bmu_moco", **options(micro, tmp_path / "b")) as walk:
        assert len(walk) == 1
        for task in walk:
            task.train()
            task.test()
    assert outcome(walk.result) == whole


def test_what_was_learned_and_not_tested_is_not_learned_again(micro, tmp_path: Path) -> None:
    whole = outcome(run("base_moco", micro, tmp_path / "whole"))
    for begun in (False, True):
        with kinoray.loop("base_moco", **options(micro, tmp_path / "a")) as walk:
            task = next(iter(walk))
            assert task.is_learned == begun
            task.train()
    result, _ = ended("base_moco", micro, tmp_path / "a")
    assert outcome(result) == whole


def test_ctrl_c_commits_and_the_same_words_go_on(micro, tmp_path: Path) -> None:
    class Pressed(PerBlock):
        def after_step(self, carry, step) -> None:
            super().after_step(carry, step)
            if step.step == 1 and not (tmp_path / "pressed").exists():
                (tmp_path / "pressed").touch()
                os.kill(os.getpid(), signal.SIGINT)

    stream = on_protocol(micro, "ctvr")
    with pytest.raises(Stopped) as caught, kinoray.loop(Pressed, **options(stream, tmp_path / "a")) as walk:
        for task in walk:
            task.train()
    assert caught.value.exit_code == 130 and walk.result.state == "stopped"
    with kinoray.loop(Pressed, **options(stream, tmp_path / "a")) as walk:
        task = next(iter(walk))
        assert not task.is_learned and [*task.test()] == [task.name], "of a task that is begun, by what it has grown"
    result, _ = ended(Pressed, stream, tmp_path / "a")
    assert outcome(result) == outcome(run(Pressed, stream, tmp_path / "whole"))


def test_an_error_of_the_method_is_one_line_and_the_run_has_failed(micro, tmp_path: Path) -> None:
    class Broken(PerBlock):
        def loss(self, batch):
            raise ValueError("no such loss")

    stream = on_protocol(micro, "ctvr")
    with (
        pytest.raises(RunFailed, match="ValueError: no such loss"),
        kinoray.loop(Broken, **options(stream, tmp_path)) as w,
    ):
        next(iter(w)).train()
    assert w.result.state == "failed"


def test_wrong_walks_are_one_clear_error(micro, tmp_path: Path) -> None:
    with kinoray.loop("base_moco", **options(micro, tmp_path)) as walk:
        task = next(iter(walk))
        task.train()
        with pytest.raises(UsageError, match="learned already: call train\\(\\) only once per task"):
            task.train()
        with pytest.raises(Busy), kinoray.loop("base_moco", **options(micro, tmp_path)):
            pass
        with pytest.raises(UsageError, match="must be learned and tested before the next task"):
            assert [*walk]
    for wrong, words in (({"seeds": 2}, "`seed`"), ({"num_workers": 1}, "in this process")):
        with pytest.raises(KinorayError, match=words), kinoray.loop("base_moco", **options(micro, tmp_path, **wrong)):
            pass
