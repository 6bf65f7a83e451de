"""Does a sweep survive? One fault at a time, then the same command again; the same trials must have ended the same.

    python tests/soak/sweep_kills.py [--json] [--kills 5] [--steps 40] [--seed S]
        [--only driver,process,workers,nan,disk,lock]

A sweep of `bmu_moco` over m and m_hat on a small stream of real clips runs undisturbed. Then, each in a folder of its
own: SIGKILL of the driver at `--kills` random moments (by turns on a Ray that stays up, and with one of its own),
SIGKILL of random trial processes, of a trial process that has Ray workers, and then of its driver; a trial whose loss
is NaN, one for which the disk is full (what writes its checkpoints meets /dev/full), an SQLite data base that somebody
else locks for longer than SQLite waits. The same command follows at once, with `--retry failed` where a trial failed.
All trials must have the numbers, settings, values by task and bitwise results (`state_digest`) of the undisturbed ones,
none may be RUNNING, and on the Ray that stays up no placement group may be left and all CPUs must be free. A little
more than a minute after its end no process of a driver may be left.

Signals go only to processes that this script started, or that they started. Takes about ten minutes on two cores.
Exit code 1 on any deviation.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kills
import psutil

KINDS = ("driver", "process", "workers", "nan", "disk", "lock")
TRIALS, ABREAST = 4, 2
SPACE = {"m_hat": {"low": 0.9, "high": 1.0}, "m": {"low": 0.9, "high": 1.0}}
GRID = {"m_hat": {"choices": [0.9, 0.99]}, "m": {"choices": [0.9, 0.99]}}
CLIPS = (12, 4, 6)
"""Training, validation and test clips of each of the two tasks."""
TITLE = "ray::ResourceTrainable"
"""What Ray Tune calls a process of its trials."""
PROCESS_KILLS = 3
"""As often as a single trial may lose its process."""
LOCK_S = 25.0
"""SQLite itself waits for 20 s."""
FREE_S = 30.0
"""How long a Ray that stays up may take to tidy up after a driver that died."""
BROKEN = 2
"""The trial that a NaN or a full disk hits."""
METHOD = '''

import json
import os

from safetensors.torch import save_file

from kinoray.execution import commits
from kinoray.training import checkpoint


def full_disk(values, path):
    with open("/dev/full", "wb", buffering=0) as file:  # save_file would put a new file in its place
        file.write(bytes(8))


class Method(Method):
    """As it is, but for the one trial that the file of the fault names."""

    def __init__(self, *args):
        super().__init__(*args)
        commits.COMMIT_EVERY_S = 0.3  # the tasks are short, and faults should find commits inside them
        fault = json.load(open({fault!r})) if os.path.exists({fault!r}) else {{}}
        self.fault = fault.get("kind") if fault.get("m_hat") == self.config.m_hat else None
        self.task_index = -1

    def begin_task(self, task):
        super().begin_task(task)
        self.task_index = task.index
        checkpoint.save_file = full_disk if self.fault == "disk" and task.index == 1 else save_file

    def loss(self, batch):
        output = super().loss(batch)
        if self.fault != "nan" or self.task_index != 1:
            return output
        return StepOutput(objectives=output.objectives * float("nan"), carry=output.carry)
'''


# The sweep


def drive(job: dict[str, Any]) -> None:
    """The command that is killed and given again."""
    import kinoray
    from kinoray.cli.sweep import exit_code
    from kinoray.errors import KinorayError

    try:
        sweep = kinoray.sweep(
            job["method"],
            stream=short_stream(Path(job["cache"]), job["steps"]),
            trials=job["trials"],
            space=GRID if job["sampler"] == "grid" else SPACE,
            sampler=job["sampler"],
            prune=False,
            settings={"queue_size": 80},
            concurrent=job["concurrent"],
            workers_per_trial=job["workers"],
            storage=job["storage"],
            retry=job["retry"],
            runs=job["runs"],
            name="sweep",
        )
    except KinorayError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(exit_code(sweep))


def short_stream(cache: Path, steps: int) -> Any:
    """Two tasks of `moving-cvlm`, rendered where they are not yet."""
    from kinoray.streams import moving

    whole = moving.build(cache=cache, clips=CLIPS, progress=False, processes=1)
    recipe = dataclasses.replace(whole.recipe, batch_size=8, max_steps=steps, epochs=10 * steps, validations=2)
    return dataclasses.replace(whole, name="short", tasks=whole.tasks[:2], recipe=recipe)


class Driver(kills.Driver):
    """One start of the command, on a Ray of its own or on the one at `address`."""

    def __init__(self, job: dict[str, Any], address: str | None) -> None:
        self.runs, self.token = Path(job["runs"]), uuid.uuid4().hex
        self.began, self.ended = time.time(), 0.0
        self.family: set[tuple[int, float]] = set()
        self.runs.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment |= {kills.TOKEN: self.token} | ({"RAY_ADDRESS": address} if address else {})
        command = [sys.executable, __file__, "--drive", json.dumps(job)]
        with (self.runs / "output.txt").open("a") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def output(self) -> str:
        return (self.runs / "output.txt").read_text()


Ends = dict[int, list[Any]]


def ends_of(runs: Path) -> tuple[Ends, dict[str, int]]:
    """What a sweep left: by number, its trials' settings, values and digests; and how many are in which state."""
    from kinoray.sweeps.result import SweepResult

    sweep = SweepResult(runs / "sweep")
    ends = {}
    for trial in sweep.trials:
        folders = [Path(folder) for folder in trial.user_attrs.get("folders", [])]
        digests = [json.loads((folder / "result.json").read_text())["state_digest"] for folder in folders]
        number = trial.user_attrs.get("retry_of", trial.number)
        ends[number] = [trial.state.name, trial.params, trial.values, trial.intermediate_values, digests]
    return ends, sweep.states


# Faults


@dataclass
class Campaign:
    """Where everything is, and the Ray that stays up."""

    folder: Path
    address: str
    draw: random.Random
    steps: int
    """Optimizer steps of each task."""
    sampler: str = "random"
    whole: Ends = field(default_factory=dict)
    seconds: float = 0.0
    """From the command of the undisturbed sweep to its end."""
    drivers: list[Driver] = field(default_factory=list)

    @property
    def fault(self) -> Path:
        """While it is there, the trial that it names breaks."""
        return self.folder / "fault.json"

    def job(self, name: str, **options: Any) -> dict[str, Any]:
        usual = {
            "trials": TRIALS,
            "sampler": self.sampler,
            "concurrent": ABREAST,
            "workers": 0,
            "storage": None,
            "retry": False,
        }
        places = {"cache": str(self.folder / "cache"), "method": str(self.folder / "bmu.py")}
        return usual | places | {"steps": self.steps, "runs": str(self.folder / name)} | options

    def start(self, job: dict[str, Any], shared: bool = True) -> Driver:
        self.drivers.append(Driver(job, self.address if shared else None))
        return self.drivers[-1]


@dataclass
class Outcome:
    """What came of one fault."""

    label: str
    runs: Path
    happened: bool
    codes: list[int]
    expected: list[int]
    """Exit codes of the command, in order."""
    trials: int = TRIALS


def of_driver(here: Campaign, name: str, shared: bool) -> Outcome:
    """SIGKILL of the driver at any moment of its life."""
    moment = here.draw.uniform(0.0, 0.5 * here.seconds)  # on a Ray that is there a sweep takes less
    return _killed(here, name, here.job(name), shared, moment, f"SIGKILL of the driver after {moment:.1f} s")


def _killed(
    here: Campaign, name: str, job: dict[str, Any], shared: bool, moment: float, label: str, since: str = ""
) -> Outcome:
    """Kill the driver, so long after its start or after it printed something; then give the command again."""
    with here.start(job, shared) as run:
        begun = run.wait(lambda: since in run.output()) if since else True
        end = time.time() + moment
        happened = begun and run.wait(lambda: time.time() >= end)
        if happened:
            run.process.kill()
        run.wait()
    with here.start(job, shared) as again:
        again.wait()
    codes = [run.process.returncode, again.process.returncode]
    label = f"{label} ({'a Ray that stays up' if shared else 'a Ray of its own'})"
    return Outcome(label, run.runs, happened, codes, [-signal.SIGKILL, 0], job["trials"])


def of_processes(here: Campaign, name: str) -> Outcome:
    """SIGKILL of random trial processes, now and then."""
    moments: list[float] = []
    with here.start(here.job(name)) as run:
        run.wait(trial_processes)
        while len(moments) < PROCESS_KILLS:
            end = time.time() + here.draw.uniform(1.0, 4.0)
            if not run.wait(lambda end=end: time.time() >= end and trial_processes()):  # type: ignore[misc]
                break
            with contextlib.suppress(psutil.NoSuchProcess):
                here.draw.choice(trial_processes()).kill()
                moments.append(time.time() - run.began)
        run.wait()
    listed = ", ".join(f"{moment:.1f}" for moment in moments)
    label = f"SIGKILL of trial processes after {listed} s"
    return Outcome(label, run.runs, len(moments) == PROCESS_KILLS, [run.process.returncode], [0])


def of_worker_trial(here: Campaign, name: str) -> Outcome:
    """SIGKILL of a trial process whose trial is on Ray workers."""
    job = here.job(name, trials=2, concurrent=1, workers=1)
    with here.start(job) as run:
        run.wait(lambda: list(run.runs.glob("*/seed-0/checkpoints/stage-000-0-step-*/manifest.json")))
        processes = trial_processes()
        for process in processes:
            process.kill()
        run.wait()
    label = "SIGKILL of a trial process with Ray workers"
    return Outcome(label, run.runs, bool(processes), [run.process.returncode], [0], trials=2)


def of_worker_driver(here: Campaign, name: str) -> Outcome:
    """SIGKILL of the driver while a trial is on Ray workers."""
    job = here.job(name, trials=2, concurrent=1, workers=1)
    return _killed(here, name, job, True, 1.0, "SIGKILL of the driver of trials with Ray workers", since="1/2 trial")


def of_trial(here: Campaign, name: str, kind: str) -> Outcome:
    """A trial that fails by itself; the same command shows it, and tries it again when it is told to."""
    here.fault.write_text(json.dumps({"kind": kind, "m_hat": here.whole[BROKEN][1]["m_hat"]}))
    codes, failed = [], []
    for retry in (False, False, True):
        if retry:
            here.fault.unlink()
        with here.start(here.job(name, retry=retry)) as run:
            run.wait()
        codes.append(run.process.returncode)
        failed.append(ends_of(run.runs)[1]["fail"])
    word = {"nan": "RunFailed: The loss is nan", "disk": "StorageFull"}[kind]
    lines = [line for line in run.output().splitlines() if f"Trial {BROKEN} failed: {word}" in line]
    label = {"nan": "a trial with NaN loss", "disk": "a full disk in one trial"}[kind]
    return Outcome(label, run.runs, len(lines) == 1 and failed == [1, 1, 0], codes, [3, 3, 0])


def of_lock(here: Campaign, name: str) -> Outcome:
    """A data base that another process holds for longer than SQLite waits for it."""
    base = here.folder / f"{name}.db"
    with here.start(here.job(name, storage=f"sqlite:///{base}")) as run:
        happened = run.wait(lambda: f"/{TRIALS} trial" in run.output())
        if happened:
            lock = sqlite3.connect(base, isolation_level=None, timeout=60.0)
            lock.execute("BEGIN EXCLUSIVE")
            time.sleep(LOCK_S)
            happened = run.process.poll() is None
            lock.execute("COMMIT")
            lock.close()
        run.wait()
    return Outcome(f"SQLite locked for {LOCK_S:.0f} s", run.runs, happened, [run.process.returncode], [0])


def trial_processes() -> list[psutil.Process]:
    """Processes that came of this script and have a trial."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(TITLE):
                processes.append(process)
    return processes


# The campaign


def left_on_ray() -> dict[str, float]:
    """What the Ray that stays up still holds once it had the time to tidy up."""
    import ray

    end = time.monotonic() + FREE_S
    while True:
        groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
        missing = ray.cluster_resources().get("CPU", 0.0) - ray.available_resources().get("CPU", 0.0)
        left = {"placement_groups": len(groups), "cpus_taken": round(missing, 2), "processes": len(trial_processes())}
        if not any(left.values()) or time.monotonic() > end:
            return left
        time.sleep(0.5)


def judge(here: Campaign, outcome: Outcome) -> dict[str, Any]:
    """Compare with the undisturbed sweep, and print a line."""
    ends, states = ends_of(outcome.runs)
    expected = {number: end for number, end in here.whole.items() if number < outcome.trials}
    left = left_on_ray()
    result = {
        "happened": outcome.happened,
        "same": ends == expected,
        "unended": states["running"] + states["waiting"],
        "wrong_exits": 0 if outcome.codes == outcome.expected or not outcome.happened else 1,
        **left,
    }
    wrong = " (WRONG)" if result["wrong_exits"] else ""
    messages = [f"the same {len(ends)} trials" if result["same"] else f"MISMATCH: {ends} instead of {expected}"]
    messages.append(f"exit codes {', '.join(map(str, outcome.codes))}{wrong}")
    messages += [
        f"{name.upper()} {number}" for name, number in (left | {"unended": result["unended"]}).items() if number
    ]
    if not outcome.happened:
        messages.append("DID NOT HAPPEN")
    print(f"{outcome.label}: {', '.join(messages)}", flush=True)
    return result


def campaign(here: Campaign, kinds: list[str], count: int) -> dict[str, float]:
    """All sweeps, one after the other. Returns the numbers to report."""
    from kinoray.runs.method_source import methods_folder

    text = (methods_folder() / "bmu_moco.py").read_text()
    (here.folder / "bmu.py").write_text(text + METHOD.format(fault=str(here.fault)))
    short_stream(here.folder / "cache", here.steps)
    with here.start(here.job("whole")) as run:
        run.wait()
    here.whole, here.seconds = ends_of(run.runs)[0], time.time() - run.began
    assert [end[0] for end in here.whole.values()] == ["COMPLETE"] * TRIALS, here.whole
    print(f"undisturbed: {TRIALS} trials in {here.seconds:.1f} s", flush=True)
    results = []
    for number in range(count if "driver" in kinds else 0):
        results.append(judge(here, of_driver(here, f"driver-{number}", shared=number % 2 == 0)))
    if "process" in kinds:
        results.append(judge(here, of_processes(here, "process")))
    if "workers" in kinds:
        results.append(judge(here, of_worker_trial(here, "worker-trial")))
        results.append(judge(here, of_worker_driver(here, "worker-driver")))
    for kind in ("nan", "disk"):
        if kind in kinds:
            results.append(judge(here, of_trial(here, kind, kind)))
    if "lock" in kinds:
        results.append(judge(here, of_lock(here, "lock")))
    orphans = [process for driver in here.drivers for process in driver.orphans()]
    if orphans:
        print(f"ORPHANS {orphans}")
    summed = ("unended", "wrong_exits", "placement_groups", "cpus_taken", "processes")
    numbers = {
        "faults": len(results),
        "not_happened": sum(not result["happened"] for result in results),
        "mismatches": sum(not result["same"] for result in results),
        **{name: sum(result[name] for result in results) for name in summed},
        "orphans": len(orphans),
    }
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items()))
    return numbers


@contextlib.contextmanager
def ray_that_stays_up() -> Iterator[str]:
    """A Ray for many drivers; its address."""
    import ray

    folder = tempfile.mkdtemp(prefix="kr", dir="/tmp")  # its sockets need a short path
    context: Any = ray.init(
        address="local", include_dashboard=True, log_to_driver=False, _temp_dir=folder, _node_ip_address="127.0.0.1"
    )
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--kills", type=int, default=5, help="random moments of the driver's death")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of each task")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; printed")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of faults, separated by commas")
    parser.add_argument("--sampler", choices=["random", "tpe", "grid"], default="random")
    parser.add_argument("--drive", metavar="JOB", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(json.loads(options.drive))
    kinds = options.only.split(",")
    assert set(kinds) <= set(KINDS), f"known: {KINDS}"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the sweep under way, too
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kinoray-kills-") as name, ray_that_stays_up() as address:
        here = Campaign(Path(name), address, random.Random(seed), options.steps, options.sampler)
        numbers = campaign(here, kinds, options.kills)
    if options.json:
        print(json.dumps(numbers))
    sys.exit(int(any(value for name, value in numbers.items() if name != "faults")))


if __name__ == "__main__":
    main()
