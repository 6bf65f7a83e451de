"""A thread that makes a GPU's next rows ready while the host hands it the step before."""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

T = TypeVar("T")

DEPTH = 2
"""Items that wait, ready, for their consumer."""
LOOKS_S = 0.1
"""Seconds after which the thread looks whether its consumer has gone."""


def made_ahead(items: Generator[T, None, None], make: Callable[[T], T]) -> Generator[T, None, None]:
    """`make` of every item, in order, by one thread that keeps a few ready. What fails there is raised here, in its
    place; the thread ends with its consumer, and the items are closed."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(DEPTH)
    gone = threading.Event()

    def put(kind: str, what: Any = None) -> None:
        while not gone.is_set():
            try:
                return ready.put((kind, what), timeout=LOOKS_S)
            except queue.Full:
                pass

    def work() -> None:
        try:
            for item in items:
                put("item", make(item))
                if gone.is_set():
                    return
            put("end")
        except BaseException as error:  # it is the consumer's to deal with
            put("error", error)

    thread = threading.Thread(target=work, name="kinoray-ahead", daemon=True)
    with closing(items):
        thread.start()
        try:
            while True:
                kind, what = ready.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise what
                yield what
        finally:
            gone.set()
            thread.join()
