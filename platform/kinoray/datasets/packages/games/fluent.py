"""Fluent emoji: WebP pictures named by their code points, some of them moving.

Names are those of the Unicode standard; sequences of several characters are put into words here.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from kinoray.datasets.packages import Drawn
from kinoray.datasets.packages.games.names import Words, concept, with_article
from kinoray.datasets.packages.games.pictures import (
    MIN_FRAMES,
    SIZE_PX,
    on_grey,
    open_picture,
    premultiplied,
    shortened,
)

PART = "fluent"
ASSETS = Path("package/assets")
TONES = {
    0x1F3FB: "light", 0x1F3FC: "medium light", 0x1F3FD: "medium", 0x1F3FE: "medium dark", 0x1F3FF: "dark"
}  # fmt: skip
JOINER, SELECTOR = 0x200D, 0xFE0F
SEXES = {0x2640: "female", 0x2642: "male"}
PEOPLE = {0x1F466: "boy", 0x1F467: "girl", 0x1F468: "man", 0x1F469: "woman"}
JOBS = {
    "1f33e": "farmer", "1f373": "cook", "1f37c": "parent feeding a baby", "1f393": "student", "1f3a4": "singer",
    "1f3a8": "artist", "1f3eb": "teacher", "1f3ed": "factory worker", "1f4bb": "programmer", "1f4bc": "office worker",
    "1f527": "mechanic", "1f52c": "scientist", "1f680": "astronaut", "1f692": "firefighter", "2695": "doctor",
    "2696": "judge", "2708": "pilot", "1f9af": "person with a white cane", "1f9b0": "person with red hair",
    "1f9b1": "person with curly hair", "1f9b2": "bald person", "1f9b3": "person with white hair",
    "1f9bc": "person in a motorized wheelchair", "1f9bd": "person in a wheelchair",
}  # fmt: skip
"""What a man or a woman joined with a sign is."""
OTHERS = {
    "1f408-2b1b": "black cat", "1f415-1f9ba": "service dog", "1f43b-2744": "polar bear", "1f3f4-2620": "pirate flag",
    "1f468-2764-1f468": "couple with a heart", "1f446": "hand pointing up", "1f447": "hand pointing down",
    "1f448": "hand pointing left", "1f449": "hand pointing right", "1f44a": "fist", "1f44b": "waving hand",
    "1f44c": "ok hand", "1f44d": "thumb up", "1f44e": "thumb down", "1f44f": "clapping hands", "1f450": "open hands",
    "1f324": "sun with small cloud", "1f325": "sun behind cloud", "1f326": "sun behind cloud with rain",
    "1f30c": "galaxy", "1f32b": "fog", "1f3c7": "jockey on a horse", "1f3cd": "motorcycle", "1f464": "bust",
    "1f465": "two busts", "1f43e": "paw prints",
}  # fmt: skip
"""What the standard names strangely, or does not name."""
MAX_READ = 128
"""Frames of a file that are read; the longest has 97."""


def clips(folder: Path) -> Iterator[Drawn]:
    """All pictures that move, with all skin tones, in the order of their files."""
    for path in sorted((folder / ASSETS).glob("*.webp")):
        file, said = str(path.relative_to(folder)), words_of(path.stem)
        if said:
            with open_picture(folder, file) as picture:
                count = getattr(picture, "n_frames", 1)
            if count >= MIN_FRAMES:
                yield said.drawn(PART, partial(_draw, folder, file))


def words_of(stem: str) -> Words | None:
    """What the code points of a file's name show; None where they are unknown."""
    codes = [int(code, 16) for code in stem.split("-") if re.fullmatch("[0-9a-f]+", code)]
    tone = next((f"with {TONES[code]} skin" for code in codes if code in TONES), "")
    sex = next((SEXES[code] for code in codes if code in SEXES), "")
    shown = [code for code in codes if code not in (*TONES, *SEXES, JOINER, SELECTOR)]
    joined = "-".join(f"{code:x}" for code in shown)
    if joined in OTHERS:
        name = OTHERS[joined]
    elif len(shown) == 1:
        name = unicodedata.name(chr(shown[0]), "").lower().replace("-", " ")
    elif shown and all(code in PEOPLE for code in shown):
        name = f"family of {_listed([PEOPLE[code] for code in shown])}"
    elif shown and shown[0] in PEOPLE and joined.partition("-")[2] in JOBS:
        name, sex = JOBS[joined.partition("-")[2]], {"man": "male", "woman": "female"}.get(PEOPLE[shown[0]], "")
    else:
        return None
    return Words(concept(name), f"{sex} {name}".strip(), tone, tone) if name else None


def _listed(people: list[str]) -> str:
    """What a family is of: a man and two boys."""
    plural = {"man": "men", "woman": "women", "boy": "boys", "girl": "girls"}
    counted = [with_article(one) if count == 1 else f"two {plural[one]}" for one, count in Counter(people).items()]
    return " and ".join(filter(None, (", ".join(counted[:-1]), counted[-1])))


def _draw(folder: Path, file: str) -> tuple[np.ndarray, float]:
    """Its frames over grey, and the mean rate. Raises: UsageError as of `pictures.draw`."""
    with open_picture(folder, file) as picture:
        frames, durations = [], []
        for number in range(min(getattr(picture, "n_frames", 1), MAX_READ)):
            picture.seek(number)
            frames.append(premultiplied(picture.resize((SIZE_PX, SIZE_PX))))
            durations.append(picture.info.get("duration", 0))
    return shortened(on_grey(np.stack(frames)), 1000 / max(1.0, float(np.mean(durations))))
