"""The results that the repository keeps: their statements are what this version says of their runs' numbers."""

import json
from collections.abc import Mapping
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
from kinoray.report.statistics import NO, YES

RESULTS = REPOSITORY / "benchmarks" / "results"
ALL = {
    file.stem: record
    for file in sorted(RESULTS.glob("*.json"))
    if "statements" in (record := json.loads(file.read_text(encoding="utf-8")))
}
KEPT = {name: record for name, record in ALL.items() if "orders" not in record}
OVER_ORDERS = sorted(ALL.keys() - KEPT.keys())


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
        near = {key: 1e-3 if key == "visible" else 5e-4 for key in kept}  # the widest multiple of their spread
        close = {key: pytest.approx(x, abs=near[key]) if isinstance(x, float) else x for key, x in kept.items()}
        assert told == close, "numbers of runs are kept to four places"
    assert record["verdict"].lower() == f"{counted(statements)}.".lower()
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"**Measured.** {record['verdict']}" in page
    assert all(f"- {str(statement).replace('<', '&lt;')}\n" in page for statement in statements)


@pytest.mark.parametrize("name", OVER_ORDERS)
def test_a_kept_result_over_orders_has_the_means_of_its_runs(name: str) -> None:
    """Its statements count the queries, too, whose numbers are not kept: only means can be worked out again."""
    record, page = ALL[name], (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    runs = pd.DataFrame(record["runs"])
    trained = runs[runs["order"] != runs["order"].iloc[0]]["method"].unique()
    assert (
        runs[runs["method"].isin(trained)].groupby(["settings", "method"])["order"].nunique() == record["orders"]
    ).all()
    known = runs.set_index(["settings", "method"]).select_dtypes("number").groupby(level=[0, 1]).mean()
    for cell in pd.read_csv(RESULTS / f"{name}.csv").query("settings != 'published'").to_dict("records"):
        mean = known.loc[(cell["settings"], cell["method"]), cell["column"]]
        assert cell["mean"] == pytest.approx(mean, abs=5e-4, nan_ok=True), cell
    for kept in record["statements"]:
        assert (
            f"{kept['words']} (by {kept['mean']:+z.1f} [{kept['low']:z.1f}, {kept['high']:z.1f}], {kept['over']}; "
            in page
        )
        assert {YES: kept["low"] > 0, NO: kept["high"] < 0}.get(kept["answer"], True)
    assert f"**Measured.** {record['verdict']}" in page
