"""Search spaces as typed: `--space m_hat=0.9:1`, `--space learning_rate=1e-4:1e-2:log`, `--set m_hat=0.9,0.99`."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinoray.errors import UsageError
from kinoray.runs.experiment_file import is_several, parse_settings


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
            raise UsageError(f"{name.strip()} is given twice: say once what may be tried.")
        knobs[name.strip()] = _knob(name.strip(), text)
    if named and (knobs or len(named) > 1):
        other = next(iter(knobs), named[-1])
        raise UsageError(
            f"--space {named[0]} is a whole space, and {other} stands beside it. Give one of them, or write the space "
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
        raise UsageError(f"--space {name}={text}: give a range, as {name}=0.9:1 or {name}=1e-4:1e-2:log, or a,b,c.")
    ends = {"low": _value(name, low), "high": _value(name, high)}
    return ends | ({"log": True} if more == "log" else {"step": _value(name, more)} if more else {})


def _value(name: str, text: str) -> Any:
    value = parse_settings([f"{name}={text}"])[name]
    with contextlib.suppress(ValueError):  # to YAML 1e-4 is a word
        return float(value) if isinstance(value, str) else value
    return value
