"""What a logger is: it takes rows of numbers of one run to a place of its own."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kinoray.errors import UsageError, unknown
from kinoray.families import stated
from kinoray.tracking import loggers


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run that is logged."""

    folder: Path
    name: str
    """Run folder and seed."""
    stream: str
    settings: Mapping[str, Any]
    tags: Mapping[str, str]
    sweep: str = ""
    """The sweep that it belongs to; "" for a run alone."""
    trial: int | None = None
    """Its trial's number there."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Numbers of one moment of a run."""

    step: int
    """Optimizer steps made since the run began, over all tasks; never falls."""
    time_s: float
    """Seconds since 1970."""
    values: Mapping[str, float]


class BaseLogger(ABC):
    """One run on its way to one place. A logger may raise what it likes: it ends, and the run goes on."""

    @abstractmethod
    def open(self, subject: Subject, id: str | None, next_step: int) -> str:
        """Begin, or go on with what was logged under an id before `next_step`; returns the id."""

    @abstractmethod
    def log(self, rows: Sequence[Row]) -> None:
        """Write rows, in order and for good: those that this returned for are never sent again."""

    @abstractmethod
    def close(self, subject: Subject, state: str) -> None:
        """The run is finished, stopped (it may go on) or failed."""


def require_loggers(names: Iterable[str]) -> None:
    """Raises: UsageError for a logger that there is not, or with the command that installs what it needs."""
    needs = stated(loggers.__path__, "NEEDS")
    for name in names:
        if name not in needs:
            raise unknown("logger", name, list(needs))
        module, extra = needs[name]
        if find_spec(module) is None:
            raise UsageError(
                f"`log={name}` needs {module}, which is not installed. Run: pip install 'kinoray[{extra}]'"
            )


def load_logger(name: str) -> BaseLogger:
    """A logger by name; its library is imported now."""
    return importlib.import_module(f"{loggers.__name__}.{name}").Logger()
