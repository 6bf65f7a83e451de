"""Frame sampling: the published numbers, and what random frames promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinoray.data.sampling import random_frames, uniform_midpoints

# methods.md 16.7
PUBLISHED = {
    (100, 12): [3, 11, 20, 28, 36, 45, 53, 61, 70, 78, 86, 95],
    (30, 12): [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28],
    (5, 12): [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4],
    (300, 24): sorted([*range(5, 300, 25), *range(18, 300, 25)]),
}


@pytest.mark.parametrize(("num_frames", "count"), PUBLISHED)
def test_midpoints_equal_the_published_numbers(num_frames, count):
    assert uniform_midpoints(num_frames, count).tolist() == PUBLISHED[num_frames, count]


@given(st.integers(1, 500), st.integers(1, 40), st.integers(0, 2**32))
def test_random_frames_are_ascending_in_range_and_distinct_where_possible(num_frames, count, seed):
    frames = random_frames(num_frames, count, np.random.default_rng(seed))
    assert len(frames) == count and frames.dtype == np.int64
    assert frames.min() >= 0 and frames.max() < num_frames
    assert (np.diff(frames) >= 0).all()
    assert len(set(frames.tolist())) == min(num_frames, count)
    if num_frames < count:
        assert (frames[num_frames:] == num_frames - 1).all()


def test_every_frame_is_equally_likely():
    counts = np.zeros(12)
    for seed in range(3000):
        counts[random_frames(12, 4, np.random.default_rng(seed))] += 1
    expected = 3000 * 4 / 12
    # Chi-square with 11 degrees of freedom: 31 is exceeded once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 31
