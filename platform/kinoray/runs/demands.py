"""What a run's method asks of the plan, which numbers of workers that divides over, and what the method grows by."""

from collections.abc import Sequence

from kinoray.data.manifest import read_manifest
from kinoray.data.memory import PROPORTION_ROWS
from kinoray.data.plan import rank_slice
from kinoray.errors import UsageError
from kinoray.method import Needs, TaskFacts
from kinoray.runs.resolve import Resolved
from kinoray.training.verbs import checked_needs


def needs_of(run: Resolved) -> Needs:
    """What the method asks of the plan."""
    cls = run.method.load()
    return checked_needs(cls.needs(cls.Config(**run.settings)))


def counts_tasks(run: Resolved) -> bool:
    """Whether the number of tasks can reach the state: the method states it, or its ring memory shares slots by it."""
    replay = needs_of(run).replay
    return run.method.load().uses_num_tasks or (replay is not None and replay.policy == "ring")


def check_division(run: Resolved, workers: int) -> None:
    """Refuse a run whose rows of a step, current or replayed, do not divide over its workers.

    Raises: UsageError with the nearest counts that do.
    """
    rank_slice(run.recipe.batch_size, 0, workers)
    needs = needs_of(run)
    if needs.reference is not None:
        rank_slice(needs.reference.rows or run.recipe.batch_size, 0, workers, "reference rows")
    replay = needs.replay
    if replay and replay.rows is not None:  # None: as many as the current rows
        rank_slice(replay.rows or PROPORTION_ROWS, 0, workers, "replayed rows")  # rows=0: a multiple of it


def default_workers(runs: Sequence[Resolved], gpus: int) -> int:
    """Workers where the user names no number: as many as there are GPUs, or the next fewer that the rows of a step
    divide over; without GPUs one."""
    for workers in range(gpus, 1, -1):
        try:
            for run in runs:
                check_division(run, workers)
        except UsageError:
            continue
        return workers
    return 1


def facts_of(run: Resolved) -> list[TaskFacts]:
    """What the method grows by in each task of the stream, as far as it is known before the run."""
    tasks = run.stream.tasks
    facts, known = [], set[str | None]()
    for index, (task, steps) in enumerate(zip(tasks, run.steps, strict=True)):
        manifest = read_manifest(task.manifest)
        labels = manifest.labels(manifest.samples("train")[0])
        classes = set(labels) - {None}
        facts.append(
            TaskFacts(
                index=index,
                name=task.name,
                num_tasks=max(len(tasks), run.recipe.planned_tasks),
                num_samples=len(labels),
                num_classes=len(classes),
                steps=steps,
                new_classes=len(classes - known),
            )
        )
        known |= classes
    return facts
