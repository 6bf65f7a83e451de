"""How long a user waits: for a run's first optimizer step, for a finished run, for a thousand runs in a list.

    python benchmarks/first_step.py [--json] [--no-ray] [--rounds N] [--stream moving-cvlm]

Cold, a run starts a Ray of its own; joined, it uses one that runs already (RAY_ADDRESS). Beside both stands a plain
`TorchTrainer` whose loop does nothing: what Ray Train takes by itself, cold and on the same Ray.

Each is a fresh process, in turns with `python -c "import torch"`, which no run can do without; the ratio to it is what
a busy machine leaves comparable. A first step counts from the start of the process to the first line of metrics.jsonl,
the plain trainer to the first line of its loop. The thousand runs are folders with made-up numbers, one in ten with
checkpoints.

Takes about five minutes; the embedded stream is rendered first where the cache lacks it. The towers of a stream
of videos (`--stream moving-cvlm`) import transformers, which takes longer than torch.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kinoray.system.ray_session import RAY_SETTINGS

RUNS = 1000
POLL_S = 0.01
HELLO = """
import sys
from pathlib import Path
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop(config):
    Path(config["here"]).touch()

ray.init(log_to_driver=False, include_dashboard=None if sys.argv[2:] else False)
resources = ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5})
settings = {"train_loop_config": {"here": sys.argv[1] + "/here"}, "scaling_config": resources}
TorchTrainer(loop, run_config=RunConfig(name="hello", storage_path=sys.argv[1]), **settings).fit()
"""


def run_of(stream: str) -> list[str]:
    return ["run", "bmu_moco", "--stream", stream, "--quiet"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kinoray", *words]


def waited(words: list[str]) -> float:
    """Seconds until a process ends."""
    begun = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return time.perf_counter() - begun


def until_first_step(run: list[str], folder: Path, *words: str) -> float:
    """Seconds from the start of a run to its first step; the run is stopped then, and its folder goes."""
    begun = time.perf_counter()
    process = subprocess.Popen(command(*run, "--runs", str(folder), *words), stderr=subprocess.DEVNULL)
    try:
        while not any(file.stat().st_size for file in folder.glob("*/seed-0/metrics.jsonl")):
            if process.poll() is not None:
                raise SystemExit("The run ended before its first step.")
            time.sleep(POLL_S)
        return time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def until_hello(folder: Path, *words: str) -> float:
    """Seconds until a plain trainer's loop begins. words: any, where RAY_ADDRESS names a Ray."""
    folder.mkdir()
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", HELLO, str(folder), *words], stderr=subprocess.DEVNULL)
    while not (folder / "here").exists():
        if process.poll() is not None:
            raise SystemExit("The plain trainer ended before its loop began.")
        time.sleep(POLL_S)
    took_s = time.perf_counter() - begun
    process.wait()
    shutil.rmtree(folder)
    return took_s


@contextmanager
def running_ray() -> Iterator[None]:
    """A Ray that others join by RAY_ADDRESS."""
    words = [sys.executable, "-m", "kinoray.system.ray_head"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdin is not None and head.stdout is not None
        os.environ["RAY_ADDRESS"] = f"127.0.0.1:{json.loads(head.stdout.readline())['port']}"
        try:
            yield
        finally:
            del os.environ["RAY_ADDRESS"]
            head.stdin.close()


def many_runs(folder: Path, finished: Path) -> None:
    """A thousand run folders: copies of a finished run's small files, in every tenth also its checkpoints."""
    for number in range(RUNS):
        target = folder / f"method{number % 20}-stream-{number:08x}" / "seed-0"
        target.mkdir(parents=True)
        for file in finished.iterdir():
            if file.is_file():
                shutil.copy(file, target)
            elif number % 10 == 0:
                shutil.copytree(file, target / file.name)


def measured(run: list[str], rounds: int, with_ray: bool) -> dict[str, list[float]]:
    """Name -> seconds of each round."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        smoke = command(*run, "--smoke", "--num-workers", "0", "--runs", str(root / "finished"))
        waited(smoke)
        many_runs(root / "many", next((root / "finished").glob("*/seed-0")))
        sides: dict[str, Callable[[], float]] = {
            "import torch": lambda: waited([sys.executable, "-c", "import torch"]),
            "finished run": lambda: waited(smoke),
            "list runs": lambda: waited(command("list", "runs", "--runs", str(root / "many"))),
            "first step in one process": lambda: until_first_step(run, root / "one", "--num-workers", "0"),
        }
        seconds: dict[str, list[float]] = {}
        if with_ray:
            sides["first step, cold"] = lambda: until_first_step(run, root / "ray")
            sides["plain trainer, cold"] = lambda: until_hello(root / "hello")
        for side in sides:
            seconds[side] = []
        for _ in range(rounds):
            for side, wait in sides.items():
                seconds[side].append(wait())
        if with_ray:
            with running_ray():
                joined = {
                    "first step, joined": lambda: until_first_step(run, root / "ray"),
                    "plain trainer, joined": lambda: until_hello(root / "hello", "joined"),
                }
                for _ in range(rounds):
                    for side, wait in joined.items():
                        seconds.setdefault(side, []).append(wait())
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", default="moving-cvlm")
    asked = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    # As runs have it, so that both sides wait for the same: a trainer looks at its workers twice a second.
    os.environ.update(RAY_SETTINGS | {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
    # Where it is set, each process compiles all of kinoray anew, and torch, which pip compiled, it does not.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds = measured(run_of(asked.stream), asked.rounds, not asked.no_ray)
    usual = {side: statistics.median(values) for side, values in seconds.items()}
    unit = usual["import torch"]
    for side, value in usual.items():
        print(f"{side:<26} {value:7.2f} s  {value / unit:6.2f} of the import")
    if asked.json:
        names = {side: side.replace(" ", "_") for side in usual}
        bars = {f"{names[side]}_s": value for side, value in usual.items()}
        print(json.dumps(bars | {f"{names[side]}_of_import": value / unit for side, value in usual.items()}))


if __name__ == "__main__":
    main()
