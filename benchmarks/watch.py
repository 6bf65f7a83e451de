"""What the live forgetting curve costs the training: a run with `--watch` against the same run without.

    python benchmarks/watch.py [--json] [--every 20] [--rounds 1] [--set max_steps=100 ...]

`kinoray run bmu_moco` on `moving-cvlm`, one rank of one thread, clips in the frame cache, so that on two cores the
process that watches has one of its own. Runs take turns: without, with, with, without. `watch_ratio` is the seconds of
training (steps, batches, waiting for them) with over those without; bar 1.02. Both must end in the same state, and the
curve must have points. About a minute and a half a run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

METHOD, STREAM = "bmu_moco", "moving-cvlm"
PARTS = ("train_s", "data_wait_s", "prepare_s")


def run(runs: Path, words: list[str]) -> dict[str, Any]:
    """Seconds of training, how many points the curve has, and the digest of the end."""
    command = [sys.executable, "-m", "kinoray", "run", METHOD, "--stream", STREAM, "--num-workers", "1", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--runs", str(runs), *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    (file,) = runs.glob("*/seed-0/result.json")
    result, watched = json.loads(file.read_text()), file.with_name("watched.jsonl")
    points = len(watched.read_text().splitlines()) if watched.exists() else 0
    return {
        "train_s": sum(result["cost"][part] for part in PARTS),
        "points": points,
        "digest": result["state_digest"],
    }


def measure(every: int, rounds: int, settings: list[str]) -> dict[str, float]:
    words = [word for setting in settings for word in ("--set", setting)]
    watch = ["--watch", str(every)]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    points, digests = [], set()
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as root:
        run(Path(root) / "first", words)  # fills the frame cache
        for number, watched in enumerate([False, True, True, False] * rounds):
            made = run(Path(root) / str(number), [*words, *(watch if watched else [])])
            seconds[watched].append(made["train_s"])
            digests.add(made["digest"])
            if watched:
                points.append(made["points"])
    assert len(digests) == 1, "watching changed the result"
    assert all(points), "nothing was watched"
    without, with_it = sum(seconds[False]), sum(seconds[True])
    return {
        "watch_ratio": with_it / without,
        "without_s": without / len(seconds[False]),
        "with_s": with_it / len(seconds[True]),
        "points": sum(points) / len(points),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--every", type=int, default=20, help="steps between two looks")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, as for a run")
    options = parser.parse_args()
    numbers = measure(options.every, options.rounds, options.set)
    for name, value in numbers.items():
        print(f"{name:<12} {value:8.3f}")
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
