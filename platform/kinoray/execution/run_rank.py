"""One rank of a run, from its newest commit to the end of the stream.

The same code serves a `TorchTrainer` worker and the driver itself (`num_workers=0`); only the decoding differs.
"""

import errno
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import deterministic

from kinoray.config import Recipe
from kinoray.errors import RunFailed
from kinoray.execution.beginnings import hand_on
from kinoray.execution.commits import Stores
from kinoray.execution.equal_flops import count_steps
from kinoray.execution.rank_session import RankSession
from kinoray.runs.run_spec import RunSpec
from kinoray.system.durable import storage_error
from kinoray.system.pool import usable_cores
from kinoray.training.distributed import World
from kinoray.training.loop import RunState, train_stream


@contextmanager
def settings_kept() -> Iterator[None]:
    """Give this process torch's settings back at the end, which a run changes."""
    threads, repeats = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    filling: bool = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
        if torch.are_deterministic_algorithms_enabled() != repeats:  # the call imports torch's compiler
            torch.use_deterministic_algorithms(repeats)


def compute_repeatably(spec: RunSpec, world: World) -> None:
    """Let torch give the same bits every time: with the run's threads and, on a GPU, by kernels that repeat.

    For these cuBLAS also needs the variable that `import kinoray` sets: torch looks once, at its first product. The
    recipe may say that a GPU may use any kernels (`Recipe.repeatable`).
    """
    torch.set_num_threads(min(spec.threads, usable_cores()))  # of this machine, which may not be the driver's
    if world.device.type == "cuda":
        repeats = spec.run.recipe.repeatable
        torch.backends.cudnn.benchmark = not repeats
        # With warn_only the backward pass of memory-efficient attention would not be deterministic.
        torch.use_deterministic_algorithms(repeats)
        # Filling memory with NaN, before kernels write it, would be a tenth of a step's bytes.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def run_rank(spec: RunSpec, world: World, monitor: Any, stores: Stores | None) -> bool:
    """Run or resume one rank to the end of the stream; False when stopped early with everything committed."""
    stages = stage_by_stage(spec, world, monitor, stores)
    while True:
        try:
            done = next(stages)
            if world.is_first:
                hand_on(spec, done)
        except StopIteration as last:
            return last.value


def stage_by_stage(spec: RunSpec, world: World, monitor: Any, stores: Stores | None) -> Generator[int, None, bool]:
    """As `run_rank`, pausing after each stage that is learned, tested and committed; yields the number of stages done.

    The first pause comes at once where stages were done before. A sweep lets the seeds of a trial advance in turns, and
    may leave them here for good; the run's clock stands still meanwhile.
    """
    compute_repeatably(spec, world)
    with resources_named(spec):
        begun = begin(spec, world, monitor, stores)
        if begun is None:
            return False
        session, state = begun
        if state.position.stage:
            yield from session.clock.pause(state.position.stage)
        stages = train_stream(session.method, spec.stages, session.recipe, session, state)
        try:
            while True:
                yield from session.clock.pause(next(stages))
        except StopIteration as last:
            finished = last.value
        end(session, state, finished)
    return finished


def begin(spec: RunSpec, world: World, monitor: Any, stores: Stores | None) -> tuple[RankSession, RunState] | None:
    """The session of a run and where it stands; None when stopped while its steps were counted."""
    if not count_steps(spec, world, monitor):
        return None
    session = RankSession(spec, world, monitor, stores)
    state = session.resume()
    session.write(state, "running")
    session.clock.start_s = session.clock.now_s()
    return session, state


def end(session: RankSession, state: RunState, finished: bool) -> None:
    """Write what `Result` reads of a run that ends here; of a finished one the last commit stays alone."""
    session.client.flush()
    session.write(state, "finished" if finished else "stopped")
    if finished:
        session.commits.keep_last(state.position)


@contextmanager
def resources_named(spec: RunSpec) -> Iterator[None]:
    """Within the block a disk that takes no more is one line that names the run's folder, and a GPU's memory that is
    full one that says what takes less. Raises: StorageFull, RunFailed."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunFailed(gpu_full(spec.run.recipe)) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise storage_error(error, Path(spec.folder)) from None


def gpu_full(recipe: Recipe) -> str:
    """What a step that does not fit says: the switches that are not on yet, those that change no number first."""
    switches = [] if recipe.checkpoint_activations else ["--set checkpoint_activations=true (the same gradients)"]
    switches += ["more GPUs by --num-workers (the same batches)"]
    if recipe.precision == "float32":
        switches += ["--set precision=bfloat16"]
    return (
        f"The GPU's memory is too small for a step of {recipe.batch_size} rows of {recipe.frames} frames at "
        f"{recipe.size_px} px. What was committed stands. Less takes: {', '.join(switches)}, or a smaller "
        "--set batch_size=..., frames=... or size_px=..."
    )
