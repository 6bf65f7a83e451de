"""Which signals count as one."""

import io
import os
import signal
import threading
import time

import pytest
from support.waiting import wait_until

from kinoray.system import signals
from kinoray.system.signals import caught_signals, noted_signals


@pytest.fixture
def ended(monkeypatch) -> list[int]:
    """Exit codes with which the process would have ended at once."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one_request_and_one_that_comes_later_ends_at_once(
    number, ended, monkeypatch
) -> None:
    with caught_signals() as caught:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert caught.number == number and ended == []
        monkeypatch.setitem(signals.ECHO_S, number, 0.0)
        os.kill(os.getpid(), number)
        assert ended == [128 + number]


def test_a_second_interrupt_in_a_notebook_raises_and_ends_nothing(ended, monkeypatch) -> None:
    monkeypatch.setattr("sys.ps1", "In : ", raising=False)
    monkeypatch.setitem(signals.ECHO_S, signal.SIGINT, 0.0)
    with caught_signals() as caught:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert caught.number == signal.SIGINT and ended == []


def test_a_request_to_stop_is_said_outside_of_its_handler(monkeypatch) -> None:
    """In the midst of a write to stderr the handler may not write there, too."""

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            if not self.tell():
                super().write("a line, ")
                os.kill(os.getpid(), signal.SIGTERM)
            assert threading.current_thread() is not threading.main_thread() or "Stopping" not in text
            return super().write(text)

    stderr = Busy()
    monkeypatch.setattr("sys.stderr", stderr)
    with caught_signals():
        print("and its end", file=stderr)
        wait_until(lambda: "again to quit without saving.\n" in stderr.getvalue())
    assert "and its end" in stderr.getvalue()


def test_what_is_noted_twice_at_once_is_delivered_once() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with noted_signals() as noted:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert noted == [signal.SIGTERM, signal.SIGTERM] and came == []
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
