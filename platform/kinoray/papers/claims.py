"""What a paper says of its numbers, as claims that measured ones answer (`statements`).

A claim is about one metric at the places of a figure or table: points of a knob, or rows by their labels. It holds
where the metric at one place is above that at another. Which two, the means over seeds decide; how surely, the
differences paired by seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Curve = Mapping[Any, float]
"""Value at each place, in the order of the figure or table; nan where there is none."""

Contest = tuple[Any, Any] | None
"""The place that is to be above, and the other; None where values are missing."""

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

    def contest(self, means: Curve) -> Contest:
        """The two places that decide."""


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

    def contest(self, means: Curve) -> Contest:
        """The place, and the highest of the others."""
        return (self.at, max(self.than, key=means.__getitem__)) if _known(means, self.at, *self.than) else None


@dataclass(frozen=True, kw_only=True)
class Lower(_OneMetric):
    """The metric is lower at one place than at each of some others."""

    at: Any
    than: tuple[Any, ...]

    def contest(self, means: Curve) -> Contest:
        """The lowest of the others, and the place."""
        return (min(self.than, key=means.__getitem__), self.at) if _known(means, self.at, *self.than) else None


@dataclass(frozen=True, kw_only=True)
class Above(_OneMetric):
    """The metric is above zero at a place."""

    at: Any

    def contest(self, means: Curve) -> Contest:
        """The place, and zero."""
        return (self.at, ZERO) if _known(means, self.at) else None


@dataclass(frozen=True, kw_only=True)
class PeakInside(_OneMetric):
    """The metric is highest at neither end of the curve."""

    def contest(self, means: Curve) -> Contest:
        """The highest place between the ends, and the higher end."""
        first, *inner, last = means
        return (max(inner, key=means.__getitem__), max(first, last, key=means.__getitem__)) if _known(means) else None


def _known(means: Curve, *places: Any) -> bool:
    """Whether there is a value at each of the places, by default at all that the curve has."""
    values = [means.get(place, math.nan) for place in places or means]
    return not any(map(math.isnan, values))
