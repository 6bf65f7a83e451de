"""Orders of a stream's tasks: drawn from its name alone, each once, and refused where there are not as many."""

import math
from dataclasses import replace

import pytest

from kinoray.errors import UsageError
from kinoray.streams.orders import count_orders, drawn, in_order, own_tasks
from kinoray.testing.small_stream import tasks_of


@pytest.mark.parametrize("tasks", [1, 2, 4, 5])
def test_all_orders_are_drawn_once_and_the_first_is_the_streams_own(tasks) -> None:
    orders = drawn("some", tasks, math.factorial(tasks))
    assert orders[0] == tuple(range(tasks))
    assert len(set(orders)) == len(orders) == math.factorial(tasks)
    assert all(sorted(order) == list(range(tasks)) for order in orders)


def test_more_orders_begin_with_the_same_ones_and_other_streams_have_others() -> None:
    assert drawn("moving-cvlm", 5, 120)[:7] == drawn("moving-cvlm", 5, 7)
    assert drawn("moving-cvlm", 5, 7) != drawn("moving-cvlm:9", 5, 7)
    # Folders are named by these places, so they must stay.
    assert drawn("moving-cvlm", 5, 4) == ((0, 1, 2, 3, 4), (2, 1, 0, 3, 4), (3, 2, 0, 4, 1), (4, 2, 0, 3, 1))


def test_drawn_orders_are_as_likely_as_any_other() -> None:
    firsts = [drawn(f"stream-{n}", 3, 2)[1] for n in range(600)]
    counts = [firsts.count(order) for order in set(firsts)]
    assert len(counts) == 5  # the sixth is the stream's own
    assert min(counts) > 80


def test_a_stream_in_another_order_knows_its_own(micro) -> None:
    stream = tasks_of(micro, 4)
    for number in (0, 3, 23):
        other = in_order(stream, number)
        assert other.order == number
        assert own_tasks(other) == stream.tasks
        assert in_order(other, 0) == stream
    assert len({tuple(task.name for task in in_order(stream, n).tasks) for n in range(24)}) == 24


def test_numbers_of_orders_are_checked_against_the_stream(micro) -> None:
    three, seven = tasks_of(micro, 3), replace(micro, tasks=micro.tasks[:1] * 7)
    assert count_orders(three, "all") == count_orders(three, 6) == 6
    assert count_orders(seven, 5040) == 5040
    for asked in (0, -1, 7):
        with pytest.raises(UsageError, match=f"`orders` is {asked}, but micro has 3 tasks, so 6 orders: .* 1 to 6, or"):
            count_orders(three, asked)
    with pytest.raises(UsageError, match="micro has 7 tasks, so 5,040 orders: `all` is for 6 tasks at most"):
        count_orders(seven, "all")
    with pytest.raises(UsageError, match="micro has 1 task, so 1 orders"):
        count_orders(tasks_of(micro, 1), 2)
