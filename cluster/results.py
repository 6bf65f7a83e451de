"""How the result of a job is read: the line of its log that names the folder, and what is in such a folder."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.errors import UsageError
from kinoray.runs.finding import load_all
from kinoray.runs.result import Result, Results

if TYPE_CHECKING:
    import pandas as pd

    from kinoray.sweeps.result import SweepResult


@dataclass(frozen=True)
class Kind:
    """Patterns that a line with a folder has, as the command prints it and in its JSON, and what opens the folders.

    RUNS in a pattern stands for the results' folder.
    """

    printed: str
    in_json: str
    open: Callable[[Sequence[Path]], Any]

    def folders(self, log: str, runs: str) -> list[Path]:
        """The folders that a log names."""
        patterns = (pattern.replace("RUNS", re.escape(runs)) for pattern in (self.printed, self.in_json))
        matches = (re.findall(pattern, log, re.MULTILINE) for pattern in patterns)
        return [Path(folder) for folder in next((some for some in matches if some), [])]


def check_reachable(folders: Sequence[Path], job: str) -> None:
    """Raises: UsageError where a folder is not to be seen from here."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{job}: {folder} is a folder of the cluster that cannot be reached from here.")


def _runs(folders: Sequence[Path]) -> Result | Results:
    loaded = Results(run for folder in folders for run in load_all(folder))
    return loaded if len(loaded) > 1 else loaded[0]


def _sweep(folders: Sequence[Path]) -> "SweepResult":
    from kinoray.sweeps.result import SweepResult

    return SweepResult(folders[-1])


def _table(folders: Sequence[Path]) -> "pd.DataFrame":
    """The table of `kinoray reproduce`: a row per point, or per cell."""
    import pandas as pd

    (table,) = folders[-1].glob("*.csv")
    return pd.read_csv(table)


RUNS = Kind(r"^Report: (.+)/report\.html$", r'^  "(.+)/report\.html",?$', _runs)
SWEEP = Kind(r"^(RUNS/[^/\n]+)$", r'^ "folder": "(.+)",?$', _sweep)
TABLE = Kind(r"^(RUNS/reproductions/[^/\n]+)$", r'^ "folder": "(.+)",?$', _table)
