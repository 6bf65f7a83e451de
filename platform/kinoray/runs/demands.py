"""What a run's method asks of the plan, and which numbers of workers that divides over."""

from kinoray.data.plan import rank_slice
from kinoray.method import Needs
from kinoray.runs.resolve import Resolved
from kinoray.training.verbs import checked_needs


def needs_of(run: Resolved) -> Needs:
    """What the method asks of the plan."""
    cls = run.method.load()
    return checked_needs(cls.needs(cls.Config(**run.settings)))


def check_division(run: Resolved, workers: int) -> None:
    """Refuse a run whose rows of a step, current or replayed, do not divide over its workers.

    Raises: UsageError with the nearest counts that do.
    """
    rank_slice(run.recipe.batch_size, 0, workers)
    replay = needs_of(run).replay
    if replay:
        rank_slice(replay.rows, 0, workers, "replayed rows")
