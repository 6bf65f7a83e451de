"""What a run leaves for `Result`: metrics from ranks, and the files of the run folder."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.config import digest_of
from kinoray.disk.durable import whole_file, write_json
from kinoray.metrics import RECALLS, recall_at, summarise

Ranks = dict[tuple[int, int], np.ndarray]


def matrices_of(ranks: Ranks, num_tasks: int) -> dict[str, Any]:
    """Result matrices of R@1, R@5, R@10 in percent, nested lists with None where nothing was measured."""
    return {
        f"R@{k}": [
            [recall_at(ranks[i, t], k) if (i, t) in ranks else None for t in range(num_tasks)] for i in range(num_tasks)
        ]
        for k in RECALLS
    }


def write_results(
    folder: Path,
    *,
    state: str,
    names: tuple[str, ...],
    ranks: Ranks,
    validation: Ranks,
    queries: dict[int, list[tuple[int, str]]],
    galleries: dict[str, int],
    cost: dict[str, float],
    num_bad: int,
    digest: str | None,
) -> None:
    """Write result.json, matrix.parquet and, at the end, ranks.parquet.

    validation: ranks of the validation splits; queries: task -> (sample number, clip id) of each query; galleries:
    "row/task" -> clips ranked among; digest: of the final state.
    """
    matrices = matrices_of(ranks, len(names))
    validated = matrices_of(validation, len(names))
    last = max((row for row, _ in ranks), default=0)
    final = [ranks[last, task] for task in range(len(names)) if (last, task) in ranks]
    write_matrix(folder, names, matrices)
    if state == "finished":
        write_ranks(
            folder,
            (
                {
                    "after_task": i,
                    "task": t,
                    "sample": s,
                    "clip_id": c,
                    "rank": float(r),
                    "gallery": galleries[f"{i}/{t}"],
                }
                for (i, t), values in sorted(ranks.items())
                for (s, c), r in zip(queries[t], values, strict=True)
            ),
        )
    write_json(
        folder / "result.json",
        {
            "format": 1,
            "state": state,
            "metrics": summarise(matrices, final) if ranks else {},
            "matrix": matrices,
            "validation": summarise(validated) if validation else {},
            "validation_matrix": validated,
            "tested_ids": digest_of({names[t]: sorted({c for _, c in pairs}) for t, pairs in queries.items()}),
            "cost": {name: round(value, 3) for name, value in cost.items()},
            "bad_samples": num_bad,
            "state_digest": digest,
            "error": None,
        },
    )


def write_matrix(folder: str | Path, tasks: Sequence[str], matrices: Mapping[str, Any]) -> None:
    """Write matrix.parquet from square matrices (nested lists with None, or arrays with nan) by metric name."""
    rows = [
        {"after_task": i, "task": t, "task_name": tasks[t], "metric": metric, "value": float(value)}
        for metric, matrix in matrices.items()
        for i, row in enumerate(matrix)
        for t, value in enumerate(row)
        if value is not None and not math.isnan(value)
    ]
    types = {"after_task": "int64", "task": "int64", "task_name": "string", "metric": "string", "value": "double"}
    _write_table(Path(folder) / "matrix.parquet", rows, types)


def write_ranks(folder: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ranks.parquet: rows with after_task, task, sample, clip_id, rank (0-based mid-rank), gallery (its size)."""
    types = {"after_task": "int64", "task": "int64", "sample": "int64", "clip_id": "string"}
    _write_table(Path(folder) / "ranks.parquet", list(rows), types | {"rank": "double", "gallery": "int64"})


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in types.items()])
    with whole_file(path) as draft:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), draft)
