"""Experiments written down: flat YAML or TOML, and `name=value` of the command line. Untrusted text, read safely.

method: bmu_moco          # a name, ./my_method.py, rule:learner, or a list of them
stream: moving-cvlm       # keys with the names of `kinoray run`'s options are options
seeds: 3
m_hat: 0.95               # any other key is a setting, as with --set
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest, options_of
from kinoray.system.folders import expanded
from kinoray.system.text import one_line

EXPERIMENT_SUFFIXES = (".yaml", ".yml", ".toml")
MOST_BYTES = 100_000


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (a kilobyte of them can unfold to gigabytes) and without keys given twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-4, which has no point, for a text.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read_experiment(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and settings of an experiment file (.yaml, .yml, .toml).

    Raises: UsageError naming the file and the line that is wrong.
    """
    path = expanded(path)
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path}: an experiment file has at most {MOST_BYTES} bytes, this one {path.stat().st_size}.")
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else _load(text)
    except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: {_complaint(error)}.") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"{path}: an experiment file is a list of `name: value` lines.")
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = {"method"} | {name for name, option in options_of(RunRequest).items() if option.in_file}
    options = merged({name: value for name, value in values.items() if name in known})
    settings = {name: value for name, value in values.items() if name not in known}
    try:
        RunRequest(**{"method": ""} | options)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return options, settings


def parse_settings(pairs: Iterable[str], option: str = "--set", example: str = "m_hat=0.95") -> dict[str, Any]:
    """`["m_hat=0.95", "variant=local"]` as a dictionary; values are read as YAML, the later of two wins.

    Raises: UsageError that names the option, with an example.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {pair}: it must be name=value, for example {option} {example}.")
        try:
            settings[name.strip()] = _load(value)
        except (yaml.YAMLError, RecursionError) as error:
            raise UsageError(f"{option} {pair}: {_complaint(error)}.") from None
    return settings


def parse_grid(pairs: Iterable[str]) -> list[dict[str, Any]]:
    """As `parse_settings`, once for every combination: `m_hat=0.9,0.99` are two values, `'a,b'` and `[a, b]` are one.

    Raises: UsageError as `parse_settings`.
    """
    choices: dict[str, list[Any]] = {}
    for pair in pairs:
        parse_settings([pair])  # refused by its whole text
        name, _, value = pair.partition("=")
        parts = value.split(",") if is_several(value) else [value]
        choices[name.strip()] = [parse_settings([f"{name}={part}"])[name.strip()] for part in parts]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def is_several(value: str) -> bool:
    """Whether a value is several: `0.9,0.99`, and not one tuple, `[0.9, 0.99]`, or one text, `"a,b"`."""
    return "," in value and value.strip()[:1] not in ("[", "{", "'", '"')


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; None means "not given"."""
    return {name: value for layer in layers for name, value in layer.items() if value is not None}


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _complaint(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return one_line(error)
