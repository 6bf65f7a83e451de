"""Frame sampling: the published numbers, and what random frames promise."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinoray.decoding.sampling import (
    FRAMES,
    Sampling,
    Timeline,
    frames_at_rate,
    interval_frames,
    random_frames,
    random_run,
    uniform_midpoints,
    uniform_runs,
)
from kinoray.seeds import integers_below, uniform

# By (frames of the video, frames wanted); by hand, from the rule of X-Pool's and CTVR's loaders.
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
    frames = random_frames(num_frames, count, seed)
    assert len(frames) == count and frames.dtype == np.int64
    assert frames.min() >= 0 and frames.max() < num_frames
    assert (np.diff(frames) >= 0).all()
    assert len(set(frames.tolist())) == min(num_frames, count)
    if num_frames < count:
        assert (frames[num_frames:] == num_frames - 1).all()


def test_every_set_of_frames_is_equally_likely():
    drawn = Counter(tuple(random_frames(7, 3, seed).tolist()) for seed in range(7000))
    counts = np.array([drawn[frames] for frames in itertools.combinations(range(7), 3)])
    assert counts.sum() == 7000
    # Chi-square with 34 degrees of freedom: 65 is exceeded once in a thousand.
    assert ((counts - 200) ** 2 / 200).sum() < 65


@given(st.integers(0, 2**63 - 1), st.integers(1, 10**6))
def test_a_clip_draws_the_numbers_that_a_batch_of_seeds_would(seed, bound):
    shares = uniform(np.array([seed ^ FRAMES], dtype=np.uint64), 5)[0]
    assert list(integers_below([bound] * 5, seed, FRAMES)) == pytest.approx(np.floor(shares * bound).tolist(), abs=1)
    assert list(integers_below([2**53] * 5, seed, FRAMES)) == (shares * 2**53).astype(np.int64).tolist()


def regular(num_frames, fps=30.0):
    return Timeline(num_frames, lambda: np.arange(num_frames) / fps)


rules = st.one_of(
    st.builds(Sampling, st.sampled_from(["random", "uniform", "interval", "consecutive"]), st.integers(1, 40)),
    st.builds(lambda count, fps: Sampling("fps", count, fps=fps), st.integers(1, 40), st.floats(0.1, 60)),
    st.builds(
        lambda clips, length: Sampling("consecutive", clips * length, clips=clips),
        st.integers(1, 10),
        st.integers(1, 8),
    ),
)


@given(rules, st.integers(1, 500), st.integers(0, 2**64 - 1))
def test_every_rule_gives_as_many_frames_as_asked_ascending_and_in_range(rule, num_frames, seed):
    frames = rule.frames(regular(num_frames), seed)
    assert frames.shape == (rule.count,) and frames.dtype == np.int64
    assert frames.min() >= 0 and frames.max() < num_frames
    assert (np.diff(frames.reshape(rule.clips or 1, -1)) >= 0).all()
    assert np.array_equal(frames, rule.frames(regular(num_frames), seed))
    if not rule.seeded:
        assert np.array_equal(frames, rule.frames(regular(num_frames), seed ^ 1))


def test_only_time_based_rules_ask_for_times():
    def forbidden():
        raise AssertionError("times were computed")

    for kind in ("random", "uniform", "interval", "consecutive"):
        Sampling(kind, 4).frames(Timeline(9, forbidden), 0)
    with pytest.raises(AssertionError, match="times were computed"):
        Sampling("fps", 4).frames(Timeline(9, forbidden), 0)


@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 2**32))
def test_one_frame_is_drawn_from_each_part_its_last_included(num_frames, count, seed):
    frames = interval_frames(num_frames, count, seed)
    borders = np.linspace(0, num_frames, min(num_frames, count) + 1).astype(int)
    own = frames[: len(borders) - 1]
    assert (own >= borders[:-1]).all() and (own < borders[1:]).all()


def test_runs_start_anywhere_they_fit_and_repeat_the_last_frame_of_short_clips():
    starts = {random_run(35, 32, seed)[0] for seed in range(100)}
    assert starts == {0, 1, 2, 3}
    assert random_run(3, 5, 0).tolist() == [0, 1, 2, 2, 2]


def test_ten_uniform_runs_reach_from_the_first_to_the_last_frame():
    runs = uniform_runs(320, 10, 32).reshape(10, 32)
    assert runs[:, 0].tolist() == [0, 32, 64, 96, 128, 160, 192, 224, 256, 288]
    assert (np.diff(runs) == 1).all()
    assert uniform_runs(100, 1, 32)[0] == 34
    assert uniform_runs(4, 2, 5).tolist() == [0, 1, 2, 3, 3] * 2


def test_one_frame_a_second_is_the_frame_on_the_screen():
    assert frames_at_rate(np.arange(300) / 30, 1, 12).tolist() == [*range(0, 300, 30), 270, 270]
    uneven = np.array([0, 0.1, 0.2, 2.5, 2.6, 4.0])
    assert frames_at_rate(uneven, 1, 5).tolist() == [0, 2, 2, 4, 5]
    milliseconds = np.round(np.arange(90) / 29.97, 3)
    assert frames_at_rate(milliseconds, 29.97, 90).tolist() == list(range(90))


def test_more_seconds_than_frames_asked_are_thinned_evenly():
    """CLIP4Clip's linspace(0, n - 1, M), cut to integers."""
    frames = frames_at_rate(np.arange(3000) / 30, 1, 12)
    assert frames.tolist() == [30 * second for second in (0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99)]


def test_rules_that_differ_have_keys_that_differ():
    made = [
        Sampling("random", 8),
        Sampling("uniform", 8),
        Sampling("interval", 8),
        Sampling("uniform", 12),
        Sampling("consecutive", 8),
        Sampling("consecutive", 8, clips=1),
        Sampling("consecutive", 8, clips=2),
        Sampling("fps", 8),
        Sampling("fps", 8, fps=0.5),
    ]
    assert len({rule.key() for rule in made}) == len(made)
    assert Sampling("uniform", 8).key() == Sampling("uniform", 8, fps=2.0).key()


@pytest.mark.parametrize(
    "fields",
    [{"kind": "best", "count": 1}, {"kind": "random", "count": 0}, {"kind": "fps", "count": 1, "fps": 0.0}]
    + [{"kind": "consecutive", "count": 10, "clips": clips} for clips in (3, -1)],
)
def test_rules_that_make_no_sense_are_refused(fields):
    with pytest.raises(ValueError, match="must"):
        Sampling(**fields)
