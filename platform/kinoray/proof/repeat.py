"""Train a run again in this process, in a folder of its own: from its beginning, or from a commit between stages."""

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import torch

from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import compute_repeatably, settings_kept
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import alone, describe_ranks
from kinoray.training.checkpoint import Checkpoint
from kinoray.training.loop import RunState, train_stream


def stages_again(
    run: Resolved,
    threads: int,
    folder: Path,
    start: Callable[[Path], Checkpoint | None] = lambda folder: None,
) -> Generator[tuple[int, RankSession, RunState], None, None]:
    """Train the stages of a run; yields after each, committed, how many are done.

    threads: of the run's first start. folder: where all is written. start: the commit to go on from, made in the run's
    folder there.
    """
    run = replace(run, folder=folder / run.folder.parent.name / run.folder.name)
    run.folder.mkdir(parents=True)
    spec = describe_ranks(run, threads, 0, torch.cuda.is_available())
    with settings_kept():
        compute_repeatably(spec, alone(spec))
        session = RankSession(spec, alone(spec), RunMonitor(spec.folder), None)
        commit = start(run.folder)
        state = session.restore(commit) if commit is not None else RunState()
        for done in train_stream(session.method, spec.stages, session.recipe, session, state):
            yield done, session, state
