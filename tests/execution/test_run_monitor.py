"""The run's log: what a kill leaves of it, and what is never skipped."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinoray.errors import KinorayError
from kinoray.execution.run_monitor import MonitorClient, RunMonitor, forget_start
from kinoray.system.durable import cut_torn_line, read_jsonl


def record(step: int) -> dict[str, float]:
    return {"task": 0, "step": step, "loss": 1.0}


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_jsonl(folder / "metrics.jsonl")]


def test_a_monitor_goes_on_behind_a_line_that_its_predecessor_left_torn(tmp_path) -> None:
    RunMonitor(str(tmp_path)).log([record(step) for step in range(4)])
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    assert steps(tmp_path) == [0, 1, 2]
    again = RunMonitor(str(tmp_path))  # by Ray, within the attempt: nothing is rewound
    again.log([record(step) for step in range(5)])
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
    again.rewind(0, 2)
    assert steps(tmp_path) == [0, 1]


def test_a_file_of_one_torn_line_is_empty_and_a_whole_one_stays(tmp_path) -> None:
    file = tmp_path / "lines.jsonl"
    cut_torn_line(file)
    assert not file.exists() and read_jsonl(file) == []
    for written, left in (('{"a": 1', ""), ('{"a": 1}\n', '{"a": 1}\n'), ('{"a": 1}\n{"a', '{"a": 1}\n'), ("", "")):
        file.write_text(written)
        cut_torn_line(file)
        assert file.read_text() == left


def test_a_damaged_line_in_the_middle_is_named_and_not_skipped(tmp_path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"task": 0}\n{"task": 0, "lo{"task": 0}\n{"task": 1}\n')
    with pytest.raises(
        KinorayError, match=r"metrics\.jsonl, line 2 is damaged: .* is not JSON\. Delete that line"
    ) as told:
        read_jsonl(file)
    assert "\n" not in str(told.value)
    file.write_text('{"task": 0}\n{"tasj": 0}\n')
    with pytest.raises(KinorayError, match=r"line 2 is damaged: it lacks 'task'\. Delete that line"):
        read_jsonl(file, "task")


def test_a_rank_on_ray_learns_of_a_request_to_stop_and_does_not_forget_it(monkeypatch) -> None:
    """The monitor's answers, in their order, stand for its object refs."""
    ready_at_once = SimpleNamespace(wait=lambda refs, **options: (refs, []), get=list)
    monkeypatch.setitem(sys.modules, "ray", ready_at_once)
    answers = iter([False, True, False])
    client = MonitorClient(SimpleNamespace(log=SimpleNamespace(remote=lambda records, vitals: next(answers))))
    client.flush()
    assert client.poll() is False
    client.flush()
    assert client.poll() is True
    client.flush()
    assert client.poll() is True


def test_attempts_count_from_the_last_one_that_got_on(tmp_path) -> None:
    """Workers that are killed again and again end a run only where nothing new was committed in between."""
    monitor = RunMonitor(str(tmp_path))
    for _ in range(2):
        assert monitor.begin_attempt() == 1
        monitor.rewind(0, 0)
        assert [monitor.begin_attempt(), monitor.begin_attempt()] == [2, 3]
        monitor.rewind(0, 20)  # they went on from a new commit
        assert monitor.begin_attempt() == 2
        monitor.rewind(0, 20)
        assert monitor.begin_attempt() == 3
        monitor = RunMonitor(str(tmp_path))  # another in place of one that died
        assert monitor.begin_attempt() == 4
        monitor.rewind(1, 0)
        assert monitor.begin_attempt() == 2
        forget_start(tmp_path)
        monitor = RunMonitor(str(tmp_path))


def test_a_machine_that_was_taken_away_is_no_failed_attempt(tmp_path) -> None:
    monitor = RunMonitor(str(tmp_path))
    assert monitor.begin_attempt(["a", "b"]) == 1
    monitor = RunMonitor(str(tmp_path))
    assert monitor.begin_attempt(["a", "c"]) == 1, "b is gone"
    assert monitor.begin_attempt(["a", "c", "d"]) == 2, "all are there that were"
    assert monitor.begin_attempt(["a"]) == 2


def test_unreadable_clips_met_after_a_checkpoint_are_forgotten_with_it(tmp_path) -> None:
    """A clip that was bad for a moment does not stay so once the run goes on from before it was met."""
    first, later = ({"task": "a", "id": name, "uri": f"{name}.mp4"} for name in ("x", "y"))
    monitor = RunMonitor(str(tmp_path))
    assert monitor.report_bad([first]) == 1
    records = monitor.bad_records()
    assert monitor.report_bad([later]) == 2
    again = RunMonitor(str(tmp_path))
    again.rewind(0, 10, records)
    assert again.num_bad() == 1 and read_jsonl(tmp_path / "bad_samples.jsonl") == [first]
    again.rewind(0, 10)  # of a checkpoint from before they were kept in it
    assert again.num_bad() == 1


def test_notes_outlive_a_monitor_that_dies_before_they_are_shown_but_not_the_start(tmp_path: Path) -> None:
    RunMonitor(str(tmp_path)).note("a clip is left out")
    again = RunMonitor(str(tmp_path))
    again.note("another")
    assert RunMonitor(str(tmp_path)).latest()["notes"] == ["a clip is left out", "another"]
    again.begin_attempt(["a"])
    again.note_failure({"kind": "ValueError", "error": "a method's own"})
    forget_start(tmp_path, failure=False)
    ended = RunMonitor(str(tmp_path))
    assert (ended.latest()["notes"], ended.attempts.count) == ([], 0) and ended.failed() is not None
    forget_start(tmp_path)
    assert RunMonitor(str(tmp_path)).failed() is None


def test_a_failure_outlives_the_monitor_that_noted_it(tmp_path: Path) -> None:
    answer = {"kind": "ValueError", "error": "a method's own"}
    RunMonitor(str(tmp_path)).note_failure(answer)
    again = RunMonitor(str(tmp_path))
    assert again.failed() == answer
    again.note_failure({"kind": "RuntimeError", "error": "a peer's, which follows"})
    assert again.failed() == answer == RunMonitor(str(tmp_path)).failed()
