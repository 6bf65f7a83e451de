"""Measure a figure of a paper: run what is missing, draw, judge."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinoray.disk.folders import runs_root
from kinoray.display.text import printer
from kinoray.errors import UsageError, unknown
from kinoray.papers.entries import REPRODUCTIONS
from kinoray.papers.reproduction import Reproduction
from kinoray.streams import Stream
from kinoray.sweeps.sweep import sweep


def reproduce(
    name: str,
    *,
    stream: str | Stream | None = None,
    seeds: int = 3,
    seed: int = 0,
    backbone: str | None = None,
    settings: Mapping[str, Any] | None = None,
    concurrent: int | None = None,
    runs: str | Path | None = None,
    retry: bool = False,
    keep: bool = False,
    smoke: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> Any:
    """Make a paper's figure or table again; the same call goes on where it was stopped and reuses what is finished.

    name: a key of `REPRODUCTIONS` (`kinoray reproduce` lists them). stream: default the embedded one of the same
    protocol. seeds: runs per point, numbered from `seed`. keep: copy the table to `benchmarks/results/` of this
    checkout. retry: run failed points again. The rest as for `sweep`.
    Returns: a Reproduction, with its CSV, PNG, SVG, JSON and Markdown page written; of dry_run a dict.
    Raises: UsageError before anything starts; Stopped after Ctrl-C or SIGTERM.
    """
    if name not in REPRODUCTIONS:
        raise unknown("figure or table", name, REPRODUCTIONS)
    entry = REPRODUCTIONS[name]
    place = _kept_folder(smoke) if keep else None
    common: dict[str, Any] = {
        "stream": stream or entry.stream, "sampler": "grid", "prune": False, "seeds": seeds, "seed": seed,
        "backbone": backbone, "settings": dict(entry.settings) | dict(settings or {}), "concurrent": concurrent,
        "runs": runs, "smoke": smoke, "quiet": quiet,
    }  # fmt: skip
    if dry_run:
        plans = [sweep(method, space=space, dry_run=True, **common) for method, space in entry.sweeps.items()]
        return {"name": name, "title": entry.title, "place": entry.place, "sweeps": plans}
    # Only numbers are drawn, so no checkpoint but the last trial's need stay.
    swept = [sweep(method, space=space, retry=retry, keep_best=0, **common) for method, space in entry.sweeps.items()]
    made = Reproduction(name, entry, swept, runs_root(runs))
    made.write()
    if place is not None:
        say = printer(quiet)
        if made.missing:
            say(f"{name} is not complete, so its table is not kept. Missing: {'; '.join(made.missing)}.")
        else:
            say(f"Kept {', '.join(str(path) for path in made.keep(place))}.")
    return made


def _kept_folder(smoke: bool) -> Path:
    """`benchmarks/results` of the checkout that this package runs from. Raises: UsageError where there is none."""
    if smoke:
        raise UsageError("A smoke run measures nothing worth keeping: leave out --keep or --smoke.")
    place = Path(__file__).parents[3] / "benchmarks" / "results"
    if not place.is_dir():
        raise UsageError("--keep copies the table to benchmarks/results of a checkout, but kinoray is installed here.")
    return place
