"""Calls in threads, waited for without losing signals."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kinoray.errors import RayLost


def in_thread(work: Callable[[], Any], look: Callable[[], None] = lambda: None) -> Any:
    """Do blocking work in a thread, so that this one handles signals; Tune then leaves the signal handlers alone.

    look: called about three times a second meanwhile. Returns what the work returns; raises what it raises.
    """
    result: dict[str, Any] = {}

    def target() -> None:
        try:
            result["value"] = work()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.3)
        look()
    if "error" in result:
        raise result["error"]
    return result["value"]


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads, waited for at the end; not where Ray was lost, which some of them wait for."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except RayLost:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
