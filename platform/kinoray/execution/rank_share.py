"""What each rank of a run asks of Ray: a share of what is there, or what the user names, which may be still to come."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinoray.data.pipeline import decode_slots
from kinoray.system.ray_session import num_cpus, num_gpus
from kinoray.system.variables import environment

PATIENCE = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800"}
"""How long Ray's trainer waits for machines that a cluster starts first."""


@dataclass(frozen=True)
class RankShare:
    """The resources of one rank."""

    cpus: float
    gpu: bool
    decode_slots: float
    """CPUs that decode for it."""
    threads: int | None = None
    """Of its computations; None: its part of the driver's machine."""
    others: Mapping[str, float] = field(default_factory=dict)
    """What else it asks for, by Ray's names."""
    is_named: bool = False
    """Whether the user names it, so that a machine for it may be still to come."""

    @property
    def gpus(self) -> float:
        """GPUs of it."""
        return self.others.get("GPU", float(self.gpu))

    @property
    def resources(self) -> dict[str, float]:
        """As Ray's trainer takes them."""
        return {"CPU": self.cpus, **self.others}

    def of_all(self, workers: int) -> dict[str, float]:
        """What so many ranks ask for that may be still to come."""
        return {name: workers * amount for name, amount in self.resources.items()} if self.is_named else {}


def share_of_rank(workers: int, cpus: float | None, per_worker: Mapping[str, float]) -> RankShare:
    """The share of each of so many ranks.

    cpus: of the whole run (None: all there are). per_worker: what each asks for, by Ray's names; empty: a share of what
    is there. Raises: UsageError where no CPU is left to decode.
    """
    if per_worker:
        others = {name: amount for name, amount in per_worker.items() if name != "CPU"}
        cpus = per_worker.get("CPU", 1.0)
        # One more CPU each decodes, and is asked for in the same way.
        return RankShare(cpus, others.get("GPU", 0) > 0, 1.0, max(1, int(cpus)), others, is_named=True)
    each = max(0.01, min(1.0, int(100 * ((cpus or num_cpus()) - 1) / workers) / 100))
    return RankShare(each, num_gpus() >= workers, decode_slots(workers, each))


@contextmanager
def patient(per_worker: Mapping[str, float]) -> Iterator[None]:
    """Let a trainer wait for machines meanwhile, where ranks ask for what may be still to come."""
    with environment(PATIENCE if per_worker else {}):
        yield
