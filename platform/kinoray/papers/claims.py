"""What a paper says of its numbers, as claims that measured ones answer (`statements`).

A claim is about one metric at the places of a figure or table: points of a knob, or rows by their labels. It holds
where in every one of some pairs of places the metric is above at the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[Any, Any]
"""The place that is to be above, and the other."""

ZERO = object()
"""Stands for a place where every metric is 0."""


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper about one metric."""

    words: str
    metric: str
    pairs: tuple[Pair, ...] = ()
    """All of them are to hold; (): as `peak_inside`."""
    method: str = ""
    """Whose curve, where a figure has several; "": that of the first."""
    by: float | None = None
    """By how much, where the paper gives it elsewhere than in the rows beside which it is measured."""

    def groups(self, places: Sequence[Any]) -> list[tuple[Pair, ...]]:
        """The pairs of which one group is to hold, of a curve over these places."""
        if self.pairs:
            return [self.pairs]
        first, *inner, last = places
        return [((place, first), (place, last)) for place in inner]


def higher(metric: str, at: Any, than: Any, words: str, method: str = "", by: float | None = None) -> Claim:
    """The metric is higher at one place, a row or a point, than at another, or than at each of several."""
    return Claim(words, metric, tuple((_place(at), other) for other in _places(than)), method, by)


def lower(metric: str, at: Any, than: Any, words: str, method: str = "", by: float | None = None) -> Claim:
    """The metric is lower there."""
    return Claim(words, metric, tuple((other, _place(at)) for other in _places(than)), method, by)


def above(metric: str, at: Any, words: str) -> Claim:
    """The metric is above zero at a place."""
    return higher(metric, at, ZERO, words)


def peak_inside(metric: str, words: str) -> Claim:
    """The metric is higher at some place between the ends of the curve than at both ends."""
    return Claim(words, metric)


def _places(given: Any) -> list[Any]:
    return [_place(place) for place in (given if isinstance(given, tuple) else (given,))]


def _place(given: Any) -> Any:
    """A row stands where its label does."""
    return getattr(given, "label", given)
