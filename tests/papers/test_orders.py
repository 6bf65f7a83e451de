"""Tables over several orders of the tasks: how HM spreads, what one task does to another, who changes places."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import TASKS, make_run

from kinoray.errors import UsageError
from kinoray.execution import run as running
from kinoray.papers.bmu_moco import ORDERS
from kinoray.papers.pictures import moves
from kinoray.papers.reproduce import reproduce
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.testing.small_stream import tasks_of


def test_the_table_of_orders_runs_small_on_a_stand_in(micro, tmp_path, monkeypatch) -> None:
    real = running.run_all

    def in_process(requests: Sequence[RunRequest]) -> list[list[Result]]:
        return real([replace(request, num_workers=0) for request in requests])

    monkeypatch.setattr(running, "run_all", in_process)
    stream = tasks_of(micro, 3)
    common: dict[str, Any] = {"stream": stream, "runs": tmp_path, "smoke": True, "quiet": True}
    made = reproduce("orders", orders="3", **common)  # as the command line gives it
    assert made.missing == [] and len(made.frame) == 3 * len(ORDERS.rows) and made.frame["order"].nunique() == 3
    assert "in 3 orders of the tasks" in made.setting() and "--orders 3" in made.command()
    written = json.loads((made.folder / "orders.json").read_text())
    assert written["orders"] == 3
    names = {task.name for task in stream.tasks}
    assert set(written["moves"]) == {row.label for row in ORDERS.rows}
    assert all(set(table) == names for table in written["moves"].values())
    assert (made.folder / "orders.png").stat().st_size > 10_000


def test_all_orders_are_meant_by_default(micro, tmp_path) -> None:
    planned = reproduce("orders", stream=tasks_of(micro, 3), runs=tmp_path, dry_run=True)["runs"]
    assert [len(plan["orders"]) for plan in planned] == [6] * len(ORDERS.rows)
    with pytest.raises(UsageError, match="so 6 orders"):
        reproduce("orders", stream=tasks_of(micro, 3), orders=7, runs=tmp_path, dry_run=True)


def test_what_training_on_a_task_does_to_another_is_a_mean_over_orders(tmp_path: Path) -> None:
    runs = []
    for number, tasks in enumerate((TASKS, TASKS[::-1])):
        run = Result(make_run(tmp_path / str(number), tasks=tasks, seed=number))
        runs.append(run)
    table, (own, turned) = moves(runs, "R@1"), (run.matrix.to_numpy() for run in runs)
    assert table.loc["zoom", "plain"] == pytest.approx(own[2, 0] - own[1, 0])
    assert table.loc["plain", "story"] == pytest.approx(turned[4, 0] - turned[3, 0])
    assert table.isna().to_numpy().sum() == len(TASKS)  # a task does nothing to itself
