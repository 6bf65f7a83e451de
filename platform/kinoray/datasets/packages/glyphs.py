"""`glyphs`: emoji as pictures in the styles of three vendors; classes are Unicode's own sub-categories.

Of the sub-categories that show things the twenty with the most names, at most sixty names of each. People,
who differ in sex and skin alone, and what Unicode calls other are left out. A concept is a name, in one split.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from kinoray.datasets.packages import Drawn, npm

NAMES = ("glyphs",)
ABOUT = "Emoji of Google, Twitter and Fluent (3-D), pictures with their names and sub-categories."
RESERVED = 0.0
PACKAGES = (
    npm(
        "emoji-datasource-google",
        "16.0.0",
        "MIT, pictures Apache-2.0",
        "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
    ),
    npm(
        "emoji-datasource-twitter",
        "16.0.0",
        "MIT, pictures CC-BY-4.0",
        "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    ),
    npm("@lobehub/fluent-emoji-3d", "1.1.0", "MIT", "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"),
)
STYLES = {
    "google": ("emoji-datasource-google", "package/img/google/64/{}.png"),
    "twitter": ("emoji-datasource-twitter", "package/img/twitter/64/{}.png"),
    "fluent": ("@lobehub/fluent-emoji-3d", "package/assets/{}.webp"),
}
"""Vendor -> package, and where it keeps the picture of a code."""
CLASSES, NAMES_A_CLASS = 20, 60
NO_THINGS = ("People & Body", "Component")
SIDE_PX = 64


def clips(unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
    """The pictures, class by class and name by name."""
    listed = json.loads((unpacked["emoji-datasource-google"] / "package/emoji.json").read_text(encoding="utf-8"))
    by_class: dict[str, list[dict[str, str]]] = defaultdict(list)
    for emoji in listed:
        if emoji["category"] not in NO_THINGS and not emoji["subcategory"].startswith("other"):
            by_class[emoji["subcategory"]].append(emoji)
    largest = sorted(by_class, key=lambda name: (-len(by_class[name]), name))[:CLASSES]
    for label in sorted(largest):
        chosen = sorted(by_class[label], key=lambda emoji: hashlib.sha256(emoji["short_name"].encode()).digest())
        for emoji in sorted(chosen[:NAMES_A_CLASS], key=lambda emoji: emoji["short_name"]):
            caption = (emoji["name"] or emoji["short_name"]).lower().replace("-", " ")
            for style, (package, place) in STYLES.items():
                path = unpacked[package] / place.format(Path(emoji["image"]).stem)
                if path.is_file():
                    draws = partial(picture, path)
                    yield Drawn(f"{emoji['short_name']}/{style}", (caption,), label, style, draws, is_picture=True)


def picture(path: Path) -> tuple[np.ndarray, float]:
    """The picture on white, uint8 (1, 64, 64, 3)."""
    with Image.open(path) as image:
        drawing = image.convert("RGBA").resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
    paper = Image.new("RGBA", drawing.size, "white")
    return np.asarray(Image.alpha_composite(paper, drawing).convert("RGB"))[None], 1.0
