"""What was measured of a paper's claims: yes, no or undecided, by differences paired by seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kinoray.papers.claims import ZERO, Claim, Curve, Pair
from kinoray.report.estimates import Estimate, estimate


class Statement(NamedTuple):
    """A claim of the paper and what was measured."""

    words: str
    answer: str
    """yes: the 95 % intervals of all margins are above zero; no: one is below; else undecided, or not measured."""
    margin: Estimate
    """By how many points it holds in its weakest pair, or fails in that which says no: differences paired by seed."""
    pair: Pair | None
    """That pair; None where a pair has no seed with both values."""
    column: str = ""
    """Which of several columns of measured numbers."""

    def __str__(self) -> str:
        head = f"{self.answer} ({self.column})" if self.column else self.answer
        if self.margin.mean is None or self.pair is None:
            return f"{head}: {self.words}"
        high, low = (f"{place:g}" if isinstance(place, float) else place for place in self.pair)
        spread = ", one seed"
        if self.margin.low is not None:
            spread = f" [{self.margin.low:.1f}, {self.margin.high:.1f}], {self.margin.seeds} seeds"
        against = "" if low is ZERO else f"; {high} against {low}"
        return f"{head}: {self.words} (by {self.margin.mean:+.1f}{spread}{against})"


def judged(claim: Claim, means: Curve, by_seed: Sequence[Curve], column: str = "") -> Statement:
    """What the measured values say of a claim. by_seed: the curve of each seed; a pair counts seeds that have both."""
    margins = [(pair, _margin(pair, by_seed)) for pair in claim.pairs(means)]
    if not margins or any(margin.mean is None for _, margin in margins):
        return Statement(claim.words, "not measured", estimate([]), None, column)
    against = [(pair, margin) for pair, margin in margins if margin.high is not None and margin.high < 0]
    if against:
        pair, margin = min(against, key=lambda known: known[1].high or 0.0)
        return Statement(claim.words, "no", margin, pair, column)
    pair, margin = min(margins, key=lambda known: _least(known[1]))
    surely = margin.low is not None and margin.low > 0
    return Statement(claim.words, "yes" if surely else "undecided", margin, pair, column)


def _margin(pair: Pair, by_seed: Sequence[Curve]) -> Estimate:
    """By how much the first place is above the second, over the seeds that have both."""
    high, low = pair
    gaps = [curve.get(high, math.nan) - (0.0 if low is ZERO else curve.get(low, math.nan)) for curve in by_seed]
    return estimate(gap for gap in gaps if not math.isnan(gap))


def _least(margin: Estimate) -> float:
    """What orders margins: the lower bound, of one seed the value."""
    assert margin.mean is not None
    return margin.mean if margin.low is None else margin.low


def counted(statements: Sequence[Statement]) -> str:
    """How many of the paper's statements hold, in words."""
    count = {answer: sum(s.answer == answer for s in statements) for answer in ("yes", "no", "undecided")}
    parts = [f"{count['yes']} of the paper's {len(statements)} statements hold"]
    parts += [f"{count['no']} {'does' if count['no'] == 1 else 'do'} not"] if count["no"] else []
    parts += (
        [f"{count['undecided']} {'is' if count['undecided'] == 1 else 'are'} undecided"] if count["undecided"] else []
    )
    return ", ".join(parts)
