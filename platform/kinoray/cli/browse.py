"""`kinoray list`, `describe`, `status` and `doctor`: what there is, what runs, and what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kinoray.cli import printing
from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.system.folders import runs_root
from kinoray.system.text import as_typed, clock, show


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
    from kinoray.report import describe as catalogue

    if kind is Kind.runs:
        _print_runs(which or [], root, as_json)
        return
    lister = {"methods": catalogue.list_methods, "streams": catalogue.list_streams}
    rows: list[dict[str, Any]] = list(lister.get(kind.value, catalogue.list_backbones)())
    printing.print_list(kind.value, rows, as_json)


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
        rows = [row for row in rows if meant & {(folder := Path(row["folder"]).resolve()), *folder.parents[:2]}]
    printing.print_answer({"runs": rows}, run_lines(rows), as_json, f"No runs in {runs_root(root)}.")


def describe_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A method (also a file, RULE:LEARNER), a stream or a backbone.")
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a method, a stream or a backbone. Of a method its settings, ranges, recipes and search spaces; of a stream
    its tasks, protocol and what it needs."""
    import kinoray

    facts = kinoray.describe(name)
    lines = {"method": _method_lines, "stream": _stream_lines, "backbone": _backbone_lines}[facts["kind"]]
    printing.print_answer(facts, lines(facts), as_json)


def _method_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a {'whole method' if facts['role'] == 'whole' else facts['role']}: {facts['about']}"
    protocols = ", ".join(facts["suits"]) or facts["tested_by"] or "any"
    builds_on = "what its learner builds on" if facts["role"] == "rule" else facts["builds_on"]
    yield f"Suits streams tested by: {protocols}. Builds on: {builds_on}."
    yield from _settings_lines("Settings (--set NAME=VALUE):", facts["settings"])
    yield from _by_stream("What else it sets, by stream:", facts["recipes"])
    yield from _by_stream("With --as-released, by stream:", facts["as_released"])
    if facts["spaces"]:
        yield "Search spaces (kinoray sweep --space NAME):"
        for name, space in facts["spaces"].items():
            yield f"  {name or 'the usual one'}: {', '.join(space)}"
    if "learner" in facts:
        yield ""
        yield from _method_lines(facts["learner"])


def _stream_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a stream."
    yield from facts["about"].splitlines()
    if facts["needs"]:
        yield f"Needs: {facts['needs']}"
        return
    yield f"Tested by: {facts['protocol']}. Backbone: {facts['backbone']}."
    yield f"Tasks ({len(facts['tasks'])}): {', '.join(facts['tasks'])}."
    if facts["downstream"]:
        yield f"Learned encoders are tested on: {', '.join(facts['downstream'])}."
    yield from _settings_lines("Recipe, where it differs from the engine's defaults:", facts["recipe_sets"])
    yield from _settings_lines("The rest of the recipe, each changed by --set NAME=VALUE:", facts["recipe_rest"])


def _backbone_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a backbone."
    yield from facts["about"].splitlines()
    yield "Forms of its name:"
    yield from (f"  {form}: {about}" for form, about in facts["forms"].items())


def _settings_lines(title: str, settings: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each setting: its value, what it may be, what it means."""
    yield title
    for setting in settings:
        value = f"{setting['name']}={as_typed(setting.get('value', setting['default']))}"
        allowed = f"({setting['range']}) " if setting["range"] else ""
        yield f"  {value:<26} {allowed}{setting['about']}".rstrip()


def _by_stream(title: str, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if settings:
        yield title
    for stream, values in settings.items():
        yield f"  {stream or 'every stream'}: {', '.join(f'{name}={as_typed(v)}' for name, v in values.items())}"


def status_command(
    which: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=WHICH_RUNS)] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What is running here: task, steps, scores so far, time left. For jobs on a cluster: `kinoray jobs status`."""
    from kinoray.report.status import status

    report = status(root, which or ())
    lines = [*map(_run_line, report["runs"]), *map(_sweep_line, report["sweeps"])]
    nothing = f"Nothing is running in {runs_root(root)}. `kinoray list runs` shows what is there."
    printing.print_answer(report, lines, as_json, nothing)


def _run_line(run: dict[str, Any]) -> str:
    if run["task"] is None:
        return f"{run['name']}  starting"
    scores = "  ".join(f"{name} {show(value)}" for name, value in run["scores"].items() if value is not None)
    total = "?" if run["total_steps"] is None else run["total_steps"]
    parts = [
        f"task {run['task_number']}/{run['num_tasks']} {run['task']}",
        f"step {run['steps']}/{total}",
        f"loss {run['loss']:.3f}",
        f"ETA {'-:--' if run['eta_s'] is None else clock(run['eta_s'])}",
        scores or "nothing tested yet",
    ]
    return f"{run['name']}  {', '.join(parts)}"


def _sweep_line(sweep: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in sweep["trials"].items() if count)
    return f"{sweep['name']}  trials: {counts or 'none yet'}, best {sweep['objective']} {show(sweep['best'])}"
