"""The table of `kinoray ui`: a row for each run with its seeds and each sweep with its trials, as plain values."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinoray.browse.run_list import (
    DAMAGED,
    Known,
    Row,
    by_run,
    by_sweep,
    list_runs,
    mean_scores,
    newest,
    seed_numbers,
    states,
    total_cost_s,
)
from kinoray.disk.folders import runs_root
from kinoray.disk.locks import is_held
from kinoray.display.text import words
from kinoray.runs.result import SWEEP_RECORD

PAGE = "report.html"
NOT_SET = "as by default"
"""What stands for a setting that a run leaves as it is."""
OF_EVERY_RUN = ("method", "stream", "state")
"""Columns that runs can be grouped by, beside their settings."""


def read_table(runs: str | Path | None = None, known: Known | None = None) -> list[Row]:
    """A row for each run and each sweep in the runs folder, the newest first.

    Keys: id (the folder's name), sweep (whether it is one), state, stream, method (with `(joint)` and the like),
    protocol, settings (those that differ, as a dict), told (the same in words), seeds, scores (metric -> mean over the
    finished seeds; of a sweep none), date, cost_s, page (its report's path in the runs folder, "" without one), error.

    known: as of `list_runs`.
    """
    root = runs_root(runs)
    rows = list_runs(root, known)
    table = [_run(seeds, root) for seeds in by_run(rows)]
    table += _sweeps(by_sweep(rows), root)
    return sorted(table, key=lambda row: row["date"], reverse=True)


def _run(seeds: Sequence[Row], root: Path) -> Row:
    first = seeds[0]
    return {
        "id": Path(first["folder"]).parent.name,
        "sweep": False,
        "state": states(seeds),
        "stream": first["stream"],
        "method": first["kind"],
        "protocol": first["protocol"],
        "settings": first["settings"],
        "told": words(first["settings"]),
        "seeds": seed_numbers(seeds).partition(" ")[2],
        "scores": mean_scores(seeds),
        "date": newest(seeds),
        "cost_s": total_cost_s(seeds),
        "page": _page([Path(first["folder"]).parent, *(Path(seed["folder"]) for seed in seeds)], root),
        "error": next((seed["error"] for seed in seeds if seed["error"]), ""),
    }


def _sweeps(trials: Mapping[str, Sequence[Row]], root: Path) -> list[Row]:
    """Every sweep that has a folder, or whose trials are there."""
    begun = {file.parent.name: file for file in root.glob(f"*/{SWEEP_RECORD}")}
    return [_sweep(name, trials.get(name, ()), root, begun.get(name)) for name in sorted(begun.keys() | trials.keys())]


def _sweep(name: str, made: Sequence[Row], root: Path, file: Path | None) -> Row:
    record, error = _record(file) if file else ({}, "")
    held = file is not None and is_held(file.parent)
    searched = f"over {', '.join(record['space'])}" if record.get("space") else ""
    counted = f"{len(made)} runs of trials: {states(made)}" if made else "no trials yet"
    first = made[0] if made else {}
    return {
        "id": name,
        "sweep": True,
        "state": "running" if held else DAMAGED if error else "ended",
        "stream": record.get("stream", first.get("stream", "")),
        "method": f"sweep {record.get('method', first.get('method', ''))}",
        "protocol": record.get("protocol", first.get("protocol", "")),
        "settings": {},
        "told": "; ".join(filter(None, (searched, counted))),
        "seeds": "",
        "scores": {},
        "date": newest(made) if made else "",
        "cost_s": total_cost_s(made),
        "page": _page([root / name], root),
        "error": error,
    }


def _record(file: Path) -> tuple[dict[str, Any], str]:
    """What a sweep's file says, and what is wrong with it."""
    try:
        return json.loads(file.read_text(encoding="utf-8")), ""
    except (FileNotFoundError, json.JSONDecodeError) as error:
        return {}, f"{file} cannot be read: {error}"


def _page(folders: Sequence[Path], root: Path) -> str:
    """The first report there is, by its path in the runs folder."""
    page = next((folder / PAGE for folder in folders if (folder / PAGE).is_file()), None)
    return "" if page is None else page.relative_to(root).as_posix()


def score_names(table: Sequence[Row]) -> dict[str, list[str]]:
    """Protocol -> its metrics, in order, of all runs that have scores; the protocol of most runs first."""
    names: dict[str, dict[str, None]] = {}
    for row in table:
        names.setdefault(row["protocol"], {}).update(dict.fromkeys(row["scores"]))
    runs = Counter(row["protocol"] for row in table)
    return {protocol: list(names[protocol]) for protocol, _ in runs.most_common() if names[protocol]}


def setting_names(table: Sequence[Row]) -> list[str]:
    """The settings that differ from the defaults in any run."""
    return sorted({name for row in table for name in row["settings"]})


def groups(table: Sequence[Row], by: str) -> list[Row]:
    """Means over the runs that share a stream, a protocol and a value: of a setting, or of "method", "stream", "state".

    Sweeps are left out. Keys: stream, protocol, value (as text), runs (how many), finished (those with scores), scores
    (metric -> mean over the finished; None where one of them has none).
    """
    grouped: dict[tuple[str, str, str], list[Row]] = {}
    for row in table:
        if not row["sweep"]:
            grouped.setdefault((row["stream"], row["protocol"], value_of(row, by)), []).append(row)
    return [
        {
            "stream": stream,
            "protocol": protocol,
            "value": value,
            "runs": len(rows),
            "finished": sum(bool(row["scores"]) for row in rows),
            "scores": _means([row["scores"] for row in rows if row["scores"]]),
        }
        for (stream, protocol, value), rows in sorted(grouped.items(), key=lambda item: _in_order(item[0]))
    ]


def value_of(row: Row, by: str) -> str:
    """What a row has in a column or setting, as text."""
    value = row[by] if by in OF_EVERY_RUN else row["settings"].get(by, NOT_SET)
    return value if isinstance(value, str) else words({by: value}).partition("=")[2]


def _means(scores: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in scores[0] if scores else ():
        values = [score.get(name) for score in scores]
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if len(known) == len(values) else None
    return means


def _in_order(key: tuple[str, str, str]) -> tuple[str, str, bool, float, str]:
    """By stream and protocol, then numbers by their size, then words."""
    stream, protocol, value = key
    try:
        return stream, protocol, False, float(value), value
    except ValueError:
        return stream, protocol, True, 0.0, value
