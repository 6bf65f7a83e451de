"""Flare: monsters and heroes in eight directions, spells, and things to find.

`animations/**/NAME.txt` names a sheet (`image=`) and has a section for each action: how many `frames`, the `duration`
of all of them, `type`, and lines `frame=NUMBER,DIRECTION,X,Y,WIDTH,HEIGHT,OFFSET_X,OFFSET_Y`. A hero is drawn in
layers, one sheet each; `engine/hero_layers.txt` gives their order for each direction.
"""

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from kinoray.datasets.packages import Drawn
from kinoray.datasets.packages.games.names import Words, concept, drawn_by, with_article
from kinoray.datasets.packages.games.pictures import MIN_FRAMES, Frame, Piece, draw

PART = "flare"
MODS = Path("usr/share/games/flare/mods")
CORE = MODS / "fantasycore"
TURNS = ("w", "nw", "n", "ne", "e", "se", "s", "sw")
"""Of the numbers 0 to 7 in a file."""
MONSTER_TURNS, HERO_TURNS = 2, 2
"""How many directions of an action are taken: all would be eight times as many clips as of any other game."""

ACTIONS = {
    "stance": "standing", "run": "running", "swing": "striking", "shoot": "shooting", "cast": "casting a spell",
    "hit": "being hit", "die": "dying", "critdie": "being torn apart", "spawn": "appearing", "block": "blocking",
    "dash_attack": "dashing at somebody", "shield_bash": "striking with the shield", "cast_alt": "conjuring",
    "animation": "standing",
}  # fmt: skip
ADJECTIVES = ("elite", "weak", "small", "adult", "air", "fire", "water", "ice", "boss", "dark", "high", "fossilized")
"""Words that stand behind the name of a monster in a file's name."""
SKIPPED = ("stealth", "boulder", "arrow_stuck", "bear_trap_trigger", "status_freeze")
RENAMED = {
    "hp_potion": "healing potion", "mp_potion": "mana potion", "coins5": "coins", "coins25": "coins",
    "coins100": "coins", "ice_ant": "ice antlion", "fire_ant": "fire antlion", "bear_trap": "bear trap",
    "caltrops": "caltrops", "spear": "flying spear", "spikes": "spikes", "throw_axe": "thrown axe",
    "throw_knife": "thrown knife", "guild_man1": "guildsman", "guild_man2": "guildsman", "minecart": "minecart",
    "runes_blue": "blue runes spell", "runes_orange": "orange runes spell", "spark_blue": "blue spark",
    "spark_orange": "orange spark", "spark_red": "red spark", "spark_red_loop": "red spark", "shield_orange": "shield",
}  # fmt: skip

ARMOR = {
    "cloth": ("cloth_sandals", "cloth_pants", "cloth_gloves", "cloth_shirt", ""),
    "leather": ("leather_boots", "leather_pants", "leather_gloves", "leather_chest", "leather_hood"),
    "chain": ("chain_boots", "chain_greaves", "chain_gloves", "chain_cuirass", "chain_coif"),
    "plate": ("plate_boots", "plate_greaves", "plate_gauntlets", "plate_cuirass", "plate_helm"),
    "mage": ("mage_boots", "mage_skirt", "mage_sleeves", "mage_vest", "mage_hood"),
}
"""Files of feet, legs, hands, chest and head; "" is the bare head."""
PERSONS = {"female": "woman", "male": "man"}
HEADS = {"female": "head_long", "male": "head_short"}
WEAPONS = {
    "swing": (
        "battle_axe", "club", "dagger", "greatsword", "hand_axe", "infantry_axe", "longsword", "mace", "maul",
        "reinforced_club", "shortsword", "smith_hammer", "war_hammer", "zweihander",
    ),
    "shoot": ("greatbow", "longbow", "shortbow", "slingshot"),
    "cast": ("greatstaff", "rod", "staff", "wand"),
}  # fmt: skip
USES = {"swing": "swinging", "shoot": "shooting with", "cast": "casting a spell with"}


class Section(NamedTuple):
    """One action of a file."""

    fps: float
    is_mirrored: bool
    """Whether it plays back and forth."""
    pieces: dict[tuple[int, int], Piece]
    """By the number of the frame and of the direction."""

    def turns(self) -> list[int]:
        """Directions that it has, by number."""
        return sorted({turn for _, turn in self.pieces})

    def length(self) -> int:
        """How many frames it has."""
        return len({number for number, _ in self.pieces})

    def centred(self) -> "Section":
        """The same, where every frame has its middle at the origin."""
        middles = {key: (-(piece.box[2] // 2), -(piece.box[3] // 2)) for key, piece in self.pieces.items()}
        return self._replace(pieces={key: piece._replace(place=middles[key]) for key, piece in self.pieces.items()})


def clips(folder: Path) -> Iterator[Drawn]:
    """Monsters, people, spells, things, then heroes; in the order of their files."""
    for mod in ("fantasycore", "empyrean_campaign"):
        for kind in ("enemies", "npcs", "powers", "loot"):
            for path in sorted((folder / MODS / mod / "animations" / kind).glob("*.txt")):
                if path.stem not in SKIPPED:
                    yield from _clips_of(folder, path, kind)
    yield from _heroes(folder)


@lru_cache(maxsize=256)  # each layer of a hero is asked for again and again
def sections(folder: Path, path: Path) -> dict[str, Section]:
    """The actions of an animation file, if there is one; those without packed frames are left out."""
    if not path.is_file():
        return {}
    text = re.sub(r"(?m)^#.*$", "", path.read_text(encoding="utf-8"))
    sheet = re.search(r"(?m)^image=(\S+)", text)
    mods = (path.parents[len(path.relative_to(folder / MODS).parts) - 2], folder / CORE)
    file = next((mod / sheet[1] for mod in mods if sheet and (mod / sheet[1]).is_file()), None)
    if file is None:
        return {}
    found = {}
    for name, body in re.findall(r"(?ms)^\[(\w+)\]\s*\n(.*?)(?=^\[|\Z)", text):
        fields = dict(re.findall(r"(?m)^(frames|duration|type)=(\S+)", body))
        pieces = {}
        for values in re.findall(r"(?m)^frame=(-?\d+(?:,-?\d+){7})\s*$", body):
            number, turn, x, y, width, height, left, top = map(int, values.split(","))
            pieces[number, turn] = Piece(str(file.relative_to(folder)), (x, y, width, height), (-left, -top))
        if pieces and {"frames", "duration"} <= set(fields):
            seconds = float(re.sub(r"m?s$", "", fields["duration"])) / (1000 if "ms" in fields["duration"] else 1)
            found[name] = Section(int(fields["frames"]) / seconds, fields.get("type") == "back_forth", pieces)
    return found


def _clips_of(folder: Path, path: Path, kind: str) -> Iterator[Drawn]:
    name = RENAMED.get(path.stem, "")
    if not name:
        words = re.sub(r"\d+$", "", path.stem).split("_") + ["spell"] * (kind == "powers")
        name = " ".join(sorted(words, key=lambda word: word not in ADJECTIVES))
    stem = concept(" ".join(word for word in name.split() if word not in ADJECTIVES) or name)
    for action, section in sections(folder, path).items():
        turns = section.turns()
        is_turned = len(turns) > 1
        phrase = "flying" if kind == "powers" and is_turned else ACTIONS.get(action, "")
        if kind == "loot":  # small things on a long way: they turn in the middle instead
            phrase, section = "tumbling through the air", section.centred()
        for turn in drawn_by(f"{path.stem} {action}", turns, MONSTER_TURNS) if is_turned else turns:
            said = Words(stem, name, action, phrase, TURNS[turn] if is_turned else "")
            yield from _clip(folder, said, [section], turn)


def _heroes(folder: Path) -> Iterator[Drawn]:
    """Each weapon in the hands of a woman and a man, in armor that the three together draw."""
    layers = re.findall(r"(?m)^layer=(\d),(.*)$", (folder / CORE / "engine/hero_layers.txt").read_text("utf-8"))
    order = {int(turn): names.strip().split(",") for turn, names in layers}
    for use, weapons in WEAPONS.items():
        for weapon, (sex, person), action in product(weapons, PERSONS.items(), (use, "run", "stance", "die")):
            text = f"{weapon} {sex} {action}"
            (armor,) = drawn_by(text, tuple(ARMOR))
            files = dict(zip(("feet", "legs", "hands", "chest", "head"), ARMOR[armor], strict=True)) | {"main": weapon}
            files["head"] = files["head"] or HEADS[sex]
            home = folder / CORE / "animations/avatar" / sex
            worn = {layer: sections(folder, home / f"{file}.txt").get(action) for layer, file in files.items()}
            if worn["main"] is None:
                continue
            name = weapon.replace("_", " ")
            phrase = f"{USES[use] if action == use else f'{ACTIONS[action]} with'} {with_article(name)}"
            for turn in drawn_by(text, tuple(sorted(order)), HERO_TURNS):
                said = Words(concept(name), f"{person} in {armor} armor", action, phrase, TURNS[turn])
                yield from _clip(folder, said, [part for layer in order[turn] if (part := worn.get(layer))], turn)


def _clip(folder: Path, said: Words, layers: list[Section], turn: int) -> Iterator[Drawn]:
    """The clip of some layers, from the back to the front, in one direction; if it is long enough."""
    count = max((section.length() for section in layers), default=0)
    if count < MIN_FRAMES:
        return
    frames: list[Frame] = [
        tuple(section.pieces[number, turn] for section in layers if (number, turn) in section.pieces)
        for number in range(count)
    ]
    frames += frames[-2:0:-1] if layers[0].is_mirrored else []
    yield said.drawn(PART, partial(draw, folder, tuple(frames), layers[0].fps))
