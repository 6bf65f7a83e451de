"""Which signals count as one."""

import os
import signal

import pytest

from kinoray.processes import signals
from kinoray.processes.signals import caught_signals, noted_signals


@pytest.fixture
def ended(monkeypatch) -> list[int]:
    """Exit codes with which the process would have ended at once."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def test_a_sigterm_that_comes_twice_at_once_is_one_request(ended, monkeypatch) -> None:
    with caught_signals() as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught.number == signal.SIGTERM and ended == []
        monkeypatch.setattr(signals, "ECHO_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [128 + signal.SIGTERM]


def test_a_second_ctrl_c_ends_at_once(ended) -> None:
    with caught_signals() as caught:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.number == signal.SIGINT and ended == [128 + signal.SIGINT]


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
