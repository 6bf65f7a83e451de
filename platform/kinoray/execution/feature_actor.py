"""The actor that answers for a run's features while it is on. It begins beside the ranks, so it imports what reads them
with the first question."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.disk.folders import seed_label
from kinoray.monitoring.gauges import Gauges
from kinoray.processes.cores import usable_cores

if TYPE_CHECKING:
    from kinoray.features.store import FeatureStore


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
        from kinoray.execution.feature_store import answer_of, committed_features

        if self.store is None:
            import torch

            # An actor of zero CPUs gets one thread from Ray; a question is short and may use the machine.
            torch.set_num_threads(usable_cores())
            self.store = committed_features(self.folder, self.facts)
        begun = time.perf_counter()
        answer = answer_of(self.store, verb, arguments)
        self.gauges.set({"search_seconds": time.perf_counter() - begun})
        return answer
