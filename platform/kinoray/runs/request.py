"""The options of a run, each written once: the command line, experiment files and Python read them off `RunRequest`.

Light: what shows `--help` imports it. A `Way` says in words how a run is carried out: its first line, run.json and its
report have it.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_type_hints

import pydantic
from pydantic import BeforeValidator, ConfigDict, SkipValidation, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import Doc, dataclass_transform

from kinoray.errors import UsageError, unknown
from kinoray.runs.controls import check_control
from kinoray.system.folders import runs_root
from kinoray.system.remote import check_uri

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """How a field of a request is typed on the command line; it stands behind the field's type."""

    help: str
    typed: type = str
    """bool: a flag; list: given several times; dict: NAME=N,NAME=N."""
    flag: str = ""
    """Where it is not the field's name."""
    metavar: str | None = None
    in_file: bool = True
    """Whether experiment files have it as a key; not what belongs to a single start."""


def names_in(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, each once."""
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given or ()))


def _orders_in(given: Any) -> Any:
    """A number or "all"; whether a stream has as many, `streams.orders` says."""
    if isinstance(given, str) and given.lstrip("-").isdigit():
        return int(given)
    if given is not None and given != "all" and (not isinstance(given, int) or isinstance(given, bool)):
        raise ValueError("it must be a number or `all`")
    return given


def _stream_in(given: Any) -> Any:
    if isinstance(given, Path):
        return str(given)
    if not isinstance(given, str) and not hasattr(given, "tasks"):
        raise ValueError("a stream is a name, a folder or a Stream")
    return given


if TYPE_CHECKING:
    from kinoray.backbones.backbone import Backbone as BackboneClass
    from kinoray.method import BaseMethod
    from kinoray.runs.method_source import MethodSource
    from kinoray.streams import Stream

    AnyMethod: TypeAlias = str | Path | type[BaseMethod] | MethodSource
    AnyStream: TypeAlias = str | Stream
    AnyBackbone: TypeAlias = str | Path | type[BackboneClass]
else:  # importing these takes as long as all the rest
    AnyMethod = AnyBackbone = Any
    AnyStream = Annotated[Any, BeforeValidator(_stream_in)]

Whole = Annotated[int, pydantic.Field(ge=0, strict=True)]
Count = Annotated[int, pydantic.Field(ge=1, strict=True)]
Names = Annotated[tuple[str, ...], BeforeValidator(names_in)]
"""One name or several."""
Amount = Annotated[float, pydantic.Field(ge=0)]
none_as_empty = BeforeValidator(lambda given: given or {})
Settings = Annotated[
    dict[str, Any], none_as_empty, Doc("Values of the method's Config and of the stream's Recipe by name.")
]

# Options that a run and a sweep share
StreamOption = Annotated[
    AnyStream,
    Option("A name, ./my_stream.py, or FOLDER[:OPTIONS], as s3://BUCKET/videos:ctvr. [moving-cvlm]"),
]
Backbone = Annotated[AnyBackbone | None, SkipValidation, Option("A name or ./my_backbone.py. [the stream's]")]
Log = Annotated[Names, Option("Log live to tensorboard, wandb or mlflow; repeatable.", list, metavar="NAME")]
CopyTo = Annotated[str | None, Option("Copy finished tasks to s3://BUCKET/PREFIX. [nowhere]", metavar="URI")]
Runs = Annotated[str | Path | None, Option("Folder of all runs. [KINORAY_RUNS, else ./runs]", Path)]
Quiet = Annotated[bool, Option("No progress.", bool, in_file=False)]
Orders = Annotated[
    int | str | None,
    BeforeValidator(_orders_in),
    Option("How many orders of the tasks, of which the first is the stream's own; or all. [1]", str, metavar="N|all"),
]


def options_of(kind: type) -> dict[str, Option]:
    """The options of a request by the names of its fields, in their order."""
    return {name: mark for name, marks in _marks(kind).items() for mark in marks if isinstance(mark, Option)}


def _marks(kind: type) -> dict[str, Sequence[Any]]:
    """What stands behind the types of a request's fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: getattr(hints[f.name], "__metadata__", ()) for f in fields(kind)}


def _listing(doc: str | None, kind: type, names: Collection[str]) -> str:
    """A docstring with fields of a request, each with its `Doc` or else its help, in place of its `**options: ...`."""
    told = {name: option.help for name, option in options_of(kind).items()}
    told |= {
        name: mark.documentation for name, marks in _marks(kind).items() for mark in marks if isinstance(mark, Doc)
    }
    lines = [f"{name}: {told[name]}" for name in names]
    return re.sub(r"^( *)\*\*options:.*", lambda at: "\n".join(at[1] + line for line in lines), doc or "", flags=re.M)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def request(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of options, checked whenever one is made.

    Its docstring lists them all where it has a line `**options: ...`.
    """
    made = pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))(cls)
    check = made.__init__

    @functools.wraps(check)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        try:
            check(self, *args, **options)
        except ValidationError as error:
            wrong = error.errors()[0]
            message = wrong["msg"].removeprefix("Value error, ")
            if not wrong["loc"]:  # what several fields say together, a line already
                raise UsageError(message) from None
            parts, value = wrong["loc"], wrong["input"]
            name = ".".join(map(str, parts if isinstance(options.get(str(parts[0])), Mapping) else parts[:1]))
            message = message.replace("Input should", "it should")
            raise UsageError(f"`{name}` is {value!r}: {message[:1].lower()}{message[1:]}.") from None

    made.__init__ = checked  # type: ignore[method-assign]
    made.__doc__ = _listing(made.__doc__, made, [f.name for f in fields(made)])
    return made  # type: ignore[return-value]


@request
class RunRequest:
    """A run's options; checked when it is made.

    Args:
        **options: Its fields.

    Raises:
        UsageError: In one line.
    """

    method: Annotated[
        AnyMethod, SkipValidation, Doc("A name, the path of a `.py` file, `rule:learner` of either, or a class.")
    ] = field(kw_only=False)
    stream: StreamOption = "moving-cvlm"
    backbone: Backbone = None
    features: Annotated[
        str | Path | None,
        Option("Features from `kinoray data encode`, in place of clips and backbone.", metavar="FILE"),
    ] = None
    """The backbone is then `features:FILE`."""
    seed: Annotated[Whole, Option("Seed of the run. [0]", int)] = 0
    seeds: Annotated[
        Count | None, Option("Number of seeds, counted up from the first; in parallel if possible.", int)
    ] = None
    orders: Orders = None
    """Each with all seeds; joint training and zero-shot have none."""
    num_workers: Annotated[Whole | None, Option("Training processes; 0: in this one. [1, or one per GPU]", int)] = None
    per_worker: Annotated[
        dict[str, Amount],
        none_as_empty,
        Option("Resources per process; waits until Ray has them. [an equal share]", dict, metavar="CPU=N,GPU=N"),
    ] = field(default_factory=dict)
    """Waited for where the cluster has to start a machine first."""
    settings: Annotated[
        Settings,
        Option(
            "A setting of method or recipe; NAME=A,B: a run for each value.",
            list,
            "set",
            metavar="NAME=VALUE",
            in_file=False,
        ),
    ] = field(default_factory=dict)
    joint: Annotated[bool, Option("All tasks at once: the upper bound.", bool)] = False
    zero_shot: Annotated[bool, Option("No training: the lower bound.", bool)] = False
    as_released: Annotated[bool, Option("Settings of the authors' code where they differ from the paper's.", bool)] = (
        False
    )
    """`RELEASED` of the method."""
    control: Annotated[
        str, Option("rate/N, random-encoder, from-scratch, order-blind or first-frame, to hold runs against.", str)
    ] = ""
    """What the method's gain is held against (`runs/controls.py`)."""
    equal_flops: Annotated[
        AnyMethod | None,
        SkipValidation,
        Option("Train for as many FLOPs as METHOD with its default settings.", metavar="METHOD"),
    ] = None
    """As the method: its steps of each task are as many as take the FLOPs of that one (`execution/equal_flops.py`)."""
    smoke: Annotated[bool, Option("Quick test: two steps per task.", bool)] = False
    watch: Annotated[Whole, Option("Test earlier tasks every N steps, in parallel with training. [never]", int)] = 0
    log: Log = ()
    copy_to: CopyTo = None
    dashboard: Annotated[bool, Option("Serve Ray's dashboard on this machine during the run.", bool, in_file=False)] = (
        False
    )
    fresh: Annotated[bool, Option("Start over instead of resuming.", bool, in_file=False)] = False
    """What was there is set aside."""
    runs: Runs = None
    quiet: Quiet = False

    def __post_init__(self) -> None:
        if self.copy_to is not None:
            check_uri(self.copy_to, runs_root(self.runs))
        if self.num_workers == 0:
            for name in ("watch", "per_worker", "dashboard"):
                if getattr(self, name):
                    raise UsageError(f"`{name}` needs Ray, but num_workers=0 does not use it.")
        if self.joint and self.zero_shot:
            raise UsageError("`joint` trains on everything and `zero_shot` on nothing: give one of them.")
        check_control(self.control, self.joint, self.zero_shot, self.equal_flops is not None)

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of its runs."""
        return list(range(self.seed, self.seed + (self.seeds or 1)))


def request_of(kind: type[T], method: Any, options: Mapping[str, Any]) -> T:
    """The request that a call means: a request with fields replaced, or one made of a method and options by name.

    Raises: UsageError for an option that there is not, with the nearest ones.
    """
    known = [f.name for f in fields(kind)][1:]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise unknown("option", name, known, f"Settings of a method or recipe go into settings={{{name!r}: ...}}.")
    return replace(method, **options) if isinstance(method, kind) else kind(method, **options)  # type: ignore[type-var, call-arg]


def shows_options(kind: type, only: Collection[str] | None = None, **defaults: Any) -> Callable[[F], F]:
    """Lets help(), notebooks and the site show the fields of a request in place of `**options`.

    Args:
        kind: The request.
        only: Which of its fields; by default all but the first, which stands in the function's own signature.
        defaults: Those that are other than the request's; the function's own docstring lists these fields.
    """
    types = get_type_hints(kind)

    def decorate(function: F) -> F:
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [f for f in fields(kind)[1:] if only is None or f.name in only]
        options = [
            inspect.Parameter(
                f.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(f.name, _default(f)),
                annotation=types[f.name],
            )
            for f in shown
        ]

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            return function(*arguments, **keywords)

        called.__doc__ = _listing(function.__doc__, kind, [f.name for f in shown if f.name not in defaults])
        called.__signature__ = inspect.signature(function).replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


def _default(of: "Field[Any]") -> Any:
    return of.default_factory() if of.default_factory is not MISSING else of.default


OWN = "clips from the frame cache, the rest decoded by processes of its own"
ACTORS = "actors: monitor, momentum weights, video features"


@dataclass(frozen=True)
class Way:
    """How a run is carried out. The numbers are the same by every way, but for the last bits of sums over ranks."""

    name: str
    """For the first line of a run."""
    means: str
    """What of Ray it uses."""
    why: str
    """Why it is taken."""

    def __str__(self) -> str:
        return f"{self.name}, {self.why} ({self.means})"


IN_PROCESS = Way("in this process", f"no Ray; {OWN}", "as --num-workers 0 asks")
SIDE_BY_SIDE = Way(
    "side by side on Ray",
    f"a plain task each, no trainer; {OWN}; {ACTORS}",
    "as several small runs without a GPU, for which a trainer's start would cost more than it gains",
)
TRIAL = Way("in a trial's process", f"no trainer, no actors; {OWN}", "as a sweep over small towers")


def of_trial(workers: int) -> Way:
    """A sweep's trial, which trains in its own process (0) or on so many Ray workers."""
    return ray_workers(workers, "as large towers need, or as --workers-per-trial asks") if workers else TRIAL


def ray_workers(workers: int, why: str) -> Way:
    """A TorchTrainer of so many ranks."""
    name = "on 1 Ray worker" if workers == 1 else f"on {workers} Ray workers"
    means = f"TorchTrainer; clips from the frame cache, the rest decoded by Ray Data; {ACTORS}"
    return Way(name, means, why)


def why_workers(runs: int, asked: int | None, resources: bool) -> str:
    """Why so many runs go on workers.

    asked: how many workers the user named, if any. resources: whether each is to have some of its own.
    """
    if asked:
        return f"as --num-workers {asked} asks"
    if runs == 1:
        return "the default of a single run"
    return "as workers with resources of their own are asked for" if resources else "the default where there are GPUs"
