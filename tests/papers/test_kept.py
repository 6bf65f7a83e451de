"""The results that the repository keeps: their statements are what this version says of their runs' numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.places import REPOSITORY

from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.claims import Claim
from kinoray.papers.entries import LEAN, OTHER_UNITS, SHARED, CurveEntry, MapEntry, TableEntry
from kinoray.papers.published import published
from kinoray.papers.reproduction import as_json
from kinoray.papers.statements import Statement, counted, judged, samples_of

KEPT = {
    file.stem: record
    for file in sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))
    if "statements" in (record := json.loads(file.read_text(encoding="utf-8")))
}


def judged_again(record: Mapping[str, Any]) -> list[Statement]:
    """The statements of a kept result, from the numbers of its runs; their queries were not kept."""
    entry, runs = REPRODUCTIONS[record["name"]], pd.DataFrame(record["runs"])
    if isinstance(entry, MapEntry):
        means = runs.groupby(["attention", "seed"], sort=False)[LEAN].mean().reset_index()
        samples = samples_of(means, "attention", LEAN, "")
        return [judged(claim, samples) for claim in entry.claims]
    if isinstance(entry, CurveEntry):
        first = next(iter(entry.sweeps))
        return [
            judged(claim, samples_of(runs[runs["method"] == (claim.method or first)], entry.over, claim.metric, ""))
            for claim in entry.claims
        ]
    assert isinstance(entry, TableEntry)
    columns = list(dict.fromkeys(runs["settings"]))
    bounds = runs[
        runs["method"].isin([row.label for row in entry.rows if not row.has_settings]) & (runs["settings"] == SHARED)
    ]
    lines = []
    for column in columns:
        own = runs[runs["settings"] == column]
        shown = own if column == SHARED else pd.concat([bounds, own])
        for claim in entry.claims:
            once = shown.drop_duplicates(["method", "seed", *({"world"} & set(shown))], keep="last")
            samples = samples_of(once, "method", claim.metric, "")
            effects = _effects(entry, claim, record["stream"])
            lines.append(judged(claim, samples, effects, column if len(columns) > 1 else ""))
    return lines


def _effects(entry: TableEntry, claim: Claim, stream: str) -> dict[str, float]:
    """What was published of a claim's metric, by row."""
    first, _, second = claim.metric.partition(" - ")
    rows = published(entry.published_in(stream), entry.score)
    known = {label: (row.get(first), row.get(second) if second else 0.0) for label, row in rows.items()}
    points = {label: a - b for label, (a, b) in known.items() if a is not None and b is not None}
    return {} if claim.metric in OTHER_UNITS else points


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_result_says_what_its_numbers_say(name: str) -> None:
    record, statements = KEPT[name], judged_again(KEPT[name])
    for kept, statement in zip(record["statements"], statements, strict=True):
        told = as_json(statement.to_json())
        close = {key: pytest.approx(x, abs=5e-4) if isinstance(x, float) else x for key, x in kept.items()}
        assert told == close, "numbers of runs are kept to four places"
    assert record["verdict"].lower() == f"{counted(statements)}.".lower()
    page = Path(REPOSITORY / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
    assert f"**Measured.** {record['verdict']}" in page
    assert all(f"- {str(statement).replace('<', '&lt;')}\n" in page for statement in statements)
