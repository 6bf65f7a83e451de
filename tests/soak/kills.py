"""Does a run survive? Kill it at chosen and at random moments, go on with the same command, compare the end bit by bit.

    python tests/soak/kills.py [--json] [--kills N] [--terms N] [--per-run 1] [--nodes N] [--seed S] [--workers 0,1,2]
                               [--cache off,empty] [--no-points] [--keep FOLDER]

A small stream of real clips is learned to its end undisturbed, with 0, 1 and 2 workers, each without a frame cache and
with one that is empty at first; 0 and 1 must end bitwise the same. Then one fault per run. At chosen points (in
mid-task, between tasks, during `end_task`, during evaluation, during a commit): SIGKILL of a training worker, SIGKILL
of the driver, SIGTERM and Ctrl-C to its whole process group. `--kills` times at random: these, and SIGKILL of a process
that decodes (a task of Ray Data, or a process of the run's own with 0 workers) or of an actor of the run (monitor,
momentum weights, features), with `--per-run` of them in one run, one after the other. `--terms` times SIGTERM at random
while it trains, which must end in exit code 143: the state was saved. `--nodes` times, on a Ray of two nodes: SIGKILL
of the second one's raylet while it has work of the run.

After a driver's end the same command is given again at once, while what the dead driver left may still be about, until
the run has finished; after the others the run must finish by itself. Its `state_digest` and its logged losses must
equal those of the undisturbed run, and no clip may be left out: one death names none. A little more than a minute after
a driver's end no process of its may be left, and no half-written checkpoint when the run has finished. Recovery is from
a death to the next logged step or commit.

Signals go only to processes that this script started, or that they started.
Bars: no mismatch, no hang, no orphan, recovery <= 30 s; where one but the last does not hold, the script exits with 1.
Takes about half an hour; `--workers 1 --kills 2` about ten minutes. With `--keep` the folders of all runs stay.
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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from nodes import Nodes, two_nodes
from titles import kind_of

POINTS = ("mid-task", "between tasks", "end_task", "evaluation")
STEPS = int(os.environ.get("KINORAY_KILLS_STEPS", "150"))
"""Optimizer steps of each of the two tasks; fewer on a busy machine."""
CLIPS = (12, 4, 6)
"""Training, validation and test clips of a task."""
COMMIT_EVERY_S = 0.5
"""Instead of the engine's: the tasks are short, and faults should find commits inside them."""
LIMIT_S = float(os.environ.get("KINORAY_KILLS_LIMIT_S", "300"))
"""How long a command may take to its end; on a busy machine more."""
GRACE_S = 120.0
"""How long the processes of a driver that died may take to end. Training ends within seconds; two of Ray's own agents
first try for a minute to tell the Ray that is gone."""
WAIT_S = 20.0
"""How long a method waits for its driver to be sent the signal."""
POLL_S = 0.03
LOOK_S = 0.25
"""How often the processes of a run are looked up while nothing is to be done with them."""
START_SHARE, PAUSE_S = 0.2, 1.0
"""Of the random faults, those before the first logged record; how long the others wait after theirs."""
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


class Hang(Exception):
    """Nothing happened for too long."""


@dataclass(frozen=True)
class Setting:
    """How a run is carried out."""

    workers: int
    cached: bool
    """Whether frames go through a cache, of its own and empty when it begins."""

    def __str__(self) -> str:
        return f"{self.workers} workers, {'empty cache' if self.cached else 'no cache'}"

    @property
    def targets(self) -> list[str]:
        """What random faults hit."""
        return ["driver", "decoder", "worker", "actor"] if self.workers else ["driver", "decoder"]

    def environment(self, runs: Path, token: str) -> dict[str, str]:
        """By which the processes of a run know their cache, and this script knows them."""
        return {TOKEN: token, "KINORAY_CACHE": str(runs / "frames") if self.cached else "off"}


class Driver:
    """One start of the command, and every process that came of it."""

    def __init__(
        self, cache: Path, runs: Path, setting: Setting, fault: "Fault | None" = None, address: str = ""
    ) -> None:
        """address: of a Ray that is there already."""
        self.runs, self.token = runs, uuid.uuid4().hex
        runs.mkdir(parents=True, exist_ok=True)
        environment = os.environ | setting.environment(runs, self.token) | {"RAY_ADDRESS": address}
        if fault:
            environment |= {POINT: str(fault.where), TARGET: fault.target, MARK: str(self.mark)}
        command = [sys.executable, __file__, "--drive", str(cache), str(runs), str(setting.workers)]
        with (runs / "output.txt").open("a") as output:
            # A group of its own: what the terminal would send to the whole group reaches this run only.
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.began = time.time()
        self.ended = 0.0
        self.family: set[tuple[int, float]] = set()

    def __enter__(self) -> Self:
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
        """Wait for something, or for the end of the driver; False at its end. Raises: Hang."""
        end, looked = time.monotonic() + limit_s, 0.0
        while self.process.poll() is None:
            if time.monotonic() > looked + LOOK_S:
                self.look()
                looked = time.monotonic()
            if until():
                return True
            if time.monotonic() > end:
                raise Hang(f"nothing happened for {limit_s:.0f} s; see {self.runs}/output.txt")
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

    def of_kind(self, kind: str) -> list[psutil.Process]:
        """Its workers, decoders or actors."""
        return [process for process in self.look() if kind_of(process) == kind]

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
class Moment:
    """Some time after so many records were logged, be the machine fast or slow; 0: after the start."""

    records: int
    pause_s: float

    def __str__(self) -> str:
        return f"{self.pause_s:.1f} s after {f'{self.records} records' if self.records else 'the start'}"


@dataclass(frozen=True)
class Fault:
    """What happens to a run."""

    setting: Setting
    target: str
    """driver, or what is killed under it: worker, decoder, actor, node."""
    signal: signal.Signals
    where: str | Moment
    """A point of the method, "commit", or any moment at which there is a target."""

    def __str__(self) -> str:
        return f"{self.signal.name} of the {self.target} {self.where}"


Faults = tuple[Fault, ...]
"""Of one run, one after the other."""


def at_points(setting: Setting) -> list[Faults]:
    """The faults at chosen points of such a run."""
    targets = ["worker", "driver"] if setting.workers else ["driver"]
    kills = [Fault(setting, target, signal.SIGKILL, point) for target in targets for point in POINTS]
    kills.append(Fault(setting, "driver", signal.SIGKILL, "commit"))
    kills += [Fault(setting, "driver", number, "mid-task") for number in (signal.SIGTERM, signal.SIGINT)]
    return [(kill,) for kill in kills]


def at_random(count: int, per_run: int, nodes: int, wholes: "dict[Setting, Whole]", seed: int) -> list[Faults]:
    """Faults at any moment of a run, its start included."""
    draw = random.Random(seed)

    def fault(setting: Setting, target: str) -> Fault:
        whole = wholes[setting]
        kinds = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] if target == "driver" else [signal.SIGKILL]
        number = draw.choice(kinds)
        if draw.random() < START_SHARE:
            return Fault(setting, target, number, Moment(0, draw.uniform(0, whole.start_s)))
        return Fault(setting, target, number, Moment(draw.randint(1, len(whole.end.log)), draw.uniform(0, PAUSE_S)))

    def when(fault: Fault) -> tuple[int, float]:
        assert isinstance(fault.where, Moment)
        return fault.where.records, fault.where.pause_s

    runs = []
    for first in range(0, count, per_run):
        setting = draw.choice(list(wholes))
        faults = [fault(setting, draw.choice(setting.targets)) for _ in range(min(per_run, count - first))]
        runs.append(tuple(sorted(faults, key=when)))
    on_ray = [setting for setting in wholes if setting.workers]
    return runs + [(fault(draw.choice(on_ray), "node"),) for _ in range(nodes if on_ray else 0)]


def terms(count: int, wholes: "dict[Setting, Whole]", seed: int) -> list[Faults]:
    """A SIGTERM in each of so many runs, somewhere after the first logged record."""
    draw, settings = random.Random(seed + 1), list(wholes)

    def term(setting: Setting) -> Fault:
        moment = Moment(draw.randint(1, len(wholes[setting].end.log) - 1), draw.uniform(0, PAUSE_S))
        return Fault(setting, "driver", signal.SIGTERM, moment)

    return [(term(settings[number % len(settings)]),) for number in range(count)]


@dataclass(frozen=True)
class Death:
    """That a fault caused."""

    at: float
    of_worker: bool
    """Whether a training worker died, so that the ranks start again."""


def inflict(fault: Fault, run: Driver, nodes: Nodes | None) -> Death | None:
    """Wait for the moment and send the signal. Returns the death, or None if the run was faster."""
    if isinstance(fault.where, Moment):
        wanted, moment = fault.where, run.began
        if wanted.records:
            run.wait(lambda: records(run) >= wanted.records)
            moment = time.time()
        come = run.wait(lambda: time.time() >= moment + wanted.pause_s and targets(fault, run, nodes))
    elif fault.where == "commit":
        come = run.wait(lambda: any(run.runs.glob("*/seed-0/checkpoints/stage-001-*.tmp-*")))
    else:
        come = run.wait(run.mark.exists)
    if not come and not (run.mark.exists() and fault.target == "worker"):
        return None
    of_worker = fault.target == "worker"
    if fault.target == "driver":
        send = os.kill if fault.signal == signal.SIGKILL else os.killpg
        send(run.process.pid, fault.signal)
        sent(run.mark).touch()
    elif isinstance(fault.where, str):
        return Death(run.mark.stat().st_mtime, of_worker)
    elif nodes:
        of_worker = any(kind_of(process) == "worker" for process in nodes.work())
        nodes.kill()
    else:
        alive = targets(fault, run, nodes)
        if not alive:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            random.choice(alive).send_signal(fault.signal)
    return Death(time.time(), of_worker)


def targets(fault: Fault, run: Driver, nodes: Nodes | None) -> list[psutil.Process]:
    """The processes that a fault at a random moment may hit."""
    if nodes:
        return nodes.work()
    return run.look()[:1] if fault.target == "driver" else run.of_kind(fault.target)


def recovery_s(run: Driver, death: Death) -> float | None:
    """Seconds from a death to the next logged step or commit; None if the run ended before one.

    At resume the log is cut back to the checkpoint, by a new file: what follows that is progress.
    """
    before, cut = log_file(run), None

    def goes_on() -> bool:
        nonlocal cut
        now = log_file(run)
        if cut is None:
            if not death.of_worker:
                cut = (before.st_size if before else 0, death.at)
            elif now and (not before or now.st_ino != before.st_ino):
                cut = (now.st_size, time.time())
            return False
        return bool(now and now.st_size > cut[0]) or last_commit(run) > cut[1]

    return time.time() - death.at if run.wait(goes_on) else None


def records(run: Driver) -> int:
    """How many it has logged."""
    for path in run.runs.glob("*/seed-0/metrics.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes().count(b"\n")
    return 0


def last_commit(run: Driver) -> float:
    """When it was, 0 before the first."""
    moments = [0.0]
    for path in run.runs.glob("*/seed-0/checkpoints/*/manifest.json"):
        with contextlib.suppress(FileNotFoundError):
            moments.append(path.stat().st_mtime)
    return max(moments)


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
    left_out: int
    """Clips that it names as unreadable."""
    half_written: int
    """Temporary files among its checkpoints."""


def end_of(runs: Path) -> End:
    """Read what a run left."""
    folder = next((path.parent for path in runs.glob("*/seed-0/result.json")), runs)
    if not (folder / "result.json").exists():
        return End(None, [], 0, 0)
    result = json.loads((folder / "result.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    log = [{name: value for name, value in record.items() if name != "time_s"} for record in records]
    digest = result["state_digest"] if result["state"] == "finished" else None
    return End(digest, log, result["bad_samples"], sum(1 for _ in folder.glob("checkpoints/*.tmp-*")))


@dataclass(frozen=True)
class Whole:
    """An undisturbed run."""

    end: End
    start_s: float
    """Until its first logged record."""


def undisturbed(cache: Path, runs: Path, setting: Setting) -> Whole:
    """A run to its end."""
    with Driver(cache, runs, setting) as run:
        run.wait(lambda: records(run))
        start_s = time.time() - run.began
        run.wait()
    assert run.process.returncode == 0, (runs / "output.txt").read_text()
    return Whole(end_of(runs), start_s)


@dataclass
class Outcome:
    """What came of the faults of one run."""

    drivers: list[Driver] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    """Targets that died."""
    recoveries_s: list[float] = field(default_factory=list)
    wrong_exits: list[int] = field(default_factory=list)
    hang: str = ""
    orphans: list[str] = field(default_factory=list)


def suffer(faults: Faults, cache: Path, runs: Path) -> Outcome:
    """One run with its faults, to its end."""
    outcome, setting = Outcome(), faults[0].setting
    with contextlib.ExitStack() as stack:
        nodes = None
        if faults[0].target == "node":
            nodes = stack.enter_context(two_nodes(setting.environment(runs, uuid.uuid4().hex)))

        def start() -> Driver:
            run = Driver(cache, runs, setting, faults[0], nodes.address if nodes else "")
            outcome.drivers.append(run)
            return stack.enter_context(run)

        try:
            _suffer(faults, start, outcome, nodes)
        except Hang as hang:
            outcome.hang = str(hang)
        if nodes:
            outcome.orphans += _still_there(nodes)
    return outcome


def _suffer(faults: Faults, start: Callable[[], Driver], outcome: Outcome, nodes: Nodes | None) -> None:
    run = start()
    for fault in faults:
        if run.process.poll():  # an earlier fault ended it
            run = start()
        death = inflict(fault, run, nodes)
        if death is None:
            continue
        outcome.killed.append(fault.target)
        if fault.target != "driver":
            outcome.recoveries_s += filter(None, [recovery_s(run, death)])
            continue
        run.wait()
        expected = -fault.signal if fault.signal == signal.SIGKILL else 128 + fault.signal
        # At a random moment the driver may not listen yet, or not any more.
        trains = isinstance(fault.where, str) or (fault.where.records and fault.signal == signal.SIGTERM)
        if trains and run.process.returncode not in (expected, 0 if isinstance(fault.where, Moment) else expected):
            outcome.wrong_exits.append(run.process.returncode)
    run.wait()
    if run.process.returncode and faults[-1].target != "driver":
        outcome.wrong_exits.append(run.process.returncode)
    while run.process.returncode and len(outcome.drivers) < len(faults) + 3:
        run = start()
        run.wait()


def _still_there(nodes: Nodes) -> list[str]:
    """What is left of a run on a Ray that stays up, after the grace."""
    end = time.monotonic() + GRACE_S
    while (left := nodes.work_of_head()) and time.monotonic() < end:
        time.sleep(0.2)
    return [f"{process.pid} {kind_of(process)} on the node that is left" for process in left]


WRONG = "mismatches", "log_mismatches", "hangs", "clips_left_out", "half_written", "wrong_exits", "orphans"
"""Of a campaign's numbers, those that are to be 0."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--kills", type=int, default=6, help="faults at random moments")
    parser.add_argument("--terms", type=int, default=0, help="SIGTERMs to the process group, while it trains")
    parser.add_argument("--per-run", type=int, default=1, help="how many of them one run suffers")
    parser.add_argument("--nodes", type=int, default=1, help="deaths of a node, at random moments")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; printed")
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers, separated by commas")
    parser.add_argument("--cache", default="off,empty", help="frame caches, separated by commas")
    parser.add_argument("--no-points", action="store_true", help="only random moments")
    parser.add_argument("--keep", type=Path, help="folder of all runs, which stays")
    parser.add_argument("--drive", nargs=3, metavar=("CACHE", "RUNS", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        cache, runs, number = options.drive
        drive(Path(cache), Path(runs), int(number))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the run under way, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by what is started, too
    caches = [{"off": False, "empty": True}[word] for word in options.cache.split(",")]
    settings = [Setting(int(number), cached) for number in options.workers.split(",") for cached in caches]
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinoray-kills-")))
        wholes = all_undisturbed(folder, settings)
        # At chosen points once for every number of workers.
        at = [] if options.no_points else settings[:: len(caches)]
        faults = [faults for setting in at for faults in at_points(setting)]
        faults += at_random(options.kills, options.per_run, options.nodes, wholes, seed)
        faults += terms(options.terms, wholes, seed)
        numbers = campaign(folder, wholes, faults)
    if options.json:
        print(json.dumps(numbers))
    sys.exit(any(numbers.get(name) for name in WRONG))


def all_undisturbed(folder: Path, settings: list[Setting]) -> dict[Setting, Whole]:
    """What the others are compared with; without workers and with one they must end the same."""
    wholes = {}
    for number, setting in enumerate(settings):
        begun = time.time()
        wholes[setting] = whole = undisturbed(folder / "cache", folder / f"whole-{number}", setting)
        seconds = (
            f"{whole.start_s:.0f} s to the first of {len(whole.end.log)} records, {time.time() - begun:.0f} in all"
        )
        print(f"{setting}, undisturbed: {str(whole.end.digest)[:12]}, {seconds}", flush=True)
    for several in (False, True):
        digests = {whole.end.digest for setting, whole in wholes.items() if (setting.workers > 1) == several}
        assert len(digests) <= 1, f"undisturbed runs differ: {digests}"
    return wholes


def campaign(folder: Path, wholes: dict[Setting, Whole], runs: list[Faults]) -> dict[str, float]:
    """All runs, one after the other; a line for each. Returns the numbers to report."""
    outcomes: list[Outcome] = []
    kinds, numbers = Counter[str](), Counter[str]()
    for number, faults in enumerate(runs):
        outcome = suffer(faults, folder / "cache", folder / f"run-{number}")
        outcomes.append(outcome)
        kinds.update(outcome.killed)
        end, whole = end_of(folder / f"run-{number}"), wholes[faults[0].setting].end
        counts = {
            "mismatches": end.digest != whole.digest,
            "log_mismatches": end.log != whole.log,
            "hangs": bool(outcome.hang),
            "clips_left_out": end.left_out - whole.left_out,
            "half_written": end.half_written,
            "wrong_exits": len(outcome.wrong_exits),
        }
        numbers.update(counts)
        show(number, faults, outcome, counts, folder)
        for earlier, told in enumerate(outcomes):  # those whose time is over by now; nobody waits for it
            orphans(earlier, told, wait=False)
    for number, told in enumerate(outcomes):
        orphans(number, told, wait=True)
    report: dict[str, float] = {
        "kills": kinds.total(),
        **{f"kills_of_{kind}s": kinds[kind] for kind in ("driver", "worker", "decoder", "actor", "node")},
        **numbers,
        "recovery_s_max": round(max((s for outcome in outcomes for s in outcome.recoveries_s), default=0.0), 2),
        "orphans": sum(len(outcome.orphans) for outcome in outcomes),
    }
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.items()))
    return report


def orphans(number: int, outcome: Outcome, wait: bool) -> None:
    """Note, and print, the processes that outlived the drivers of a run."""
    for driver in [driver for driver in outcome.drivers if wait or time.time() > driver.ended + GRACE_S]:
        outcome.drivers.remove(driver)
        if left := driver.orphans():
            outcome.orphans += left
            print(f"{number}. ORPHANS {left}", flush=True)


def show(number: int, faults: Faults, outcome: Outcome, counts: dict[str, int], folder: Path) -> None:
    """Print a line about one run."""
    told = "; ".join(map(str, faults))
    messages = [f"{len(outcome.killed)} of {len(faults)} happened", f"{len(outcome.drivers)} start(s)"]
    messages += (
        [f"recovered in {', '.join(f'{s:.1f}' for s in outcome.recoveries_s)} s"] if outcome.recoveries_s else []
    )
    messages += [f"{count} {name.replace('_', ' ').upper()}" for name, count in counts.items() if count]
    if any(counts.values()):
        lines = (folder / f"run-{number}" / "output.txt").read_text().strip().splitlines()
        messages.append(f"{outcome.hang} {outcome.wrong_exits} {lines[-1:]}")
    messages += [f"ORPHANS {outcome.orphans}"] if outcome.orphans else []
    print(f"{number}. {faults[0].setting}: {told}: {', '.join(messages)}", flush=True)


if __name__ == "__main__":
    main()
