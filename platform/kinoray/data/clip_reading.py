"""The frames of a manifest's clip, or the record of why it has none."""

import time
from typing import Any

import numpy as np

from kinoray.data.manifest import Manifest
from kinoray.decoding.decode import UnreadableStorage
from kinoray.decoding.frame_cache import Cache, Fetched, cached_clip, fetch_clip, holds_clip
from kinoray.decoding.sampling import Sampling
from kinoray.errors import MissingVideo, VideoError

MISSING_WAITS_S = (0.5, 2.0, 5.0)
"""How long to wait for a file that is missing: a mount that comes back."""
KILLED = "reading it ended its process twice"


def killed(manifest: Manifest, row: int) -> dict[str, Any]:
    """The record of a deadly clip."""
    return _record(manifest, row, "decode", "ProcessDied", KILLED)


def _record(manifest: Manifest, row: int, stage: str, error: str, message: str) -> dict[str, Any]:
    """Why a clip has no frames."""
    id, uri = manifest.id(row), manifest.uri(row)
    return {"id": id, "uri": uri, "stage": stage, "error": error, "message": message}


def as_many(video: np.ndarray, count: int) -> np.ndarray:
    """The frame of a picture as often as a video's frames are wanted."""
    return video if len(video) == count else np.repeat(video, count, axis=0)


def try_clip(
    manifest: Manifest, row: int, sampling: Sampling, seed: int, size_px: int, cache: Cache, decodes: bool = True
) -> Fetched | dict[str, Any] | UnreadableStorage | None:
    """The frames of a clip, the record of why it has none, or the failure of the storage.

    None only where it may not be decoded, and the cache lacks it.

    A file that the manifest names was there when it was written: where it is missing the storage is away, or somebody
    has moved it, and no substitute may take its place.
    """
    for wait_s in (*MISSING_WAITS_S, None):
        try:
            read = fetch_clip if decodes else cached_clip
            return read(manifest.clip(row), sampling, seed, size_px, cache)
        except MissingVideo:
            if wait_s is not None:
                time.sleep(wait_s)
        except VideoError as error:
            return _record(manifest, row, error.stage, type(error.__cause__ or error).__name__, str(error))
        except UnreadableStorage as error:
            return error
    return UnreadableStorage(
        f"{manifest.uri(row)} (clip {manifest.id(row)}) is missing under {manifest.root}, though {manifest.path.name} "
        "names it. Bring it back and run the same command again, or have the manifest written without it"
    )


def holds(manifest: Manifest, row: int, sampling: Sampling, size_px: int, cache: Cache) -> bool:
    """Whether a clip needs no decoding."""
    try:
        return holds_clip(manifest.clip(row), sampling, size_px, cache)
    except VideoError:  # it leads out of its folder
        return False
