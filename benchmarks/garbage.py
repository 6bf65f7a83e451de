"""What it gains not to look for garbage: at a command's end (`kinoray.cli.main`), and while a rank's modules are
imported (`kinoray.processes.preloaded`).

    python benchmarks/garbage.py [--json] [--rounds 5]

The end: a small run in one process (`moco` on `digits-5`, two steps a task). Imports: a process that ends at once after
them. Each from the start of its process to the end, by turns as it is and as Python has it. About two minutes.
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

from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.prestart import PRELOADING, RANK_MODULES

AS_PYTHON = "import gc; gc.disable = gc.freeze = lambda: None; "
COMMAND = "from kinoray.cli.main import main; main()"
IMPORTS = f"import os; os.environ[{VARIABLE!r}] = {RANK_MODULES!r}; import {PRELOADING}; os._exit(0)"
RUN = ("run", "moco", "--stream", "digits-5", "--smoke", "--num-workers", "0", "--quiet", "--runs")


def seconds(code: str, *words: str) -> float:
    """Wall time of a process."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    options = parser.parse_args()
    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = (str(Path(name) / str(number)) for number in count())
        for kind, code in (("run", COMMAND), ("imports", IMPORTS)):
            took: dict[str, list[float]] = {AS_PYTHON: [], "": []}
            for number in range(1 + options.rounds):
                for before, values in took.items():
                    wall_s = seconds(before + code, *RUN, next(folders))
                    if number:  # the first reads files that nobody has read lately
                        values.append(wall_s)
            looks, looks_not = (statistics.median(values) for values in took.values())
            numbers |= {f"{kind}_python_s": round(looks, 3), f"{kind}_s": round(looks_not, 3)}
            numbers[f"{kind}_ratio"] = round(looks_not / looks, 3)
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
