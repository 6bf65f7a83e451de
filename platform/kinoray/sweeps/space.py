"""Search spaces as data, and how Optuna draws from them. No Ray, no files.

A space maps a setting's name to what may be tried: `{"low": 0.9, "high": 1.0}` with `"log": True` or `"step": 0.01`
where wanted (whole numbers as both ends give whole numbers), `{"choices": [...]}`, or a plain value, which is held.

What a sampler draws for trial n depends on the sweep's seed, on n, and (TPE) on the trials finished before: a sweep
that was killed and goes on draws what it would have drawn.

Typed, they are `--space m_hat=0.9:1`, `--space learning_rate=1e-4:1e-2:log`, `--set m_hat=0.9,0.99`.
"""

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from kinoray.runs.experiment_file import EXPERIMENT_SUFFIXES, is_several, parse_settings, read_experiment
from kinoray.runs.method_source import MethodSource

Space = dict[str, Any]

KEYS = {"low", "high", "log", "step", "choices"}
ROUNDING = 1e-9
"""1.0 - 0.9 is a little less than 0.1."""


# Spaces


def load_space(source: MethodSource, choice: "str | Sequence[str] | Mapping[str, Any] | None" = None) -> Space:
    """The method's `SPACE`, a named one of its `SPACES`, a YAML or TOML file, words as `m=0.9:1`, or a mapping.

    A method of the user's own keeps them in its own file; those of a rule and its learner are joined.
    Raises: UsageError, with the nearest names.
    """
    if isinstance(choice, list | tuple):
        choice = typed_space(choice, []).space
    if isinstance(choice, Mapping):
        return dict(choice)
    if not isinstance(choice, str | None):
        raise UsageError(f"`space` must be a name, a file, a dict of knobs, or text like m=0.9:1, but got {choice!r}.")
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
            f"Knob {name}: there is no key {sorted(set(knob) - KEYS)[0]!r}. Use low, high, log, step or choices."
        )
    if "choices" in knob:
        choices = knob["choices"]
        if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices or len(knob) > 1:
            raise UsageError(f"Knob {name}: `choices` must be a list that is not empty, without other keys.")
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
        raise UsageError(f"{both[0]} is set to {fixed[both[0]]!r} and is also in the space. Remove it from one.")
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


@dataclass(frozen=True)
class Typed:
    """What the words of a command mean."""

    space: str | dict[str, Any] | None
    """A name or file, knobs, or the method's own space."""
    settings: dict[str, Any]
    """What is held."""

    @property
    def is_grid(self) -> bool:
        """Whether knobs were typed, all of them as lists: then every point is meant."""
        return isinstance(self.space, dict) and all("choices" in knob for knob in self.space.values())


def typed_space(spaces: Sequence[str], settings: Sequence[str]) -> Typed:
    """Knobs and settings from the words after `--space` and `--set`; several values of a setting make it a knob.

    Raises: UsageError for a word that means nothing, or a space by name beside knobs.
    """
    several = [pair for pair in settings if is_several(pair.partition("=")[2])]
    held = parse_settings([pair for pair in settings if pair not in several])
    named = [word for word in spaces if "=" not in word]
    knobs: dict[str, Any] = {}
    for word in [*(word for word in spaces if "=" in word), *several]:
        name, _, text = word.partition("=")
        if name.strip() in knobs:
            raise UsageError(f"{name.strip()} is given twice: give its values once.")
        knobs[name.strip()] = _knob(name.strip(), text)
    if named and (knobs or len(named) > 1):
        other = next(iter(knobs), named[-1])
        raise UsageError(
            f"--space {named[0]} is a whole space, but {other} is given, too. Give one of them, or write the space "
            "into a file."
        )
    return Typed(named[0] if named else knobs or None, held)


def _knob(name: str, text: str) -> dict[str, Any]:
    """`0.9:1`, `1e-4:1e-2:log` and `1:9:2` are ranges, the last in steps; `a,b` are choices."""
    if is_several(text):
        return {"choices": [_value(name, part) for part in text.split(",")]}
    low, colon, rest = text.partition(":")
    high, _, more = rest.partition(":")
    if not colon:
        raise UsageError(f"--space {name}={text}: give a range, like {name}=0.9:1 or {name}=1e-4:1e-2:log, or a,b,c.")
    ends = {"low": _value(name, low), "high": _value(name, high)}
    return ends | ({"log": True} if more == "log" else {"step": _value(name, more)} if more else {})


def _value(name: str, text: str) -> Any:
    value = parse_settings([f"{name}={text}"])[name]
    with contextlib.suppress(ValueError):  # to YAML 1e-4 is a word
        return float(value) if isinstance(value, str) else value
    return value
