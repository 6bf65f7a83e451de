"""What measured numbers say: means with 95 % intervals, and verdicts on an effect that is claimed.

A number belongs to a unit: a world (the stream), an order of its tasks, a seed. The spread is that of the means of the
highest level of which there are several:

    worlds    variance of the worlds' means                      Student's t with worlds - 1
    orders    that of the orders' means, and the queries'        all of one world are tested by the same queries
    seeds     that of the seeds, and the queries'
    queries   the queries' alone, where there is one run: of the trained model, not of its method

What is below a level is in the spread of its means. The queries' part comes from a bootstrap (`report.resampling`):

    v = s^2 / n + q^2,   q^2 = max(0, D_n - (D_1 - D_n) / (n - 1))
    freedom = v^2 / ((s^2 / n)^2 / (n - 1) + q^4 / (B - 1))

s^2 variance of the n means, D_1 mean variance of one mean's B draws, D_n variance of the draws' mean over the n; the
second term takes out of D_n what s^2 has, too. Freedom is Satterthwaite's.
"""

# B draws of a bootstrap   n units

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import, for the same numbers

ERROR = 0.05
"""What an interval leaves out; half at either end."""
POWER = 0.8
"""How often an effect of the smallest visible size is seen."""
MOST_UNITS = 1000
"""More seeds or worlds than that are not proposed."""
YES, NO, SMALLER, UNSEEN = "yes", "no", "smaller than the paper's", "cannot be seen at this size"
NOT_MEASURED = "not measured"


class Unit(NamedTuple):
    """Where a number comes from."""

    world: str
    order: tuple[str, ...]
    """The tasks, as they were learned."""
    seed: int


class Number(NamedTuple):
    """A number of one run."""

    value: float
    draws: NDArray[np.float64] | None = None
    """(B,) the same on resampled queries, the same ones in every run of a world; None where that is not known."""


Sample = Mapping[Unit, Number]


class Estimate(NamedTuple):
    """A mean over runs; low and high bound its 95 % interval and are None where nothing spreads it."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    """Number of runs, or of pairs of them."""


NONE = Estimate(None, None, None, 0)


class Spread(NamedTuple):
    """A mean and how far it may be off."""

    mean: float
    level: str
    """worlds, orders, seeds or queries."""
    units: int
    """How many there are of that level."""
    runs: int
    of_units: float
    """Variance of the units' means (s^2); 0 where there is one."""
    of_queries: float
    """Variance by the queries (q^2)."""
    draws: int
    """B; 0 without."""

    def at(self, count: int) -> tuple[float, float]:
        """Standard error and degrees of freedom of the mean of so many units; (0, inf) where nothing spreads it."""
        own, queries = self.of_units / count, self.of_queries
        total = own + queries
        if total <= 0.0:
            return 0.0, np.inf
        shares = (own / total) ** 2 / max(1, count - 1) + (queries / total) ** 2 / max(1, self.draws - 1)
        return float(np.sqrt(total)), 1 / shares

    @property
    def is_known(self) -> bool:
        """Whether it has an interval."""
        return self.units > 1 or self.draws > 0

    @property
    def p(self) -> float:
        """Two-sided, of a mean of 0; 1 where there is no interval."""
        error, freedom = self.at(self.units)
        if not self.is_known:
            return 1.0
        if error == 0.0:
            return float(self.mean == 0.0)
        return float(2 * stdtr(freedom, -abs(self.mean) / error))

    def interval(self, error: float = ERROR) -> Estimate:
        """error: what it leaves out."""
        if not self.is_known:
            return Estimate(self.mean, None, None, self.runs)
        size, freedom = self.at(self.units)
        half = float(stdtrit(freedom, 1 - error / 2)) * size if size else 0.0
        return Estimate(self.mean, self.mean - half, self.mean + half, self.runs)

    def visible(self, error: float = ERROR, count: int | None = None) -> float:
        """The smallest effect that so many units (those there are) show in `POWER` of all repetitions."""
        size, freedom = self.at(count or self.units)
        return float(stdtrit(freedom, 1 - error / 2) + stdtrit(freedom, POWER)) * size if size else 0.0

    def needed(self, effect: float, error: float = ERROR) -> int | None:
        """How many units would show an effect of that size; None: not even `MOST_UNITS`."""
        if effect <= 0 or self.units < 2 or self.visible(error, MOST_UNITS) > effect:
            return None
        return 2 + bisect_left(range(2, MOST_UNITS), True, key=lambda units: self.visible(error, units) <= effect)

    @property
    def over(self) -> str:
        """What the interval is over, in words."""
        if self.level == "worlds":
            return f"{self.units} worlds, {self.runs} runs"
        where = "in this world"
        if self.level == "queries":
            return f"one run {where}"
        return f"{self.units} {self.level} {where}"


def spread(sample: Sample) -> Spread | None:
    """The mean of some runs and its spread; None of no runs."""
    if not sample:
        return None
    worlds = {unit.world for unit in sample}
    orders = {unit[:2] for unit in sample}
    depth = 1 if len(worlds) > 1 else 2 if len(orders) > 1 else 3
    means = means_of(sample, depth)
    values = np.array([number.value for number in means])
    n, draws = len(values), 0
    of_units = float(values.var(ddof=1)) if n > 1 else 0.0
    of_queries = 0.0
    known = [number.draws for number in means if number.draws is not None]
    if depth > 1 and len(known) == n:
        drawn = np.array(known)
        draws, together = drawn.shape[1], float(drawn.mean(axis=0).var(ddof=1))
        alone = float(drawn.var(axis=1, ddof=1).mean())
        of_queries = max(0.0, together - (alone - together) / (n - 1)) if n > 1 else together
    level = ("worlds", "orders", "seeds")[depth - 1] if n > 1 else "queries"
    return Spread(float(values.mean()), level, n, len(sample), of_units, of_queries, draws)


def means_of(sample: Sample, depth: int) -> list[Number]:
    """The mean of each unit of the first so many levels, of its own units' means: 1 worlds, 2 their orders, 3 seeds."""
    numbers: dict[tuple, Number] = {tuple(unit): number for unit, number in sample.items()}
    for kept in range(2, depth - 1, -1):
        groups: dict[tuple, list[Number]] = {}
        for unit, number in numbers.items():
            groups.setdefault(unit[:kept], []).append(number)
        numbers = {unit: mean_of(group) for unit, group in groups.items()}
    return list(numbers.values())


def mean_of(numbers: Sequence[Number]) -> Number:
    """The mean, and its draws where all have some."""
    draws = [number.draws for number in numbers if number.draws is not None]
    value = float(np.mean([number.value for number in numbers]))
    return Number(value, np.mean(draws, axis=0) if len(draws) == len(numbers) else None)


def difference(sample: Sample, other: Sample) -> dict[Unit, Number]:
    """By how much the first is above the second in each unit that both have."""
    gaps = {}
    for unit in sample:
        if unit in other:
            (value, draws), (less, drawn) = sample[unit], other[unit]
            gaps[unit] = Number(value - less, None if draws is None or drawn is None else draws - drawn)
    return gaps


def estimate(sample: Sample) -> Estimate:
    """The mean of some runs with its 95 % interval."""
    known = spread(sample)
    return NONE if known is None else known.interval()


def holm(spreads: Sequence[Spread]) -> list[float]:
    """What each interval is to leave out, so that in 95 % of all repetitions no sign among them is wrong (Holm 1979).

    The smallest of m p-values is held against 0.05 / m, the next against 0.05 / (m - 1), ...; from the first on that
    is above its own all are held against that one's.
    """
    errors, left = [0.0] * len(spreads), len(spreads)
    for place in sorted(range(len(spreads)), key=lambda place: spreads[place].p):
        errors[place] = ERROR / left
        if spreads[place].p <= errors[place]:
            left -= 1
    return errors


class Margin(NamedTuple):
    """A difference in the direction that is claimed, and what is claimed of it."""

    sample: Sample
    claimed: float | None = None
    """The published difference; None where there is none: then any above zero is meant."""


class Verdict(NamedTuple):
    """What was measured of a claim."""

    answer: str
    """`YES`, `NO`, `SMALLER`, `UNSEEN` or `NOT_MEASURED`."""
    margin: Estimate = NONE
    """By how much it holds in the pair that decides, with its corrected interval."""
    place: int | None = None
    """Which of the margins that is."""
    claimed: float | None = None
    spread: Spread | None = None
    error: float = ERROR
    """What its interval leaves out."""

    @property
    def visible(self) -> float | None:
        """The smallest effect that four of five repetitions would have shown; None where nothing was repeated."""
        if self.spread is None or self.spread.units < 2:
            return None
        return self.spread.visible(self.error)

    @property
    def needed(self) -> int | None:
        """How many seeds or worlds would show the claimed effect, or without one the effect seen."""
        if self.spread is None:
            return None
        return self.spread.needed(self.spread.mean if self.claimed is None else self.claimed, self.error)


def verdict(groups: Sequence[Sequence[Margin]]) -> Verdict:
    """Whether in one of the groups all margins are above zero; most claims have one group.

    Of an effect E that is claimed and the interval [l, u], corrected for all margins (`holm`): u <= 0 is no; l > 0 and
    u >= E / 2 yes; u < E / 2 smaller than the paper's; else it cannot be seen. A group is no where one margin is, yes
    where all are, smaller where one is. One run decides nothing.
    """
    margins = [margin for group in groups for margin in group]
    spreads = [spread(margin.sample) for margin in margins]
    known = [one for one in spreads if one is not None]
    if not margins or len(known) < len(margins):
        return Verdict(NOT_MEASURED)
    errors, first, verdicts = holm(known), 0, []
    for group in groups:
        places = range(first, first + len(group))
        verdicts.append(_of_group([_of_one(margins[p], known[p], errors[p], p) for p in places]))
        first += len(group)
    rank = {YES: 0, UNSEEN: 1, SMALLER: 2, NO: 3}
    return min(verdicts, key=lambda one: (rank[one.answer], -_least(one)))


def _of_one(margin: Margin, known: Spread, error: float, place: int) -> Verdict:
    """Of a single margin."""
    interval = known.interval(error)
    claimed = margin.claimed if margin.claimed is not None and margin.claimed > 0 else None
    answer = UNSEEN
    if known.units > 1 and interval.low is not None and interval.high is not None:
        if interval.high <= 0:
            answer = NO
        elif claimed is not None and interval.high < claimed / 2:
            answer = SMALLER
        elif interval.low > 0:
            answer = YES
    return Verdict(answer, interval, place, claimed, known, error)


def _of_group(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that decides: that which says no, or else smaller, most surely; else the weakest."""
    for answer in (NO, SMALLER):
        if sure := [one for one in verdicts if one.answer == answer]:
            return min(sure, key=lambda one: one.margin.high or 0.0)
    return min((one for one in verdicts if one.answer == UNSEEN), key=_least, default=min(verdicts, key=_least))


def _least(one: Verdict) -> float:
    """What orders verdicts: the lower bound, of one run the value."""
    return one.margin.low if one.margin.low is not None else one.margin.mean or 0.0
