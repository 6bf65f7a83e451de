"""`sprites`: moving drawings with names and actions, drawn of the packages of three games and one set of emoji.

Five parts, each in a style of its own: Widelands' tribes that are drawn large, Flare, Widelands' other drawings, The
Battle for Wesnoth, and Fluent emoji. No two clips have one caption or the same frames.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from kinoray.datasets.packages import Drawn, deb, npm
from kinoray.datasets.packages.games import flare, fluent, wesnoth, widelands
from kinoray.system.durable import sha256

NAMES = ("sprites",)
ABOUT = "Moving drawings with names and actions, of three games and a set of emoji; no code of the packages is run."
RESERVED = 0.3
PARTS = (widelands.LARGE, flare.PART, widelands.SMALL, wesnoth.PART, fluent.PART)
"""In the order in which a stream learns them."""

WIDELANDS, FLARE, WESNOTH, FLUENT = PACKAGES = (
    deb(
        "widelands-data",
        "2:1.1-3",
        "GPL-2+, CC-BY-SA-3.0",
        "0e23d645b15bcfb9e3bcae0de9bc1bdfa75a6ecb36b2e449759d6eb0b4bbd8fb",
    ),
    deb("flare-game", "1.14-1", "CC-BY-SA-3.0+", "4ab6a8298276013d35a0806257e130d992761af1b749041433b409c3dafec508"),
    deb(
        "wesnoth-1.16-data", "1:1.16.9-1", "GPL-2+", "1012b964bd412a6770685e3324ae3b61e176caff7846192d1ee63d55cd621e26"
    ),
    npm(
        "@lobehub/fluent-emoji-anim-1",
        "1.0.0",
        "MIT",
        "4c03ac178c1eabf2e2a16dd498f3cc2b92dc30ec3466ae38fdc497d4774c99ea",
    ),
)


def clips(unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
    """All clips, part by part. unpacked: a folder for each package's name."""
    found = [
        *widelands.clips(unpacked[WIDELANDS.name]),
        *flare.clips(unpacked[FLARE.name]),
        *wesnoth.clips(unpacked[WESNOTH.name]),
        *fluent.clips(unpacked[FLUENT.name]),
    ]
    digest = cache(sha256)
    seen: set[object] = set()
    for part in PARTS:
        for clip in found:
            marks = {clip.id, clip.captions, _drawing(clip, digest)}
            if clip.task == part and not marks & seen:
                yield clip
                seen |= marks


def _drawing(clip: Drawn, digest: Callable[[Path], str]) -> object:
    """What is drawn, by what the files hold: some lie there twice under two names."""
    assert isinstance(clip.frames, partial)
    folder, shown = clip.frames.args[:2]
    if isinstance(shown, str):
        return digest(folder / shown)
    return tuple(tuple((digest(folder / piece.file), *piece[1:]) for piece in frame) for frame in shown)
