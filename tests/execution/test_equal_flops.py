"""`--equal-flops`: as many operations as another method takes, counted once and kept, or refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from support.places import REPOSITORY
from support.ranks import train_two
from support.toys import Replays

import kinoray
from kinoray.errors import UsageError
from kinoray.execution.equal_flops import count_steps, equal_steps
from kinoray.execution.run_rank import run_rank
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import EQUAL_FLOPS_FILE, read_counted, resolve
from kinoray.runs.result import Result, command_of
from kinoray.runs.run_spec import alone
from kinoray.streams import Stream
from kinoray.testing.engine import StopAfter, digest_of_run, run_spec, spec_of, stopped
from kinoray.testing.small_stream import on_protocol, suited


def finished(method: Any, stream: Stream, folder: Path, **options: Any) -> Result:
    spec = spec_of(method, stream, folder, **options)
    assert run_spec(spec)
    return Result(spec.folder)


def flops_of(run: Result) -> dict[str, float]:
    """Of all steps of each task."""
    made = run.losses.dropna(subset=["loss"]).groupby("task").size()
    return {task: made[number] * run.cost[f"step_flops/{task}"] for number, task in enumerate(run.tasks)}


def test_the_nearest_number_of_steps_is_made() -> None:
    assert equal_steps([100, 100, 3], [2, 3, 9], [3, 2, 1]) == [150, 67, 1]


def test_a_methods_own_budget_changes_nothing(micro: Stream, tmp_path: Path) -> None:
    plain = finished("bmu_moco", micro, tmp_path)
    own = finished("bmu_moco", micro, tmp_path, equal_flops="bmu_moco")
    assert own.folder.parent != plain.folder.parent and "flops-of-bmu_moco" in own.folder.parent.name
    assert own.outcome["state_digest"] == plain.outcome["state_digest"]
    rates = [list(run.losses["learning_rate"].dropna()) for run in (own, plain)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("method", ["base_moco", "lwf", "bmu_moco"])
def test_rows_of_a_budget_take_as_much(method: str, micro: Stream, tmp_path: Path) -> None:
    """Each task, within one step: memories, teachers and averages are counted where they are there."""
    budget = flops_of(finished("er_ring", micro, tmp_path))
    run = finished(method, micro, tmp_path, equal_flops="er_ring")
    for task, flops in flops_of(run).items():
        assert abs(flops - budget[task]) <= run.cost[f"step_flops/{task}"]
    assert run.cost["flops"] == sum(flops_of(run).values())
    assert run.label == f"{method} (FLOPs of er_ring)" and not (run.folder / "copies").exists()


def test_a_stopped_and_resumed_run_ends_in_the_same_bits(micro: Stream, tmp_path: Path) -> None:
    whole = finished("base_moco", micro, tmp_path / "whole", equal_flops="er_ring")
    broken = spec_of("base_moco", micro, tmp_path / "broken", equal_flops="er_ring")
    assert not run_rank(broken, alone(broken), StopAfter(broken.folder, 1), None), "stopped while it counts"
    assert not (Path(broken.folder) / EQUAL_FLOPS_FILE).exists()
    stopped(broken, 2)
    counted = (Path(broken.folder) / EQUAL_FLOPS_FILE).read_bytes()
    for looks in (5, 2):
        stopped(broken, looks)
    assert run_spec(broken) and (Path(broken.folder) / EQUAL_FLOPS_FILE).read_bytes() == counted
    assert digest_of_run(broken) == whole.outcome["state_digest"]
    assert broken.run.steps == [8, 8] == json.loads(counted)["steps"]


def test_schedules_follow_the_steps(micro: Stream, tmp_path: Path) -> None:
    """A cosine ends with the last step, and an epoch's milestone comes at the same share of the steps."""
    cosine = finished("base_moco", micro, tmp_path, equal_flops="er_ring").losses
    rates = cosine[cosine["task"] == 0]["learning_rate"].dropna().tolist()
    assert len(rates) == 8 and rates == sorted(rates, reverse=True) and rates[-1] < 0.05 * rates[0]
    by_epoch = {"schedule": "steps", "milestones": (1,), "max_steps": 0, "epochs": 2}
    steps = finished("base_moco", micro, tmp_path, settings=by_epoch, equal_flops="er_ring").losses
    rates = steps[steps["task"] == 0]["learning_rate"].dropna().tolist()
    assert len(rates) == 6 and rates == [rates[0]] * 4 + [pytest.approx(0.1 * rates[0])] * 2


def test_two_ranks_count_what_one_does(micro: Stream, tmp_path: Path) -> None:
    """Of a method that reads features of earlier tasks, too."""
    stream = suited("frame_fusion_moe", micro)
    one, two = (spec_of("avg_pool", stream, tmp_path / name, equal_flops="frame_fusion_moe") for name in ("1", "2"))
    assert count_steps(one, alone(one), StopAfter(one.folder, 99))
    mp.spawn(train_two, (str(tmp_path), [two]), nprocs=2)
    first, second = (read_counted(Path(spec.folder)) for spec in (one, two))
    assert first and second and Result(two.folder).state == "finished"
    assert second.step_flops == pytest.approx(first.step_flops, rel=0.02), "each pads its own captions"
    assert second.of_method == pytest.approx(first.of_method, rel=0.03)
    assert second.steps == pytest.approx(first.steps, abs=1)


def test_a_file_of_ones_own_can_set_the_budget(micro: Stream, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text((REPOSITORY / "methods" / "er_ring.py").read_text())
    run = finished("base_moco", micro, tmp_path, equal_flops=str(path))
    text = path.read_text()
    path.unlink()
    assert run.equal_flops == "mine" and (run.folder / "equal_flops.py").read_text() == text
    assert kinoray.open_method(run).spec.run.steps == [8, 8]
    assert command_of(run) == "", "it names a file"
    path.write_text(text + "# edited\n")
    assert resolve(RunRequest("base_moco", stream=micro, runs=tmp_path, equal_flops=path)).label != run.folder


def test_the_command_that_makes_it_again_names_the_budget(tmp_path: Path) -> None:
    settings = {"max_steps": 1, "validations": 0}
    run = kinoray.run("moco", stream="digits-5", equal_flops="simclr", runs=tmp_path, settings=settings,
                      num_workers=0, quiet=True)  # fmt: skip
    assert "--equal-flops simclr" in command_of(run)
    assert kinoray.run("moco", stream="digits-5", equal_flops="simclr", runs=tmp_path, settings=settings,
                       num_workers=0, quiet=True).outcome == run.outcome  # fmt: skip
    with pytest.raises(UsageError, match="were fixed at its start"):
        kinoray.extend(run, "digits-5/task-1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--joint"], "`equal_flops` sets steps per task, but `joint` does not train task by task"),
        (["--zero-shot"], "but `zero_shot` does not train task by task"),
        (["--control", "random-encoder"], "but `control random-encoder` does not train task by task"),
        (["--control", "order-blind"], "but `control order-blind` does not train task by task"),
    ],
)
def test_what_trains_no_tasks_is_refused(words: list[str], message: str, kino, tmp_path: Path) -> None:
    code, _, errors = kino("run", "base_moco", "--equal-flops", "bmu_moco", *words, "--runs", tmp_path, "--dry-run")
    assert code == 2 and message in errors and len(errors.strip().splitlines()) == 1


def test_other_methods_are_refused(micro: Stream, tmp_path: Path) -> None:
    pictures = on_protocol(replace(micro, backbone="tiny-cnn"), "cssl")
    for stream, method, message in (
        (micro, "bmu_mocko", "no method named 'bmu_mocko'. Did you mean 'bmu_moco'"),
        (pictures, "avg_pool", "avg_pool needs a stream tested by"),
        (micro, Replays, "is a class: give a name"),
    ):
        learner = "base_moco" if stream is micro else "simsiam"
        with pytest.raises(UsageError, match=message) as error:
            resolve(RunRequest(learner, stream=stream, runs=tmp_path, equal_flops=method))
        assert error.value.exit_code == 2
