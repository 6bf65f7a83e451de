"""The video feature store of a run: an actor while the run is on, its files at any time.

Both answer alike, from what is committed. torch is imported with the first question: a run that nobody asks starts the
actor without it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.errors import UsageError
from kinoray.execution.run_monitor import Gauges
from kinoray.runs.finding import load, run_folder
from kinoray.runs.reopen import label_of
from kinoray.runs.result import Result, Results
from kinoray.system.actors import NAMESPACE, actor_name, connected_ray
from kinoray.system.folders import seed_label
from kinoray.system.pool import usable_cores

if TYPE_CHECKING:
    from torch import Tensor

    from kinoray.evaluation.feature_files import Block
    from kinoray.evaluation.gallery import BlockFacts, FeatureStore, Hits, Queries
    from kinoray.metrics import Ranks


class LiveFeatureStore:
    """A `FeatureStore` that asks the actor of a run in progress, and the files once that has ended."""

    def __init__(self, actor: Any, folder: Path) -> None:
        self.actor, self.folder = actor, folder

    @property
    def blocks(self) -> "list[BlockFacts]":
        """As of `FeatureStore`."""
        return self._ask("blocks")

    def block(self, task: int, split: str = "test") -> "Block":
        """As of `FeatureStore`; the features travel here."""
        return self._ask("block", task, split)

    def search(self, queries: "Queries", k: int = 10, split: str = "test") -> "Hits":
        """As of `FeatureStore`."""
        return self._ask("search", queries, k, split)

    def ranks(self, queries: "Queries", tasks: Sequence[int], ids: Sequence[str], split: str = "test") -> "Ranks":
        """As of `FeatureStore`."""
        return self._ask("ranks", queries, tasks, ids, split)

    def rows(self, split: str, start: int, count: int, before_task: int) -> "Tensor":
        """As of `FeatureStore`."""
        return self._ask("rows", split, start, count, before_task)

    def _ask(self, verb: str, *arguments: Any) -> Any:
        if (ray := connected_ray()) is not None:
            try:
                return ray.get(self.actor.ask.remote(verb, *arguments))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayActorError:
                pass
        return answer_of(committed_features(self.folder), verb, arguments)


def feature_store(run: str | Path | Result) -> "FeatureStore | LiveFeatureStore":
    """The video feature store of a run: what is committed so far, to search in.

    A run in progress in the Ray that this program is connected to is asked through its actor, and answers with every
    block from its commit on; else the run's files are read, as they are now.

    Args:
        run: Folder, name or `Result`, of one seed.

    Raises:
        UsageError: The run has several seeds, or has committed no features.
    """
    return live_or_committed(one_seed(run))


def live_or_committed(run: Result, facts: Mapping[str, Any] | None = None) -> "FeatureStore | LiveFeatureStore":
    """As `feature_store`; facts: what the run's newest checkpoint names, where it was read already."""
    actor = live_actor("store", run)
    return LiveFeatureStore(actor, run.folder) if actor is not None else committed_features(run.folder, facts)


def one_seed(run: str | Path | Result) -> Result:
    """A run by folder, name or itself. Raises: UsageError where it has several seeds."""
    result = run if isinstance(run, Result) else load(run_folder(str(run)))
    if isinstance(result, Results):
        folders = ", ".join(seed.folder.name for seed in result)
        raise UsageError(f"{run} has several seeds: name the folder of one of them ({folders}).")
    return result


def committed_features(folder: Path, facts: Mapping[str, Any] | None = None) -> "FeatureStore":
    """The features of a run and seed's folder. facts: what its checkpoint names; by default of the newest one.

    Raises: UsageError where nothing is committed; CheckpointCorrupt where a file is missing or another one.
    """
    from kinoray.evaluation.gallery import FeatureStore
    from kinoray.training.checkpoint import newest

    if facts is None:
        checkpoint = newest(folder / "checkpoints", say=logging.getLogger(__name__).warning)
        facts = checkpoint.state["tested"]["features"] if checkpoint else {}
    if not facts:
        raise UsageError(
            f"{label_of(Result(folder))} has no features yet. They appear when a task has been tested, and where every "
            "task has its own gallery, when the last one has."
        )
    return FeatureStore(folder / "features", Result(folder).tasks, facts)


def answer_of(store: "FeatureStore", verb: str, arguments: Sequence[Any]) -> Any:
    """Call a method, or get a property, of a store."""
    answer = getattr(store, verb)
    return answer(*arguments) if callable(answer) else answer


def live_actor(kind: str, run: Result) -> Any:
    """An actor of a run in the Ray that this program is connected to, None where there is none."""
    if (ray := connected_ray()) is None:
        return None
    try:
        return ray.get_actor(actor_name(kind, label_of(run), run.folder), namespace=NAMESPACE)
    except ValueError:
        return None


class FeatureActor:
    """Serves a run's committed features. A restarted one reads the newest checkpoint; the files hold all else."""

    def __init__(self, folder: str) -> None:
        """folder: of the run and seed."""
        self.folder = Path(folder)
        self.position: tuple[int, ...] = ()
        self.facts: Mapping[str, Any] | None = None
        self.store: FeatureStore | None = None
        self.gauges = Gauges("run", seed_label(self.folder))

    def publish(self, position: tuple[int, ...], facts: Mapping[str, Any]) -> bool:
        """Take what a checkpoint names as it is committed; False if the newest is as new (a repeated call)."""
        if self.position and position <= self.position:
            return False
        if facts != self.facts:
            self.facts, self.store = facts, None
            files = [self.folder / "features" / fact["file"] for fact in facts.values()]
            self.gauges.set({"store_bytes": sum(file.stat().st_size for file in files if file.is_file())})
        self.position = position
        return True

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Call a method, or get a property, of the store as committed."""
        if self.store is None:
            import torch

            # An actor of zero CPUs gets one thread from Ray; a question is short and may use the machine.
            torch.set_num_threads(usable_cores())
            self.store = committed_features(self.folder, self.facts)
        begun = time.perf_counter()
        answer = answer_of(self.store, verb, arguments)
        self.gauges.set({"search_seconds": time.perf_counter() - begun})
        return answer
