"""The order of a stream's tasks as something that is repeated, as seeds are.

Order 0 is the stream's own. The others are drawn one after the other, each once, from the stream's name and its number
of tasks alone: order 3 is the same for every method, seed and count, so runs can be paired, and more orders begin with
the same ones.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from kinoray.errors import UsageError
from kinoray.seeds import integers_below, seed_of
from kinoray.streams import Stream, TaskData

ALL = "all"
MOST_TASKS = 6
"""`ALL` is for streams of so many tasks at most: six have 720 orders, seven 5040."""


def count_orders(stream: Stream, asked: int | str) -> int:
    """How many orders `--orders` asks for. Raises: UsageError where the stream has not as many, or far too many."""
    tasks, most = len(stream.tasks), math.factorial(len(stream.tasks))
    has = f"`orders` is {asked}, but {stream.name} has {tasks} task{'s' * (tasks > 1)}, so {most:,} orders"
    if asked == ALL:
        if tasks > MOST_TASKS:
            raise UsageError(f"{has}: `all` is for {MOST_TASKS} tasks at most. Give a number.")
        return most
    if not isinstance(asked, int) or not 1 <= asked <= most:
        raise UsageError(f"{has}: give a number from 1 to {most:,}{', or all' * (tasks <= MOST_TASKS)}.")
    return asked


def in_order(stream: Stream, number: int) -> Stream:
    """The stream with its tasks in the order of that number, whichever they are in."""
    own, places = own_tasks(stream), drawn(stream.name, len(stream.tasks), number + 1)[number]
    return replace(stream, tasks=tuple(own[place] for place in places), order=number)


def own_tasks(stream: Stream) -> tuple[TaskData, ...]:
    """The stream's tasks in its own order, whichever it is in."""
    places = drawn(stream.name, len(stream.tasks), stream.order + 1)[stream.order]
    return tuple(task for _, task in sorted(zip(places, stream.tasks, strict=True), key=lambda pair: pair[0]))


@lru_cache(maxsize=64)
def drawn(name: str, tasks: int, count: int) -> tuple[tuple[int, ...], ...]:
    """The first so many orders, at most `tasks`!; each says which task of the stream stands at each place."""
    orders = dict.fromkeys([tuple(range(tasks))])
    for order in _shuffles(name, tasks):
        if len(orders) >= count:
            break
        orders[order] = None
    return tuple(orders)


def _shuffles(name: str, tasks: int) -> Iterator[tuple[int, ...]]:
    """Orders without end, each as likely as any other (Fisher and Yates)."""
    number = 0
    while True:
        places = list(range(tasks))
        bounds = range(tasks, 1, -1)
        for bound, chosen in zip(bounds, integers_below(bounds, seed_of("orders", name, number), 0), strict=True):
            places[chosen], places[bound - 1] = places[bound - 1], places[chosen]
        yield tuple(places)
        number += 1
