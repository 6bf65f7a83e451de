"""The views that replayed rows come with where they are not those of the current rows (`Replay.views`)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kinoray.data.augment import augment_view, plain_view
from kinoray.data.memory import AS_WRITTEN, PLAIN
from kinoray.data.presets import Preset, find_preset


def check_replay_views(names: Sequence[str]) -> None:
    """Raises: UsageError, with the nearest names, for an entry that is neither a preset nor one of the two words."""
    for name in names:
        if name not in (PLAIN, AS_WRITTEN):
            find_preset(name)


def replay_views(
    video: Tensor,
    seeds: np.ndarray,
    written: np.ndarray,
    names: Sequence[str],
    current: Preset,
    size_px: int,
    mean: Sequence[float],
    std: Sequence[float],
    aspects: np.ndarray | None = None,
) -> tuple[Tensor, ...]:
    """One view of each clip per entry of `Replay.views`; view v draws as view v of a current row does.

    Shapes: as of `augment_views`; written (B,): the seeds of the rows in the steps that wrote them, read for
    "as-written" alone. `current` is the preset of the current rows.
    """
    mean, std = current.mean or mean, current.std or std
    views = []
    for number, name in enumerate(names):
        if name == PLAIN:
            views.append(plain_view(video, current, size_px, mean, std, aspects))
        elif name == AS_WRITTEN:
            views.append(augment_view(video, written, current, number, size_px, mean, std, aspects))
        else:
            views.append(augment_view(video, seeds, find_preset(name), number, size_px, mean, std, aspects))
    return tuple(views)
