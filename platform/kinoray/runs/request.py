"""The request for a run: frozen; the command line, experiment files and Python build it and pass it on whole."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from kinoray.disk.folders import runs_root
from kinoray.disk.remote import check_uri
from kinoray.errors import UsageError, unknown
from kinoray.runs.about import check_words
from kinoray.streams import Stream

if TYPE_CHECKING:
    from kinoray.method import BaseMethod
    from kinoray.runs.method_source import MethodSource

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunRequest:
    """A run's options; checked when it is made. Raises: UsageError in one line."""

    method: "str | Path | type[BaseMethod] | MethodSource"
    """A name, the path of a `.py` file, `rule:learner` of either, or a class."""
    stream: str | Stream = field(default="moving-cvlm", kw_only=True)
    """A name, or a folder of your own."""
    backbone: str | None = field(default=None, kw_only=True)
    """By name; None: the stream's."""
    seed: int = field(default=0, kw_only=True)
    seeds: int | None = field(default=None, kw_only=True)
    """How many, from `seed` on; None: one run alone."""
    num_workers: int | None = field(default=None, kw_only=True)
    """0 runs in this process, N in N Ray workers; None: 1, or one per GPU."""
    per_worker: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """What each worker asks of Ray, as {"CPU": 4, "GPU": 1}: waited for where the cluster has to start a machine first.
    Empty: a share of what is there."""
    settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Values of the method's Config and of the stream's Recipe by name."""
    joint: bool = field(default=False, kw_only=True)
    zero_shot: bool = field(default=False, kw_only=True)
    as_released: bool = field(default=False, kw_only=True)
    """With the settings of the authors' code where it differs from the paper (`RELEASED` of the method)."""
    smoke: bool = field(default=False, kw_only=True)
    """Two steps a task."""
    fresh: bool = field(default=False, kw_only=True)
    """Start over instead of going on; what was there is set aside."""
    runs: str | Path | None = field(default=None, kw_only=True)
    """Folder of all runs; None: KINORAY_RUNS, else ./runs."""
    quiet: bool = field(default=False, kw_only=True)
    watch: int = field(default=0, kw_only=True)
    """Every so many steps a process beside the training tests the newest weights on the earlier tasks; 0: never."""
    log: str | Sequence[str] = field(default=(), kw_only=True)
    """Loggers that follow the run from a process beside it: tensorboard, wandb, mlflow (`tracking`)."""
    name: str | None = field(default=None, kw_only=True)
    """A readable name that lists, tables and pages show; no two runs of a runs folder share one."""
    tags: str | Sequence[str] = field(default=(), kw_only=True)
    """Words to find the run by; added to those that it has."""
    copy_to: str | None = field(default=None, kw_only=True)
    """URI of a store that finished tasks are copied to, as s3://bucket/prefix; no part of what the run is."""
    dashboard: bool = field(default=False, kw_only=True)
    """Show Ray's dashboard on loopback for as long as the run lasts; its address is said first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings or {}))
        object.__setattr__(self, "per_worker", dict(self.per_worker or {}))
        object.__setattr__(self, "log", names_in(self.log))
        object.__setattr__(self, "tags", names_in(self.tags))
        check_words(self.name, self.tags)
        check_least("watch", self.watch, 0)
        if self.copy_to is not None:
            check_uri(self.copy_to, runs_root(self.runs))
        if self.watch and self.num_workers == 0:
            raise UsageError("`watch` needs a process beside the training, which num_workers=0 does without.")
        for name, amount in self.per_worker.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise UsageError(f"`per_worker` must give amounts of 0 or more, but has {amount!r} for {name}.")
        if self.per_worker and self.num_workers == 0:
            raise UsageError("`per_worker` is asked of Ray, which num_workers=0 does without.")
        if self.dashboard and self.num_workers == 0:
            raise UsageError("`dashboard` is Ray's, which num_workers=0 does without.")
        if self.joint and self.zero_shot:
            raise UsageError("`joint` trains on everything and `zero_shot` on nothing: give one of them.")
        check_least("seed", self.seed, 0)
        check_least("seeds", self.seeds, 1)
        check_least("num_workers", self.num_workers, 0)

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of its runs."""
        return list(range(self.seed, self.seed + (self.seeds or 1)))


class RunOptions(TypedDict, total=False):
    """The fields of `RunRequest` beside the method, for type checkers: what `kinoray.run` takes by name."""

    stream: str | Stream
    backbone: str | None
    seed: int
    seeds: int | None
    num_workers: int | None
    per_worker: Mapping[str, float] | None
    settings: Mapping[str, Any] | None
    joint: bool
    zero_shot: bool
    as_released: bool
    smoke: bool
    fresh: bool
    runs: str | Path | None
    quiet: bool
    watch: int
    log: str | Sequence[str]
    name: str | None
    tags: str | Sequence[str]
    copy_to: str | None
    dashboard: bool


def request_of(kind: type[R], method: Any, options: Mapping[str, Any]) -> R:
    """The request that a call means: a request with fields replaced, or one made of a method and options by name.

    Raises: UsageError for an option that there is not, with the nearest ones.
    """
    known = [f.name for f in fields(kind)][1:]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise unknown("option", name, known)
    return replace(method, **options) if isinstance(method, kind) else kind(method, **options)  # type: ignore[type-var, call-arg]


def names_in(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, each once."""
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given or ()))


def check_least(name: str, value: int | None, least: int) -> None:
    """Raises: UsageError unless a number is given as a whole number, and large enough."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"`{name}` must be a whole number, but got {value!r}.")
    if value < least:
        raise UsageError(f"`{name}` must be {least} or more, but got {value}.")


def shows_options(kind: type, only: Collection[str] | None = None, **defaults: Any) -> Callable[[F], F]:
    """Lets help() and notebooks show, in place of `**options`, the fields of a request with their defaults.

    only: which of them; by default all but the first, which stands in the function's own signature. defaults: those
    that are other than the request's.
    """

    def decorate(function: F) -> F:
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [f for f in fields(kind)[1:] if only is None or f.name in only]
        options = []
        for f in shown:
            default = defaults.get(f.name, _default(f))
            options.append(
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=f.type)
            )

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            return function(*arguments, **keywords)

        called.__signature__ = inspect.signature(function).replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


def _default(of: "Field[Any]") -> Any:
    return of.default_factory() if of.default_factory is not MISSING else of.default
