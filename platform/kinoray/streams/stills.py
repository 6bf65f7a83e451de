"""Stills of a part of the small world, with a caption each: what the `tiny` backbone was pre-trained on."""

from dataclasses import replace

import numpy as np

from kinoray.streams import world

PRETRAINING_LOOKS = (0, 1, 2)
"""Looks that pre-training sees in part; the others are new to the backbone."""


def pretraining_pairs(count: int, seed: int, world_seed: int = 0, size_px: int = 32) -> tuple[np.ndarray, list[str]]:
    """Stills with one caption each, of a part of the world: uint8 (N, size, size, 3) and N captions.

    The part: of three looks, two thirds of the shapes, colours and grounds of the first and every second of the others,
    all by their own words.
    """
    rng = world.generator(world_seed, seed, 77)
    images = np.empty((count, size_px, size_px, 3), dtype=np.uint8)
    captions = []
    for number in range(count):
        look = replace(world.LOOKS[int(rng.choice(PRETRAINING_LOOKS))], exchanged=())
        scene = world.Scene(*(str(rng.choice(_seen(name, look))) for name in world.ATTRIBUTES))
        captions.append(str(rng.choice(world.captions_of(look, scene, rng))))
        images[number] = shrink(world.draw(look, scene, 1, rng)[0], size_px)
    return images, captions


def _seen(attribute: str, look: world.Look) -> tuple[str, ...]:
    """The concepts of an attribute that pre-training shows in a look."""
    concepts = world.CONCEPTS[attribute]
    if attribute in ("size", "place", "motion"):
        return concepts
    if look.column == 0:
        return tuple(concept for number, concept in enumerate(concepts) if number % 3 != 2)
    return concepts[look.column % 2 :: 2]


def shrink(frame: np.ndarray, size_px: int) -> np.ndarray:
    """A frame (H, W, 3) of at least `size_px` as (size, size, 3): each new pixel averages the box that it covers."""
    rows, columns = _boxes(frame.shape[0], size_px), _boxes(frame.shape[1], size_px)
    channels = rows @ frame.transpose(2, 0, 1).astype(np.float64) @ columns.T
    return channels.transpose(1, 2, 0).round().astype(np.uint8)


def _boxes(old: int, new: int) -> np.ndarray:
    """Weights (new, old) of averaging over boxes, cut pixels counted in part."""
    left = np.arange(new)[:, None] * old / new
    pixel = np.arange(old)[None]
    overlap = np.minimum(left + old / new, pixel + 1) - np.maximum(left, pixel)
    return np.clip(overlap, 0, None) * new / old
