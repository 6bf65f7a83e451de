"""What it gains not to look for garbage: at a command's end (`kinoray.cli.main`), and while a rank's modules are
imported (`kinoray.processes.preloaded`).

    python benchmarks/garbage.py [--json] [--rounds 5]

The end: a small run in one process (`moco` on `digits-5`, two steps a task). Imports: a process that ends at once after
them. Each from the start of its process to the end, by turns as it is and as Python has it. About two minutes.
"""

import argparse
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from statistics import median

from shared.numbers_page import show_numbers
from shared.turns import in_turns, ratio

from kinoray.processes.preloaded import VARIABLE
from kinoray.processes.prestart import PRELOADING, RANK_MODULES

AS_PYTHON = "import gc; gc.disable = gc.freeze = lambda: None; "
COMMAND = "from kinoray.cli.main import main; main()"
IMPORTS = f"import os; os.environ[{VARIABLE!r}] = {RANK_MODULES!r}; import {PRELOADING}; os._exit(0)"
RUN = ("run", "moco", "--stream", "digits-5", "--smoke", "--num-workers", "0", "--quiet", "--runs")


def run_code(code: str, *words: str) -> None:
    """Run code in a process, from its start to its end."""
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind, beside the first")
    options = parser.parse_args()
    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = (str(Path(name) / str(number)) for number in count())
        for kind, code in (("run", COMMAND), ("imports", IMPORTS)):
            sides = {
                "python": lambda code=code: run_code(AS_PYTHON + code, *RUN, next(folders)),
                "ours": lambda code=code: run_code(code, *RUN, next(folders)),
            }
            taken = in_turns(sides, options.rounds)
            numbers |= {f"{kind}_{side}_s": median(times) for side, times in taken.items()}
            numbers[f"{kind}_ratio"] = ratio(taken, "ours", "python")
    show_numbers("Without a look for garbage, against Python's own ways", numbers, None, options.json)


if __name__ == "__main__":
    main()
