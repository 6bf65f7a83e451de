"""What a run leaves for `Result`: metrics from ranks, and the files of the run folder."""

from pathlib import Path
from typing import Any

import numpy as np

from kinoray.config import digest_of
from kinoray.disk.durable import write_json_atomic
from kinoray.metrics import RECALLS, recall_at, summarise
from kinoray.result import write_matrix, write_ranks

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
    write_json_atomic(
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
