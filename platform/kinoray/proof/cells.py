"""The ranks of a bundle as cells of result matrices, and the digests that a chain has of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kinoray.errors import UsageError
from kinoray.metrics import Cells, Ranks
from kinoray.training.chain import ranks_link
from kinoray.training.stages import BEFORE, Stage

Queries = dict[tuple[str, int, int], list[tuple[int, str]]]


class Tested(NamedTuple):
    """What was ranked."""

    cells: Cells
    queries: Queries
    """Sample number and clip id of each query of a cell."""

    def of_row(self, row: int) -> dict[int, list[tuple[int, str]]]:
        """The queries of a row by task; those of the main reading."""
        return {task: pairs for (_, of, task), pairs in reversed(self.queries.items()) if of == row}

    def links(self, stages: Sequence[Stage]) -> list[str]:
        """The digest of each stage's ranks."""
        return [ranks_link(self.cells, stage, self.of_row(stage.row)) for stage in stages]


def cells_of(table: pa.Table, tasks: int, where: str) -> Tested:
    """The cells of ranks.parquet; queries in the order of its rows. Raises: UsageError for what no ranking gives.

    table: as `read_ranks` gives it. tasks: of the run.
    """
    numbers = [name for name in table.column_names if name not in ("reading", "clip_id")]
    column: dict[str, Any] = {name: table[name].to_numpy() for name in numbers}
    ids, readings = (table[name].chunk(0).dictionary.to_pylist() for name in ("clip_id", "reading"))
    of_ids, codes = (table[name].chunk(0).indices.to_numpy().astype(np.int64) for name in ("clip_id", "reading"))
    rank, ties, gallery = column["rank"], column["ties"], column["gallery"]
    row, task = column["after_task"], column["task"]
    right = np.isfinite(rank) & (rank >= 0) & (rank < gallery) & (ties >= 0) & (ties < gallery)
    right &= (row >= BEFORE) & (row < tasks) & (task >= 0) & (task < tasks)
    if not right.all():
        raise UsageError(f"{where}, row {int(np.argmin(right))}: these numbers cannot come from a ranking.")
    cells: Cells = {}
    queries: Queries = {}
    keys = (codes * (tasks + 1) + row) * tasks + task
    for key in np.unique(keys):
        own = np.flatnonzero(keys == key)
        name = readings[codes[own[0]]], int(row[own[0]]), int(task[own[0]])
        cells[name] = Ranks(rank[own], ties[own], gallery[own])
        pairs = zip(column["sample"][own].tolist(), of_ids[own].tolist(), strict=True)
        queries[name] = [(sample, ids[clip]) for sample, clip in pairs]
        if len({sample for sample, _ in queries[name]}) != len(own):
            raise UsageError(f"{where}: a query of task {name[2] + 1}, tested after task {name[1] + 1}, has two rows.")
    return Tested(cells, queries)


def odd_cell(tested: Tested, stages: Sequence[Stage], readings: Sequence[str]) -> str:
    """The first cell that should be there and is not, or the other way round, or whose queries are others than those of
    the main reading; "" for none."""
    wanted = {(row, task) for stage in stages for row in (stage.row, *stage.same_rows) for task in stage.tests}
    wanted |= {(BEFORE, task) for stage in stages for task in stage.before}
    for reading in readings:
        there = {(row, task) for of, row, task in tested.cells if of == reading}
        for row, task in sorted(wanted ^ there):
            kind = "has no ranks" if (row, task) in wanted else "has ranks that its protocol does not give"
            return f"task {task + 1} after task {row + 1} {kind}"
    for (reading, row, task), pairs in tested.queries.items():
        if reading not in readings or tested.queries["", row, task] != pairs:
            return f"task {task + 1} after task {row + 1} has other queries in the reading {reading!r}"
    return ""
