"""Where every random number of a run comes from: pure functions of the run's seed and of the place in the run.

Nothing draws from a generator that runs on from one step to the next, so that a resumed run, one on another number of
workers, and one that skips what another has done draw the same. A run's seed becomes

- the initial weights (`seed_of("build", seed)`) and, by themselves, those of a backbone;
- what a method draws between steps, from (seed, task, row of the matrix, verb): `seed_of`;
- what it draws inside a step, and what is drawn for one row of it: frames, augmentation, noise: `row_seed`;
- the order of samples and of a memory's rows, from (seed, task, purpose): `generator`;
- the augmentation of a sample that is seen outside the steps (`Task.encode`): `sample_seed`.

From a row's seed its numbers follow by SplitMix64, once for many seeds at a time (`uniform`, `branch`) and once in
Python's own integers for a few (`integers_below`): for one clip, numpy's generators cost five times as much.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kinoray.config import digest_of

if TYPE_CHECKING:
    import torch

STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's constants."""
WORD = 2**64 - 1


def seed_of(*words: Any) -> int:
    """A seed in [0, 2^60) from words that JSON can write."""
    return int(digest_of(list(words))[:15], 16)


def row_seed(seed: int, task: int, step: int, slot: int) -> int:
    """The seed of one row of a step, or with a slot of its own of the step itself, in [0, 2^63)."""
    words = hashlib.blake2b(repr((seed, task, step, slot)).encode(), digest_size=8).digest()
    return int.from_bytes(words, "little") >> 1


def sample_seed(seed: int, task: int, sample: int) -> int:
    """The seed of a sample seen outside the steps, uint64."""
    return int(np.random.SeedSequence([seed, task, sample]).generate_state(1, np.uint64)[0])


def generator(*words: int) -> np.random.Generator:
    """A generator of its own for these words."""
    return np.random.default_rng(np.random.SeedSequence(words))


def uniform(seeds: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each seed, float64 (N, count): SplitMix64 from the seed on."""
    with np.errstate(over="ignore"):
        words = _mixed(seeds.astype(np.uint64)[:, None] + np.uint64(STEP) * np.arange(1, count + 1, dtype=np.uint64))
    return (words >> np.uint64(11)) * 2.0**-53


def branch(seeds: np.ndarray, purpose: np.uint64, number: int | np.ndarray) -> np.ndarray:
    """New seeds for a purpose, unrelated to the numbers that `uniform` gives for the old ones."""
    with np.errstate(over="ignore"):
        return _mixed((seeds.astype(np.uint64) ^ purpose) + np.uint64(STEP) * np.asarray(number, dtype=np.uint64))


def integers_below(bounds: Iterable[int], seed: int, purpose: int) -> Iterator[int]:
    """A number drawn uniformly from 0 .. bound - 1 for each bound, as `uniform` draws shares from `seed ^ purpose`."""
    state = (seed ^ purpose) & WORD
    for bound in bounds:
        state = (state + STEP) & WORD
        word = ((state ^ (state >> 30)) * FIRST) & WORD
        word = ((word ^ (word >> 27)) * SECOND) & WORD
        yield ((word ^ (word >> 31)) * bound) >> 64


def seed_libraries(seed: int, device: "torch.device | None" = None) -> None:
    """Python, NumPy and torch: what a method may draw from. device: the only one that it draws on; all where None.

    For all, `torch.manual_seed` writes a stack trace for each kind of device that this machine has not (0.9 ms).
    """
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if device is None:
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def _mixed(word: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(FIRST)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(SECOND)
    return word ^ (word >> np.uint64(31))
