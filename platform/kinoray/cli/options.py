"""Options that several commands have, in the same words, and those of a request read off its fields."""

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.models import ArgumentInfo

from kinoray.runs.request import Option, options_of

F = TypeVar("F", bound=Callable[..., None])

WHICH_RUNS = "Folders, names, patterns ('bmu_*') or filters: method=M stream=S state=finished SETTING=V."
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Runs = Annotated[Path | None, typer.Option("--runs", help="Folder of all runs. [KINORAY_RUNS, else ./runs]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run; start nothing.")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Log live to tensorboard, wandb or mlflow; repeatable."),
]


def methods_like(incomplete: str) -> list[str]:
    """What the shell offers behind a half-typed word: methods that come with kinoray, and learners behind `rule:`."""
    from kinoray.runs.method_source import method_names

    rule, colon, start = incomplete.rpartition(":")
    return [f"{rule}{colon}{name}" for name in method_names() if name.startswith(start)]


def streams_like(incomplete: str) -> list[str]:
    """The same of streams."""
    from kinoray.streams import stream_families

    return [name for name in stream_families() if name.startswith(incomplete)]


COMPLETED = {"stream": streams_like}


def takes_options(kind: type, only: Collection[str] | None = None) -> Callable[[F], F]:
    """Lets typer see, in place of a command's `**options`, the fields of a request that it does not name itself.

    What is not typed arrives as None, which stands for "not given".

    Args:
        kind: The request.
        only: Which of its fields; all by default.
    """

    def decorate(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        arguments = [p for p in own if _is_argument(p)]
        made = [
            _parameter(name, option)
            for name, option in options_of(kind).items()
            if name not in signature.parameters and (only is None or name in only)
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**given)

        parameters = [*arguments, *made, *(p for p in own if p not in arguments)]
        called.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
        )
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called  # type: ignore[return-value]

    return decorate


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(info, ArgumentInfo) for info in getattr(parameter.annotation, "__metadata__", ()))


def _parameter(name: str, option: Option) -> inspect.Parameter:
    flag = "--" + (option.flag or name).replace("_", "-")
    typed: Any = list[str] if option.typed is list else str if option.typed is dict else option.typed
    info = typer.Option(flag, help=option.help, metavar=option.metavar, autocompletion=COMPLETED.get(name))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, info]
    )
