"""What the commands print: tables and JSON on stdout, warnings on stderr; never a control character from data."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.display.text import printable, show

if TYPE_CHECKING:
    from kinoray.browse.doctor import Finding
    from kinoray.report.tables import Comparison
    from kinoray.runs.result import Result

WIDEST = 1000
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def print_plans(plans: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """What `--dry-run` shows."""
    import yaml

    print(json.dumps({"plans": plans}, indent=1) if as_json else yaml.safe_dump_all(plans, sort_keys=False).rstrip())


def print_results(results: Sequence["Result"], as_json: bool) -> None:
    """The table of the papers and the pages with everything else."""
    from kinoray.browse.listing import run_line
    from kinoray.report.page import write_report
    from kinoray.report.tables import compare

    groups: dict[Path, list[Result]] = {}
    for result in results:
        groups.setdefault(result.folder.parent, []).append(result)
    folders = [folder if len(group) > 1 else group[0].folder for folder, group in groups.items()]
    pages = [str(write_report(folder)) for folder in folders]
    if as_json:
        print(json.dumps({"runs": [run_line(result) for result in results], "reports": pages}, indent=1))
        return
    for stream in dict.fromkeys(result.stream for result in results):
        print_comparison(compare([result for result in results if result.stream == stream]))
    for page in pages:
        print(f"Report: {page}")


def print_comparison(comparison: "Comparison") -> None:
    """The table and its notes."""
    from rich.console import Console

    print_warnings(comparison)
    # A folded table cannot be read; in a terminal that is too narrow the lines wrap.
    Console(width=WIDEST).print(comparison.table())
    for note in comparison.notes():
        print(printable(note))


def print_warnings(comparison: "Comparison") -> None:
    """What makes the table doubtful, on stderr."""
    for warning in comparison.warnings:
        print(printable(f"Warning: {warning}"), file=sys.stderr)


def print_list(kind: str, rows: Sequence[Mapping[str, Any]], runs: Path, as_json: bool) -> None:
    """Names, and what there is to say about each."""
    if as_json:
        print(json.dumps({kind: rows}, indent=1))
        return
    for row in rows:
        kind = f"{row['kind']:<7}  " if "kind" in row else ""
        about = f"{kind}{row['about']}" if "about" in row else _run_words(row)
        print(printable(f"{row['name']:<20}  {about}"))
    if not rows:
        print(f"No {kind} in {runs}.", file=sys.stderr)


def _run_words(row: Mapping[str, Any]) -> str:
    numbers = "  ".join(f"{name} {show(row['metrics'].get(name)):>5}" for name in row["brief"])
    return f"seed {row['seed']}  {row['state']:<8}  {numbers}  {row['folder']}"


def print_findings(findings: Sequence["Finding"], as_json: bool) -> None:
    """A line for each thing the doctor looked at."""
    from rich.console import Console
    from rich.text import Text

    if as_json:
        print(json.dumps({"checks": [finding._asdict() for finding in findings]}, indent=1))
        return
    console = Console()
    for finding in findings:
        line = Text(f"{finding.state:<5}", style=COLOURS[finding.state])
        line.append(f"{finding.what:<14}{printable(finding.found)}", style="default")
        line.append(f"  -> {printable(finding.advice)}" if finding.advice else "", style="default")
        console.print(line, soft_wrap=True)
