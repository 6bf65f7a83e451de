"""What a paper says of its numbers, as claims that measured ones answer (`statements`).

A claim is about one metric at the places of a figure or table: points of a knob, or rows by their labels. It holds
where in every one of some pairs of places the metric is above at the first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Curve = Mapping[Any, float]
"""Value at each place, in the order of the figure or table; nan where there is none."""

Pair = tuple[Any, Any]
"""The place that is to be above, and the other."""

ZERO = object()
"""Stands for a place where every metric is 0."""


class Claim(Protocol):
    """One sentence of a paper about one metric."""

    @property
    def words(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def method(self) -> str:
        """Whose curve, where a figure has several; "": that of the first."""

    def pairs(self, means: Curve) -> list[Pair]:
        """The pairs that decide; [] where the means that choose them are missing."""


@dataclass(frozen=True, kw_only=True)
class _OneMetric:
    words: str
    metric: str
    method: str = ""


@dataclass(frozen=True, kw_only=True)
class Higher(_OneMetric):
    """The metric is higher at one place than at each of some others."""

    at: Any
    than: tuple[Any, ...]

    def pairs(self, means: Curve) -> list[Pair]:
        """The place, and each of the others."""
        return [(self.at, other) for other in self.than]


@dataclass(frozen=True, kw_only=True)
class Lower(_OneMetric):
    """The metric is lower at one place than at each of some others."""

    at: Any
    than: tuple[Any, ...]

    def pairs(self, means: Curve) -> list[Pair]:
        """Each of the others, and the place."""
        return [(other, self.at) for other in self.than]


@dataclass(frozen=True, kw_only=True)
class Above(_OneMetric):
    """The metric is above zero at a place."""

    at: Any

    def pairs(self, means: Curve) -> list[Pair]:
        """The place, and zero."""
        return [(self.at, ZERO)]


@dataclass(frozen=True, kw_only=True)
class PeakInside(_OneMetric):
    """The metric is highest at neither end of the curve."""

    def pairs(self, means: Curve) -> list[Pair]:
        """The highest place between the ends, and each end."""
        first, *inner, last = means
        if any(map(math.isnan, means.values())):
            return []
        peak = max(inner, key=means.__getitem__)
        return [(peak, first), (peak, last)]
