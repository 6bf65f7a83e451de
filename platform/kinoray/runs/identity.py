"""What runs share that differ in nothing but the seed: the code of the method, the data, the settings."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinoray.config import digest_of

SHOWN = 8
"""Characters of a digest in a label."""
UNKNOWN = "unknown"
"""Stands for a digest that a run.json has not: such runs are not known to equal any other."""


class Identity(NamedTuple):
    """Digests of what seeds of one run have in common."""

    code: str
    """Of the method's own source; kinoray's engine does not count."""
    data: str
    """Of the content of all tasks' manifests, and of their videos where it is known."""
    settings: str
    """Of everything else that run.json says was asked for, the seed left out."""


def identity(run: Mapping[str, Any]) -> Identity:
    """The identity of a run by its run.json."""
    digests, data = run.get("digests", {}), data_digests(run)
    files = digests.get("files")
    own = [run.get(f"{kind}_source", {}).get("digest") for kind in ("backbone", "protocol")]
    more = filter(None, [run.get("control"), run.get("equal_flops"), *own])  # as older runs are, which have none
    config = {name: value for name, value in run["config"].items() if name != "seed"}
    return Identity(
        digests.get("method", UNKNOWN),
        digest_of([data, files] if files else data) if data else UNKNOWN,
        digest_of([run["method"], run["backbone"], run["joint"], run["zero_shot"], config, *more]),
    )


def data_digests(run: Mapping[str, Any]) -> dict[str, str]:
    """Task -> digest of its manifest, by a run.json; {} where it has none."""
    return run.get("digests", {}).get("data", {})


def suffixes(runs: Sequence[tuple[str, Identity]]) -> list[str]:
    """What tells each (label, identity) from others of its label, as ` (code 1a2b3c4d)`; "" where nothing need."""
    alike: dict[str, set[Identity]] = defaultdict(set)
    for label, known in runs:
        alike[label].add(known)
    return [_suffix(known, alike[label]) for label, known in runs]


def _suffix(known: Identity, alike: Iterable[Identity]) -> str:
    columns = zip(known._fields, known, zip(*alike, strict=True), strict=True)
    parts = [f"{name} {digest[:SHOWN]}" for name, digest, all_ in columns if len(set(all_)) > 1]
    return f" ({', '.join(parts)})" if parts else ""
