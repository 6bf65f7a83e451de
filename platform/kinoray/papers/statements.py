"""What was measured of a paper's claims, by differences that are paired by run (`report.statistics`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from kinoray.papers.claims import ZERO, Claim, Pair
from kinoray.papers.entries import EQUAL
from kinoray.report.statistics import (
    NO,
    NOT_MEASURED,
    SMALLER,
    UNSEEN,
    YES,
    Estimate,
    Margin,
    Number,
    Sample,
    Unit,
    Verdict,
    difference,
    verdict,
)

COUNTED = {
    YES: ("holds", "hold"),
    NO: ("does not hold", "do not hold"),
    SMALLER: ("is smaller than the paper's", "are smaller than the paper's"),
    UNSEEN: (UNSEEN, UNSEEN),
    NOT_MEASURED: ("is not measured", "are not measured"),
}
"""Answer -> what one statement does, and what several do."""


class Statement(NamedTuple):
    """A claim of the paper and what was measured."""

    words: str
    verdict: Verdict
    pair: Pair | None
    """The pair that decides; None where nothing was measured."""
    column: str = ""
    """Which of several columns of measured numbers."""

    @property
    def answer(self) -> str:
        return self.verdict.answer

    @property
    def margin(self) -> Estimate:
        """By how many points it holds in that pair."""
        return self.verdict.margin

    @property
    def against(self) -> str:
        """The pair that decides, in words; "" where nothing was measured, and of what is held against zero."""
        if self.pair is None or self.pair[1] is ZERO:
            return ""
        return " against ".join(f"{place:g}" if isinstance(place, float) else str(place) for place in self.pair)

    def __str__(self) -> str:
        head = f"{self.answer} ({self.column})" if self.column else self.answer
        margin, known = self.margin, self.verdict
        if self.pair is None or margin.mean is None or known.spread is None:
            return f"{head}: {self.words}"
        interval = "" if margin.low is None else f" [{margin.low:z.1f}, {margin.high:z.1f}]"
        parts = [f"by {margin.mean:+z.1f}{interval}, {known.spread.over}"]
        parts += [self.against] if self.against else []
        parts += [] if known.claimed is None else [f"the paper by {known.claimed:.1f}"]
        if self.answer == UNSEEN and known.visible is not None:
            parts.append(f"{known.visible:.1f} would be seen in four of five repetitions")
        if self.answer == UNSEEN and known.needed is not None and known.needed > known.spread.units:
            shown = "an effect like this" if known.claimed is None else "the paper's"
            parts.append(f"{known.needed} {known.spread.level} would show {shown}")
        return f"{head}: {self.words} ({'; '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """The words, the answer, the pair that decides and its numbers."""
        known = self.verdict
        over = "" if known.spread is None else known.spread.over
        numbers = self.margin._asdict() | {"claimed": known.claimed, "visible": known.visible, "needed": known.needed}
        words = {"words": self.words, "answer": self.answer, "column": self.column, "against": self.against}
        return words | numbers | {"over": over}


def judged(
    claim: Claim, samples: Mapping[Any, Sample], published: Mapping[Any, float] | None = None, column: str = ""
) -> Statement:
    """What the measured values say of a claim.

    samples: the metric of each run at each place, in the figure's order; a pair counts runs that have both.
    published: the metric at places as the paper has it, whose differences are the effects claimed.
    """
    groups = claim.groups(list(samples))
    known: dict[Any, float] = {**(published or {}), ZERO: 0.0}

    def margin(high: Any, low: Any) -> Margin:
        gap = samples.get(high, {}) if low is ZERO else difference(samples.get(high, {}), samples.get(low, {}))
        claimed = known[high] - known[low] if claim.by is None and {high, low} <= set(known) else claim.by
        return Margin(gap, claimed)

    found = verdict([[margin(*pair) for pair in group] for group in groups])
    pairs = [pair for group in groups for pair in group]
    return Statement(claim.words, found, None if found.place is None else pairs[found.place], column)


def samples_of(frame: pd.DataFrame, at: str, metric: str, world: str) -> dict[Any, Sample]:
    """Place -> the metric of each seed, from a table with a row per run; runs without it are left out.

    world: that of all runs, where the table has no column of them.
    """
    samples: dict[Any, Sample] = {}
    for place, part in frame.groupby(at, sort=False):
        known = part.dropna(subset=[metric])
        worlds = known["world"] if "world" in known else [world] * len(known)
        runs = zip(worlds, known["seed"], known[metric], strict=True)
        samples[place] = {Unit(where, (), int(seed)): Number(float(value)) for where, seed, value in runs}
    return samples


def counted(statements: Sequence[Statement]) -> str:
    """How many of the paper's statements hold, each counted once in each column of measured numbers."""
    columns = {s.column: Counter(other.answer for other in statements if other.column == s.column) for s in statements}
    total = max((count.total() for count in columns.values()), default=0)
    lines = []
    for name, count in columns.items():
        parts = [f"{count[answer]} {words[count[answer] > 1]}" for answer, words in COUNTED.items() if count[answer]]
        where = name if name == EQUAL else f"{name} settings"
        lines.append(f"{', '.join(parts)}{f' at {where}' if name else ''}")
    return f"of the paper's {total} statement{'s' if total > 1 else ''} {'; '.join(lines)}"
