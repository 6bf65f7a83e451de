"""Variables of this process for a while, and with them of the processes that it starts meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""What `python -P` does, for processes whose command others write: they take no module from the current folder, where
a user's `random.py` is not the standard library's."""


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for a block; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
