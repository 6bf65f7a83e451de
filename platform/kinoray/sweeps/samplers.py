"""How points of a search space are chosen."""

import itertools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from kinoray.errors import UsageError

GRID_POINTS = 5
"""Values of a continuous knob in a grid: evenly spaced, both ends included (evenly in the logarithm where `log`)."""


MOST_GRID = 10_000


STARTUP = 10
"""TPE draws so many trials at random before it models."""


class PointSampler(BaseSampler):
    """Trial n gets point n of a sequence: independent random numbers, or Sobol's."""

    def __init__(self, kind: str, seed: int, space: Mapping[str, BaseDistribution]) -> None:
        self.kind, self.seed, self.space = kind, seed, dict(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        point = unit_point(self.kind, self.seed, trial.number, len(search_space))
        return {name: value_at(knob, u) for (name, knob), u in zip(search_space.items(), point, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        seed = [self.seed, trial.number, zlib.crc32(param_name.encode())]
        return value_at(param_distribution, np.random.default_rng(seed).random())


def make_sampler(kind: str, seed: int, number: int, space: Mapping[str, BaseDistribution]) -> BaseSampler:
    """What draws trial `number`. A grid is enqueued beforehand, so it never asks."""
    if kind == "tpe":
        drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return TPESampler(seed=drawn, n_startup_trials=STARTUP, multivariate=True)
    return PointSampler("qmc" if kind == "qmc" else "random", seed, space)


def unit_point(kind: str, seed: int, number: int, dimensions: int) -> np.ndarray:
    """Point `number` of a sequence in the unit cube."""
    if kind == "random":
        return np.random.default_rng([seed, number]).random(dimensions)
    from scipy.stats import qmc

    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return sequence.fast_forward(number).random(1)[0] if number else sequence.random(1)[0]


def value_at(knob: BaseDistribution, u: float) -> Any:
    """The value at share `u` (0 <= u < 1) of a knob's range."""
    if isinstance(knob, CategoricalDistribution):
        return knob.choices[min(int(u * len(knob.choices)), len(knob.choices) - 1)]
    assert isinstance(knob, FloatDistribution | IntDistribution)
    if isinstance(knob, FloatDistribution) and knob.step is None:
        if knob.log:
            return math.exp(math.log(knob.low) + u * (math.log(knob.high) - math.log(knob.low)))
        return knob.low + u * (knob.high - knob.low)
    if knob.log:
        low, high = math.log(knob.low - 0.5), math.log(knob.high + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), int(knob.low)), int(knob.high))
    values = _stepped(knob)
    return values[min(int(u * len(values)), len(values) - 1)]


def _stepped(knob: FloatDistribution | IntDistribution) -> list[Any]:
    """All values of a knob with a step."""
    assert knob.step is not None
    count = math.floor((knob.high - knob.low) / knob.step + 1e-9) + 1
    values = [knob.low + i * knob.step for i in range(count)]
    return [round(value, 12) for value in values] if isinstance(knob, FloatDistribution) else values


def grid(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """Every combination, the last knob fastest. Raises: UsageError for more than `MOST_GRID`."""
    axes = {name: axis_of(knob) for name, knob in space.items()}
    size = math.prod(len(axis) for axis in axes.values())
    if size > MOST_GRID:
        raise UsageError(f"The grid has {size:,} points, at most {MOST_GRID:,} may be. Give steps, or fewer knobs.")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def axis_of(knob: BaseDistribution) -> list[Any]:
    if isinstance(knob, CategoricalDistribution):
        return list(knob.choices)
    assert isinstance(knob, FloatDistribution | IntDistribution)
    if knob.log or knob.step is None:
        spaced = (np.geomspace if knob.log else np.linspace)(knob.low, knob.high, GRID_POINTS)
        whole = isinstance(knob, IntDistribution)
        return sorted({round(v) if whole else min(max(round(float(v), 12), knob.low), knob.high) for v in spaced})
    return _stepped(knob)
