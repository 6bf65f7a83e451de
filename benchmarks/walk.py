"""How far is it from a command to the loop? The functions of kinoray that stand between `kinoray run` and a step.

    python benchmarks/walk.py [--json]

`kinoray run base_moco --smoke --num-workers 0` under `sys.setprofile`. `chain`: what is on the stack when the first
step is made, the way that a reader follows. `visited`: all that was called before it, what only reads, checks or looks
up included. Functions of kinoray alone, each once; generated ones (of dataclasses, comprehensions) are left out.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import kinoray
from kinoray.cli.main import app

PACKAGE = Path(kinoray.__file__).parent
METHODS = PACKAGE.parents[1] / "methods"
LAST = "train_step"
Place = tuple[str, str]
"""File and function."""


class Arrived(BaseException):
    """The loop makes a step."""


def ours(frame: FrameType) -> Place | None:
    """A frame's place; None where it is not one of kinoray's own functions."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    inside = file.startswith((str(PACKAGE), str(METHODS)))
    return (file, frame.f_code.co_qualname) if inside and not name.startswith("<") else None


def walk() -> tuple[list[Place], list[Place]]:
    """Functions on the way to the first step, and all that were called before it."""
    visited: dict[Place, None] = {}
    chain: list[Place] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        place = ours(frame) if event == "call" else None
        if place is None:
            return
        visited.setdefault(place)
        if place[1] == LAST:
            above: FrameType | None = frame
            while above is not None:
                if (here := ours(above)) and here not in chain:
                    chain.append(here)
                above = above.f_back
            sys.setprofile(None)
            raise Arrived

    with tempfile.TemporaryDirectory() as runs:
        words = ["run", "base_moco", "--smoke", "--num-workers", "0", "--quiet", "--runs", runs]
        sys.setprofile(profile)
        try:
            app(words, standalone_mode=False)
        except Arrived:
            pass
        finally:
            sys.setprofile(None)
    return chain[::-1], list(visited)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    chain, visited = walk()
    numbers = {
        f"{name}_{what}": len(of)
        for name, places in (("chain", chain), ("visited", visited))
        for what, of in (("functions", places), ("files", {file for file, _ in places}))
    }
    if as_json:
        print(json.dumps(numbers))
        return
    for file, function in chain:
        print(f"{Path(file).relative_to(PACKAGE.parents[1])}: {function}")
    print(", ".join(f"{name} {number}" for name, number in numbers.items()))


if __name__ == "__main__":
    main()
