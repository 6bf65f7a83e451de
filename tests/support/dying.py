"""For processes that a test kills from within."""

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any


def dying(moment: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps functions: of the calls of all of them the `moment`-th, counted from 1, ends this process by SIGKILL."""
    calls = itertools.count(1)

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    return wrap
