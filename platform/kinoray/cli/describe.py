"""`kinoray describe`: one method, stream or backbone in full."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from kinoray.cli.options import Debug, Json
from kinoray.system.text import as_typed, printable


def describe_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A method (also a file, RULE:LEARNER), a stream or a backbone.")
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Settings of a method, or the tasks of a stream. With ranges, recipes and spaces; protocol and what it needs."""
    import kinoray

    facts = kinoray.describe(name)
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    lines = {"method": _method_lines, "stream": _stream_lines, "backbone": _backbone_lines}[facts["kind"]](facts)
    print("\n".join(map(printable, lines)))


def _method_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a {'whole method' if facts['role'] == 'whole' else facts['role']}: {facts['about']}"
    protocols = facts["tested_by"] or ", ".join(facts["suits"]) or "any"
    builds_on = "what its learner builds on" if facts["role"] == "rule" else facts["builds_on"]
    yield f"Suits streams tested by: {protocols}. Builds on: {builds_on}."
    yield from _settings_lines("Settings (--set NAME=VALUE):", facts["settings"])
    yield from _by_stream("What else it sets, by stream:", facts["recipes"])
    yield from _by_stream("With --as-released, by stream:", facts["as_released"])
    if facts["spaces"]:
        yield "Search spaces (kinoray sweep --space NAME):"
        for name, space in facts["spaces"].items():
            yield f"  {name or 'the usual one'}: {', '.join(space)}"
    if "learner" in facts:
        yield ""
        yield from _method_lines(facts["learner"])


def _stream_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a stream."
    yield from facts["about"].splitlines()
    if facts["needs"]:
        yield f"Needs: {facts['needs']}"
        return
    yield f"Tested by: {facts['protocol']}. Backbone: {facts['backbone']}."
    yield f"Tasks ({len(facts['tasks'])}): {', '.join(facts['tasks'])}."
    if facts["downstream"]:
        yield f"Learned encoders are tested on: {', '.join(facts['downstream'])}."
    yield from _settings_lines("Recipe, where it differs from the engine's defaults:", facts["recipe_sets"])


def _backbone_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['name']}, a backbone."
    yield from facts["about"].splitlines()
    yield "Forms of its name:"
    yield from (f"  {form}: {about}" for form, about in facts["forms"].items())


def _settings_lines(title: str, settings: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each setting: its value, what it may be, what it means."""
    yield title
    for setting in settings:
        value = f"{setting['name']}={as_typed(setting.get('value', setting['default']))}"
        allowed = f"({setting['range']}) " if setting["range"] else ""
        yield f"  {value:<26} {allowed}{setting['about']}".rstrip()


def _by_stream(title: str, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if settings:
        yield title
    for stream, values in settings.items():
        yield f"  {stream or 'every stream'}: {', '.join(f'{name}={as_typed(v)}' for name, v in values.items())}"
