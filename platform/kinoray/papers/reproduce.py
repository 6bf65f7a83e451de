"""Measure a figure of a paper: run what is missing, draw, judge."""

from pathlib import Path
from typing import Any, Unpack

from kinoray.disk.folders import runs_root
from kinoray.display.text import printer
from kinoray.errors import UsageError, unknown
from kinoray.papers.entries import REPRODUCTIONS
from kinoray.papers.reproduction import Reproduction
from kinoray.runs.request import request_of, shows_options
from kinoray.sweeps.request import MeasureOptions, SweepRequest
from kinoray.sweeps.sweep import sweep

SEEDS = 3
"""Runs per point by default."""


@shows_options(SweepRequest, MeasureOptions.__annotations__, stream=None, seeds=SEEDS)
def reproduce(name: str, *, keep: bool = False, **options: Unpack[MeasureOptions]) -> Any:
    """Make a paper's figure or table again; the same call goes on where it was stopped and reuses what is finished.

    name: a key of `REPRODUCTIONS` (`kinoray reproduce` lists them). keep: copy the table to `benchmarks/results/` of
    this checkout. stream: default the embedded one of the same protocol. seeds: runs per point (3), numbered from
    `seed`. retry: run failed points again. The rest as for `sweep`.
    Returns: a Reproduction, with its CSV, PNG, SVG, JSON and Markdown page written; of dry_run a dict.
    Raises: UsageError before anything starts; Stopped after Ctrl-C or SIGTERM.
    """
    if name not in REPRODUCTIONS:
        raise unknown("figure or table", name, REPRODUCTIONS)
    entry = REPRODUCTIONS[name]
    quiet, runs = options.get("quiet", False), options.get("runs")
    place = _results_folder(options.get("smoke", False)) if keep else None
    common: dict[str, Any] = {
        **options,
        "stream": options.get("stream") or entry.stream,
        "seeds": options.get("seeds", SEEDS),
        "settings": {**entry.settings, **(options.get("settings") or {})},
    }
    # Only numbers are drawn, so no checkpoint but the last trial's need stay.
    fixed: dict[str, Any] = {"sampler": "grid", "prune": False, "keep_best": 0}
    requests = [request_of(SweepRequest, method, common | fixed | {"space": s}) for method, s in entry.sweeps.items()]
    sweeps = [sweep(request) for request in requests]
    if options.get("dry_run"):
        return {"name": name, "title": entry.title, "place": entry.place, "sweeps": sweeps}
    reproduction = Reproduction(name, entry, sweeps, runs_root(runs))
    reproduction.write()
    if place is not None:
        say = printer(quiet)
        if reproduction.missing:
            say(f"{name} is not complete, so its table is not kept. Missing: {'; '.join(reproduction.missing)}.")
        else:
            say(f"Kept {', '.join(str(path) for path in reproduction.copy_table(place))}.")
    return reproduction


def _results_folder(smoke: bool) -> Path:
    """`benchmarks/results` of the checkout that this package runs from. Raises: UsageError where there is none."""
    if smoke:
        raise UsageError("A smoke run measures nothing worth keeping: leave out --keep or --smoke.")
    place = Path(__file__).parents[3] / "benchmarks" / "results"
    if not place.is_dir():
        raise UsageError("--keep copies the table to benchmarks/results of a checkout, but kinoray is installed here.")
    return place
