"""`robots`: a simulated arm opens and closes, pushes and pulls things (Meta-World); the order of frames is the label.

Ten pairs of opposite actions. A clip is a window of an episode that a scripted expert plays, and each has a twin: the
same frames backwards, labelled with the opposite action. Episodes of both actions of a pair are taken, so a label
stands for clips played forwards as often as backwards, and neither what the expert is like nor the arrow of time tells
it. The window is short and lies anywhere in the object's path, so that the first frame tells little of it, too.

A caption names the action and the scene: table, side, distance, height. There are `SCENES` scenes, and the twins of an
episode share theirs: who ranks clips by a caption finds the twins by the scene and tells them apart by order alone.
"""

import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from kinoray.datasets.packages import Drawn, deb, wheel
from kinoray.datasets.packages.robot_asking import drawn

NAMES = ("robots",)
ABOUT = (
    "Meta-World's robot arm at ten pairs of opposite tasks; fetching runs Meta-World's and MuJoCo's code in a child."
)
RESERVED = 0.0

_deb = partial(deb, machine="amd64")

PACKAGES = (
    wheel("metaworld", "3.1.1", "MIT", "99e25d9baf97f2f1a19ca89c0d2ca9c6a2b396d9a9be81729de64eedc683f0d3"),
    wheel("mujoco", "3.3.0", "Apache-2.0", "", "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"),
    wheel("gymnasium", "1.4.0", "MIT", "1cb947c59e7c72d8eabb2c2274c00cd20948e69f8452a9ef4092223be24fdf0e"),
    wheel("farama-notifications", "0.0.6", "MIT", "f84839188efa1ce5bb361c2a84881b2dc2c0d0d7fb661ff00421820170930935"),
    wheel("imageio", "2.38.1", "BSD-2-Clause", "36d23eb7423d2fb63f637098758edb3d2df3687f7125e0a5ce8596572022dcf9"),
    wheel("pyopengl", "3.1.10", "BSD-3-Clause", "794a943daced39300879e4e47bd94525280685f42dbb5a998d336cfff151d74f"),
    wheel("glfw", "2.11.0", "MIT", "", "py2.py3-none-manylinux_2_28_x86_64"),
    _deb("libosmesa6", "22.3.6-1+deb12u2", "MIT", "3d1f76857a314f2d30e91628fccb4bbac3623ddde6b66d7d785a13199b8b0b65"),
    _deb(
        "libglapi-mesa", "22.3.6-1+deb12u2", "MIT", "2db5b13a6b7f4042f9a417ad7fa4338b6c47528dc64d7f89cfd5e53d07d76bc4"
    ),
    _deb(
        "libllvm15", "1:15.0.6-4+b1", "Apache-2.0", "9f0751109ba89e65b1313a4f3e34a29977a0db6fa30ed475e2c6bd555fa9e866"
    ),
    _deb("libz3-4", "4.8.12-3.1", "MIT", "6221ca25ad5abcfbe1965801029d85a88b4775320384b4b716de8fab7a4d2f7a"),
    _deb("libedit2", "3.1-20221030-2", "BSD", "1cf14abf2716d3279db12d0657a5737cf70074a1e71d3bdf73206625e3c89ce6"),
    _deb("libbsd0", "0.11.7-2", "BSD", "bb31cc8b40f962a85b2cec970f7f79cc704a1ae4bad24257a822055404b2c60b"),
    _deb(
        "libxml2", "2.9.14+dfsg-1.3~deb12u6", "MIT", "4460e39dda10a815881374217cde08474747cfa018358cd8612c14b390eff53b"
    ),
    _deb("libicu72", "72.1-3+deb12u1", "Unicode", "f7f6f99c6d7b025914df2447fc93e11d22c44c0c8bdd8b6f36691c9e7ddcef88"),
)
"""What kinoray itself needs not: NumPy, SciPy, Pillow, packaging and cloudpickle are there. The rest is OSMesa, which
draws without a screen, and the libraries of its that a bare Debian 12 lacks."""
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PAIRS = {
    "door": {"door-open": "opens the door", "door-close": "closes the door"},
    "drawer": {"drawer-open": "opens the drawer", "drawer-close": "closes the drawer"},
    "window": {"window-open": "opens the window", "window-close": "closes the window"},
    "tap": {"faucet-open": "opens the tap", "faucet-close": "closes the tap"},
    "lever": {"handle-press": "presses the lever", "handle-pull": "lifts the lever"},
    "puck": {"plate-slide": "slides the puck in", "plate-slide-back": "slides the puck out"},
    "mug": {"coffee-push": "pushes the mug in", "coffee-pull": "pulls the mug out"},
    "peg": {"peg-insert-side": "pushes the peg in", "peg-unplug-side": "pulls the peg out"},
    "bar": {"handle-press-side": "presses the bar", "handle-pull-side": "lifts the bar"},
    "lock": {"door-lock": "locks the box", "door-unlock": "unlocks the box"},
}
"""Pair -> Meta-World's two tasks -> what is done. The object goes one way, so that any part of its path tells which."""
EPISODES = 300
"""Of each task."""
TABLES = {
    "white": (0.8, 0.8, 0.8),
    "grey": (0.45, 0.45, 0.45),
    "black": (0.06, 0.06, 0.06),
    "blue": (0.15, 0.35, 0.9),
    "green": (0.15, 0.6, 0.2),
    "yellow": (0.95, 0.8, 0.15),
    "purple": (0.5, 0.15, 0.7),
    "brown": (0.45, 0.25, 0.12),
}
AZIMUTH = {"left": (156.0, 176.0), "right": (186.0, 206.0)}
"""Degrees: across the table, from where nothing hides the objects; from the far side all motion would be mirrored."""
DISTANCE_M = {"near": (0.3, 0.36), "far": (0.42, 0.5)}
"""As near as a clip needs to show motion of several pixels at 32 px a side."""
ELEVATION = {"low": (-30.0, -20.0), "above": (-48.0, -36.0)}
BESIDE_M = 0.02
SCENES = list(product(TABLES, AZIMUTH, DISTANCE_M, ELEVATION))
LIGHT = (0.6, 1.4)
WINDOW = (0.25, 0.35)
"""Shares of the object's path that a clip shows, least and most: who read the exact place of the object in the first
frame would be right in 73 %. Longer ones show more, and their first frames, too."""
EDGE = 0.03
"""Share at either end of the path that no clip shows."""
LOOK = "v2"
"""In names of clips. Who changes what is drawn changes it: files that are there are kept, and digests are of names."""
FRAMES, SIDE_PX, RATE_FPS = 12, 64, 8.0
"""Twelve: the middles of 12, 4 or 2 equal parts are the same frames backwards, which those of 8 would not be."""


def clips(unpacked: Mapping[str, Path]) -> Iterator[Drawn]:
    """The twins of every episode, task by task."""
    python = tuple(str(unpacked[package.name]) for package in PACKAGES if package.registry == "pypi")
    libraries = tuple(str(unpacked[p.name] / LIBRARIES) for p in PACKAGES if p.registry == "debian")
    for pair, tasks in PAIRS.items():
        for task, forwards in tasks.items():
            (backwards,) = (label for other, label in tasks.items() if other != task)
            for number in range(EPISODES):
                concept, scene = f"{task}-{LOOK}-{number}", SCENES[number % len(SCENES)]
                asked = json.dumps(wish(task, number))
                for what, label in (("forwards", forwards), ("backwards", backwards)):
                    draw = partial(drawn, python, libraries, asked, what == "backwards", RATE_FPS)
                    yield Drawn(f"{concept}/{what}", (caption(label, *scene),), label, pair, draw)


def caption(label: str, table: str, side: str, distance: str, height: str) -> str:
    """One sentence."""
    return f"a robot {label} on a {table} table, {side} side, {distance}, {height}"


def wish(task: str, number: int) -> dict[str, Any]:
    """What is asked of `robot_child.episode`, drawn by the episode's name alone."""
    draws = random.Random(f"{task}-{number}")
    table, side, distance, height = SCENES[number % len(SCENES)]
    length = draws.uniform(*WINDOW)
    start = draws.uniform(EDGE, 1 - EDGE - length)
    return {
        "task": f"{task}-v3",
        "number": number,
        "frames": FRAMES,
        "size_px": SIDE_PX,
        "window": [start, start + length],
        "camera": {
            "azimuth": draws.uniform(*AZIMUTH[side]),
            "elevation": draws.uniform(*ELEVATION[height]),
            "distance": draws.uniform(*DISTANCE_M[distance]),
            "beside": [draws.uniform(-BESIDE_M, BESIDE_M) for _ in "xyz"],
        },
        "table": TABLES[table],
        "light": draws.uniform(*LIGHT),
    }
