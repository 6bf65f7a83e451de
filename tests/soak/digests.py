"""Does a change move a number? Nine small runs, the digests of how they end, and whether a kill moves them.

    python tests/soak/digests.py [--json] [--num-workers N] [--only NAME ...] [--against FILE] [--loop]
    PYTHONPATH=FOLDER python tests/soak/digests.py --json > FILE        # of another version, whose package is in FOLDER

Each run is carried out by `kinoray run` in a folder of its own, to its end; then once more in a fresh folder, where its
process group gets SIGKILL as soon as it has a commit and half of its records, and the same command is given again. Both
must end equal: `state_digest`, logged records, scores and ranks. The table has `state_digest` and a digest of the
logged records and the result matrix. Digests are comparable on one machine only.

--loop: the one that is killed, and goes on, is a loop of one's own (`kinoray.loop`).

--against compares with what an earlier call printed with --json. Bar: no difference; else the script exits with 1.
About 6 minutes, 15 with Ray.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from method_kills import End, end_of, records

VECTORS = "vectors"
"""The folder of `write_vectors`."""
FOUR_STEPS = ["--set", "max_steps=4"]
RUNS = {
    "base_moco": ["base_moco", "--smoke"],
    "bmu_moco": ["bmu_moco", "--smoke"],
    "er_ring": ["er_ring", "--smoke"],
    "ccsl": ["ccsl", "--stream", "shapes-5", *FOUR_STEPS],
    "zscl": ["zscl", "--smoke"],
    "ctvr": ["frame_fusion_moe", "--stream", "moving-ctvr-10", "--smoke"],
    "pictures": ["simsiam", "--stream", "digits-5", *FOUR_STEPS],
    "video-ssl": ["video_moco", "--stream", "moving-actions", *FOUR_STEPS],
    "features": ["avg_pool", "--stream", f"./{VECTORS}", "--backbone", "features:tiny-clip", *FOUR_STEPS],
}
"""What follows `kinoray run`; zscl distils its default reference set, and video-ssl has one task, the others more."""
WIDTH, FRAMES, CLIPS = 48, 6, 24
"""Of the vectors, which are as wide as tiny-clip's space; half of the clips are of each task."""
LIMIT_S = 600.0
"""How long a command may take."""
POLL_S = 0.005
LOOP = """
import sys, kinoray
method, *words = sys.argv[1:]
options, settings = {}, {}
for name, value in zip(words, words[1:]):
    if name in ("--stream", "--backbone", "--runs"):
        options[name[2:]] = value
    if name == "--set":
        settings[value.partition("=")[0]] = int(value.partition("=")[2])
with kinoray.loop(method, settings=settings, smoke="--smoke" in words, quiet=True, **options) as walk:
    for task in walk:
        task.train()
        task.test()
"""
"""Takes the words of `kinoray run`."""


def write_vectors(folder: Path) -> None:
    """Two tasks of clips that are vectors of frames already; a caption names which of four directions they point in."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    kinds = np.arange(CLIPS) % 4
    noise = rng.standard_normal((CLIPS, FRAMES, WIDTH))
    clips = (rng.standard_normal((4, WIDTH))[kinds, None] + 0.1 * noise).astype(np.float32)
    names = [f"clip{number}.npy" for number in range(CLIPS)]
    for name, vectors in zip(names, clips, strict=True):
        np.save(folder / name, vectors)
    captions = [f"a {('red', 'blue', 'green', 'white')[kind]} square" for kind in kinds]
    tasks = [f"task{2 * number // CLIPS}" for number in range(CLIPS)]
    pq.write_table(pa.table({"video": names, "caption": captions, "task": tasks}), folder / "captions.parquet")


def run(words: list[str], home: Path, runs: Path, until: Callable[[], bool] = lambda: False, loop: bool = False) -> int:
    """Carry out the run, or go on with it, and kill its process group as soon as `until` holds; its exit code."""
    runs.mkdir(parents=True, exist_ok=True)
    begin = [sys.executable, "-c", LOOP] if loop else [sys.executable, "-m", "kinoray", "run"]
    command = [*begin, *words, "--runs", str(runs), "--json"]
    # No Ray of the user's that is up already: a kill would not reach it.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["XDG_RUNTIME_DIR"] = str(home)
    with (runs / "output.txt").open("a") as output:
        process = subprocess.Popen(
            command, cwd=home, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    end = time.monotonic() + LIMIT_S
    while (code := process.poll()) is None:
        if until() or time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
        time.sleep(POLL_S)
    return code


def finished(words: list[str], home: Path, runs: Path, loop: bool = False) -> End:
    """How the run ends. Raises: RuntimeError where it does not finish."""
    if run(words, home, runs, loop=loop) or (end := end_of(runs)) is None:
        raise RuntimeError(f"it did not finish:\n{(runs / 'output.txt').read_text()}")
    return end


def measured(name: str, words: list[str], num_workers: int, home: Path, loop: bool) -> dict[str, Any]:
    """The digests of a run, and whether it is the same after a kill. Raises: RuntimeError."""
    words = [*words, "--num-workers", str(num_workers)]
    whole = finished(words, home, home / "runs" / name)
    runs = home / "killed" / name

    def half_way() -> bool:
        committed = any(runs.glob("*/seed-0/checkpoints/*/manifest.json"))
        return committed and records(runs) >= len(whole.log) / 2

    if run(words, home, runs, half_way, loop) != -signal.SIGKILL or end_of(runs) is not None:
        raise RuntimeError(f"it ended before the kill:\n{(runs / 'output.txt').read_text()}")
    again = finished(words, home, runs, loop)
    numbers = json.dumps([whole.log, whole.tests["matrix"]]).encode()
    unequal = [part for part in vars(whole) if getattr(whole, part) != getattr(again, part)]
    return {"state": whole.digest, "numbers": hashlib.sha256(numbers).hexdigest(), "unequal_after_kill": unequal}


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What is not as an earlier call found it, of the runs that were carried out now."""
    return [
        f"{name}: {part}"
        for name, facts in now.items()
        for part in ("state", "numbers")
        if facts[part] != before.get(name, {}).get(part)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object last")
    parser.add_argument("--num-workers", type=int, default=0, help="of each run; 1 and more go through Ray")
    parser.add_argument("--loop", action="store_true", help="kill and go on with `kinoray.loop`")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="names of runs")
    parser.add_argument("--against", type=Path, help="what an earlier call printed")
    options = parser.parse_args()
    package = importlib.util.find_spec("kinoray")
    assert package is not None
    print(f"{package.origin}, {options.num_workers} workers", flush=True)
    print(f"{'run':<10} {'state_digest':<16} {'log, matrix':<16} after a kill", flush=True)
    now: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kinoray-digests-", ignore_cleanup_errors=True) as folder:
        write_vectors(Path(folder) / VECTORS)
        for name in options.only:
            now[name] = facts = measured(name, RUNS[name], options.num_workers, Path(folder), options.loop)
            told = f"UNEQUAL: {', '.join(facts['unequal_after_kill'])}" if facts["unequal_after_kill"] else "equal"
            print(f"{name:<10} {facts['state'][:16]} {facts['numbers'][:16]} {told}", flush=True)
    wrong = [f"{name}: killed" for name, facts in now.items() if facts["unequal_after_kill"]]
    if options.against:
        wrong += differences(now, json.loads(options.against.read_text().splitlines()[-1]))
    if wrong:
        print(f"DIFFERENT: {'; '.join(wrong)}", file=sys.stderr)
    if options.json:
        print(json.dumps(now))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
