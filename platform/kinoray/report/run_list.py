"""The runs so far, a line each: trials folded under their sweep, scores of whole runs alone. Reads two files a run."""

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from kinoray.errors import UsageError
from kinoray.report.describe import run_line
from kinoray.runs.finding import seed_folders
from kinoray.runs.result import Result
from kinoray.system.folders import home_of, runs_root
from kinoray.system.locks import is_held
from kinoray.system.text import clock, show

Row = dict[str, Any]
DAMAGED = "damaged"
"""State of a run whose files cannot be read."""


def list_runs(runs: str | Path | None = None) -> list[Row]:
    """Every seed of every run in the runs folder: state, stream, method, settings that differ, metrics, date, cost.

    `metrics` are those of the protocol on the test splits, and only of finished runs: a part of the tasks gives no
    headline, and a trial's test scores may choose nothing. `sweep` names the sweep whose trial it is. A run whose files
    cannot be read has the state "damaged", and why in `error`.

    Args:
        runs: The runs folder; None: KINORAY_RUNS, else ./runs.
    """
    rows = []
    for folder in seed_folders(runs_root(runs)):
        with contextlib.suppress(FileNotFoundError):  # removed while it was read
            rows.append(_row(folder))
    return rows


def _row(folder: Path) -> Row:
    try:
        result = Result(folder)
        line = run_line(result)
    except UsageError as error:
        return _damaged(folder, str(error))
    sweep = result.sweep
    if line["state"] != "finished" and is_held(folder):
        line["state"] = "running"  # one that was stopped says so only with its next result
    elif line["state"] == "running":
        line["state"] = "stopped"  # killed before it could say so
    return line | {
        "metrics": line["metrics"] if line["state"] == "finished" and not sweep else {},
        "method": result.method,
        "kind": result.label_without(result.overrides),
        "protocol": result.protocol.name,
        "settings": result.overrides,
        "sweep": sweep,
        "date": _date(result.finished_at or (folder / "run.json").stat().st_mtime),
    }


def _damaged(folder: Path, error: str) -> Row:
    """What can be said of a run whose files cannot be read."""
    name = home_of(folder).name
    unknown: Row = dict.fromkeys(("stream", "backbone", "method", "protocol", "sweep"), "")
    return unknown | {
        "name": name,
        "seed": int(folder.name[5:]),
        "order": 0 if folder.parent.name == name else int(folder.parent.name[6:]),
        "state": DAMAGED,
        "metrics": {},
        "brief": (),
        "cost_s": None,
        "error": error,
        "folder": str(folder),
        "kind": name,
        "settings": {},
        "date": _date(folder.stat().st_mtime),
    }


def _date(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment).isoformat(sep=" ", timespec="minutes")


def run_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The list for a terminal: a line for each run with its seeds, then one for each sweep with its trials.

    A run's backbone is told where runs of its stream differ in it."""
    groups, sweeps = by_run(rows), by_sweep(rows)
    backbones = Counter(stream for stream, _ in {(row["stream"], row["backbone"]) for row, *_ in groups})
    names = [
        f"{row['name']} on {row['backbone']}" if backbones[row["stream"]] > 1 else row["name"] for row, *_ in groups
    ]
    label = max(map(len, names), default=0)
    stream = max((len(row["stream"]) for row in rows), default=0)
    for name, seeds in zip(names, groups, strict=True):
        first = seeds[0]
        where = home_of(Path(first["folder"])).name
        named = f"{first['stream']:<{stream}}  {name:<{label}}"
        scores = "  ".join(f"{name} {show(value):>5}" for name, value in mean_scores(seeds).items())
        yield f"{_head(seeds)}  {named}  {seed_numbers(seeds):<10}  {scores}  {where}".rstrip()
    for sweep, made in sweeps.items():
        yield f"{_head(made)}  {made[0]['stream']:<{stream}}  {len(made)} runs of trials of {sweep}"


def by_run(rows: Sequence[Row]) -> list[list[Row]]:
    """The seeds of each run that no sweep made; the newest run stands last."""
    own = sorted((row for row in rows if not row["sweep"]), key=_run_of)
    runs = [list(seeds) for _, seeds in groupby(own, key=_run_of)]
    return sorted(runs, key=lambda seeds: max(row["date"] for row in seeds))


def by_sweep(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Sweep -> the runs of its trials."""
    trials = sorted((row for row in rows if row["sweep"]), key=lambda row: row["sweep"])
    return {sweep: list(made) for sweep, made in groupby(trials, key=lambda row: row["sweep"])}


def _run_of(row: Mapping[str, Any]) -> str:
    return str(home_of(Path(row["folder"])))


def _head(rows: Sequence[Row]) -> str:
    """States, newest date, wall time."""
    cost_s = total_cost_s(rows)
    newest = max(row["date"] for row in rows)
    took = "–" if cost_s is None else clock(cost_s)
    return f"{states(rows):<9}  {newest}  {took:>8}"


def states(rows: Sequence[Row]) -> str:
    """`finished`, or `2 finished, 1 stopped`."""
    counts = Counter(row["state"] for row in rows)
    return ", ".join(f"{count} {state}" if len(counts) > 1 else state for state, count in counts.items())


def total_cost_s(rows: Sequence[Row]) -> float | None:
    """Wall time of all in seconds; None where none has one yet."""
    known = [row["cost_s"] for row in rows if row["cost_s"] is not None]
    return sum(known) if known else None


def seed_numbers(seeds: Sequence[Row]) -> str:
    """`seed 3`, `seeds 0-2` or `seeds 0,2`; of several orders of the tasks `seed 3, 6 orders`."""
    numbers, orders = sorted({row["seed"] for row in seeds}), {row["order"] for row in seeds}
    over = f", {len(orders)} orders" if len(orders) > 1 else ""
    if len(numbers) == 1:
        return f"seed {numbers[0]}{over}"
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return (f"seeds {numbers[0]}-{numbers[-1]}" if whole else f"seeds {','.join(map(str, numbers))}") + over


def mean_scores(seeds: Sequence[Row]) -> dict[str, float | None]:
    """Means over the finished seeds of a run; None where one of them has none, {} where none is finished."""
    finished = [row["metrics"] for row in seeds if row["state"] == "finished"]
    if not finished:
        return {}
    values = {name: [metrics.get(name) for metrics in finished] for name in seeds[0]["brief"]}
    return {name: None if None in seen else sum(seen) / len(seen) for name, seen in values.items()}
