"""What the commands print: tables and JSON on stdout, warnings on stderr; never a control character from data."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.system.folders import home_of
from kinoray.system.text import printable

if TYPE_CHECKING:
    from kinoray.report.doctor import Finding
    from kinoray.report.tables import Comparison
    from kinoray.runs.result import Result

WIDEST = 1000
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def print_lines(*texts: str) -> None:
    """Texts that hold data, a line each whatever is in them."""
    for text in texts:
        print(printable(text))


def print_answer(facts: Any, lines: Iterable[str], as_json: bool, if_none: str = "") -> None:
    """What a command has found: all of it as JSON, or in lines.

    if_none: what to say on stderr where there are no lines.
    """
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    found = list(lines)
    print_lines(*found)
    if if_none and not found:
        print(if_none, file=sys.stderr)


def print_plans(plans: Iterable[Mapping[str, Any]], facts: Any, as_json: bool) -> None:
    """What `--dry-run` shows: `facts` as JSON, or the plans as YAML."""
    import yaml

    text = yaml.safe_dump_all(plans, sort_keys=False, default_flow_style=None, width=100)
    print_answer(facts, text.rstrip().split("\n"), as_json)


def print_rows_to_run(plans: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """What `--dry-run` of a table shows: a line for each of its rows, and how much is left to do."""
    from kinoray.runs.finding import seeds_of

    if as_json:
        print_plans(plans, {"plans": plans}, as_json)
        return
    runs = left = steps = 0
    for plan in plans:
        folder = Path(plan["folder"])
        finished = {(run.order, run.seed) for run in seeds_of(folder) if run.state == "finished"}
        wanted = [(order, seed) for order in plan["orders"] for seed in plan["seeds"]]
        to_do = [place for place in wanted if place not in finished]
        settings = ", ".join(f"{name}={value}" for name, value in plan["overrides"].items())
        of_what = "runs" if len(plan["orders"]) > 1 else "seeds"
        what = f"{len(to_do)} of {len(wanted)} {of_what}, {sum(plan['steps'])} steps"
        print_lines(f"{folder.name:<48} {what}  {settings}".rstrip())
        runs, left, steps = runs + len(wanted), left + len(to_do), steps + len(to_do) * sum(plan["steps"])
    print(f"{left} of {runs} runs are left to do, {steps:,} steps in all. To see their settings, use --dry-run --json.")


def print_results(results: Sequence["Result"], as_json: bool) -> None:
    """The table of the papers and the pages with everything else."""
    from kinoray.cluster.results import print_folders
    from kinoray.report.describe import run_line
    from kinoray.report.tables import compare

    groups: dict[Path, list[Result]] = {}
    for result in results:
        groups.setdefault(home_of(result.folder), []).append(result)
    folders = [folder if len(group) > 1 else group[0].folder for folder, group in groups.items()]
    pages = [str(_page_of(folder, group)) for folder, group in zip(folders, groups.values(), strict=True)]
    if as_json:
        lines = [run_line(result) | {"cautions": result.cautions} for result in results]
        print(json.dumps({"runs": lines, "reports": pages}, indent=1))
    else:
        for stream in dict.fromkeys(result.stream for result in results):
            print_comparison(compare([result for result in results if result.stream == stream]))
        for page in pages:
            print(f"Report: {page}")
    print_folders("runs", folders)


def _page_of(folder: Path, results: Sequence["Result"]) -> Path:
    """The report, written unless it is newer than all results in it: drawing takes seconds."""
    page = folder / "report.html"
    made = page.stat().st_mtime if page.is_file() else 0.0
    if all(result.state == "finished" and made > result.finished_at for result in results):
        return page
    from kinoray.report.page import write_report

    return write_report(folder)


def print_comparison(comparison: "Comparison", wide: bool = False) -> None:
    """The table and its notes. In a terminal columns that do not fit are left out, unless the whole is asked for."""
    from rich.console import Console

    print_warnings(comparison)
    terminal = Console()
    width = terminal.width if terminal.is_terminal and not wide else None
    shown = comparison.shown(width)
    Console(width=WIDEST).print(comparison.table(width))
    for note in [*comparison.legend(shown), *comparison.notes()]:
        print(printable(note))
    left = len(comparison.columns) - len(shown)
    if left:
        columns = len(comparison.columns)
        print(
            f"{left} of {columns} columns left out to fit {width} characters. `kinoray compare RUN --wide` shows all."
        )


def print_warnings(comparison: "Comparison") -> None:
    """What makes the table doubtful, on stderr."""
    for warning in comparison.warnings:
        print(printable(f"Warning: {warning}"), file=sys.stderr)


def print_list(kind: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Names, and what there is to say about each."""
    kinds = [f"{row['kind']:<7}  " if "kind" in row else "" for row in rows]
    lines = (f"{row['name']:<20}  {own}{row['about']}" for row, own in zip(rows, kinds, strict=True))
    print_answer({kind: rows}, lines, as_json)


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
