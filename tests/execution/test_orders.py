"""Orders of the tasks beside seeds: folders, records, joint training, dry runs, command lines."""

import json
from dataclasses import replace
from math import factorial
from pathlib import Path

import pytest
from support.growth import Late, learned
from typer.testing import CliRunner

import kinoray
from kinoray.cli.main import app
from kinoray.errors import UsageError
from kinoray.execution.dry_run import dry_run
from kinoray.execution.extend import extend
from kinoray.execution.run import run
from kinoray.runs.finding import load, load_all, select_runs
from kinoray.runs.reopen import recorded_stream
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import each_run
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.streams.orders import in_order
from kinoray.testing.small_stream import tasks_of

SHORT = {"max_steps": 2, "validations": 1}


def local(method, stream: Stream, folder: Path, **options):
    return run(method, stream=stream, num_workers=0, runs=folder, quiet=True, settings=SHORT, **options)


@pytest.fixture(scope="module")
def made(micro, tmp_path_factory) -> tuple[Stream, Path, list[Result]]:
    """All orders of two tasks with two seeds."""
    stream, runs = tasks_of(micro, 2), tmp_path_factory.mktemp("orders")
    return stream, runs, list(local("base_moco", stream, runs, seeds=2, orders="all"))


def test_each_order_has_a_folder_of_its_own_and_the_own_one_is_as_it_was(made) -> None:
    stream, runs, results = made
    (home,) = (path for path in runs.iterdir() if path.is_dir())
    places = ["seed-0", "seed-1", "order-1/seed-0", "order-1/seed-1"]
    assert [str(result.folder.relative_to(home)) for result in results] == places
    assert [(result.order, result.seed) for result in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    names = [task.name for task in stream.tasks]
    for result in results:
        tasks = names if result.order == 0 else names[::-1]
        assert result.tasks == tasks == json.loads((result.folder / "run.json").read_text())["tasks"]
        assert result.run["run"] == f"{home.name}/{result.folder.relative_to(home)}" == result.outcome["run"]
    alone = each_run(RunRequest("base_moco", stream=stream, settings=SHORT, runs=runs))
    assert [run.folder for run in alone] == [home / "seed-0"]


def test_a_run_in_another_order_is_the_run_on_tasks_in_that_order(made, tmp_path) -> None:
    stream, _, results = made
    other = replace(stream, tasks=stream.tasks[::-1])  # a stream whose own order it is
    assert learned(local("base_moco", other, tmp_path).folder) == learned(results[2].folder)


def test_runs_in_all_orders_are_found_reopened_and_returned(made, monkeypatch, capsys) -> None:
    stream, runs, results = made
    home = results[0].folder.parent
    assert [run.folder for run in load_all(home)] == [run.folder for run in results]
    assert [run.seed for run in load(home / "order-1")] == [0, 1]
    assert select_runs(["order=1", "seed=0"], runs) == [home / "order-1" / "seed-0"]
    assert select_runs(["method=base_moco"], runs) == [home]
    last = results[-1]
    assert recorded_stream(last) == recorded_stream(last, stream) == in_order(replace(stream), 1)
    monkeypatch.setattr("kinoray.execution.run._start", lambda *_: pytest.fail("a finished run was started again"))
    again = local("base_moco", stream, runs, seeds=2, orders=2)
    assert [run.folder for run in again] == [run.folder for run in results]
    opened = kinoray.open_method(last.folder)
    assert opened is not None
    table = kinoray.compare([home])
    assert "Mean over orders" in repr(table) and "0, 1 in 2 orders" in repr(table)
    assert CliRunner().invoke(app, ["list", "runs", "--runs", str(runs)]).output.count("seeds 0-1, 2 orders") == 1
    assert "order 1, seed 1" in kinoray.write_report(home).read_text().lower()
    assert "order 1, seed 1" in repr(last)


def test_an_order_can_be_extended(made, micro) -> None:
    stream, _, results = made
    three = tasks_of(micro, 3)
    longer = extend(results[2], three.tasks[-1], stream=stream, quiet=True)
    assert longer.tasks == [*results[2].tasks, three.tasks[-1].name]
    assert longer.order == 0 and longer.folder.name == "seed-0"


@pytest.mark.parametrize("way", [{"joint": True}, {"zero_shot": True}, {"control": "random-encoder"}])
def test_where_all_tasks_are_learned_at_once_or_none_there_is_one_order(micro, tmp_path, way) -> None:
    request = RunRequest("base_moco", stream=tasks_of(micro, 3), orders="all", seeds=2, runs=tmp_path, **way)
    assert [(run.stream.order, run.seed) for run in each_run(request)] == [(0, 0), (0, 1)]


def test_orders_that_there_are_not_are_refused_with_their_number(micro, tmp_path) -> None:
    for asked, message in ((7, "so 6 orders"), (0, "so 6 orders")):
        with pytest.raises(UsageError, match=message):
            local(Late, tasks_of(micro, 3), tmp_path, orders=asked)
    for asked in ("some", 1.5, True):
        with pytest.raises(UsageError, match="it must be a number or `all`"):
            RunRequest("base_moco", orders=asked)
    command = ["run", "base_moco", "--runs", str(tmp_path), "--num-workers", "0"]
    result = CliRunner().invoke(app, [*command, "--orders", "121", "--dry-run"])
    assert isinstance(result.exception, UsageError) and "so 120 orders" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_names_the_orders(micro, tmp_path) -> None:
    stream = tasks_of(micro, 4)
    plan = dry_run("base_moco", stream=stream, orders=3, runs=tmp_path)
    assert list(plan["orders"]) == [0, 1, 2] and plan["orders"][0] == [task.name for task in stream.tasks]
    assert len({tuple(tasks) for tasks in dry_run("base_moco", stream=stream, orders="all")["orders"].values()}) == (
        factorial(4)
    )


def test_what_is_said_of_few_clips_is_said_once_for_all_orders(made) -> None:
    *_, results = made
    (line,) = {line for result in results for line in result.cautions}
    assert "by chance" in line
