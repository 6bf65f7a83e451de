"""What a trial waits for before it trains a prefix that another trains already."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kinoray.lineage import prefixes

LOOK_EVERY_S = 0.5
"""How often a waiting run looks for the prefix, its producer and the stop file."""
PREFIX_WAIT_S = 3600.0
"""How long a run waits for tasks that another run is learning."""


class Prefix:
    """A run's part in sharing: it begins where another run was, and publishes what it learns for those that agree.

    Of the runs that agree, one at a time learns a task: who holds its lease. It takes the next task's lease before it
    publishes, so that those who wait for this task do not begin the next one beside it.
    """

    def __init__(self, run_folder: Path, keys: Sequence[str]) -> None:
        """keys: of the state after 1, 2, ... tasks, as many as may be shared."""
        self.folder, self.keys = run_folder, keys
        self.leases: dict[int, ExitStack] = {}
        """Of tasks, numbered from 1."""

    def begin(self, stop_file: Path) -> None:
        """Adopt the longest prefix; where another run is learning the next task right now, wait for it.

        The trial keeps its CPUs while it waits: learning the task itself would keep them for longer. The wait ends when
        the task is there, when its producer ended, was killed or has not renewed its lease for a minute (then this run
        learns the task for all), where `stop_file` appears, after `PREFIX_WAIT_S` (then it learns beside the other).
        """
        if prefixes.has_state(self.folder):  # it goes on from its own checkpoint
            self._take(prefixes.stages_begun(self.folder) + 1)
            return
        end = time.monotonic() + PREFIX_WAIT_S
        while True:
            stages = prefixes.best_prefix(self.keys)
            is_producer = self._take(stages + 1)
            if is_producer and prefixes.best_prefix(self.keys) > stages:
                continue  # published between the look and the lease
            if not is_producer and time.monotonic() < end and not stop_file.exists():
                prefixes.wait_for(self.keys[stages], LOOK_EVERY_S)
                continue
            key = self.keys[stages - 1]
            if not stages or prefixes.adopt(self.folder, key) or prefixes.is_there(key):
                break
        self._release(stages)

    def share(self, stages: int) -> None:
        """Publish the state after so many tasks."""
        self._take(stages + 1)
        if stages <= len(self.keys) and prefixes.has_stage(self.folder, stages):
            prefixes.publish(self.folder, stages, self.keys[stages - 1])
        self._release(stages)

    def _take(self, task: int) -> bool:
        """Tell others that a task is being learned here; False where another run holds the task's lease."""
        if task > len(self.keys) or task in self.leases:
            return True
        with ExitStack() as stack:
            if stack.enter_context(prefixes.producing(self.keys[task - 1])):
                self.leases[task] = stack.pop_all()
        return task in self.leases

    def _release(self, tasks: int) -> None:
        """Give back the leases of the first tasks."""
        for task in [task for task in self.leases if task <= tasks]:
            self.leases.pop(task).close()

    def close(self) -> None:
        """Let others learn what this run did not."""
        self._release(len(self.keys))
