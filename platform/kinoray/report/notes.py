"""What must be read with a table of runs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kinoray.report.columns import OVERALL, Column
from kinoray.report.estimates import Row, smallest_p
from kinoray.runs.cautions import cautions
from kinoray.runs.identity import SHOWN, UNKNOWN, data_digests
from kinoray.runs.result import Result


def notes_of(rows: Sequence[Row], across: Sequence[Column]) -> list[str]:
    """Lines about doubtful numbers, seeds, other code or data, differences to the first row, and what did not finish.

    across: the columns whose differences are told.
    """
    first, *others = rows
    lines = [*_cautions(rows), _seeds_note(rows)]
    if first.shared:
        lines.append(f"All with {', '.join(f'{name}={value}' for name, value in first.shared.items())}.")
    lines += [_code_note(rows), *(_data_note(row, first) for row in others)]
    for row in others:
        lines += [_difference(row, first, column) for column in across if not row.is_bound]
    lines += [f"{row.label}: {row.unfinished}; not in the means." for row in rows if row.unfinished]
    return [line for line in lines if line]


def _cautions(rows: Sequence[Row]) -> list[str]:
    """The cautions of all runs, each once; of one that is not of all rows it is said of which."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for line in dict.fromkeys(line for run in row.results for line in cautions(run.run, row.metric)):
            found[line].append(row.label)
    return [line if len(labels) == len(rows) else f"{', '.join(labels)}: {line}" for line, labels in found.items()]


def other_ids(results: Sequence[Result]) -> list[str]:
    """A line for each run tested on other samples than the first: such numbers are not comparable."""
    tested = [(result, result.outcome.get("tested_ids")) for result in results if result.state == "finished"]
    return [
        f"{result.label} seed {result.seed} was tested on other samples than {tested[0][0].label} seed "
        f"{tested[0][0].seed}: their numbers are not comparable. See bad_samples.jsonl of both."
        for result, ids in tested
        if ids != tested[0][1]
    ]


def newest(runs: Sequence[Result]) -> Result:
    """Of runs of the same code, data, settings and seed the one that counts: finished, then newest."""
    return max(runs, key=lambda run: (run.state == "finished", run.finished_at, str(run.folder)))


def other_numbers(repeated: Iterable[Sequence[Result]]) -> list[str]:
    """A line for each seed of which runs that should be equal have other numbers. repeated: the runs of each seed."""
    lines = []
    for runs in repeated:
        last, finished = newest(runs), [run for run in runs if run.state == "finished"]
        if any(run.metrics != last.metrics for run in finished):
            others = ", ".join(str(run.folder) for run in finished if run.folder != last.folder)
            lines.append(
                f"{last.label} seed {last.seed} has other numbers in {others} than in {last.folder}, which is newer "
                "and counts. Name one of them."
            )
    return lines


def _code_note(rows: Sequence[Row]) -> str:
    """Which rows were computed by which source of kinoray's engine, where there are several."""
    by_code: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for code in dict.fromkeys(run.run.get("digests", {}).get("code", UNKNOWN)[:SHOWN] for run in row.results):
            by_code[code].append(row.label)
    parts = (f"{', '.join(labels)} by {code}" for code, labels in by_code.items())
    return f"Not all by the same source of kinoray itself: {'; '.join(parts)}." if len(by_code) > 1 else ""


def _data_note(row: Row, first: Row) -> str:
    """Of which tasks a row has other data than the first row."""
    own, others = data_digests(row.results[0].run), data_digests(first.results[0].run)
    tasks = [task for task, digest in own.items() if others.get(task, digest) != digest]
    return (
        f"{row.label} has other data than {first.label} in {', '.join(tasks)}: not comparable there." if tasks else ""
    )


def _seeds_note(rows: Sequence[Row]) -> str:
    counts = {len(row.by_seed) for row in rows}
    if counts == {1}:
        return "One seed: no intervals, and a difference may be luck."
    seeds = "; ".join(f"{row.label}: {', '.join(map(str, row.by_seed)) or 'none'}" for row in rows)
    return f"Mean over seeds ± half of the 95 % t interval (overall columns). Seeds: {seeds}."


def _difference(row: Row, first: Row, column: Column) -> str:
    gap = row.minus(first, column.key)
    if gap.mean is None:
        return ""
    where = "" if column.group == OVERALL else f" on {column.group}"
    head = f"{row.label} - {first.label}: {column.name}{where} {gap.mean:+.1f}"
    if gap.low is None:
        return f"{head}, {gap.seeds} seed in common, no interval"
    p = f"{smallest_p(gap.seeds):.2g}"
    return (
        f"{head} [{gap.low:.1f}, {gap.high:.1f}], {gap.seeds} seeds (smallest possible exact two-sided paired p = {p})"
    )
