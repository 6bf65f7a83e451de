"""Python processes that take no module from the current folder: a user's `random.py` is not the standard library's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""For the environment of a process of ours: what `python -P` does, for those whose command others write."""


@contextmanager
def safe_path() -> Iterator[None]:
    """Have the processes that are started meanwhile find it in their environment."""
    before = {name: os.environ[name] for name in SAFE_PATH if name in os.environ}
    os.environ.update(SAFE_PATH)
    try:
        yield
    finally:
        for name in SAFE_PATH:
            del os.environ[name]
        os.environ.update(before)
