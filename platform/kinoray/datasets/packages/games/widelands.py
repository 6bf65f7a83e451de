"""Widelands: people, animals, plants and buildings, at work and walking in six directions.

`data/**/init.lua` names a thing (`descname`) and lists its sheets: `spritesheets = {walk = {fps, frames, rows, columns,
directional, basename}}`; a sheet is `BASENAME[_DIRECTION]_SCALE.png`, frame i stands in row i // columns.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kinoray.datasets.packages import Drawn
from kinoray.datasets.packages.games.names import Words, concept, drawn_by
from kinoray.datasets.packages.games.pictures import MIN_FRAMES, Frame, Piece, draw, size_of

DATA = Path("usr/share/games/widelands/data")
TRIBES = {
    "amazons": "amazon",
    "atlanteans": "atlantean",
    "barbarians": "barbarian",
    "empire": "imperial",
    "frisians": "frisian",
}
LARGE, SMALL = "widelands-large", "widelands-small"
LARGE_TRIBES = ("amazons", "barbarians", "frisians")
"""Tribes that are drawn at four scales, up to four times as large as the others."""
SCALES = ("4", "2", "1")
MAX_CELL_PX = 220
"""The largest scale is taken at which a frame is not larger."""
FPS = 4
"""Where a sheet states none, as in the game."""
TURNS = ("ne", "e", "se", "sw", "w", "nw")
LOADED_TURNS = 2
"""In how many of these somebody walks with a load: all six would be a third of all clips."""
PLANTS = ("trees", "berry_bushes", "field", "grapevine")
"""Ends of folders' names of what sways in the wind when it is idle."""

PHRASES = {
    "walk": "walking", "walkload": "walking with a load", "sail": "sailing", "sleep": "sleeping", "work": "working",
    "build": "under construction", "working": "at work", "empty": "with nothing left in it", "dig": "digging",
    "unoccupied": "standing unoccupied", "hack": "hacking", "plant": "planting", "harvest": "harvesting",
    "gather": "gathering", "fish": "fishing", "water": "watering", "fetch_water": "fetching water",
    "release": "releasing something", "releasein": "releasing something", "releaseout": "releasing something",
    "freeing": "setting something free", "planting_harvesting": "planting and harvesting", "stacking": "stacking wood",
    "beeswarm": "with a swarm of bees", "atk_ok": "hitting", "atk_fail": "striking in vain", "die": "dying",
    "eva_ok": "dodging a blow", "eva_fail": "failing to dodge", "fall": "falling",
}  # fmt: skip
IDLE = {"workers": "standing", "critters": "standing", "ships": "lying still", "buildings": "standing idle"}


def clips(folder: Path) -> Iterator[Drawn]:
    """All sheets of at least MIN_FRAMES frames, in the order of their files."""
    for kind in ("tribes", "world"):
        for path in sorted((folder / DATA / kind).rglob("init.lua")):
            yield from _clips_of(folder, path)


def _clips_of(folder: Path, path: Path) -> Iterator[Drawn]:
    text = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
    named = re.search(r"""descname\s*=\s*(?:_|pgettext)\s*\((?:\s*"[^"]*"\s*,)?\s*"([^"]+)"\s*\)""", text)
    sheets = re.search(r"\bspritesheets\s*=\s*\{", text)
    if not named or not sheets:
        return
    places = path.relative_to(folder / DATA).parts
    tribe = next((tribe for tribe in TRIBES if any(place.endswith(tribe) for place in places)), "")
    name = f"{TRIBES.get(tribe, '')} {named[1].lower().replace('’', chr(39))}".strip()
    stem = concept(name)
    for action, sheet in lua_table(text, sheets.end())[0].items():
        if not isinstance(sheet, dict) or _whole(sheet, "frames") < MIN_FRAMES:
            continue
        base, direction = _action(action)
        file, phrase = sheet.get("basename", action), _phrase(base, places)
        if sheet.get("directional") != "true":
            yield from _clip(folder, path.with_name(file), sheet, tribe, Words(stem, name, base, phrase, direction))
            continue
        for turn in drawn_by(name, TURNS, LOADED_TURNS) if base == "walkload" else TURNS:
            said = Words(stem, name, base, phrase, turn)
            yield from _clip(folder, path.with_name(f"{file}_{turn}"), sheet, tribe, said)


def _whole(sheet: dict[str, Any], field: str) -> int:
    """A number of a sheet, 0 where there is none."""
    value = str(sheet.get(field, ""))
    return int(value) if value.isdecimal() else 0


def _action(action: str) -> tuple[str, str]:
    """What an action is, without its number and look, and the direction in its name."""
    match = re.fullmatch(r"(?:(?:health|hero|attack)_)?(.+?)(?:_[fb])?(?:_\d)?(?:_([ew]))?", action)
    return (match[1], match[2] or "") if match else (action, "")


def _phrase(action: str, places: tuple[str, ...]) -> str:
    """What somebody or something does; empty for a thing that just stands there."""
    if action != "idle":
        return PHRASES.get(action, action.replace("_", " on ") if action.endswith("ing") else action.replace("_", " "))
    is_plant = any(place.endswith(PLANTS) for place in places)
    return "swaying in the wind" if is_plant else IDLE.get(places[1], "")


def _clip(folder: Path, picture: Path, sheet: dict[str, Any], tribe: str, said: Words) -> Iterator[Drawn]:
    """The clip of one sheet, if its picture is there."""
    scaled = [picture.with_name(f"{picture.name}_{scale}.png") for scale in SCALES]
    files = [str(path.relative_to(folder)) for path in scaled if path.is_file()]
    if not files:
        return
    columns, rows = max(1, _whole(sheet, "columns")), max(1, _whole(sheet, "rows"))
    cells = [(width // columns, height // rows) for width, height in (size_of(folder, file) for file in files)]
    chosen = next((i for i, cell in enumerate(cells) if max(cell) <= MAX_CELL_PX), -1)
    file, (width, height) = files[chosen], cells[chosen]
    frames: tuple[Frame, ...] = tuple(
        (Piece(file, (i % columns * width, i // columns * height, width, height), (0, 0)),)
        for i in range(min(_whole(sheet, "frames"), rows * columns))
    )
    is_large = tribe in LARGE_TRIBES if tribe else len(files) > 1
    part = LARGE if is_large else SMALL
    yield said.drawn(part, partial(draw, folder, frames, _whole(sheet, "fps") or FPS))


def lua_table(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The named entries of a table whose brace opened just before `at`, and where it ends.

    Numbers, names and strings are texts without quotes, tables are dicts; anything else is passed over.
    """
    entries: dict[str, Any] = {}
    token = re.compile(r"""\s*(?:(\w+)\s*=(?!=)\s*)?(?:(\{)|(\})|"((?:[^"\\]|\\.)*)"|([\w.]+)|(.))""", re.DOTALL)
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            break
        at, name = match.end(), match[1]
        if match[3]:
            break
        if match[2]:
            value, at = lua_table(text, at)
            entries |= {name: value} if name else {}
        elif name:
            entries[name] = match[4] if match[4] is not None else match[5]
    return entries, at
