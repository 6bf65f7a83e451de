"""What was measured of a paper's claims: yes, no or undecided, by differences paired by seed."""

from collections.abc import Sequence
from typing import NamedTuple

from kinoray.papers.claims import ZERO, Claim, Contest, Curve
from kinoray.report.estimates import Estimate, estimate


class Statement(NamedTuple):
    """A claim of the paper and what was measured."""

    words: str
    answer: str
    """yes or no where the 95 % interval of the margin leaves out zero, else undecided; not measured without values."""
    margin: Estimate
    """By how many points it holds: differences paired by seed."""
    contest: Contest
    column: str = ""
    """Which of several columns of measured numbers."""

    def __str__(self) -> str:
        head = f"{self.answer} ({self.column})" if self.column else self.answer
        if self.margin.mean is None or self.contest is None:
            return f"{head}: {self.words}"
        high, low = (f"{place:g}" if isinstance(place, float) else place for place in self.contest)
        spread = ", one seed"
        if self.margin.low is not None:
            spread = f" [{self.margin.low:.1f}, {self.margin.high:.1f}], {self.margin.seeds} seeds"
        against = "" if low is ZERO else f"; {high} against {low}"
        return f"{head}: {self.words} (by {self.margin.mean:+.1f}{spread}{against})"


def judged(claim: Claim, means: Curve, by_seed: Sequence[Curve], column: str = "") -> Statement:
    """What the measured values say of a claim. by_seed: the curve of each seed."""
    contest = claim.contest(means)
    if contest is None:
        return Statement(claim.words, "not measured", estimate([]), None, column)
    high, low = contest
    margin = estimate(curve[high] - (0.0 if low is ZERO else curve[low]) for curve in by_seed)
    answer = "undecided"
    if margin.low is not None and margin.high is not None:
        answer = "yes" if margin.low > 0 else "no" if margin.high < 0 else answer
    return Statement(claim.words, answer, margin, contest, column)


def counted(statements: Sequence[Statement]) -> str:
    """How many of the paper's statements hold, in words."""
    count = {answer: sum(s.answer == answer for s in statements) for answer in ("yes", "no", "undecided")}
    parts = [f"{count['yes']} of the paper's {len(statements)} statements hold"]
    parts += [f"{count['no']} {'does' if count['no'] == 1 else 'do'} not"] if count["no"] else []
    parts += (
        [f"{count['undecided']} {'is' if count['undecided'] == 1 else 'are'} undecided"] if count["undecided"] else []
    )
    return ", ".join(parts)
