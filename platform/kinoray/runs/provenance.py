"""What a run was made by: the engine's source, the libraries' versions, and what has changed since."""

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinoray.config import digest_of

VERSIONS = ("kinoray", "torch", "torchvision", "transformers", "ray", "av", "numpy", "pyarrow")
BESIDE = ("methods", "search_spaces", "cluster")
"""Folders of an installed package that are not the engine."""


def code_digest() -> str:
    """SHA-256 over the engine's own source files; the other folders of the package, which a wheel puts inside, do not
    count."""
    folder = Path(__file__).parents[1]
    files = [p.relative_to(folder) for p in sorted(folder.rglob("*.py"))]
    return digest_of({str(p): (folder / p).read_text() for p in files if p.parts[0] not in BESIDE})


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that can move results; none of them is imported."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in VERSIONS}


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for everything that differs in two nested records."""
    lines = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += changes(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def changes_since(then: Mapping[str, Any], now: Mapping[str, Any], label: str) -> list[str]:
    """A line for each thing that is another one than when a run was started.

    then, now: records with `digests` (code, method) and `versions`.
    """
    notes = [
        f"Note: the {kind}'s source changed since {label} was started; --fresh starts over."
        for kind in ("code", "method")
        if then["digests"][kind] != now["digests"][kind]
    ]
    other = changes(then["versions"], now["versions"])
    return notes + ([f"Note: versions changed since {label} was started: {'; '.join(other)}."] if other else [])
