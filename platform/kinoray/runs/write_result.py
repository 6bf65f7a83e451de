"""What a run leaves for `Result`: metrics from ranks, and the files of the run folder."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from kinoray.config import digest_of
from kinoray.evaluation.protocol import BaseProtocol, matrix_name
from kinoray.metrics import Cells, Ranks
from kinoray.system.durable import whole_file, write_json
from kinoray.system.folders import seed_label
from kinoray.training.chain import Link, chain_of
from kinoray.training.stages import BEFORE


class Columns(NamedTuple):
    """Names of what is tested: columns of the result matrices."""

    tasks: tuple[str, ...]
    held_out: tuple[str, ...] = ()


def matrices_of(
    protocol: BaseProtocol, cells: Cells, num_tasks: int, first: int = 0, held_out: int = 0
) -> dict[str, Any]:
    """Result matrices of a protocol's scores in percent, nested lists with None where nothing was measured.

    first: their first row. held_out: columns behind those of the tasks.
    """

    def matrix(reading: str, k: int) -> list[list[float | None]]:
        rows, tasks = range(first, num_tasks), range(num_tasks + held_out)
        return [[cells[reading, i, t].score(k) if (reading, i, t) in cells else None for t in tasks] for i in rows]

    return {matrix_name(r, name): matrix(r, k) for r in protocol.readings for name, k in protocol.scores.items()}


def numbers_of(protocol: BaseProtocol, ranks: Cells, num_tasks: int) -> dict[str, Any]:
    """The metrics, result matrices and numbers of queries that follow from a run's ranks, as result.json has them."""
    matrices, counts = matrices_of(protocol, ranks, num_tasks), _num_queries(ranks)
    last = max((row for _, row, _ in ranks if row != BEFORE), default=0)
    final = [ranks["", last, task] for task in range(num_tasks) if ("", last, task) in ranks]
    metrics = protocol.summarise(matrices, queries=counts, final=final) if ranks else {}
    return {"metrics": metrics, "matrix": matrices, "queries": counts}


def write_results(
    folder: Path,
    *,
    protocol: BaseProtocol,
    state: str,
    names: Columns,
    ranks: Cells,
    validation: Cells,
    queries: dict[int, list[tuple[int, str]]],
    cost: dict[str, float],
    num_bad: int,
    digest: str | None,
    links: Sequence[Link | None] = (),
    processor: str = "",
) -> dict[str, Any]:
    """Write result.json, matrix.parquet and, at the end, ranks.parquet; returns what stands in the first.

    validation: ranks of the validation splits; queries: task -> (sample number, clip id) of each query; digest: of the
    final state; links: of the stages done; processor: what computed.
    """
    tasks, held_out = len(names.tasks), len(names.held_out)
    all_names = (*names.tasks, *names.held_out)
    numbers = numbers_of(protocol, ranks, tasks)
    validated, validation_counts = matrices_of(protocol, validation, tasks), _num_queries(validation)
    write_matrix(folder, all_names, matrices_of(protocol, ranks, tasks, BEFORE, held_out), BEFORE)
    if state == "finished":
        write_ranks(folder, _rank_rows(ranks, queries))
    outcome = {
        "format": 1,
        "run": seed_label(folder),
        "state": state,
        **numbers,
        "validation": protocol.summarise(validated, queries=validation_counts) if validation else {},
        "validation_matrix": validated,
        "validation_queries": validation_counts,
        "tested_ids": digest_of({all_names[t]: sorted({c for _, c in pairs}) for t, pairs in queries.items()}),
        "cost": {name: round(value, 3) for name, value in cost.items()},
        "bad_samples": num_bad,
        "state_digest": digest,
        "chain": chain_of(links),
        "states": [link and link.state for link in links],
        "processor": processor,
        "error": None,
    }
    write_json(folder / "result.json", outcome)
    return outcome


def _rank_rows(ranks: Cells, queries: Mapping[int, Sequence[tuple[int, str]]]) -> Iterator[dict[str, Any]]:
    """The rows of ranks.parquet. A gallery holds the clips of the task, or those of all tasks tested with it."""
    clips = {task: list(dict.fromkeys(clip for _, clip in pairs)) for task, pairs in queries.items()}
    for (reading, row), group in groupby(sorted(ranks.items()), key=lambda cell: cell[0][:2]):
        tested = [(task, r) for (_, _, task), r in group]
        together = [clip for task, _ in tested for clip in clips[task]]
        for task, r in tested:
            best = _best_clips(r, (clips[task], together))
            rows = zip(queries[task], r.middle, r.ties, r.gallery, best, strict=True)
            for (sample, clip), middle, ties, size, first in rows:
                yield {
                    "reading": reading,
                    "after_task": row,
                    "task": task,
                    "sample": sample,
                    "clip_id": clip,
                    "rank": float(middle),
                    "ties": int(ties),
                    "gallery": int(size),
                    "best": first,
                }


def _best_clips(ranks: Ranks, galleries: Sequence[Sequence[str]]) -> list[list[str]]:
    """Ids of the clips that each query found first, from that gallery which has as many clips as were ranked.

    Empty where none has (a clip without a caption was ranked, say) and where classes were.
    """
    sizes = {int(size) for size in ranks.gallery}
    among = next((gallery for gallery in galleries if {len(gallery)} == sizes), None)
    if ranks.best is None or among is None:
        return [[] for _ in range(len(ranks))]
    return [[among[place] for place in places if place >= 0] for places in ranks.best]


def write_matrix(folder: str | Path, tasks: Sequence[str], matrices: Mapping[str, Any], first: int = 0) -> None:
    """Write matrix.parquet from matrices (nested lists with None, or arrays with nan) by metric name.

    first: number of their first row.
    """
    rows = [
        {"after_task": i, "task": t, "task_name": tasks[t], "metric": metric, "value": float(value)}
        for metric, matrix in matrices.items()
        for i, row in enumerate(matrix, first)
        for t, value in enumerate(row)
        if value is not None and not math.isnan(value)
    ]
    types = {"after_task": "int64", "task": "int64", "task_name": "string", "metric": "string", "value": "double"}
    _write_table(Path(folder) / "matrix.parquet", rows, types)


def write_ranks(folder: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ranks.parquet: rows with reading, after_task, task, sample, clip_id, rank (0-based mid-rank), ties (other
    items with the same score), gallery (number of items): all that the scores follow from; and best, ids of the first
    clips that were found, where the gallery is one of clips."""
    types = {"reading": "string", "after_task": "int64", "task": "int64", "sample": "int64", "clip_id": "string"}
    types |= {"rank": "double", "ties": "int64", "gallery": "int64", "best": "list"}
    _write_table(Path(folder) / "ranks.parquet", list(rows), types)


def _num_queries(cells: Cells) -> list[int]:
    """Number of queries of each tested task, in order."""
    return [len(ranks) for _, ranks in sorted({task: ranks for (_, _, task), ranks in cells.items()}.items())]


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = pa.list_(pa.string())
    schema = pa.schema([(name, ids if kind == "list" else pa.type_for_alias(kind)) for name, kind in types.items()])
    with whole_file(path) as draft:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), draft)
