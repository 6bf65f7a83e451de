"""Manifests of data sets that were prepared, and what they lack of what was published."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kinoray.data.manifest import Manifest, read_manifest
from kinoray.datasets import packages
from kinoray.errors import UsageError
from kinoray.families import families
from kinoray.system.folders import prepared_folder


def prepared_manifest(name: str) -> Manifest:
    """The manifest that `kinoray data prepare` wrote. Raises: UsageError with the command where there is none."""
    path = prepared_folder(name) / "manifest.parquet"
    if not path.is_file():
        raise UsageError(f"{name} is not prepared. Run `kinoray data prepare {name} --root DIR` first.")
    return read_manifest(path)


def prepared(name: str) -> Manifest:
    """The manifest of a prepared data set.

    Raises: UsageError with the command that makes it, where there is none.
    """
    need_prepared([name])
    return read_manifest(manifest_of(name))


def manifest_of(name: str) -> Path:
    """Where the manifest of a prepared data set lies."""
    return prepared_folder(name) / "manifest.parquet"


def need_prepared(names: Iterable[str]) -> None:
    """Raise a UsageError with a command for each data set that is not prepared."""
    missing = [name for name in names if not manifest_of(name).is_file()]
    if missing:
        drawn = families(packages.__path__)
        first, given = [name for name in missing if name in drawn], [name for name in missing if name not in drawn]
        commands = [f"`kinoray data fetch {name}`, then `kinoray data prepare {name}`" for name in first]
        commands += [f"`kinoray data prepare {name} --root DIR`, where DIR holds its files" for name in given]
        raise UsageError(f"Not prepared yet: {', '.join(missing)}. Run {'; '.join(commands)}.")


class Shortfalls(NamedTuple):
    """What readers of numbers on prepared sets must know, a line each."""

    partial: list[str]
    """Sets of which published clips are not there."""
    home_made: list[str]
    """Sets with splits, classes or queries of our own making in place of the published ones."""


def shortfalls(names: Iterable[str]) -> Shortfalls:
    """What the reports of preparing say of some sets; one without a report counts as partial."""
    found = Shortfalls([], [])
    for name in names:
        try:
            report = json.loads((prepared_folder(name) / "report.json").read_text(encoding="utf-8"))
            partial = _partial(report["splits"])
        except (OSError, ValueError, KeyError, TypeError):
            report, partial = {}, "its report is gone, so clips may be missing; prepare it again"
        if partial:
            found.partial.append(f"{name} is partial: {partial}.")
        found.home_made.extend(f"{name} is not as published: {line}." for line in report.get("home_made", ()))
    return found


def _partial(splits: dict[str, dict[str, Any]]) -> str:
    """How many clips of each split are there, where some are not; "" where all are. splits: as of a report."""
    wanted = {s: c["annotated"] if c["published"] is None else c["published"] for s, c in splits.items()}
    short = [split for split, counts in splits.items() if counts["ready"] < wanted[split]]
    return ", ".join(f"{splits[s]['ready']:,} of {wanted[s]:,} published {s} clips are there" for s in short)
