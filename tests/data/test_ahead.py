"""Rows made ready ahead of their consumer, by a thread."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kinoray import on_device
from kinoray.data.ahead import DEPTH, made_ahead
from kinoray.errors import BadData


class Source:
    """Numbers, and what became of them."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.given, self.closed = 0, False
        self.count, self.fails_at = count, fails_at

    def numbers(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                if number == self.fails_at:
                    raise BadData("a clip")
                self.given = number + 1
                yield number
        finally:
            self.closed = True


def test_items_come_in_order_made_by_one_other_thread() -> None:
    threads = []

    def squared(number: int) -> int:
        threads.append(threading.get_ident())
        return number * number

    source = Source(20)
    assert list(made_ahead(source.numbers(), squared)) == [number**2 for number in range(20)]
    assert source.closed and len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_an_error_comes_in_its_place() -> None:
    items = made_ahead(Source(9, fails_at=3).numbers(), lambda number: number)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BadData, match="a clip"):
        next(items)


def test_a_consumer_that_goes_leaves_no_thread_and_no_more_is_read_than_waits() -> None:
    before, source = threading.active_count(), Source(1000)
    items = made_ahead(source.numbers(), lambda number: number)
    next(items)
    items.close()
    assert source.closed and threading.active_count() == before
    assert source.given <= 1 + DEPTH + 2  # taken, waiting, in the thread's hands


def test_what_is_pinned_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning is torch's: without a GPU a stand-in gives back, as torch does, what is pinned already."""
    copies: list[int] = []

    def pin(value: torch.Tensor) -> torch.Tensor:
        if not getattr(value, "is_pinned_here", False):
            copies.append(value.numel())
            value = value.clone()
            value.is_pinned_here = True  # type: ignore[attr-defined]
        return value

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    ready = on_device.on_pinned(np.zeros(6, np.uint8))
    assert on_device.on_pinned(ready) is ready and copies == [6]
