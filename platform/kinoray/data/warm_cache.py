"""Fills the frame cache before a sweep: what all trials will read is decoded once, not by several of them at a time.

The Ray tasks that decode import this file, so torch is imported only where the driver needs it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinoray.data.manifest import SPLITS, read_manifest
from kinoray.data.presets import preset_of, test_form, test_sampling, train_form, train_sampling
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import Cache, fetch_clip, frame_cache, holds_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import VideoError
from kinoray.system.pool import GIVES_UP_S, BrokenProcessPool, ends_without_memory, in_pool

if TYPE_CHECKING:
    from kinoray.config import Recipe

CLIPS = 64
"""Clips that one Ray task reads."""
LOCAL_CLIPS = 16
"""So few are decoded beside this process: starting Ray's tasks takes longer."""
TELLS_S = 30.0
"""After so long without an answer the user is told."""


def warm_cache(
    manifests: Sequence[str | Path], recipe: "Recipe", say: Callable[[str], None], wanted: Callable[[], bool]
) -> int:
    """Decode into the frame cache what the cache lacks, each clip once; returns how many were decoded.

    wanted: called between batches; False ends it. Clips that are too long to be cached whole are left alone. What
    cannot be decoded is left to the runs, which report it.
    """
    if not frame_cache().folder:
        return 0
    batches = list(_missing(manifests, recipe))
    if sum(len(batch[1]) for batch in batches) <= LOCAL_CLIPS:
        return sum(_answer(in_pool(1, _fill, *batch, frame_cache()).result) for batch in batches)
    import ray

    began_s = time.monotonic()
    decoded = 0
    at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1.0)))
    waiting: list[Any] = []
    say_once = cache(say)
    done: int | None = 0
    remote = ray.remote(_fill).options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
    for batch in batches:
        if not wanted():
            break
        waiting.append(remote.remote(*batch))
        while len(waiting) >= at_once and (done := _some_of(waiting, say_once)) is not None:
            decoded += done
        if done is None:
            break
    while waiting and (done := _some_of(waiting, say_once)) is not None:
        decoded += done
    say(f"Frame cache: {decoded} clips decoded in {time.monotonic() - began_s:.0f} s, once for all trials.")
    return decoded


def _some_of(waiting: list[Any], say: Callable[[str], None]) -> int | None:
    """How many clips were decoded by tasks that are done, which leave the list; None, and all leave it, where none is
    for so long that it is given up. say: says the same but once."""
    import ray

    for _ in range(round(GIVES_UP_S / TELLS_S)):
        ready, waiting[:] = ray.wait(waiting, timeout=TELLS_S)
        if ready:
            return sum(_answer(partial(ray.get, ref)) for ref in ready)
        say(f"Frame cache: no progress for {TELLS_S:g} s. Other jobs hold the cluster's CPUs, or the storage is slow.")
    say("Frame cache: not completed; the runs decode the missing clips themselves.")
    for ref in waiting:
        ray.cancel(ref)
    waiting.clear()
    return None


def _missing(manifests: Sequence[str | Path], recipe: "Recipe") -> Iterator[tuple[str, list[int], Sampling, FrameForm]]:
    """Rows of each manifest that the cache lacks, in batches."""
    cache, preset, codec = frame_cache(), preset_of(recipe), recipe.stored_frames
    for path in manifests:
        manifest = read_manifest(path)
        for split in SPLITS:
            rule, form = test_sampling(recipe, recipe.test_frames), test_form(preset, recipe.size_px, codec)
            if split == "train":
                rule, form = train_sampling(recipe), train_form(preset, recipe.size_px, codec=codec)
            rows = [int(row) for row in manifest.clips(split)]
            lacking = [r for r in rows if not holds_clip(manifest.clip(r), rule, form, cache)]
            for part in np.array_split(lacking, -(-len(lacking) // CLIPS)) if lacking else []:
                yield str(path), [int(row) for row in part], rule, form


def _answer(get: Callable[[], Any]) -> int:
    """How many clips of a batch were decoded; a clip that ended the process is left to the runs, as the rest is."""
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    try:
        return int(get())
    except (BrokenProcessPool, NodeDiedError, OutOfMemoryError, WorkerCrashedError):
        return 0


@ends_without_memory
def _fill(path: str, rows: list[int], rule: Sampling, form: FrameForm, cache: Cache | None = None) -> int:
    """Read a batch of clips through a cache, or the one of the machine that does it; how many were decoded."""
    cache, manifest = cache or frame_cache(), read_manifest(path)
    decoded = 0
    for position, row in enumerate(rows):
        clip = manifest.clip(row)
        with contextlib.suppress(VideoError, OSError):
            decoded += not fetch_clip(clip, rule, 0, form, cache).cached
            if position == 2 and not holds_clip(clip, rule, form, cache):
                break  # such clips are not cached
    return decoded
