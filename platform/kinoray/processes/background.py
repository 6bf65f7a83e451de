"""A call in a thread, waited for without losing signals."""

import threading
from collections.abc import Callable
from typing import Any


def in_thread(work: Callable[[], Any]) -> Any:
    """Do blocking work in a thread, so that this one handles signals; Tune then leaves the signal handlers alone."""
    box: dict[str, Any] = {}

    def target() -> None:
        try:
            box["value"] = work()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.3)
    if "error" in box:
        raise box["error"]
    return box["value"]
