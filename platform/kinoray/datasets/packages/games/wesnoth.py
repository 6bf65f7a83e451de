"""The Battle for Wesnoth: units that fight, stand, move and die.

`data/core/units/*/*.cfg` is WML: tags with `key=value`, and macros between braces. An animation's `[frame]`s name
pictures and milliseconds, `image="units/x-[1~4].png:[75*2,100,130]"`.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kinoray.datasets.packages import Drawn
from kinoray.datasets.packages.games.names import Words, concept, with_article
from kinoray.datasets.packages.games.pictures import MIN_FRAMES, Piece, draw, size_of
from kinoray.datasets.packages.games.wml import Tag, parse, spread

PART = "wesnoth"
CORE = Path("usr/share/games/wesnoth/1.16/data/core")
TICK_MS = 50
"""A clip shows each picture for a whole number of these."""
MAX_TICKS = 20
"""How many a picture shows at most: some stand still for a minute."""
PHRASES = {
    "death": "dying", "idle_anim": "idling", "standing_anim": "standing", "movement_anim": "moving",
    "defend": "defending", "leading_anim": "leading others", "healing_anim": "healing others",
    "victory_anim": "cheering", "recruit_anim": "arriving", "teaching_anim": "teaching others",
    "pre_movement_anim": "setting out", "post_movement_anim": "coming to rest", "resistance_anim": "protecting others",
}  # fmt: skip
UNCOUNTED = ("breath", "fire", "ice", "lightning", "magic", "light", "blaze", "slime", "water", "ink", "wail", "touch")
"""Last words of weapons that stand without an article."""


class Shot(NamedTuple):
    """A picture of an animation and how long it shows."""

    file: str
    ms: int


def clips(folder: Path) -> Iterator[Drawn]:
    """One clip for each animation of at least MIN_FRAMES pictures, in the order of the units' files."""
    macros = "\n".join(path.read_text(encoding="utf-8") for path in sorted((folder / CORE / "macros").glob("*.cfg")))
    for path in sorted((folder / CORE / "units").rglob("*.cfg")):
        for unit in parse(path.read_text(encoding="utf-8"), macros).named("unit_type"):
            yield from _clips_of(folder, unit)


def _clips_of(folder: Path, unit: Tag) -> Iterator[Drawn]:
    base = unit.values.get("name", "").rpartition("^")[2]
    for sex, form in (("", unit), *(("female", female) for female in unit.named("female"))):
        name = form.values.get("name", base).lower().rpartition("^")[2]  # what stands before ^ tells homonyms apart
        if not name:
            return
        name = f"female {name}" if sex and name == base.lower() else name
        for animation in form.tags:
            if animation.name in PHRASES or animation.name == "attack_anim":
                for direction, shots in _ways(animation):
                    yield from _clip(folder, Words(concept(base), name, *_action(animation), direction), shots)


def _action(animation: Tag) -> tuple[str, str]:
    """An animation's key and what it shows."""
    if animation.name != "attack_anim":
        return animation.name, PHRASES[animation.name]
    attack = next(iter(animation.named("filter_attack")), Tag("", {}, []))
    weapon = attack.values.get("name", "").split(",")[0].replace("_", " ")
    if weapon:
        is_plain = weapon.split()[-1] in UNCOUNTED
        return f"attack {weapon}", f"attacking with {weapon if is_plain else with_article(weapon)}"
    distance = {"ranged": "from afar", "melee": "at close range"}.get(attack.values.get("range", ""), "")
    return f"attack {distance}".strip(), f"attacking {distance}".strip()


def _ways(animation: Tag) -> Iterator[tuple[str, list[Shot]]]:
    """(direction, pictures) of each way that an animation can go: its `[if]`s together, then their `[else]`s."""
    groups: list[list[Tag]] = []
    for tag in animation.tags:
        if tag.name == "else" and groups:
            groups[-1].append(tag)
        elif tag.name in ("if", "frame"):
            groups.append([tag])
    for number in range(max((len(group) for group in groups), default=0)):
        chosen = [group[min(number, len(group) - 1)] for group in groups]
        stated = next((tag.values["direction"] for tag in (*chosen, animation) if "direction" in tag.values), "")
        frames = [f for tag in chosen for f in ([tag] if tag.name == "frame" else tag.named("frame"))]
        yield _heading(stated), [shot for frame in frames for shot in _shots(frame)]


def _heading(stated: str) -> str:
    """The one direction that a drawing for several shows; "" where it is for all. Only eastern ones are drawn."""
    ways = set(filter(None, stated.replace(" ", "").split(",")))
    if not ways or {"n", "s"} <= ways or {"ne", "se"} <= ways:
        return ""
    return next((way for way in ("s", "n", "se", "ne", "sw", "nw") if way in ways), "")


def _shots(frame: Tag) -> Iterator[Shot]:
    """The pictures of a frame with their times."""
    path, _, times = re.sub(r"~[A-Z]+\(.*", "", frame.values.get("image", "")).partition(".png")
    if not path:
        return
    names = [""]
    for part in re.split(r"(\[[^\]]*\])", path):
        ends = spread(part[1:-1]) if part.startswith("[") else [part]
        count = max(len(names), len(ends))
        names = [names[min(i, len(names) - 1)] + ends[min(i, len(ends) - 1)] for i in range(count)]
    given = spread(times.strip(": ").strip("[]")) or [frame.values.get("duration", "")]
    for i, name in enumerate(names):
        ms = given[min(i, len(given) - 1)]
        yield Shot(f"{name}.png", int(ms) if ms.isdecimal() else 2 * TICK_MS)


def _clip(folder: Path, said: Words, shots: list[Shot]) -> Iterator[Drawn]:
    """The clip, where enough different pictures are there."""
    files = [str(CORE / "images" / shot.file) for shot in shots]
    if len(set(files)) < MIN_FRAMES or not all((folder / file).is_file() for file in files):
        return
    frames = []
    for file, shot in zip(files, shots, strict=True):
        width, height = size_of(folder, file)
        piece = Piece(file, (0, 0, width, height), (-(width // 2), -(height // 2)))
        frames += [(piece,)] * max(1, min(round(shot.ms / TICK_MS), MAX_TICKS))
    yield said.drawn(PART, partial(draw, folder, tuple(frames), 1000 / TICK_MS))
