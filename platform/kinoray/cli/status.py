"""`kinoray status`: the runs and sweeps that are on."""

import json
import sys
from typing import Annotated, Any

import typer

from kinoray.cli.options import WHICH_RUNS, Debug, Json, Runs
from kinoray.system.folders import runs_root
from kinoray.system.text import clock, printable, show


def status_command(
    which: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=WHICH_RUNS)] = None,
    root: Runs = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What is running here: task, steps, scores so far, time left. Of jobs on a cluster: `kinoray jobs status`."""
    from kinoray.report.status import status

    report = status(root, which or ())
    if as_json:
        print(json.dumps(report, indent=1))
        return
    for line in [*map(_run_line, report["runs"]), *map(_sweep_line, report["sweeps"])]:
        print(printable(line))
    if not any(report.values()):
        print(f"Nothing is running in {runs_root(root)}. `kinoray list runs` shows what is there.", file=sys.stderr)


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
