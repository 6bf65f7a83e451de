"""How the result of a job is read: the last line of its log that names folders, and what is in such folders."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinoray.errors import UsageError
from kinoray.runs.finding import load_all
from kinoray.runs.result import Result, Results

if TYPE_CHECKING:
    import pandas as pd

    from kinoray.sweeps.result import SweepResult

IN_JOB = "KINORAY_JOB"
"""Variable of a submitted command, which then ends with a line that names its folders."""
LINE = re.compile(r'\{"kind": "(runs|sweep|table)", "folders": (\[.+\])\}')


def print_folders(kind: str, folders: Iterable[Path]) -> None:
    """In a job, one line of JSON that names what it made: "runs", a "sweep" or a "table", and the folders."""
    if os.environ.get(IN_JOB):
        print(json.dumps({"kind": kind, "folders": [str(folder.absolute()) for folder in folders]}), flush=True)


def open_result(lines: Sequence[str], job: str) -> "Result | Results | SweepResult | pd.DataFrame | None":
    """What a job's log names last; None where it names nothing.

    Args:
        lines: The log.
        job: Its name, for errors.

    Raises:
        UsageError: Where a folder is not to be seen from here.
    """
    named = next(filter(None, map(LINE.fullmatch, reversed(lines))), None)
    if named is None:
        return None
    folders = [Path(folder) for folder in json.loads(named[2])]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"{job}: {folder} is on the cluster and cannot be reached from here. If the job had --copy-to URI, "
                "fetch it with `aws s3 sync URI runs`, and open it with kinoray.load."
            )
    if named[1] == "sweep":
        from kinoray.sweeps.result import SweepResult

        return SweepResult(folders[-1])
    if named[1] == "table":  # a row per point, or per cell
        import pandas as pd

        (table,) = folders[-1].glob("*.csv")
        return pd.read_csv(table)
    runs = Results(run for folder in folders for run in load_all(folder))
    return runs if len(runs) > 1 else runs[0]
