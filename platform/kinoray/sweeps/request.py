"""The request for a sweep: a frozen dataclass that the command line and Python build and pass on whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kinoray.disk.folders import runs_root
from kinoray.disk.remote import check_uri
from kinoray.display.text import one_line
from kinoray.errors import UsageError
from kinoray.runs.request import check_least, names_in
from kinoray.streams import Stream
from kinoray.sweeps.samplers import check_sampler

if TYPE_CHECKING:
    from kinoray.method import BaseMethod
    from kinoray.runs.method_source import MethodSource

KEEP_BEST = 5
"""Trials whose checkpoints stay."""
PRUNE_KEEPS = 0.5
"""Share of the trials that go on after each task by default."""


@dataclass(frozen=True)
class SweepRequest:
    """A sweep's options; checked when it is made. Raises: UsageError in one line."""

    method: "str | Path | type[BaseMethod] | MethodSource"
    """A name, the path of a `.py` file, or a class."""
    stream: str | Stream = field(default="moving-cvlm", kw_only=True)
    """A name, or a folder of your own."""
    trials: int | None = field(default=None, kw_only=True)
    """How many in all; None: 32, of a grid all points."""
    space: str | Mapping[str, Any] | None = field(default=None, kw_only=True)
    """A name of the method's SPACES, a YAML file, or a mapping; None: its SPACE."""
    sampler: str = field(default="tpe", kw_only=True)
    """tpe, qmc, random or grid."""
    objective: str | Sequence[str] | None = field(default=None, kw_only=True)
    """One metric, or several for their Pareto front; None: the protocol's, or that of `then`."""
    then: "str | Path | type[BaseMethod] | MethodSource | None" = field(default=None, kw_only=True)
    """A method that is run on the encoder of each trial's runs when they have learned everything, on each downstream
    set of the stream, as `classify`; its metrics can be aimed at, as "classify/accuracy", a mean over the sets."""
    seeds: int = field(default=1, kw_only=True)
    """Runs per trial, numbered from `seed`."""
    seed: int = field(default=0, kw_only=True)
    """The first; it also seeds the sampler."""
    backbone: str | None = field(default=None, kw_only=True)
    settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """What is set for all trials."""
    concurrent: int | None = field(default=None, kw_only=True)
    """Trials at a time; None: what the cluster holds."""
    workers_per_trial: int | None = field(default=None, kw_only=True)
    """0 trains in the trial's process, N in N Ray workers; None: by the size of the towers."""
    time_budget_s: float | None = field(default=None, kw_only=True)
    """Start nothing after so many seconds, and stop what runs."""
    prune: bool | float = field(default=True, kw_only=True)
    """Share of the trials that go on after each task; True: a half, False: all."""
    keep_best: int | None = field(default=KEEP_BEST, kw_only=True)
    """Trials whose checkpoints stay; None: all."""
    storage: str | None = field(default=None, kw_only=True)
    """URL of a data base; None: a journal file in the sweep's folder."""
    runs: str | Path | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    """Of the sweep's folder; None: by a hash of the request."""
    retry: bool = field(default=False, kw_only=True)
    """Run failed trials again."""
    warm_start: str | Path | None = field(default=None, kw_only=True)
    """Another sweep's folder, whose best settings are tried first."""
    share_prefixes: bool = field(default=True, kw_only=True)
    """Train once what trials have in common."""
    smoke: bool = field(default=False, kw_only=True)
    """Two steps a task."""
    tensorboard: bool = field(default=False, kw_only=True)
    log: str | Sequence[str] = field(default=(), kw_only=True)
    """Loggers that follow the trials' runs from processes beside them: tensorboard, wandb, mlflow."""
    dashboard: bool = field(default=False, kw_only=True)
    dry_run: bool = field(default=False, kw_only=True)
    """Say what would happen; start nothing."""
    quiet: bool = field(default=False, kw_only=True)
    copy_to: str | None = field(default=None, kw_only=True)
    """URI of a store that finished tasks of trials are copied to, and the sweep with them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings or {}))
        object.__setattr__(self, "log", names_in(self.log))
        check_sampler(self.sampler)
        for name, least in LEAST.items():
            check_least(name, getattr(self, name), least)
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise UsageError(f"The time budget must be above 0 seconds, but is {self.time_budget_s}.")
        if not 0.0 < self.kept_share <= 1.0:
            raise UsageError(
                f"`prune` must be the share of trials kept after each task, above 0 and at most 1: {self.prune}."
            )
        if self.name is not None and (not self.name or Path(self.name).name != self.name or self.name[0] == "."):
            raise UsageError(f"A sweep's name is the name of a folder, but got {self.name!r}.")
        _check_storage(self.storage)
        if self.copy_to is not None:
            check_uri(self.copy_to, runs_root(self.runs))

    @property
    def kept_share(self) -> float:
        """Share of the trials that go on after each task."""
        if isinstance(self.prune, bool):
            return PRUNE_KEEPS if self.prune else 1.0
        return float(self.prune)


LEAST = {"trials": 1, "seeds": 1, "seed": 0, "concurrent": 1, "workers_per_trial": 0, "keep_best": 0}
"""The smallest values of the whole numbers in a request."""


def _check_storage(url: str | None) -> None:
    """Refuse what is no data base's URL, and a password: it would stand in sweep.json and in the list of processes."""
    if not url:
        return
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except ArgumentError as error:  # without the URL, which may hold a password
        raise UsageError(
            f"The storage is no URL of a data base: {one_line(error).rstrip('.')}. Give sqlite:////shared/study.db or "
            "postgresql://user@host/base, say."
        ) from None
    if parsed.password:
        raise UsageError(
            "The storage's URL holds a password, which would be kept in sweep.json. Leave it out of the URL and "
            "put it where the data base's own client looks: for PostgreSQL in ~/.pgpass or PGPASSWORD."
        )


class MeasureOptions(TypedDict, total=False):
    """Fields of `SweepRequest` that measuring a paper's figure takes as well, for type checkers."""

    stream: str | Stream | None
    seeds: int | None
    seed: int | None
    backbone: str | None
    settings: Mapping[str, Any] | None
    concurrent: int | None
    runs: str | Path | None
    retry: bool
    smoke: bool
    dry_run: bool
    quiet: bool
    log: str | Sequence[str]


class SweepOptions(MeasureOptions, total=False):
    """The fields of `SweepRequest` beside the method, for type checkers: what `kinoray.sweep` takes by name."""

    trials: int | None
    space: str | Mapping[str, Any] | None
    sampler: str
    objective: str | Sequence[str] | None
    then: "str | Path | type[BaseMethod] | MethodSource | None"
    workers_per_trial: int | None
    time_budget_s: float | None
    prune: bool | float
    keep_best: int | None
    storage: str | None
    name: str | None
    warm_start: str | Path | None
    share_prefixes: bool
    tensorboard: bool
    dashboard: bool
    copy_to: str | None
