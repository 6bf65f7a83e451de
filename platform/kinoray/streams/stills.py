"""Stills of a part of the small world and of its events, with a caption each: what small backbones learn from first."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kinoray.streams import events, world

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


def web_pairs(
    count: int, seed: int, looks: Sequence[world.Look], wrong: float = 0.1, size_px: int = 32
) -> tuple[np.ndarray, list[str]]:
    """Stills as the web has them, as `pretraining_pairs`: all that some looks can show and say, in turn.

    wrong: the share whose caption is that of another still.
    """
    rng = world.generator(0, seed, 79)
    images = np.empty((count, size_px, size_px, 3), dtype=np.uint8)
    captions = []
    for number in range(count):
        look = looks[number % len(looks)]
        scene, other = (world.Scene(*(str(rng.choice(world.CONCEPTS[a])) for a in world.ATTRIBUTES)) for _ in range(2))
        captions.append(world.captions_of(look, other if rng.random() < wrong else scene, rng)[0])
        images[number] = shrink(world.draw(look, scene, 1, rng)[0], size_px)
    return images, captions


def event_pairs(count: int, seed: int, size_px: int = 32) -> tuple[np.ndarray, list[str]]:
    """Single frames of events with one caption each, as `pretraining_pairs`: in the words of their looks, not filmed.

    A still is of an event's second half, so that its word means what the event comes to: `rises` is high up, `sinks` is
    low down. Each is of a world of its own, far from those that streams count from 0.
    """
    rng = world.generator(0, seed, 78)
    images = np.empty((count, size_px, size_px, 3), dtype=np.uint8)
    captions = []
    for number in range(count):
        scene = events.scenes_of(str(rng.choice(events.EVENTS)), 1, 1, world_seed=1_000_000 + number)[0]
        captions.extend(events.captions_of(scene, 1, rng))
        images[number] = shrink(events.draw(scene, 16, rng)[int(rng.integers(8, 16))], size_px)
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
