"""`robots-ssl`, `robots-ctvr-10`: a simulated arm at ten pairs of opposite actions; the order of frames is the label.

Each clip has a twin of the same frames backwards, whose label is the opposite action. `robots-ssl` learns from clips
without labels and is tested as `moving-actions`; its downstream set has other clips, by action. At random 5 % are right
there, and 50 % of what sees the pair and no order.

`robots-ctvr-10` is continual text-to-video retrieval with a pair a task. In validation and test a caption stands for
one clip: of the episodes of a pair in one scene the first, with its twin. So a text finds its clip by the pair, the
scene and the order, and R@1 is read in two parts, *what* and *order* (`ctvr-twins`); a mean over frames, which is the
same for both twins, stays at 50 % in order.

`robots-ssl:1` is the second way to split. No episode is in two splits.
The set must be there: `kinoray data fetch robots`, `kinoray data prepare robots`.
"""

from dataclasses import replace

import numpy as np

from kinoray.data.manifest import Manifest
from kinoray.datasets.packages import concept_of
from kinoray.streams import Stream, moving_actions, moving_ctvr
from kinoray.streams.concepts import cut_by_concept, split_number
from kinoray.streams.task_manifests import task_manifests

NAMES = ("robots-ssl", "robots-ctvr-10")
PUBLISHED = True

PRETEXT_FROM = 60
"""Training and validation clips of a task's episodes from this number on are the pretext's; of those before, the
downstream set's."""

SSL = replace(moving_actions.RECIPE, frames=4, test_frames=4)
"""As `moving-actions`, but for four frames of twelve, the same ones backwards: between them more moves than a pixel."""

CTVR = moving_ctvr.RECIPES[1]
"""As `moving-ctvr-*`. Of the twelve frames those are taken that are the same four backwards."""


def load(name: str, argument: str) -> Stream:
    """The stream, over the prepared set; the argument is the way to split, 0 if empty.

    Raises: UsageError where the set is not prepared, or for an argument that is no number.
    """
    manifest = cut_by_concept("robots", split_number(name, argument))
    if name == "robots-ssl":
        pretext, downstream = task_manifests(manifest, two_sets(manifest))
        return Stream(name, "ucl", (pretext,), SSL, "tiny-2plus1d", downstream=(downstream,))
    pairs = [(pair, one_a_caption(manifest, rows)) for pair, rows in manifest.rows_by("task").items()]
    return Stream(name, "ctvr-twins", task_manifests(manifest, pairs), CTVR, "tiny-clip")


def two_sets(manifest: Manifest) -> list[tuple[str, np.ndarray]]:
    """Rows of the pretext and of the downstream set, which share no training or validation clip."""
    numbers = [int(concept_of(manifest.id(row)).rpartition("-")[2]) for row in range(manifest.table.num_rows)]
    later = np.array(numbers) >= PRETEXT_FROM
    tested = np.isin(np.arange(len(later)), manifest.clips("test"))
    return [("pretext", np.flatnonzero(later)), ("downstream", np.flatnonzero(~later | tested))]


def one_a_caption(manifest: Manifest, rows: np.ndarray) -> np.ndarray:
    """Of some rows all that train, and of the other splits the first with each caption: twins, side by side."""
    kept = [rows[np.isin(rows, manifest.clips("train"))]]
    for split in ("validation", "test"):
        ours = rows[np.isin(rows, manifest.clips(split))]
        firsts = {manifest.caption(row, 0): row for row in ours[::-1].tolist()}
        kept.append(np.array(sorted(firsts.values()), dtype=np.int64))
    return np.concatenate(kept)
