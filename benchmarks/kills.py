"""Does a run survive? Kill it at chosen and at random moments, go on with the same command, compare the end bit by bit.

    python benchmarks/kills.py [--json] [--kills N] [--seed S] [--workers 0,1,2] [--no-points]

A small stream of real clips is learned to its end undisturbed, with 0, 1 and 2 workers; 0 and 1 must end bitwise the
same. Then one fault per run: SIGKILL of a training worker, SIGKILL of the driver, SIGTERM to it, Ctrl-C to its whole
process group; in mid-task, between tasks, during `end_task`, during evaluation, during a commit, and `--kills` times at
random. The same command is given again at once, while what the dead driver left may still be about, until the run has
finished. Its `state_digest` and its logged losses must equal those of the undisturbed run. A little more than a minute
after a driver's end no process of its may be left, and no half-written checkpoint when the run has finished. Recovery
is from a worker's death to the next logged step or commit.

Signals go only to processes that this script started, or that they started.
Bars: no mismatch, no orphan, recovery <= 30 s. Takes about half an hour; `--workers 1 --kills 2` about ten minutes.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

POINTS = ("mid-task", "between tasks", "end_task", "evaluation")
STEPS = 150
"""Optimizer steps of each of the two tasks."""
CLIPS = (12, 4, 6)
"""Training, validation and test clips of a task."""
COMMIT_EVERY_S = 0.5
"""Instead of the engine's: the tasks are short, and faults should find commits inside them."""
LIMIT_S = 300.0
GRACE_S = 75.0
"""How long the processes of a driver that died may take to end. Training ends within seconds; two of Ray's own agents
first try for a minute to tell the Ray that is gone."""
WAIT_S = 20.0
"""How long a method waits for its driver to be sent the signal."""
POLL_S = 0.03
TOKEN, POINT, TARGET, MARK = (f"KINORAY_KILLS_{name}" for name in ("TOKEN", "POINT", "TARGET", "MARK"))


# The run


def drive(cache: Path, runs: Path, workers: int) -> None:
    """The command that is killed and given again."""
    import kinoray
    from kinoray.config import config
    from kinoray.errors import KinorayError
    from kinoray.execution import commits
    from kinoray.methods import bmu_moco
    from kinoray.streams import moving

    class Marked(bmu_moco.Method):
        """BMU-MoCo that once, where the environment says, kills its process or waits to see the driver end."""

        @config
        class Config(bmu_moco.Config):
            queue_size: int = 80

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            commits.COMMIT_EVERY_S = COMMIT_EVERY_S
            self.task_index, self.ended = -1, False

        def begin_task(self, task: Any) -> None:
            self.task_index, self.ended = task.index, False
            if task.index == 1:
                reached("between tasks")
            super().begin_task(task)

        def after_step(self, carry: Any, step: Any) -> None:
            super().after_step(carry, step)
            if self.task_index == 1 and step.step == STEPS // 2:
                reached("mid-task")

        def end_task(self, task: Any) -> Any:
            reached("end_task")
            self.ended = True
            return super().end_task(task)

        def embed_text(self, text: Any, task_index: int) -> Any:
            if self.ended:
                reached("evaluation")
            return super().embed_text(text, task_index)

    whole = moving.build(cache=cache, clips=CLIPS, progress=False, processes=1)
    recipe = dataclasses.replace(whole.recipe, batch_size=8, max_steps=STEPS, epochs=10 * STEPS, validations=2)
    stream = dataclasses.replace(whole, name="short", tasks=whole.tasks[:2], recipe=recipe)
    try:
        kinoray.run(Marked, stream=stream, num_workers=workers, runs=runs, quiet=True)
    except KinorayError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def reached(point: str) -> None:
    """Carry out the fault of this run, if it is here and has not happened yet."""
    if os.environ.get(POINT) != point:
        return
    try:
        Path(os.environ[MARK]).touch(exist_ok=False)
    except FileExistsError:
        return
    if os.environ[TARGET] == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + WAIT_S
    while not sent(Path(os.environ[MARK])).exists() and time.monotonic() < end:
        time.sleep(0.01)


def sent(mark: Path) -> Path:
    """Exists once the driver was sent its signal."""
    return mark.with_name("sent")


class Driver:
    """One start of the command, and every process that came of it."""

    def __init__(self, cache: Path, runs: Path, workers: int, fault: "Fault | None" = None) -> None:
        self.runs, self.token = runs, uuid.uuid4().hex
        runs.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {TOKEN: self.token}
        if fault:
            environment |= {POINT: str(fault.where), TARGET: fault.target, MARK: str(self.mark)}
        command = [sys.executable, __file__, "--drive", str(cache), str(runs), str(workers)]
        with (runs / "output.txt").open("a") as output:
            # A group of its own: what the terminal would send to the whole group reaches this run only.
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.began = time.time()
        self.ended = 0.0
        self.family: set[tuple[int, float]] = set()

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *error: Any) -> None:
        """End what this benchmark itself did not wait for."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.orphans()

    @property
    def mark(self) -> Path:
        """Exists once the fault's point was reached."""
        return self.runs / "mark"

    def wait(self, until: Callable[[], Any] = lambda: False, limit_s: float = LIMIT_S) -> bool:
        """Wait for something, or for the end of the driver; False at its end. Stops waiting with an error."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None:
            self.look()
            if until():
                return True
            assert time.monotonic() < end, f"nothing happened for {limit_s:.0f} s; see {self.runs}/output.txt"
            time.sleep(POLL_S)
        self.ended = self.ended or time.time()
        return False

    def look(self) -> list[psutil.Process]:
        """Every process that came of the driver and is still its descendant; all that were ever seen are noted."""
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.process.pid)
            for process in [driver, *driver.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.family.add((process.pid, process.create_time()))
                    processes.append(process)
        return processes

    def training_workers(self) -> list[psutil.Process]:
        """The processes of Ray Train's worker group."""
        workers = []
        for process in self.look():
            with contextlib.suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith("ray::RayTrainWorker"):
                    workers.append(process)
        return workers

    def orphans(self) -> list[str]:
        """Wait for the processes of a driver that has ended; end, and tell, those that outlive the grace."""
        while (left := self.left()) and time.time() < self.ended + GRACE_S:
            time.sleep(0.2)
        ended = []
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                ended.append(f"{process.pid} {' '.join(process.cmdline()).strip()[:60]}")
                process.kill()
        return ended

    def left(self) -> list[psutil.Process]:
        """Processes of this run that are alive, found by descent or by the token in their environment."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            if (process.pid, process.create_time()) in self.family:
                return True
            return process.environ().get(TOKEN) == self.token
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


# Faults


@dataclass(frozen=True)
class Fault:
    """What happens to a run."""

    workers: int
    target: str
    """worker or driver."""
    signal: signal.Signals
    where: str | float
    """A point of the method, "commit", or seconds after the start."""

    def __str__(self) -> str:
        where = self.where if isinstance(self.where, str) else f"after {self.where:.1f} s"
        return f"{self.workers} workers, {self.signal.name} of the {self.target}, {where}"


def at_points(workers: int) -> list[Fault]:
    """The faults at chosen points with so many workers."""
    targets = ["worker", "driver"] if workers else ["driver"]
    kills = [Fault(workers, target, signal.SIGKILL, point) for target in targets for point in POINTS]
    kills.append(Fault(workers, "driver", signal.SIGKILL, "commit"))
    return kills + [Fault(workers, "driver", number, "mid-task") for number in (signal.SIGTERM, signal.SIGINT)]


def at_random(count: int, workers: list[int], seconds: dict[int, float], seed: int) -> list[Fault]:
    """Faults at any moment of a run, its start included; `seconds`: how long a run takes."""
    draw = random.Random(seed)
    of_driver = [("driver", number) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)]
    of_worker = [("worker", signal.SIGKILL)] * 2
    faults = []
    for _ in range(count):
        number = draw.choice(workers)
        target, kind = draw.choice(of_driver + (of_worker if number else []))
        faults.append(Fault(number, target, kind, draw.uniform(0, 0.95 * seconds[number])))
    return faults


def inflict(fault: Fault, run: Driver) -> float | None:
    """Wait for the moment and send the signal. Returns when the process died, or None if the run was faster."""
    if isinstance(fault.where, float):
        moment = run.began + fault.where
        come = run.wait(lambda: time.time() >= moment and (fault.target == "driver" or run.training_workers()))
    elif fault.where == "commit":
        come = run.wait(lambda: any(run.runs.glob("*/seed-0/checkpoints/stage-001-*.tmp-*")))
    else:
        come = run.wait(run.mark.exists)
    if not come and not (run.mark.exists() and fault.target == "worker"):
        return None
    if fault.target == "driver":
        send = os.killpg if fault.signal == signal.SIGINT else os.kill
        send(run.process.pid, fault.signal)
        sent(run.mark).touch()
    elif isinstance(fault.where, float):
        with contextlib.suppress(psutil.NoSuchProcess):
            random.choice(run.training_workers()).send_signal(fault.signal)
    else:
        return run.mark.stat().st_mtime
    return time.time()


def recovery_s(run: Driver, died: float) -> float | None:
    """Seconds from a worker's death to the next logged step or commit; None if the run ended before one.

    At resume the log is cut back to the checkpoint, by a new file: what follows that is progress.
    """
    before, cut = log_file(run), None

    def goes_on() -> bool:
        nonlocal cut
        now = log_file(run)
        if cut is None:
            cut = (now, time.time()) if now and (not before or now.st_ino != before.st_ino) else None
            return False
        commits = [path.stat().st_mtime for path in run.runs.glob("*/seed-0/checkpoints/*/manifest.json")]
        return bool(now and now.st_size > cut[0].st_size) or any(moment > cut[1] for moment in commits)

    return time.time() - died if run.wait(goes_on) else None


def log_file(run: Driver) -> os.stat_result | None:
    for path in run.runs.glob("*/seed-0/metrics.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            return path.stat()
    return None


# The campaign


@dataclass(frozen=True)
class End:
    """How a run ended."""

    digest: str | None
    """None if it did not finish."""
    log: list[dict[str, Any]]
    """Every logged record without its clock."""
    half_written: int
    """Temporary files among its checkpoints."""


def end_of(runs: Path) -> End:
    """Read what a run left."""
    folder = next((path.parent for path in runs.glob("*/seed-0/result.json")), runs)
    if not (folder / "result.json").exists():
        return End(None, [], 0)
    result = json.loads((folder / "result.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    log = [{name: value for name, value in record.items() if name != "time_s"} for record in records]
    digest = result["state_digest"] if result["state"] == "finished" else None
    return End(digest, log, sum(1 for _ in folder.glob("checkpoints/*.tmp-*")))


def undisturbed(cache: Path, runs: Path, workers: int) -> tuple[End, float]:
    """A run to its end, and its seconds."""
    with Driver(cache, runs, workers) as run:
        run.wait()
    assert run.process.returncode == 0, (runs / "output.txt").read_text()
    seconds = time.time() - run.began
    left = run.orphans()
    assert not left, f"an undisturbed run left processes: {left}"
    return end_of(runs), seconds


def suffer(fault: Fault, cache: Path, runs: Path, whole: End) -> dict[str, Any]:
    """One run with one fault, to its end. Returns what came of it."""
    with Driver(cache, runs, fault.workers, fault) as run:
        died = inflict(fault, run)
        recovered = recovery_s(run, died) if died and fault.target == "worker" else None
        run.wait()
    code, drivers = run.process.returncode, [run]
    expected = {"worker": 0, "driver": 128 + fault.signal if fault.signal != signal.SIGKILL else -fault.signal}
    # At a random moment the driver may not listen yet, or not any more.
    wrong_exit = isinstance(fault.where, str) and died is not None and code != expected[fault.target]
    while run.process.returncode and len(drivers) < 4:
        with Driver(cache, runs, fault.workers, fault) as run:
            run.wait()
        drivers.append(run)
    orphans = [process for driver in drivers for process in driver.orphans()]
    end = end_of(runs)
    return {
        "killed": died is not None,
        "same": end.digest == whole.digest,
        "same_log": end.log == whole.log,
        "recovery_s": recovered,
        "orphans": orphans,
        "half_written": end.half_written,
        "exit": code,
        "wrong_exit": wrong_exit,
        "starts": len(drivers),
        "last_line": (runs / "output.txt").read_text().strip().splitlines()[-1:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--kills", type=int, default=6, help="faults at random moments")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; printed")
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers, separated by commas")
    parser.add_argument("--no-points", action="store_true", help="only random moments")
    parser.add_argument("--drive", nargs=3, metavar=("CACHE", "RUNS", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        cache, runs, number = options.drive
        drive(Path(cache), Path(runs), int(number))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the run under way, too
    workers = [int(number) for number in options.workers.split(",")]
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kinoray-kills-") as name:
        numbers = campaign(Path(name), workers, options.kills, seed, points=not options.no_points)
    if options.json:
        print(json.dumps(numbers))


def campaign(folder: Path, workers: list[int], kills: int, seed: int, points: bool) -> dict[str, float]:
    """All runs, one after the other; a line for each. Returns the numbers to report."""
    wholes, seconds = {}, {}
    for number in workers:
        wholes[number], seconds[number] = undisturbed(folder / "cache", folder / f"whole-{number}", number)
        print(f"{number} workers, undisturbed: {wholes[number].digest[:12]} in {seconds[number]:.1f} s", flush=True)
    differ = 0 in wholes and 1 in wholes and wholes[0].digest != wholes[1].digest
    if differ:
        print("MISMATCH: one worker ended otherwise than none")
    faults = [fault for number in workers for fault in at_points(number)] if points else []
    faults += at_random(kills, workers, seconds, seed)
    outcomes = []
    for number, fault in enumerate(faults):
        outcome = suffer(fault, folder / "cache", folder / f"run-{number}", wholes[fault.workers])
        outcomes.append(outcome)
        show(fault, outcome)
    recoveries = [outcome["recovery_s"] for outcome in outcomes if outcome["recovery_s"] is not None]
    numbers = {
        "kills": sum(outcome["killed"] for outcome in outcomes),
        "mismatches": sum(not outcome["same"] for outcome in outcomes) + differ,
        "log_mismatches": sum(not outcome["same_log"] for outcome in outcomes),
        "recovery_s_max": round(max(recoveries, default=0.0), 2),
        "orphans": sum(len(outcome["orphans"]) for outcome in outcomes),
        "half_written": sum(outcome["half_written"] for outcome in outcomes),
        "wrong_exits": sum(outcome["wrong_exit"] for outcome in outcomes),
    }
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items()))
    return numbers


def show(fault: Fault, outcome: dict[str, Any]) -> None:
    """Print a line about one run."""
    messages = [
        "same end" if outcome["same"] else f"MISMATCH {outcome['last_line']}",
        f"exit {outcome['exit']}",
        f"{outcome['starts']} start(s)",
    ]
    if not outcome["killed"]:
        messages.append("finished before the fault")
    if not outcome["same_log"]:
        messages.append("LOG DIFFERS")
    if outcome["recovery_s"] is not None:
        messages.append(f"recovered in {outcome['recovery_s']:.1f} s")
    if outcome["wrong_exit"]:
        messages.append("WRONG EXIT CODE")
    if outcome["half_written"]:
        messages.append(f"{outcome['half_written']} HALF-WRITTEN")
    if outcome["orphans"]:
        messages.append(f"ORPHANS {outcome['orphans']}")
    print(f"{fault}: {', '.join(messages)}", flush=True)


if __name__ == "__main__":
    main()
