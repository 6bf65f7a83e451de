"""Runs that begin as others did: a state after some tasks is put into a new run's folder, which goes on from there.

So a finished run learns another task (`extend`), and so runs in several orders of the tasks learn what they have in
common at the start once: of five tasks' 120 orders, with 600 tasks to learn, 325 are left. Sorted by their tasks, each
run takes over from an earlier one that begins alike for longest (`in_turn`), which hands its state on when it gets
there (`hand_on`). A run that finds no state learns all by itself, with the same bits.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinoray.errors import CheckpointCorrupt
from kinoray.execution.commits import check_log
from kinoray.runs.record import open_run
from kinoray.runs.resolve import Resolved
from kinoray.runs.result import read_record
from kinoray.runs.run_spec import Heirs, RunSpec
from kinoray.streams.orders import own_tasks
from kinoray.system.durable import sha256, storage_error, whole_file, write_text
from kinoray.system.folders import home_of, own_file
from kinoray.training.checkpoint import Checkpoint, Position, commit, committed, has_state, take_fence, verified

FORMAT = 2


def in_turn(runs: Sequence[Resolved]) -> tuple[list[list[Resolved]], dict[Path, Heirs]]:
    """Unfinished runs in groups, and what each hands on: by its folder, after how many tasks to which runs.

    Runs of a group go one after the other, in the order given; groups do not need each other.
    """
    families: dict[tuple[Path, int], list[Resolved]] = {}
    for run in runs:
        families.setdefault((home_of(run.folder), run.seed), []).append(run)
    groups: list[list[Resolved]] = []
    heirs: dict[Path, Heirs] = {run.folder: () for run in runs}
    for family in families.values():
        family.sort(key=_places)
        group_of: list[list[Resolved]] = []
        begins: list[int] = []  # with how many tasks of another run
        for number, run in enumerate(family):
            depth, source = _longest(family[:number], begins, run)
            begins.append(depth)
            group_of.append(group_of[source] if depth else [])
            group_of[-1].append(run)
            if depth:
                giver = family[source].folder
                heirs[giver] = (*heirs[giver], (depth, run))
            else:
                groups.append(group_of[-1])
    return groups, heirs


def _places(run: Resolved) -> list[int]:
    """Where each task of a run stands in its stream's own order."""
    own = own_tasks(run.stream)
    return [own.index(task) for task in run.stream.tasks]


def _longest(earlier: Sequence[Resolved], begins: Sequence[int], run: Resolved) -> tuple[int, int]:
    """With how many tasks of which earlier run a run can begin, the first of several; (0, 0): with none."""
    best = (0, 0)
    if has_state(run.folder / "checkpoints"):
        return best
    for number, (other, from_other) in enumerate(zip(earlier, begins, strict=True)):
        for depth in range(_alike(other, run), best[0], -1):
            if _gets_to(other, from_other, depth):
                best = depth, number
                break
    return best


def _alike(run: Resolved, other: Resolved) -> int:
    """How many tasks two runs have in common at the start; none where tests look ahead to what comes later."""
    if run.looks_ahead:
        return 0
    pairs = zip(run.stream.tasks, other.stream.tasks, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(run.stream.tasks))


def _gets_to(run: Resolved, begins: int, depth: int) -> bool:
    """Whether a run will have, or still has, its state after so many tasks."""
    names, wanted = [path.name for path in committed(run.folder / "checkpoints")], Position(depth).name
    return names[-1] <= wanted or wanted in names if names else begins <= depth


def hand_on(spec: RunSpec, done: int) -> None:
    """Put the state after so many tasks into the folders of the runs that begin with it and have none. Raises:
    StorageFull."""
    waiting = [run for depth, run in spec.heirs if depth == done and not has_state(run.folder / "checkpoints")]
    if not waiting:
        return
    folder, record = spec.run.folder, read_record(spec.run.folder)
    try:
        last, features = state_after(folder, done, spec.run.steps, _nobody)
    except CheckpointCorrupt:  # of a run that is past it, or damaged: then they learn it themselves
        return
    origin = {"from": spec.run.label, "tasks": done}
    for run in waiting:
        begin(run, folder, last, features, record["threads"], record["num_workers"], origin, _nobody)


def _nobody(text: str) -> None:
    """Whoever resumes the run says it again."""


def state_after(
    folder: Path, tasks: int, steps: Sequence[int], say: Callable[[str], None]
) -> tuple[Checkpoint, list[Path]]:
    """A run's checkpoint after so many tasks, and the feature files that it names. Raises: CheckpointCorrupt.

    steps: of each task. say: as of `check_log`.
    """
    try:
        last = verified(folder / "checkpoints" / Position(tasks).name)
        check_log(folder / "metrics.jsonl", steps[:tasks], say, last)
        facts = list(last.state["tested"]["features"].values())
        features = [own_file(folder / "features", fact["file"]) for fact in facts]
        for file, fact in zip(features, facts, strict=True):
            if sha256(file) != fact["sha256"]:
                raise CheckpointCorrupt(f"{file.name} does not match its SHA-256.")
    except (CheckpointCorrupt, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(
            f"The last state in {folder} cannot be used: {error} Run that again with --fresh."
        ) from None
    return last, features


def begin(
    run: Resolved,
    old: Path,
    last: Checkpoint,
    features: Sequence[Path],
    threads: int,
    num_workers: int,
    origin: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Put a state into a new run's folder; whole, or the run has none. Returns the new run's record.

    Args:
        run: The new one.
        old: Folder of the run that the state is of.
        last, features: As `state_after` gives them.
        threads: Of the old run.
        num_workers: Of the new one.
        origin: What to note of where it comes from.
        say: Takes a line about what changed since.
    """
    (run.folder / "run.json").unlink(missing_ok=True)  # of a start that got nowhere, maybe with other threads
    record = open_run(run, threads, num_workers, say)
    try:
        write_text(run.folder / "extended.json", json.dumps({"format": FORMAT, **origin}, indent=1))
        (run.folder / "features").mkdir(exist_ok=True)
        for source in features:
            with whole_file(run.folder / "features" / source.name) as draft:
                shutil.copyfile(source, draft)
        for name in ("metrics.jsonl", "bad_samples.jsonl"):
            if (old / name).exists():
                write_text(run.folder / name, (old / name).read_text())
        checkpoints = run.folder / "checkpoints"
        tensors = {path.stem: last.tensors(path.stem) for path in sorted(last.folder.glob("*.safetensors"))}
        state = last.state | {"cost": _adopted(last.state["cost"], sum(run.steps[: last.position.stage]))}
        commit(checkpoints, last.position, tensors, state, take_fence(checkpoints))
    except OSError as error:
        raise storage_error(error, run.folder) from None
    return record


def _adopted(cost: Mapping[str, float], steps: float) -> dict[str, float]:
    """What a run cost, as it stands in the cost of the run that goes on from it, apart from its own.

    Args:
        cost: By the checkpoint that the new run begins with; maybe of a run that began with another's itself.
        steps: All optimizer steps so far.

    Returns:
        `adopted_s` seconds without starts, of which `adopted_train_s` are the `adopted_steps` optimizer steps.
    """
    return {
        "adopted_s": cost.get("adopted_s", 0.0) + cost["wall_s"] - cost["start_s"],
        "adopted_train_s": cost.get("adopted_train_s", 0.0) + cost["train_s"],
        "adopted_steps": steps,
    }
