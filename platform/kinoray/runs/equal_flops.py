"""Equal budgets, `--equal-flops METHOD`: a run that takes as many floating-point operations as another method would.

The other method has its own default settings; stream, backbone, recipe and seed are the run's. A step of each is
counted before the first step (`execution/equal_flops.py`), and the number of steps of each task follows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinoray.config import names_of
from kinoray.runs.method_source import MethodSource
from kinoray.streams import Stream
from kinoray.system.durable import read_json, write_json

FILE = "equal_flops.json"
"""In the run's folder: what was counted, and the steps that follow."""


@dataclass(frozen=True)
class Budget:
    """The method whose operations a run takes."""

    method: MethodSource
    settings: dict[str, Any]
    reference: Stream | None
    """The reference set that it asks for."""


def equal_steps(usual: Sequence[int], own: Sequence[float], other: Sequence[float]) -> list[int]:
    """Steps of each task that come nearest to the operations of another method in its usual steps, at least one.

    own, other: operations of a step of each task.
    """
    return [max(1, round(steps * b / a)) for steps, a, b in zip(usual, own, other, strict=True)]


@dataclass(frozen=True)
class Counted:
    """What was counted for a run before its first step, task by task."""

    steps: list[int]
    step_flops: list[int]
    """Operations of a step of the run."""
    of_method: list[int]
    """Operations of a step of the other method."""


def write_counted(folder: Path, counted: Counted) -> None:
    """Keep it, so that a resumed run has the same steps."""
    write_json(folder / FILE, asdict(counted))


def read_counted(folder: Path) -> Counted | None:
    """What was counted for the run of a folder; None before it was. Raises: Damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    return Counted(**read_json(path, "Start over with --fresh.", dict.fromkeys(names_of(Counted))))
