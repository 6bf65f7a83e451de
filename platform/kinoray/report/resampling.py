"""What a run's numbers would be with other queries of the same kind: a bootstrap of `ranks.parquet`.

Clips are drawn with replacement from each task's test clips, with all their captions: captions of a clip are alike. The
draws are functions of the clips' ids alone, so that all runs that were tested by the same clips, whatever their method,
seed or order of tasks, lose and gain the same ones, and differences are paired by query.
"""

# B draws   V clips of a task   Q queries of a task

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinoray.evaluation.protocol import matrix_name
from kinoray.metrics import Ranks, hits_at
from kinoray.runs.result import Result
from kinoray.training.stages import BEFORE

DRAWS = 200
"""B: the standard error is then known to 5 %."""
CLOSE = 0.01
"""Points by which a cell of the result matrix may miss what its ranks give; ranks of another run miss it by more."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Numbers = Callable[[Mapping[str, Floats], Sequence[int], Sequence[Ranks]], Mapping[str, float | None]]
"""(result matrices by name, number of each task's queries, final ranks of each task) -> column -> number."""


def draws_of(result: Result, numbers: Numbers) -> dict[str, Floats]:
    """Column -> its number on each draw of the queries, (B,); without those that are missing in one.

    {} where there are no ranks, or ranks that do not give the run's own matrices.
    """
    ranks, matrices = result.ranks, result.outcome.get("matrix", {})
    ranks = ranks[(ranks["after_task"] != BEFORE) & (ranks["task"] < len(result.tasks))]  # no metric counts others
    chosen = {part["task"].iloc[0]: _chosen(part) for _, part in ranks.groupby("task")}
    size, protocol = len(result.tasks), result.protocol
    drawn = {name: np.full((DRAWS, size, size), np.nan) for name in protocol.matrix_names}
    for _, part in ranks.groupby(["reading", "after_task", "task"]):
        reading, row, task = part[["reading", "after_task", "task"]].iloc[0]
        ids, counts_BV = chosen[task]
        place_Q = ids.get_indexer(pd.Index(part["clip_id"]))
        queries_V = np.bincount(place_Q, minlength=len(ids))
        for score, k in protocol.scores.items():
            name = matrix_name(reading, score)
            hits_V = np.bincount(place_Q, hits_at(part["rank"], k, part["ties"]), minlength=len(ids))
            known = matrices.get(name, [[None] * size] * size)[row][task]
            if known is None or abs(known - 100 * hits_V.sum() / len(part)) > CLOSE:
                return {}
            drawn[name][:, row, task] = 100 * (counts_BV @ hits_V) / (counts_BV @ queries_V)
    if not chosen:
        return {}
    final = _final(ranks, chosen)
    lines = [
        numbers({name: of_all[draw] for name, of_all in drawn.items()}, *_queries(final, draw)) for draw in range(DRAWS)
    ]
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    return {name: np.array(values, float) for name, values in columns.items() if all(v is not None for v in values)}


def _chosen(part: pd.DataFrame) -> tuple[pd.Index, Counts]:
    """A task's test clips, and how often each is in each draw (B, V)."""
    ids = pd.Index(sorted(set(part["clip_id"])))
    seed = int.from_bytes(hashlib.sha256("\n".join(ids).encode()).digest()[:8], "big")
    return ids, np.random.default_rng(seed).multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=DRAWS)


def _final(ranks: pd.DataFrame, chosen: Mapping[int, tuple[pd.Index, Counts]]) -> list[tuple[Ranks, Counts]]:
    """Of each task, the main reading's ranks after the last stage, and how often each is in each draw (B, Q)."""
    main = ranks[ranks["reading"] == ""]
    last = main[main["after_task"] == main["after_task"].max()]
    final = []
    for _, part in last.groupby("task"):
        ids, counts_BV = chosen[part["task"].iloc[0]]
        of_task = Ranks(*(part[name].to_numpy() for name in ("rank", "ties", "gallery")))
        final.append((of_task, counts_BV[:, ids.get_indexer(pd.Index(part["clip_id"]))]))
    return final


def _queries(final: Sequence[tuple[Ranks, Counts]], draw: int) -> tuple[list[int], list[Ranks]]:
    """Number and ranks of each task's queries in one draw."""
    rows = [np.repeat(np.arange(len(ranks)), counts_BQ[draw]) for ranks, counts_BQ in final]
    parts = [Ranks(r.middle[q], r.ties[q], r.gallery[q]) for (r, _), q in zip(final, rows, strict=True)]
    return [len(part) for part in parts], parts
