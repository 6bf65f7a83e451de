"""What a command gains that ends without Python's last look for garbage (`gc.freeze` in `kinoray.cli.main`).

    python benchmarks/command_end.py [--json] [--rounds 5]

A small run in one process (`moco` on `digits-5`, two steps a task) from the start of its process to the end, by turns
as it is and without that line. About two minutes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

LOOKING = "import gc, sys; gc.freeze = lambda: None; from kinoray.cli.main import main; main()"
"""The command with an end as Python has it."""


def seconds(start: list[str], folder: Path) -> float:
    """Wall time of one run."""
    words = ["run", "moco", "--stream", "digits-5", "--smoke", "--num-workers", "0", "--quiet", "--runs", str(folder)]
    begun = time.perf_counter()
    subprocess.run([sys.executable, *start, *words], check=True, capture_output=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind")
    options = parser.parse_args()
    kinds = {"with": ["-c", LOOKING], "without": ["-m", "kinoray"]}
    took: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in count())
        seconds(kinds["with"], next(folders))  # reads files that nobody has read lately
        for _ in range(options.rounds):
            for kind, start in kinds.items():
                took[kind].append(seconds(start, next(folders)))
    medians = {kind: statistics.median(values) for kind, values in took.items()}
    numbers = {f"{kind}_s": round(value, 3) for kind, value in medians.items()}
    numbers |= {"ratio": round(medians["without"] / medians["with"], 3)}
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
