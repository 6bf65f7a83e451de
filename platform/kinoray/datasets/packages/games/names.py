"""Words for what is drawn: the concept of a name, captions, and what a text alone draws."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from kinoray.datasets.packages import Drawn

T = TypeVar("T")

DIRECTIONS = {
    "n": "north", "ne": "north east", "e": "east", "se": "south east",
    "s": "south", "sw": "south west", "w": "west", "nw": "north west",
}  # fmt: skip

VARIANTS = (
    "male female man woman tiny small little medium big large giant great grand high deep deeper weak young old elder "
    "ancient adult mature ripe master chief senior junior apprentice elite boss king face "
    "red green blue orange black white silver dark bay"
)
"""Words for sex, age, size, rank and colour: two names that differ in these alone are one concept."""
PEOPLES = (
    "amazon atlantean barbarian imperial frisian elvish dwarvish orcish saurian drake dune merman mermaid naga nagini "
    "goblin hobgoblin skeleton troll ogre"
)
"""Likewise, where another word is left: a goblin spearman is a spearman."""
TAIL = re.compile(r"\b(?:with|without|of|in|on|at|behind|feeding)\b.*")
"""What stands behind the noun of a name."""


class Words(NamedTuple):
    """What is said of one clip."""

    concept: str
    name: str
    action: str
    """As its file has it."""
    phrase: str
    """What is done, as a caption has it; may be empty."""
    direction: str = ""
    """A key of DIRECTIONS; empty where there is none."""

    def drawn(self, part: str, frames: Callable[[], tuple[np.ndarray, float]]) -> Drawn:
        """The clip with its id, CONCEPT/PART.NAME.ACTION-DIRECTION, and its caption."""
        heading = f"to the {DIRECTIONS[self.direction]}" if self.direction else ""
        return Drawn(
            id=f"{self.concept}/{part}.{key(self.name)}.{key(f'{self.action} {self.direction}') or 'plain'}",
            captions=(" ".join(filter(None, (with_article(self.name), self.phrase, heading))),),
            label=f"{self.concept} {self.phrase}".strip(),
            task=part,
            frames=frames,
        )


def concept(name: str) -> str:
    """What a name has in common with its variants: lower case, letters and single spaces; never empty for a name.

    What follows "with", "of" and the like does not count: a cloud with rain is a cloud.
    """
    plain = re.sub(r"\(.*?\)|['’]s?\b", " ", TAIL.sub("", name.lower()))
    words = re.findall(r"[a-z]+", plain)
    for dropped in (VARIANTS, PEOPLES):
        words = [word for word in words if word not in dropped.split()] or words
    return " ".join([*words[:-1], _singular(words[-1])])


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is", "as")):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]


def with_article(name: str) -> str:
    """A name as a caption begins: "an elvish archer", "eyes"."""
    noun = TAIL.sub("", name).split()[-1]
    return name if _singular(noun) != noun else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def key(text: str) -> str:
    """A text as a part of an id: letters, digits and hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def drawn_by(text: str, values: Sequence[T], count: int = 1) -> list[T]:
    """Some of the values, which the text alone chooses; they stay in their order."""
    order = sorted(range(len(values)), key=lambda i: hashlib.sha256(f"{text}:{i}".encode()).digest())
    return [values[i] for i in sorted(order[:count])]
