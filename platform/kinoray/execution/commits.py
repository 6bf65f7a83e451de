"""A rank's hand on the run's checkpoints: when to commit, what goes into a checkpoint, what a resumed rank finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kinoray.errors import CheckpointCorrupt, RunFailed
from kinoray.evaluation.ranking import from_tensors, to_tensors
from kinoray.execution.vitals import Clock
from kinoray.method import BaseMethod
from kinoray.momentum import Momentum
from kinoray.runs.run_folder import lost_steps, words_of_lost
from kinoray.system.actors import call
from kinoray.training.checkpoint import (
    Checkpoint,
    GivenWeights,
    Phase,
    Position,
    commit,
    newest,
    not_finite,
    prune,
    take_fence,
)
from kinoray.training.distributed import World, gather_objects
from kinoray.training.loop import RunState

COMMIT_SHARE = 0.03
"""Share of the time that commits may take, waiting for the disk included."""
COMMIT_EVERY_S = 10.0


@dataclass(frozen=True)
class Stores:
    """A run's actors that hold what crosses tasks; they are told of commits."""

    momentum: Any
    features: Any
    watch_every: int = 0
    """Steps between weights for who watches; 0: nobody does."""


class Commits:
    """Commits as often as their measured cost allows; rank 0 writes, all ranks hold the same."""

    def __init__(self, run_folder: Path, world: World, clock: Clock, stores: Stores | None) -> None:
        self.folder, self.world, self.clock, self.stores = run_folder / "checkpoints", world, clock, stores
        self.log = run_folder / "metrics.jsonl"
        self.fence = take_fence(self.folder) if world.is_first else ""
        self.last_s = self.last_took_s = 0.0
        """When the last commit ended, and how long it took."""

    def newest(self, say: Callable[[str], None], steps: Sequence[int]) -> Checkpoint | None:
        """The newest whole checkpoint of the run that the log reaches.

        Args:
            say: Takes a line about what was passed over.
            steps: Of each stage of the run.

        Raises:
            CheckpointCorrupt: There are checkpoints, and none is such a one.
            RunFailed: The ranks see different ones.
        """
        check = partial(check_log, self.log, steps, say)
        checkpoint = newest(self.folder, say, check)
        positions = {position for position in gather_objects(checkpoint and checkpoint.position, self.world)}
        if len(positions) > 1:
            raise RunFailed(
                f"The workers see different checkpoints of {self.folder.parent}: give a folder that they share."
            )
        return checkpoint

    def due(self) -> bool:
        """Whether rank 0 should commit now."""
        pause_s = max(COMMIT_EVERY_S, self.last_took_s / COMMIT_SHARE)
        return self.world.is_first and self.clock.now_s() - self.last_s > pause_s

    def write(
        self,
        method: BaseMethod,
        given: GivenWeights,
        state: RunState,
        optimizer: dict[str, Tensor],
        facts: dict[str, Any],
        publish: bool,
    ) -> None:
        """Write the state durably, weights aside that are as they were given; publish what crosses tasks if asked.

        optimizer: its tensors by parameter name, {} where there are none; facts: plain data beside the state's own.
        Raises: RunFailed where a weight is not finite; nothing is written then.
        """
        began = self.clock.now_s()
        left_out = given.unchanged(method)
        weights = {name: value for name, value in method.state_dict().items() if name not in left_out}
        tensors: dict[str, dict[str, Tensor]] = {"method": weights}
        if broken := not_finite(weights):
            raise RunFailed(
                f"{len(broken)} weights are not finite, first {broken[0]}; this state was not committed. Try a smaller "
                "learning_rate."
            )
        for name, part in (("optimizer", optimizer), ("best", state.best)):
            if part:
                tensors[name] = part
        for name, cells in (("ranks", state.ranks), ("validation", state.validation)):
            if cells:
                tensors[name], tensors[f"{name}_among"] = to_tensors(cells)
        across = tensors_across_tasks(method, tensors["method"])
        own = {"best_score": state.best_score, "selections": state.selections}
        own |= {"published": list(across), "given": left_out, "step_flops": state.step_flops}
        commit(self.folder, state.position, tensors, own | facts, self.fence, self.log if self.log.exists() else None)
        if publish and self.stores is not None:
            call(self.stores.momentum, "publish", state.position.numbers, arrays_of(across))
            call(self.stores.features, "publish", state.position.numbers, facts["tested"]["features"])
        self.last_s = self.clock.now_s()
        self.last_took_s = self.last_s - began
        self.clock.commits_s += self.last_took_s

    def keep_last(self, position: Position) -> None:
        """Remove all commits but the one at the end of a run whose result is written: nothing reads the others."""
        if self.world.is_first:
            prune(self.folder, self.folder / position.name, keep=1)

    def rewind(self, position: Position) -> None:
        """Tell the momentum actor where the run goes on: what was shown after that will be made again."""
        if self.stores is not None:
            call(self.stores.momentum, "rewind", position.numbers)

    def show(self, method: BaseMethod, given: GivenWeights, position: Position) -> None:
        """Let the momentum actor have all weights for who watches, but those that stay as given. Does not wait."""
        assert self.stores is not None
        left_out = given.untouched()
        weights = {name: value for name, value in method.state_dict().items() if name not in left_out}
        across = tensors_across_tasks(method, weights)
        others = {name: value for name, value in weights.items() if name not in across}
        self.stores.momentum.publish.remote(position.numbers, arrays_of(across), arrays_of(others))


def check_log(log: Path, steps: Sequence[int], say: Callable[[str], None], checkpoint: Checkpoint) -> None:
    """Check that a run's log reaches a checkpoint: a disk may lose its end, or a copy be of another moment.

    Args:
        log: metrics.jsonl.
        steps: Of each stage of the run.
        say: Takes a line about lost steps before its end.
        checkpoint: Of the run.

    Raises:
        CheckpointCorrupt: The log ends before.
    """
    position = checkpoint.position
    made = [*steps[: position.stage + (position.phase != Phase.TRAIN)], position.step]
    last = max(((stage, count - 1) for stage, count in enumerate(made) if count), default=None)
    lost = lost_steps(log, made)
    if last in lost:
        raise CheckpointCorrupt(f"{checkpoint.folder.name} needs steps that {log} no longer has.")
    if lost:
        say(words_of_lost(log, lost))


def arrays_of(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors as arrays of the host."""
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}


def state_of(checkpoint: Checkpoint) -> RunState:
    """What a checkpoint holds beside the method's own tensors."""
    return RunState(
        position=checkpoint.position,
        optimizer=checkpoint.tensors("optimizer"),
        best=checkpoint.tensors("best"),
        best_score=checkpoint.state["best_score"],
        selections=checkpoint.state["selections"],
        ranks=from_tensors(checkpoint.tensors("ranks"), checkpoint.tensors("ranks_among")),
        validation=from_tensors(checkpoint.tensors("validation"), checkpoint.tensors("validation_among")),
        step_flops={int(stage): flops for stage, flops in checkpoint.state.get("step_flops", {}).items()},
    )


def tensors_across_tasks(method: BaseMethod, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What crosses tasks: the averages marked so, or the encoder where there are none."""
    across = [n for n, m in method.named_modules() if isinstance(m, Momentum) and m.across_tasks]
    if across:
        return {k: v for k, v in state.items() if k.startswith(tuple(f"{prefix}." for prefix in across))}
    own = {id(tensor) for tensor in method.encoder().state_dict(keep_vars=True).values()}
    names = {name for name, tensor in method.state_dict(keep_vars=True).items() if id(tensor) in own}
    return {k: v for k, v in state.items() if k in names}
