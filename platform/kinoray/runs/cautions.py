"""What keeps a run's numbers from being results: galleries of a few clips, published data that are not as published.

Manifests are read where a run starts and of older runs; who is shown a newer one does not wait for pyarrow.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import recorded_protocol
from kinoray.streams import Stream

FEW = 20
"""Clips below which chance alone finds the right one often."""


def data_facts(stream: Stream) -> dict[str, Any]:
    """What run.json says of a stream for `cautions`; `shortfalls` only where published data are not as published."""
    from kinoray.data.manifest import read_manifest
    from kinoray.datasets.prepared import shortfalls

    lacking = shortfalls(dict.fromkeys(task.data_set for task in stream.tasks if task.data_set))
    return {
        "protocol": stream.protocol,
        "tasks": [task.name for task in stream.tasks],
        "test_clips": [len(read_manifest(task.manifest).clips("test")) for task in stream.tasks],
        **({"shortfalls": lacking._asdict()} if any(lacking) else {}),
    }


def cautions(run: Mapping[str, Any], score: str | None = None) -> list[str]:
    """Lines to be read with a run's numbers, from its run.json or `data_facts`; [] where they are as good as they look.

    score: whose level of chance is told; None: the protocol's main one.
    """
    lacking = run.get("shortfalls", {})
    return [*_small_galleries(run, score), *lacking.get("partial", ()), *lacking.get("home_made", ())]


def _small_galleries(run: Mapping[str, Any], score: str | None) -> list[str]:
    """A line for each size below `FEW` of the galleries at the end."""
    protocol = recorded_protocol(run)
    score = score or protocol.score
    by_size: dict[int, list[str]] = defaultdict(list)
    sizes = dict(zip(run["tasks"], protocol.galleries(_test_clips(run)), strict=False))
    in_own_order = [task for task in run.get("digests", {}).get("data", {}) if task in sizes]  # one line for all orders
    for task in in_own_order if len(in_own_order) == len(sizes) else sizes:
        if sizes[task] < FEW:
            by_size[sizes[task]].append(task)
    return [
        f"{score} by chance is {100 * min(1.0, protocol.scores[score] / size):.1f}: {_who(tasks)} among {size} "
        f"clip{'s' * (size > 1)}."
        for size, tasks in by_size.items()
    ]


def _who(tasks: list[str]) -> str:
    return f"task {tasks[0]} ranks" if len(tasks) == 1 else f"tasks {', '.join(tasks)} rank"


def _test_clips(run: Mapping[str, Any]) -> list[int]:
    """Test clips of each task; of older runs by their manifests, [] where one is gone."""
    if "test_clips" in run:
        return run["test_clips"]
    from kinoray.data.manifest import read_manifest

    try:
        return [len(read_manifest(manifest).clips("test")) for manifest in run.get("manifests", ())]
    except (UsageError, OSError):
        return []
