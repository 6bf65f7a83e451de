"""Intervals over queries, seeds, orders and worlds; Holm's correction; verdicts, and how often they are wrong."""

from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kinoray.report.statistics import (
    NO,
    NOT_MEASURED,
    SMALLER,
    UNSEEN,
    YES,
    Estimate,
    Margin,
    Number,
    Spread,
    Unit,
    difference,
    estimate,
    holm,
    spread,
    verdict,
)

TASKS = ("a", "b")


def seeds(*values: float, world: str = "w", first: int = 0) -> dict[Unit, Number]:
    """One world's runs, a seed each."""
    return {Unit(world, TASKS, first + n): Number(value) for n, value in enumerate(values)}


def bounds(known: Estimate) -> tuple[float | None, float | None]:
    return known.low, known.high


# Intervals


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_over_seeds_of_one_world_it_is_scipys_t_interval(values: list[float]) -> None:
    found = estimate(seeds(*values))
    assert found.mean == pytest.approx(np.mean(values)) and found.seeds == len(values)
    if np.std(values) > 1e-6:
        test = scipy.stats.ttest_1samp(values, 0.0)
        assert bounds(found) == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert spread(seeds(*values)).p == pytest.approx(test.pvalue)


def test_over_worlds_it_is_the_t_interval_of_their_means() -> None:
    means = [4.0, 6.0, 11.0]
    sample: dict[Unit, Number] = {}
    for world, mean in enumerate(means):
        sample |= seeds(mean - 1, mean + 1, world=str(world))
    known = spread(sample)
    assert bounds(estimate(sample)) == pytest.approx(scipy.stats.ttest_1samp(means, 0.0).confidence_interval(0.95))
    assert known.over == "3 worlds, 6 runs"
    uneven = sample | seeds(4.0, 4.0, world="0", first=5)
    assert estimate(uneven).mean == pytest.approx(7.0), "a world with more seeds counts no more"


def test_orders_of_one_world_are_its_units_where_there_are_several() -> None:
    orders = [("a", "b"), ("b", "a"), ("c", "a")]
    sample = {Unit("w", order, seed): Number(10.0 * n + seed) for n, order in enumerate(orders) for seed in (0, 1)}
    means = [0.5, 10.5, 20.5]
    assert bounds(estimate(sample)) == pytest.approx(scipy.stats.ttest_1samp(means, 0.0).confidence_interval(0.95))
    assert spread(sample).over == "3 orders in this world"


def test_of_one_run_there_is_the_interval_over_its_queries_alone() -> None:
    draws = np.random.default_rng(0).normal(50, 2, 200)
    one = {Unit("w", TASKS, 0): Number(50.0, draws)}
    half = scipy.stats.t.ppf(0.975, 199) * draws.std(ddof=1)
    assert bounds(estimate(one)) == pytest.approx((50 - half, 50 + half))
    assert estimate({Unit("w", TASKS, 0): Number(50.0)}) == (50.0, None, None, 1)
    assert estimate({}) == (None, None, None, 0)
    same = {Unit("w", TASKS, seed): Number(50.0, draws) for seed in range(5)}
    assert bounds(estimate(same)) == pytest.approx((50 - half, 50 + half)), (
        "what no seed moves is as sure as its queries"
    )


def test_a_difference_is_of_the_same_runs_and_the_same_queries() -> None:
    draws = np.random.default_rng(0).normal(0, 2, 200)
    a = {Unit("w", TASKS, seed): Number(50.0 + seed, 50 + seed + draws) for seed in (0, 1, 2)}
    b = {Unit("w", TASKS, seed): Number(49.0, 49 + draws) for seed in (1, 2, 3)}
    gap = difference(a, b)
    assert [number.value for number in gap.values()] == [2.0, 3.0]
    assert estimate(gap) == estimate(seeds(2.0, 3.0)), "queries that both find hard cancel out"


def hits(rng: np.random.Generator, runs: int, queries: int) -> np.ndarray:
    """Percent by (run, query): runs, queries and each pair have a part of their own."""
    own = rng.normal(0, 3, (runs, 1)) + rng.normal(0, 30, (1, queries)) + rng.normal(0, 25, (runs, queries))
    return 50 + own


def coverage(repetitions: int, with_queries: bool) -> float:
    """How often the interval over 5 runs and 100 queries holds the mean over all runs and all queries, which is 50."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(repetitions):
        values = hits(rng, 5, 100)
        chosen = rng.multinomial(100, [0.01] * 100, size=200) / 100
        numbers = [Number(v.mean(), chosen @ v if with_queries else None) for v in values]
        found = estimate({Unit("w", TASKS, n): number for n, number in enumerate(numbers)})
        held += found.low <= 50 <= found.high
    return held / repetitions


def test_seeds_and_queries_together_hold_the_mean_as_often_as_they_say() -> None:
    assert coverage(400, with_queries=True) == pytest.approx(0.95, abs=0.03)
    assert coverage(400, with_queries=False) < 0.85, "seeds alone do not know the queries"


# Holm's correction


def off_bounds(ps: list[float]) -> bool:
    """Whether rounding decides nothing."""
    return all(abs(p * size - 0.05) > 1e-9 for p in ps for size in range(1, 6))


def spreads(ps: list[float]) -> list[Spread]:
    """Of means with these two-sided p-values."""
    return [Spread(float(scipy.stats.t.isf(p / 2, 9)), "seeds", 10, 10, 10.0, 0.0, 0) for p in ps]


@given(st.lists(st.floats(1e-6, 0.999), min_size=1, max_size=5).filter(off_bounds))
def test_holm_finds_what_the_closed_test_by_bonferroni_finds(ps: list[float]) -> None:
    """A mean is not 0 where the smallest p of every set that holds it is below 0.05 by the set's size."""
    everything = range(len(ps))
    sets = list(chain.from_iterable(combinations(everything, size) for size in range(1, len(ps) + 1)))
    closed = [all(min(ps[j] for j in s) <= 0.05 / len(s) for s in sets if i in s) for i in everything]
    errors = holm(spreads(ps))
    assert [p <= error for p, error in zip(ps, errors, strict=True)] == closed
    for one, error in zip(spreads(ps), errors, strict=True):
        assert (one.interval(error).low > 0) == (one.p <= error)


# Verdicts


def of(*gaps: tuple[float, ...], claimed: float | None = None) -> Any:
    return verdict([[Margin(seeds(*gap), claimed) for gap in gaps]])


def test_a_margin_is_answered_by_its_interval_and_by_half_of_what_is_claimed() -> None:
    # t(0.975, 2) / sqrt(3) = 2.484 of gaps that differ by 1
    assert of((2.0, 3.0, 4.0)).answer == YES
    assert of((2.0, 3.0, 4.0), claimed=10.0).answer == YES, "5.5 >= 5"
    assert of((2.0, 3.0, 4.0), claimed=12.0).answer == SMALLER, "5.5 < 6"
    assert of((-2.0, -3.0, -4.0), claimed=12.0).answer == NO
    assert of((-1.0, 0.0, 1.0), claimed=6.0).answer == SMALLER, "2.48 < 3"
    assert of((-1.0, 0.0, 1.0), claimed=4.0).answer == UNSEEN
    assert of((-1.0, 0.0, 1.0)).answer == UNSEEN
    assert of((2.0, 3.0, 4.0), claimed=-1.0).answer == YES, "a number against the claim is none for it"
    assert of((4.0,)).answer == UNSEEN, "one run decides nothing"
    assert of().answer == of((2.0, 3.0), ()).answer == NOT_MEASURED


def test_what_cannot_be_seen_says_what_could() -> None:
    found = of((-1.0, 0.0, 1.0), claimed=2.5)
    t, power = scipy.stats.t.ppf(0.975, 2), scipy.stats.t.ppf(0.8, 2)
    assert found.visible == pytest.approx((t + power) / np.sqrt(3))
    sizes = [(scipy.stats.t.ppf(0.975, n - 1) + scipy.stats.t.ppf(0.8, n - 1)) / np.sqrt(n) for n in range(2, 20)]
    assert found.needed == next(n for n, size in enumerate(sizes, start=2) if size <= 2.5) == 4
    assert of((-1.0, 0.0, 1.0)).needed is None, "no number of seeds shows a difference of nothing"
    alone = of((4.0,), claimed=4.0)
    assert (alone.visible, alone.needed) == (None, None)


def test_all_pairs_must_hold_and_the_one_that_decides_is_named() -> None:
    sure, weak, against = (2.0, 2.1, 2.2), (-3.0, 4.0, 6.0), (-2.0, -2.1, -2.2)
    assert (of(sure, weak).answer, of(sure, weak).place) == (UNSEEN, 1)
    assert (of(weak, against, sure).answer, of(weak, against, sure).place) == (NO, 1)
    assert of(sure, sure).answer == YES


def test_of_several_pairs_each_needs_more() -> None:
    gap = (1.5, 4.0, 6.0, 4.5)
    assert of(gap).answer == YES
    assert of(gap, gap, gap).answer == UNSEEN
    assert of(tuple(-value for value in gap)).answer == NO
    assert of(*[tuple(-value for value in gap)] * 3).answer == UNSEEN


def test_one_of_several_groups_is_enough() -> None:
    up, down = Margin(seeds(2.0, 2.1, 2.2)), Margin(seeds(-2.0, -2.1, -2.2))
    assert verdict([[up, down], [up, up]]).answer == YES and verdict([[up, down], [up, up]]).place == 2
    assert verdict([[up, down], [down, up]]).answer == NO


# How often verdicts are wrong, and how often they are right


SIZES = [pytest.param(200, id="200"), pytest.param(2000, id="2000", marks=pytest.mark.slow)]


def simulated(rng: np.random.Generator, comparisons: int, worlds: int, ahead: float) -> str:
    """The answer to "the first is best" of so many and one, which is so many standard deviations (of a seed) ahead.

    Five seeds a world. Worlds differ, and so does what each method makes of one by half of a seed's deviation, of which
    nothing is known where there is one world: there it is part of what is asked.
    """
    methods = comparisons + 1
    own = rng.normal(0, 0.5, (methods, worlds, 1)) if worlds > 1 else 0.0
    values = rng.normal(0, 5, (1, worlds, 1)) + own + rng.normal(0, 1, (methods, worlds, 5))
    values[0] += ahead
    samples = [
        {Unit(str(w), TASKS, seed): Number(values[m, w, seed]) for w in range(worlds) for seed in range(5)}
        for m in range(methods)
    ]
    return verdict([[Margin(difference(samples[0], other), 3.0) for other in samples[1:]]]).answer


@pytest.mark.parametrize("worlds", [1, 3])
@pytest.mark.parametrize("comparisons", [2, 7, 16])
@pytest.mark.parametrize("repetitions", SIZES)
def test_a_verdict_is_wrong_in_at_most_six_percent(repetitions: int, comparisons: int, worlds: int) -> None:
    rng = np.random.default_rng([comparisons, worlds])
    most = 0.06 * repetitions
    equal, best = ([simulated(rng, comparisons, worlds, ahead) for _ in range(repetitions)] for ahead in (0.0, 3.0))
    shares = [f"{answers.count(YES) / repetitions:.1%} yes, {answers.count(NO) / repetitions:.1%} no"
              for answers in (best, equal)]  # fmt: skip
    print(f"{comparisons} comparisons, {worlds} worlds of 5: to the best {shares[0]}; to an equal {shares[1]}")
    assert equal.count(YES) <= most and equal.count(NO) <= most
    assert best.count(NO) <= most
    assert best.count(NO) + best.count(SMALLER) <= most
    if worlds == 1:
        assert best.count(YES) > 0.2 * repetitions
