"""Functions of upper rooms that lower ones call: `kinoray/__init__.py` sets them, before any room is imported."""

from collections.abc import Callable
from typing import Any

open_method: Callable[..., Any]
"""`kinoray.open_method`."""
feature_store: Callable[..., Any]
"""`kinoray.feature_store`."""
search: Callable[..., Any]
"""`kinoray.search`."""
