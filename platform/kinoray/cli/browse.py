"""`kinoray list` and `kinoray doctor`: what there is, and what is missing."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kinoray.cli import printing
from kinoray.cli.options import WHICH_RUNS, Json, Runs
from kinoray.system.folders import runs_root
from kinoray.system.text import printable


class Kind(StrEnum):
    """What `kinoray list` lists."""

    methods = "methods"
    streams = "streams"
    backbones = "backbones"
    runs = "runs"


def list_command(
    kind: Kind,
    which: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=WHICH_RUNS)] = None,
    root: Runs = None,
    as_json: Json = False,
) -> None:
    """Methods, streams, backbones, or the runs so far."""
    from kinoray.report import listing as catalogue

    if kind is Kind.runs:
        _print_runs(which or [], root, as_json)
        return
    lister = {"methods": catalogue.list_methods, "streams": catalogue.list_streams}
    rows: list[dict[str, Any]] = list(lister.get(kind.value, catalogue.list_backbones)())
    printing.print_list(kind.value, rows, runs_root(root), as_json)


def doctor_command(root: Runs = None, as_json: Json = False) -> None:
    """What this machine has, what it lacks, what to do about it."""
    from kinoray.report.doctor import examine

    findings = examine(runs_root(root))
    printing.print_findings(findings, as_json)
    raise typer.Exit(int(any(finding.state == "fail" for finding in findings)))


def _print_runs(which: Sequence[str], root: Path | None, as_json: bool) -> None:
    from kinoray.report.run_list import list_runs, run_lines

    rows = list_runs(root)
    if which:
        from kinoray.runs.finding import select_runs

        meant = {folder.resolve() for folder in select_runs(which, root)}
        rows = [row for row in rows if meant & {(folder := Path(row["folder"]).resolve()), folder.parent}]
    if as_json:
        print(json.dumps({"runs": rows}, indent=1))
        return
    for line in run_lines(rows):
        print(printable(line))
    if not rows:
        print(f"No runs in {runs_root(root)}.", file=sys.stderr)
