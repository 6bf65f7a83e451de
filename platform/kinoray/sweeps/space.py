"""Search spaces as data, and how Optuna draws from them. No Ray, no files.

A space maps a setting's name to what may be tried: `{"low": 0.9, "high": 1.0}` with `"log": True` or `"step": 0.01`
where wanted (whole numbers as both ends give whole numbers), `{"choices": [...]}`, or a plain value, which is held.

What a sampler draws for trial n depends on the sweep's seed, on n, and (TPE) on the trials finished before: a sweep
that was killed and goes on draws what it would have drawn.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from kinoray.config import Recipe, build, split_overrides
from kinoray.errors import UsageError, unknown
from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, read_experiment
from kinoray.runs.method_source import MethodSource

Space = dict[str, Any]

KEYS = {"low", "high", "log", "step", "choices"}
ROUNDING = 1e-9
"""1.0 - 0.9 is a little less than 0.1."""


# Spaces


def load_space(source: MethodSource, choice: "str | Mapping[str, Any] | None" = None) -> Space:
    """The method's `SPACE`, a named one of its `SPACES`, a YAML or TOML file, or a mapping as it stands.

    A method of the user's own keeps them in its own file; those of a rule and its learner are joined.
    Raises: UsageError, with the nearest names.
    """
    if isinstance(choice, Mapping):
        return dict(choice)
    if choice and Path(choice).suffix in EXPERIMENT_SUFFIXES:
        return _read_space(Path(choice))
    if choice:
        spaces = [named[choice] for named in _stated(source, "SPACES") if choice in named]
        if not spaces:
            raise unknown(f"space of {source.name}", choice, space_names(source), "Or give a YAML file of knobs.")
    else:
        spaces = _stated(source, "SPACE")
    if not spaces:
        raise UsageError(f"{source.name} has no search space: add `SPACE = {{...}}` to its file, or give --space FILE.")
    return {name: knob for space in spaces for name, knob in space.items()}


def space_names(source: MethodSource) -> list[str]:
    """Names of a method's `SPACES`."""
    return sorted({name for spaces in _stated(source, "SPACES") for name in spaces})


def _stated(source: MethodSource, name: str) -> list[dict[str, Any]]:
    """What the modules of a method's spaces state by a name: the learner's, then the rule's."""
    homes = [_home(part) for part in reversed(source.files)]
    return [vars(home)[name] for home in homes if home is not None and name in vars(home)]


def _home(source: MethodSource) -> Any:
    """The module that holds a method's space."""
    if source.text is None and source.pickled is None:
        name = f"kinoray.search_spaces.{source.name}"
        return importlib.import_module(name) if importlib.util.find_spec(name) else None
    return sys.modules.get(source.load().__module__)


def _read_space(path: Path) -> Space:
    """A space from a file, read as safely as an experiment file."""
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
    knobs = distributions(space)
    if not knobs:
        raise UsageError(f"The space of {source.name} varies nothing. Give a knob with low and high, or with choices.")
    both = sorted(set(space) & set(fixed))
    if both:
        raise UsageError(f"{both[0]} is set to {fixed[both[0]]!r} and stands in the space, too. Leave it out of one.")
    parts = {f"method {source.name}": source.load().Config, "the recipe": Recipe}
    for name, knob in knobs.items():
        for value in _ends(knob):
            given = split_overrides(constants(space) | dict(fixed) | {name: value}, parts)
            for label, cls in parts.items():
                build(cls, given[label], label)


def _ends(knob: BaseDistribution) -> list[Any]:
    return list(knob.choices) if isinstance(knob, CategoricalDistribution) else [knob.low, knob.high]  # type: ignore[attr-defined]


def plain_space(space: Mapping[str, Any]) -> Space:
    """The space as JSON keeps it, tuples as lists."""
    return {name: _plain_knob(knob) if isinstance(knob, Mapping) else knob for name, knob in space.items()}


def _plain_knob(knob: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if key == "choices" else value for key, value in knob.items()}
