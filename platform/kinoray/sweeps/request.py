"""The options of a sweep, each written once: the command line and Python read them off `SweepRequest`. Light."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation
from typing_extensions import Doc

from kinoray.errors import UsageError
from kinoray.runs.request import (
    AnyMethod,
    Backbone,
    CopyTo,
    Count,
    Log,
    Option,
    Orders,
    Quiet,
    Runs,
    Settings,
    StreamOption,
    Whole,
    request,
)
from kinoray.system.folders import runs_root
from kinoray.system.remote import check_uri
from kinoray.system.text import one_line

KEEP_BEST = 5
"""Trials whose checkpoints stay."""
PRUNE_KEEPS = 0.5
"""Share of the trials that go on after each task by default."""
MEASURED = (
    "stream",
    "seeds",
    "seed",
    "orders",
    "backbone",
    "settings",
    "concurrent",
    "runs",
    "retry",
    "smoke",
    "dry_run",
    "quiet",
    "log",
)
"""Options that measuring a paper's figure takes as well."""


@request
class SweepRequest:
    """A sweep's options; checked when it is made.

    Args:
        **options: Its fields.

    Raises:
        UsageError: In one line.
    """

    method: Annotated[AnyMethod, SkipValidation, Doc("A name, the path of a `.py` file, or a class.")] = field(
        kw_only=False
    )
    stream: StreamOption = "moving-cvlm"
    trials: Annotated[Count | None, Option("Number of trials in all. [32; for a grid, all its points]", int)] = None
    space: Annotated[
        Any,
        SkipValidation,
        Doc("A space that `describe` names, a YAML file, words as `m=0.9:1`, or a mapping. [the method's own]"),
    ] = None
    sampler: Annotated[
        Literal["tpe", "qmc", "random", "grid"] | None,
        Option(
            "tpe, qmc, random or grid. [grid for lists on the command line, of a file up to 32 points; else tpe]",
            str,
        ),
    ] = None
    objective: Annotated[
        str | Sequence[str] | None,
        Option("Metric to optimise; give several for their Pareto front. [the stream's]", list),
    ] = None
    """None: the protocol's, or that of `then`."""
    then: Annotated[
        AnyMethod | None,
        SkipValidation,
        Option(
            "Train METHOD on the stream's downstream sets from each trial's encoder; optimise METHOD's metric.",
            metavar="METHOD",
        ),
    ] = None
    """When the trial has learned everything, on each downstream set of the stream, as `classify`; its metrics can be
    aimed at, as "classify/accuracy", a mean over the sets."""
    seeds: Annotated[Count, Option("Seeds per trial; all finish a task before the next one begins. [1]", int)] = 1
    seed: Annotated[Whole, Option("First of the seeds; also seeds the sampler. [0]", int)] = 0
    orders: Orders = None
    """Each trial has a run for each, and each seed."""
    backbone: Backbone = None
    settings: Settings = field(default_factory=dict)
    """What is set for all trials."""
    concurrent: Annotated[Count | None, Option("Trials (of a figure: points) at a time. [as many as fit]", int)] = None
    workers_per_trial: Annotated[
        Whole | None, Option("Ray workers per trial; 0: in the trial's process. [by the size of the towers]", int)
    ] = None
    time_budget_s: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Option("Stop after this many seconds.", float, "time-budget", metavar="SECONDS"),
    ] = None
    """Running trials commit what they have."""
    prune: Annotated[bool | float, Doc("Share of the trials that go on after each task; True: a half, False: all.")] = (
        True
    )
    keep_best: Annotated[Whole | None, Doc("Trials whose checkpoints stay; None: all.")] = KEEP_BEST
    storage: Annotated[str | None, Option("Database of the Optuna study. [a file]", metavar="URL")] = None
    runs: Runs = None
    name: Annotated[str | None, Option("Name of the sweep's folder. [from a hash of these options]")] = None
    retry: Annotated[bool, Doc("Run failed trials again.")] = False
    warm_start: Annotated[str | Path | None, Option("Try the best settings of SWEEP first.", metavar="SWEEP")] = None
    smoke: Annotated[bool, Option("Quick test: two steps per task.", bool)] = False
    log: Log = ()
    dry_run: Annotated[bool, Option("Show what would run; start nothing.", bool)] = False
    quiet: Quiet = False
    copy_to: CopyTo = None
    """The sweep goes with them."""

    def __post_init__(self) -> None:
        if not 0.0 < self.kept_share <= 1.0:
            raise UsageError(
                "The share of trials kept after each task (--keep, or `prune`) must be above 0 and at most 1, but got "
                f"{self.prune}."
            )
        if self.name is not None and (not self.name or Path(self.name).name != self.name or self.name[0] == "."):
            raise UsageError(f"A sweep's name must be a valid folder name, but got {self.name!r}.")
        _check_storage(self.storage)
        if self.copy_to is not None:
            check_uri(self.copy_to, runs_root(self.runs))

    @property
    def kept_share(self) -> float:
        """Share of the trials that go on after each task."""
        if isinstance(self.prune, bool):
            return PRUNE_KEEPS if self.prune else 1.0
        return float(self.prune)


def _check_storage(url: str | None) -> None:
    """Refuse what is no data base's URL, and a password: it would stand in sweep.json and in the list of processes."""
    if not url:
        return
    from sqlalchemy.engine import make_url  # slow to import, and few name a data base
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except ArgumentError as error:  # without the URL, which may hold a password
        raise UsageError(
            f"The storage is not a database URL: {one_line(error).rstrip('.')}. Give, for example, "
            "sqlite:////shared/study.db or postgresql://user@host/base."
        ) from None
    if parsed.password:
        raise UsageError(
            "The storage's URL holds a password, which would be kept in sweep.json. Leave it out of the URL and "
            "put it where the database client looks: for PostgreSQL, ~/.pgpass or PGPASSWORD."
        )
