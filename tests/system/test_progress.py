"""Progress lines: what they say, how often, and that they keep to stderr."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from kinoray.system.progress import MANY, RunProgress, RunSteps
from kinoray.system.text import clock


def lines_of(file: io.StringIO) -> list[str]:
    return file.getvalue().splitlines()


def plain_console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=40), file


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_at_the_end() -> None:
    console, file = plain_console()
    times = iter(range(1000))
    with RunProgress(
        {"base_moco": RunSteps(["a", "b"], [20, 10])}, console=console, now=lambda: float(next(times))
    ) as bar:
        for task, steps in ((0, 20), (1, 10)):
            for step in range(steps):
                bar.update("base_moco", task, step + 1, loss=2.0, clips_per_step=48, epoch=step // 5)
    lines = lines_of(file)
    assert len(lines) == 4  # seconds 0, 10, 20, and the last step
    assert lines[1] == "base_moco: task 1/2 a, step 11/20, loss 2.000, ETA 0:19, epoch 3, 1.0 step/s, 48 clips/s"
    assert lines[2] == "base_moco: task 2/2 b, step 1/10, loss 2.000, ETA -:--, epoch 1", "no speed of the task before"
    assert "task 2/2 b" in lines[-1]
    assert "ETA 0:00" in lines[-1]


def test_what_a_run_does_between_steps_is_a_line_and_its_details_one_now_and_then() -> None:
    console, file = plain_console()
    times = iter(range(0, 1000, 4))
    with RunProgress({"a": RunSteps(["t"], [9])}, console=console, now=lambda: float(next(times))) as bar:
        for doing in ("building", "building", "testing", "testing: x", "testing: y", "testing: z"):
            bar.show("a", doing)
        bar.goes_on("a", "resumes at step 3")
        bar.goes_on("a", "resumes at step 3")
        bar.update("a", 0, 1, 1.0, 8)
        bar.show("a", "testing")
    shown = [line.partition(",")[0] for line in lines_of(file)]
    assert shown == ["a: building", "a: testing", "a: testing: z", "a resumes at step 3", "a: testing"]


def test_where_a_run_goes_on_stays_to_be_read_in_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    with RunProgress({"a": RunSteps(["t"], [9])}, console=console) as bar:
        bar.goes_on("a", "resumes at task 1/1 t")
        bar.show("a", "testing")
    assert "a resumes at task 1/1 t" in file.getvalue()


def test_the_last_line_is_not_printed_again_while_a_finished_run_is_tested() -> None:
    console, file = plain_console()
    with RunProgress({"base_moco": RunSteps(["a"], [2])}, console=console) as bar:
        for step in (1, 2, 2, 2):
            bar.update("base_moco", 0, step, 1.0, 8)
    assert len(lines_of(file)) == 2


def test_runs_side_by_side_have_a_line_each() -> None:
    console, file = plain_console()
    with RunProgress(
        dict.fromkeys(["base_moco/seed-0", "base_moco/seed-1"], RunSteps(["a"], [5])), console=console
    ) as bar:
        bar.update("base_moco/seed-1", 0, 1, 1.0, 8)
        bar.update("base_moco/seed-0", 0, 1, 1.0, 8)
    assert [line.split(":")[0] for line in lines_of(file)] == ["base_moco/seed-1", "base_moco/seed-0"]


def many(console: Console, now: Callable[[], float]) -> RunProgress:
    runs = {f"run {n}": RunSteps(["a"], [10]) for n in range(MANY + 1)} | {"zero-shot": RunSteps(["a"], [])}
    return RunProgress(runs, console=console, now=now)


def test_many_runs_say_how_many_are_done_and_when_all_will_be() -> None:
    console, file = plain_console()
    times = iter(range(0, 1000, 20))
    with many(console, lambda: float(next(times))) as bar:
        bar.update("run 0", 0, 3, 1.0, 8)
        bar.update("run 1", 0, 5, 1.0, 8)
        bar.update("run 0", 0, 10, 1.0, 8)
    assert [line.split("; ")[1] for line in lines_of(file)] == [
        "all runs: 0 of 7 done, ETA -:--",
        "all runs: 0 of 7 done, ETA 4:08",  # 62 steps to go at 5 in 20 s
        "all runs: 1 of 7 done, ETA 3:03",  # 55 at 12 in 40 s
    ]


def test_a_run_whose_last_step_nobody_saw_is_done_all_the_same() -> None:
    console, file = plain_console()
    times = iter(range(0, 1000, 20))
    with many(console, lambda: float(next(times))) as bar:
        bar.update("run 0", 0, 2, 1.0, 8)
        bar.end("run 0")
        bar.update("run 0", 0, 3, 1.0, 8)  # looked at before, told after
    assert lines_of(file)[-1] == "run 0: finished; all runs: 1 of 7 done, ETA 2:30"  # 60 steps at 8 in 20 s


def test_in_a_terminal_only_those_of_many_runs_that_are_on_have_a_bar() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=160)
    times = iter(range(1000))
    with many(console, lambda: float(next(times))) as bar:
        bar.update("run 3", 0, 4, 1.0, 8)
    assert "run 3" in file.getvalue() and "all runs" in file.getvalue() and "run 2" not in file.getvalue()


def test_quiet_shows_warnings_only() -> None:
    console, file = plain_console()
    with RunProgress({"base_moco": RunSteps(["a"], [5])}, quiet=True, console=console) as bar:
        bar.update("base_moco", 0, 1, 1.0, 8)
        bar.warn("code changed since")
    assert lines_of(file) == ["Warning: code changed since"]


def test_names_from_data_reach_the_terminal_without_control_characters() -> None:
    console, file = plain_console()
    with RunProgress({"m": RunSteps(["\x1b]0;x[red]"], [5])}, console=console) as bar:
        bar.update("m", 0, 1, 1.0, 8)
        bar.warn("\x1b[2J")
    assert "\x1b" not in file.getvalue() and "[red]" in file.getvalue()


def test_in_a_terminal_the_bars_are_live() -> None:
    file = io.StringIO()
    with RunProgress({"m": RunSteps(["a"], [5])}, console=Console(file=file, force_terminal=True, width=160)) as bar:
        bar.update("m", 0, 5, 1.25, 8, epoch=1)
    assert "loss 1.250" in file.getvalue() and "100 %" in file.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3661.4, "1:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
