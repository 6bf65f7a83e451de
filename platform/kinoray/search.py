"""Search spaces as data, and how Optuna draws from them. No Ray, no files.

A space maps a setting's name to what may be tried: `{"low": 0.9, "high": 1.0}` with `"log": True` or `"step": 0.01`
where wanted (whole numbers as both ends give whole numbers), `{"choices": [...]}`, or a plain value, which is held.

What a sampler draws for trial n depends on the sweep's seed, on n, and (TPE) on the trials finished before: a sweep
that was killed and goes on draws what it would have drawn.
"""

import importlib
import importlib.util
import itertools
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from kinoray.config import Recipe, build, split_overrides
from kinoray.errors import UsageError, unknown
from kinoray.runs.method_source import MethodSource

Space = dict[str, Any]

METRICS = {
    "HM": "max",
    "R@1": "max",
    "R@1_current": "max",
    "R@5": "max",
    "R@10": "max",
    "FR": "min",
    "BWF": "min",
    "step_s": "min",
    "parameters": "min",
}
"""What a sweep can aim at, and which way is better. All but the last two are metrics of the validation splits.

step_s: seconds per optimizer step, data and evaluation left out. parameters: trained ones of the last task.
"""
COSTS = ("wall_s", "adopted_s", "adopted_steps")
"""What a trial's runs cost and what shared prefixes spared them: seconds, seconds, optimizer steps."""
OBJECTIVES = {"cvlm": "HM", "ctvr": "R@1", "ucl": "R@1", "cssl": "R@1", "video-ssl": "R@1"}
"""What a sweep aims at where it is not told, by the stream's protocol. R@1 is over the final gallery."""
SAMPLERS = ("tpe", "qmc", "random", "grid")
KEYS = {"low", "high", "log", "step", "choices"}
GRID_POINTS = 5
"""Values of a continuous knob in a grid: evenly spaced, both ends included (evenly in the logarithm where `log`)."""
MOST_GRID = 10_000
ROUNDING = 1e-9
"""1.0 - 0.9 is a little less than 0.1."""
STARTUP = 10
"""TPE draws so many trials at random before it models."""


# Spaces


def load_space(source: MethodSource, asked: "str | Mapping[str, Any] | None" = None) -> Space:
    """The method's `SPACE`, a named one of its `SPACES`, a YAML or TOML file, or a mapping as it stands.

    A method of the user's own keeps them in its own file. Raises: UsageError, with the nearest names.
    """
    if isinstance(asked, Mapping):
        return dict(asked)
    if asked and Path(asked).suffix in (".yaml", ".yml", ".toml"):
        return _read_space(Path(asked))
    home = _home(source)
    named: dict[str, Space] = vars(home).get("SPACES", {}) if home else {}
    if asked:
        if asked not in named:
            raise unknown(f"space of {source.name}", asked, named, "Or give a YAML file of knobs.")
        return dict(named[asked])
    if not home or "SPACE" not in vars(home):
        raise UsageError(f"{source.name} has no search space: add `SPACE = {{...}}` to its file, or give --space FILE.")
    return dict(home.SPACE)


def space_names(source: MethodSource) -> list[str]:
    """Names of a method's `SPACES`."""
    home = _home(source)
    return sorted(vars(home).get("SPACES", {})) if home else []


def _home(source: MethodSource) -> Any:
    """The module that holds a method's space."""
    if source.text is None and source.pickled is None:
        name = f"kinoray.search_spaces.{source.name}"
        return importlib.import_module(name) if importlib.util.find_spec(name) else None
    return sys.modules.get(source.load().__module__)


def _read_space(path: Path) -> Space:
    """A space from a file, read as safely as an experiment file."""
    from kinoray.runs.experiment_file import read_experiment

    options, knobs = read_experiment(path)
    if options:
        raise UsageError(f"{path}: {sorted(options)[0]} is an option of the command, not a knob.")
    return knobs


def distributions(space: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Optuna's form of the knobs that vary. Raises: UsageError naming the knob and what is wrong with it."""
    return {name: _distribution(name, knob) for name, knob in space.items() if isinstance(knob, Mapping)}


def constants(space: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a space holds."""
    return {name: value for name, value in space.items() if not isinstance(value, Mapping)}


def _distribution(name: str, knob: Mapping[str, Any]) -> BaseDistribution:
    if set(knob) - KEYS:
        raise UsageError(
            f"Knob {name}: there is no {sorted(set(knob) - KEYS)[0]!r}. Use low, high, log, step or choices."
        )
    if "choices" in knob:
        choices = knob["choices"]
        if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices or len(knob) > 1:
            raise UsageError(f"Knob {name}: `choices` must be a list with something in it, and stand alone.")
        if not all(isinstance(c, bool | int | float | str) for c in choices) or len(set(choices)) < len(choices):
            raise UsageError(f"Knob {name}: choices must be different words, numbers or booleans, but are {choices}.")
        return CategoricalDistribution(list(choices))
    if not {"low", "high"} <= set(knob):
        raise UsageError(f"Knob {name}: give `choices`, or both `low` and `high`.")
    low, high, log, step = knob["low"], knob["high"], bool(knob.get("log", False)), knob.get("step")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in (low, high)):
        raise UsageError(f"Knob {name}: `low` and `high` must be numbers, but are {low!r} and {high!r}.")
    if not low < high:
        raise UsageError(f"Knob {name}: the range is empty: `low < high` must hold, but got {low} and {high}.")
    if log and (low <= 0 or step):
        raise UsageError(f"Knob {name}: `log` needs low > 0 and no step, but got low={low}, step={step}.")
    if step is not None and not (isinstance(step, int | float) and 0 < step <= (high - low) * (1 + ROUNDING)):
        raise UsageError(f"Knob {name}: `step` must lie above 0 and within the range, but is {step!r}.")
    if isinstance(low, int) and isinstance(high, int):
        if step and int(step) != step:
            raise UsageError(f"Knob {name}: whole numbers need a whole step, but got {step}.")
        return IntDistribution(low, high, log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def check_space(space: Mapping[str, Any], source: MethodSource, fixed: Mapping[str, Any]) -> None:
    """Check a space against the method's Config and the Recipe: names, and that each knob's ends are allowed.

    fixed: settings given beside the space; none of them may be in it. Raises: UsageError in one line.
    """
    found = distributions(space)
    if not found:
        raise UsageError(f"The space of {source.name} varies nothing. Give a knob with low and high, or with choices.")
    both = sorted(set(space) & set(fixed))
    if both:
        raise UsageError(f"{both[0]} is set to {fixed[both[0]]!r} and stands in the space, too. Leave it out of one.")
    parts = {f"method {source.name}": source.load().Config, "the recipe": Recipe}
    for name, knob in found.items():
        for value in _ends(knob):
            given = split_overrides(constants(space) | dict(fixed) | {name: value}, parts)
            for label, cls in parts.items():
                build(cls, given[label], label)


def _ends(knob: BaseDistribution) -> list[Any]:
    return list(knob.choices) if isinstance(knob, CategoricalDistribution) else [knob.low, knob.high]  # type: ignore[attr-defined]


def plain_space(space: Mapping[str, Any]) -> Space:
    """The space as JSON keeps it, tuples as lists."""
    return {n: {k: list(v) if k == "choices" else v for k, v in s.items()} if isinstance(s, Mapping) else s
            for n, s in space.items()}  # fmt: skip


# Objectives


def objectives_of(asked: str | Sequence[str] | None, protocol: str) -> list[str]:
    """What a sweep aims at: what is asked, or the protocol's own. Raises: UsageError for a metric that is not there."""
    if not asked:
        return [OBJECTIVES.get(protocol, "R@1")]
    names = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if name not in METRICS:
            raise unknown("metric to aim at", name, METRICS)
    if len(set(names)) < len(names):
        raise UsageError(f"The objectives must differ, but are {', '.join(names)}.")
    return names


def pareto_front(values: Sequence[Sequence[float]], directions: Sequence[str]) -> list[int]:
    """Positions of the rows that no other row beats in one value without losing in another; equal rows all stay.

    values: one row per trial, one column per objective; directions: "max" or "min" of each.
    """
    if not len(values):
        return []
    signs = np.array([1.0 if d == "max" else -1.0 for d in directions])
    points = np.asarray(values, dtype=float) * signs
    at_least = (points[:, None] >= points[None]).all(axis=2)
    beaten = (at_least & (points[:, None] > points[None]).any(axis=2)).any(axis=0)
    return np.flatnonzero(~beaten).tolist()


def falls_behind(value: float, others: Sequence[float], direction: str, keep: float, startup: int) -> bool:
    """Whether a trial is pruned: it is not among the best `keep` of all trials that got to the same task.

    others: what those trials had right after the same task. The first `startup` of them are never pruned.
    """
    if len(others) < startup:
        return False
    better = sum(o > value if direction == "max" else o < value for o in others)
    return better >= max(1, math.ceil(keep * (len(others) + 1)))


# Samplers


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


def check_sampler(kind: str) -> None:
    """Raises: UsageError for a sampler that there is not."""
    if kind not in SAMPLERS:
        raise unknown("sampler", kind, SAMPLERS)


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
    return [round(knob.low + i * knob.step, 12) if isinstance(knob, FloatDistribution) else knob.low + i * knob.step
            for i in range(count)]  # fmt: skip


def grid(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """Every combination, the last knob fastest. Raises: UsageError for more than `MOST_GRID`."""
    axes = {name: _axis(knob) for name, knob in space.items()}
    size = math.prod(len(axis) for axis in axes.values())
    if size > MOST_GRID:
        raise UsageError(f"The grid has {size:,} points, at most {MOST_GRID:,} may be. Give steps, or fewer knobs.")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _axis(knob: BaseDistribution) -> list[Any]:
    if isinstance(knob, CategoricalDistribution):
        return list(knob.choices)
    assert isinstance(knob, FloatDistribution | IntDistribution)
    if knob.log or knob.step is None:
        spaced = (np.geomspace if knob.log else np.linspace)(knob.low, knob.high, GRID_POINTS)
        whole = isinstance(knob, IntDistribution)
        return sorted({round(v) if whole else min(max(round(float(v), 12), knob.low), knob.high) for v in spaced})
    return _stepped(knob)


def quiet_optuna() -> None:
    """Optuna says what it does on stderr; a sweep says it itself."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
