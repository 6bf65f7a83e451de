"""Functions of upper rooms that lower ones call: `kinoray/__init__.py` sets them, before any room is imported."""

from collections.abc import Callable
from typing import Any

open_method: Callable[..., Any]
"""`kinoray.open_method`."""
search: Callable[..., Any]
"""`kinoray.search`."""
