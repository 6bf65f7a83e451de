"""What a sweep costs beyond its trials' steps and evaluations, and against plain Ray Tune.

    python benchmarks/sweep.py [--json] [--trials 16] [--plain-trials N] [--sparing] [--set max_steps=20 ...]

A sweep of `bmu_moco` over m and m_hat on `moving-cvlm`, nothing pruned, two trials at a time, from the command to its
end, with an empty frame cache. `overhead_ratio` is (its wall time - 20 s) / (the trials' bare steps and evaluations /
2): the bare side is `bare_loop.py` on batches in memory, timed in two processes at once, half before the sweep and half
after it. `per_trial_overhead_s` is what the study's clocks show beyond the
time that the trials' runs advanced, for the trials that came to a warm process. `vs_plain_tune` is the wall time of
plain Tune for as many trials (one TorchTrainer of one worker per trial, no cache, the same steps, evaluations and
concurrency) over the sweep's; `--plain-trials 0` leaves it out. Take the numbers on a machine with two quiet cores.

With `--sparing` the sweep prunes trials that fall behind, which plain Tune does not. Only the two walls are compared.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EVERYTHING = {
    "method": "bmu_moco",
    "space": {"m_hat": {"low": 0.9, "high": 1.0}, "m": {"low": 0.9, "high": 1.0}},
    "prune": False,
}
SPARING = EVERYTHING | {"prune": True}
ABREAST = 2
ALLOWED_START_S = 20.0

SWEEP = """
import json, os, sys
import kinoray
from kinoray.streams import load_stream
job = json.loads(sys.argv[1])
stream = load_stream("moving-cvlm")
kinoray.sweep(job["method"], stream=stream, trials=job["trials"], space=job["space"], sampler="random",
              settings=job["settings"], prune=job["prune"], concurrent=2, keep_best=None, runs=job["runs"],
              name="sweep")
"""

PLAIN = """
import json, os, sys
import ray
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from kinoray.system.ray_session import RAY_SETTINGS
job = json.loads(sys.argv[1])

def loop(config):
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.training.distributed import World
    from kinoray.runs.run_spec import make_spec
    from kinoray.runs.request import RunRequest
    from kinoray.runs.resolve import resolve
    from kinoray.execution.run_rank import run_rank
    run = resolve(RunRequest(job["method"], stream="moving-cvlm", settings=config, runs=job["runs"]))
    spec = make_spec(run, num_workers=0, decode_slots=0, gpu=False, say=print)
    run_rank(spec, World(), RunMonitor(spec.folder), None)

def driver(config):
    TorchTrainer(loop, train_loop_config=config | job["settings"],
                 scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.8}),
                 run_config=RunConfig(name=tune.get_context().get_trial_id(), storage_path=job["runs"] + "/ray")).fit()

for name, value in RAY_SETTINGS.items():
    os.environ.setdefault(name, value)
ray.init(address="local", include_dashboard=False, log_to_driver=False)
space = {name: tune.uniform(knob["low"], knob["high"]) for name, knob in job["space"].items()}
result = tune.Tuner(tune.with_resources(driver, {"CPU": 0.1}), param_space=space,
                    tune_config=tune.TuneConfig(num_samples=job["trials"], max_concurrent_trials=2),
                    run_config=tune.RunConfig(name="plain", storage_path=job["runs"] + "/ray", verbose=0)).fit()
assert not result.errors, result.errors
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--plain-trials", type=int, default=None, help="as many as --trials; 0: leave it out")
    parser.add_argument("--sparing", action="store_true", help="let the sweep prune")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, as for a run")
    parser.add_argument("--bare", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from kinoray.runs.experiment_file import parse_settings

    settings = parse_settings(options.set)
    if options.bare:
        print(json.dumps(bare(settings, Path(options.bare))))
        return
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        folder = Path(name)
        job = (SPARING if options.sparing else EVERYTHING) | {"settings": settings}
        halves = [] if options.sparing else [two_at_once(options.set, folder / "before")]
        swept = timed(SWEEP, options.trials, job, folder / "swept", {"KINORAY_CACHE": str(folder / "frames")})
        halves += [] if options.sparing else [two_at_once(options.set, folder / "after")]
        numbers = {"wall_s": swept["wall_s"]}
        if options.sparing:
            numbers |= spared(folder / "swept")
        else:
            facts = facts_of(folder / "swept", swept["stderr"])
            ratio = (swept["wall_s"] - ALLOWED_START_S) / (options.trials * sum(halves) / ABREAST)
            numbers |= {"overhead_ratio": ratio, "bare_trial_s": sum(halves)} | facts
        plain_trials = options.trials if options.plain_trials is None else options.plain_trials
        plain = timed(PLAIN, plain_trials, job, folder / "plain", {"KINORAY_CACHE": "off"}) if plain_trials else {}
    if plain:
        numbers["plain_wall_s"] = plain["wall_s"]
        numbers["vs_plain_tune"] = plain["wall_s"] / plain_trials / (swept["wall_s"] / options.trials)
    width = max(map(len, numbers))
    for label, value in numbers.items():
        print(f"{label:<{width}}  {value:10.3f}")
    if options.json:
        print(json.dumps({label: round(value, 3) for label, value in numbers.items()}))


def bare(settings: dict[str, Any], folder: Path) -> float:
    """Seconds of half a trial's steps and evaluations in a bare loop, beginning with the other processes."""
    import torch
    from end_to_end import bare_loop, bare_steps, in_memory, recall_at_1, resolved

    torch.set_num_threads(1)
    wanted = resolved(settings, folder)
    work = in_memory(wanted)
    loop = bare_loop(wanted)
    bare_steps(loop, work, {0: 3})
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < ABREAST:
        time.sleep(0.01)
    began = time.perf_counter()
    bare_steps(loop, work, {task: steps // 2 for task, steps in enumerate(work.steps)})
    steps_s = time.perf_counter() - began
    began = time.perf_counter()
    for task, times in enumerate(work.validations):
        for _ in range(times):
            recall_at_1(loop, work, work.validation[task])
        for split in (work.tests, work.validation):
            for test in split[: task + 1]:
                recall_at_1(loop, work, test)
    return steps_s + (time.perf_counter() - began) / 2


def two_at_once(settings: list[str], folder: Path) -> float:
    """Mean seconds of half a bare trial, two processes side by side."""
    folder.mkdir()
    options = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, __file__, "--bare", str(folder), *options]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(ABREAST)]
    return sum(float(process.communicate()[0].split()[-1]) for process in processes) / ABREAST


def timed(code: str, trials: int, job: dict[str, Any], runs: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Wall seconds of a script in a process of its own, and what it printed on stderr."""
    runs.mkdir()
    argument = json.dumps(job | {"trials": trials, "runs": str(runs)})
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {"wall_s": time.monotonic() - began, "stderr": done.stderr}


def facts_of(runs: Path, stderr: str) -> dict[str, float]:
    """What the study's clocks and the runs' own counts tell."""
    from kinoray.data.manifest import read_manifest
    from kinoray.streams import load_stream
    from kinoray.sweeps.result import SweepResult

    trials = SweepResult(runs / "sweep").trials
    assert all(trial.state.name == "COMPLETE" for trial in trials), [trial.state for trial in trials]
    warm = [trial for trial in trials if trial.number >= ABREAST]
    over = [trial.duration.total_seconds() - trial.user_attrs["metrics"]["wall_s"] for trial in warm if trial.duration]
    costs = [json.loads(path.read_text())["cost"] for path in runs.glob("*/seed-0/result.json")]
    decoded = re.search(r"Frame cache: (\d+) clips decoded", stderr)
    clips = sum(read_manifest(task.manifest).table.num_rows for task in load_stream("moving-cvlm").tasks)
    return {
        "per_trial_overhead_s": sum(over) / len(over) if over else 0.0,
        "decoded_before": float(decoded[1]) if decoded else 0.0,
        "decoded_in_trials": float(sum(cost["clips_decoded"] for cost in costs)),
        "clips": float(clips),
    }


def spared(runs: Path) -> dict[str, float]:
    """What the sweep says that it saved."""
    from kinoray.sweeps.result import SweepResult

    sweep = SweepResult(runs / "sweep")
    assert not sweep.states["fail"], sweep.states
    return {"pruned": float(sweep.states["pruned"]), "said_saved_s": sweep.saved_s}


if __name__ == "__main__":
    main()
