"""Runs in trackers (`--log`): threads of the driver read what runs write into their folders, and send it on.

Training knows nothing of it. A run that is rewound after a crash makes steps again, with the same numbers: what was
logged is noted after every write (`NAME/logged.json` in the run's folder), and nothing is sent twice. A session that is
killed leaves "running" there: the next one sends again what its tracker may have lost, and leaves out what it has.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import shutil
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

from kinoray.config import digest_of
from kinoray.errors import Busy, UsageError, unknown
from kinoray.runs.result import Result
from kinoray.system.durable import read_json, write_json
from kinoray.system.folders import home_of, seed_folders_of, seed_label
from kinoray.system.locks import hold
from kinoray.system.text import one_line

NEEDS = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
"""Trackers by name, and the package that each needs."""
LOOK_S = 1.0
"""How often a thread looks into the folders."""
END_WAIT_S = 60.0
"""How long it may take to write the rest."""
LOGGED = "logged.json"
AT_END = 1 << 62
"""Where the scores of a task stand among its steps."""
PLACE = ("task", "step", "time_s")
"""What a line of metrics.jsonl says of where and when it was written; the rest are metrics."""
FILES = ("run.json", "result.json", "matrix.parquet", "ranks.parquet", "metrics.jsonl", "bad_samples.jsonl")
"""What MLflow gets as files of a finished run."""
OLD_ID = 32  # length of MLflow's own ids, which versions before 0.2 noted
MOST_PARAMS, MOST_METRICS, PARAM_LENGTH = 100, 1000, 6000
"""So many, and so long ones, MLflow takes in one call."""

Key = tuple[int, int, int]
"""A row's place: stage, step, and 0 for training, 1 for validation."""
NOWHERE: Key = (-1, -1, 0)
Row = tuple[int, float, Mapping[str, float]]
"""Optimizer steps since the run began, seconds since 1970, numbers."""


def require_trackers(names: Iterable[str]) -> None:
    """Raises: UsageError for a tracker that there is not, or with the command that installs what it needs."""
    for name in names:
        if name not in NEEDS:
            raise unknown("tracker", name, list(NEEDS))
        if find_spec(NEEDS[name]) is None:
            raise UsageError(
                f"`log={name}` needs {NEEDS[name]}, which is not installed. Run: pip install 'kinoray[track]'"
            )


@contextmanager
def logged(names: Sequence[str], runs: Sequence[Path], say: Callable[[str], None], sweep: str = "") -> Iterator[None]:
    """Log runs, or those of a sweep's trials, while the body runs; what is left is written at its end.

    A tracker that fails is one line and no reason to stop.

    Args:
        names: Of trackers.
        runs: Folders of runs with a seed.
        say: Takes the line.
        sweep: A sweep's folder.
    """
    ended = threading.Event()
    threads = [
        threading.Thread(target=_follow, args=(name, runs, sweep, ended, say), daemon=True)
        for name in dict.fromkeys(names)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for name, thread in zip(dict.fromkeys(names), threads, strict=True):
            thread.join(END_WAIT_S)
            if thread.is_alive():
                say(f"Logging to {name} took over {END_WAIT_S:.0f} s at the end and was stopped. {_goes_on(name)}")


def _goes_on(name: str) -> str:
    return f"Run the same command again with `--log {name}` to log the rest."


def _follow(name: str, runs: Sequence[Path], sweep: str, ended: threading.Event, say: Callable[[str], None]) -> None:
    try:
        follow(name, runs, sweep, ended)
    except Exception as error:  # a tracker may raise what it likes
        logging.getLogger(__name__).debug(traceback.format_exc())
        reason = f"{type(error).__name__}: {one_line(error)[:300]}"
        say(f"Logging to {name} stopped, and the run continues: {reason}. {_goes_on(name)}")


def follow(name: str, runs: Sequence[Path], sweep: str, ended: threading.Event) -> None:
    """Log runs, and those of a sweep's trials as they come, until `ended` is set and all is written.

    Raises: what the tracker raises.
    """
    followed = {run: Followed(name, run) for run in runs}
    while True:
        over = ended.wait(LOOK_S)
        for trial in sorted(Path(sweep).glob("trials/[0-9]*")) if sweep else ():
            for folder in map(Path.resolve, seed_folders_of(trial)):
                followed.setdefault(folder, Followed(name, folder, Path(sweep).name, int(trial.name)))
        for run in followed.values():
            with contextlib.suppress(Busy) if not over else contextlib.nullcontext():
                run.advance(over)
        if over:
            return


@dataclass
class Followed:
    """One run on its way to one tracker."""

    tracker_name: str
    folder: Path
    sweep: str = ""
    trial: int | None = None
    pending: dict[Key, tuple[float, dict[str, float]]] = field(default_factory=dict)
    """What is not logged yet: when it was read, and the numbers."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Steps of each stage so far."""
    tested: set[int] = field(default_factory=set)
    """Stages whose scores are known."""
    seen: list[int] = field(default_factory=list)
    """Times of the files that were read last."""
    known: dict[str, Any] = field(default_factory=dict)
    """What is logged: under which id, up to which place, and the run's state; "running" while a session is open."""
    tracker: "Tracker | None" = None

    def __post_init__(self) -> None:
        self.tail = Tail(self.folder / "metrics.jsonl")
        self.home = self.folder / self.tracker_name
        self.locks = ExitStack()

    def advance(self, over: bool) -> None:
        """Log what is new. over: nothing more will come. Raises: Busy while another process logs the run there."""
        files = [self.folder / "result.json", self.folder / "metrics.jsonl"]
        seen = [file.stat().st_mtime_ns if file.is_file() else 0 for file in files]
        if not (self.folder / "run.json").is_file() or (seen == self.seen and not over):
            return
        if self.tracker is None:
            self.locks.close()
            self.locks.enter_context(hold(self.home, f"{self.home} is being written by another process"))
            file = self.home / LOGGED
            usual = {"id": None, "place": [*NOWHERE], "state": ""}
            self.known = read_json(file, "Remove its folder to log the run again.", usual) if file.is_file() else usual
            if self.known["state"] == "running" and not TRACKERS[self.tracker_name].keeps_what_it_took:
                self.known["place"] = [*NOWHERE]
        run = Result(self.folder)
        state = run.state if seen[0] else "running"
        self._read_scores(run, state)  # before the steps: what is scored has all its steps on the disk
        for record in self.tail.read():
            stage, step = record["task"], record["step"]
            self.lengths[stage] = max(self.lengths.get(stage, 0), step + 1)
            self.pending[stage, step, int("loss" not in record)] = time.time(), step_metrics(record)
        for key in [key for key in self.pending if key <= tuple(self.known["place"])]:
            del self.pending[key]
        ready = sorted(key for key in self.pending if over or key[0] == 0 or key[0] - 1 in self.tested)
        ended = state != "running" or over
        if ready or (ended and self.known["id"] and self.known["state"] != state):
            self._log(run, ready)
        if ended:
            self.close("stopped" if state == "running" else state)
        self.seen = seen

    def _read_scores(self, run: Result, state: str) -> None:
        """Scores after each stage; those after the last one count once the run is finished."""
        count = len(run.tasks)
        stages = 1 if run.joint or run.zero_shot else count
        for name, value, tasks in scores_of(run):
            stage = min(tasks, stages) - 1
            if tasks < count or state == "finished":
                self.pending.setdefault((stage, AT_END, 0), (time.time(), {}))[1][name] = float(value)
                self.tested.add(stage)

    def _log(self, run: Result, ready: list[Key]) -> None:
        if self.tracker is None:
            place, killed = tuple(self.known["place"]), self.known["state"] == "running"
            next_step = self._steps_until(place) + 1 if place > NOWHERE else 0
            id = self.known["id"] or uuid.uuid4().hex[:12]
            self._note(id=id, state="running")  # before: what is opened now is found again after a kill
            self.tracker = TRACKERS[self.tracker_name]()
            self.tracker.open(run, id, next_step, killed, self.sweep or run.sweep, self.trial)
        rows = [(self._steps_until(key), *self.pending[key]) for key in ready]
        self.tracker.log([row for row in rows if row[2]])
        self._note(place=ready[-1] if ready else self.known["place"], state="running")
        for key in ready:
            del self.pending[key]

    def _steps_until(self, key: Key) -> int:
        """Optimizer steps made when a row stands at its place."""
        stage, step, _ = key
        own = self.lengths.get(stage, 0) if step == AT_END else step + 1
        return sum(length for earlier, length in self.lengths.items() if earlier < stage) + own

    def _note(self, **news: Any) -> None:
        self.known = self.known | news
        write_json(self.home / LOGGED, self.known)

    def close(self, state: str) -> None:
        """Leave the place where it is written to, and note in which state the run was."""
        if self.tracker is not None:
            self.tracker.close(Result(self.folder), state)
            self._note(state=state)
            self.tracker = None
        self.locks.close()
        self.tail.close()


class Tail:
    """The lines of a JSONL file that another process appends to, cuts, or replaces by a shorter one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] | None = None

    def read(self) -> list[dict[str, Any]]:
        """Whole lines that were not read yet; all lines where the file is another one or was cut."""
        if self.file is not None and not self._is_same(self.file):
            self.close()
        if self.file is None:
            if not self.path.is_file():
                return []
            self.file = self.path.open("rb")
        place = self.file.tell()
        whole = self.file.read()
        end = whole.rfind(b"\n") + 1
        self.file.seek(place + end)
        return [json.loads(line) for line in whole[:end].splitlines()]

    def _is_same(self, file: IO[bytes]) -> bool:
        """Whether the path still leads to the open file. While that is open, no other file can have its number."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        return now.st_ino == os.fstat(file.fileno()).st_ino and now.st_size >= file.tell()

    def close(self) -> None:
        """Let go of the file; the next read begins at the start."""
        if self.file is not None:
            self.file.close()
            self.file = None


# What a tracker is told of a run


def settings_of(run: Result) -> dict[str, Any]:
    """The resolved configuration, under the names that `--set` takes, and what the run was started with."""
    facts = {name: run.run[name] for name in ("method", "stream", "backbone", "seed", "joint", "zero_shot")}
    return {**run.config["recipe"], **run.config["method"], **facts, "order": run.order}


def tags_of(run: Result) -> dict[str, str]:
    """Name, folder, digests and versions; the digest of the final state once there is one."""
    digests = {name: run.run["digests"][name] for name in ("code", "method")}
    digests["data"] = digest_of(run.run["digests"]["data"])
    state = run.outcome.get("state_digest")
    return {
        "kinoray.run": seed_label(run.folder),
        "kinoray.folder": str(run.folder.absolute()),
        **({"kinoray.state_digest": state} if state else {}),
        **{f"kinoray.digest.{name}": value for name, value in digests.items()},
        **{f"version.{name}": value for name, value in run.run["versions"].items()},
    }


def step_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line of metrics.jsonl, by the names that they have there."""
    return {
        name: float(value)
        for name, value in record.items()
        if name not in PLACE and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def scores_of(run: Result) -> Iterator[tuple[str, float, int]]:
    """(name, value, tasks): after so many tasks the scores on all tasks so far, and the headlines.

    Scores in percent on the test splits; `validation/...` are those of the validation splits. Costs stand at the end.
    """
    outcome, count = run.outcome, len(run.tasks)
    matrices = outcome.get("matrix", {})
    for name in run.protocol.matrix_names:
        for i, row in enumerate(matrices.get(name, [])):
            yield from ((f"{name}/{run.tasks[t]}", value, i + 1) for t, value in enumerate(row) if value is not None)
    for split, prefix, by_score, last in (
        ("test", "", matrices, outcome.get("metrics", {})),
        ("validation", "validation/", outcome.get("validation_matrix", {}), outcome.get("validation", {})),
    ):
        for tasks in range(1, count + 1):
            if any(value is not None for value in by_score.get(run.score, [[]] * count)[tasks - 1]):
                values = last if tasks == count else run.summary(tasks=tasks, split=split)
                yield from ((f"{prefix}{name}", value, tasks) for name, value in values.items() if value is not None)
    yield from ((f"cost/{name}", value, count) for name, value in run.cost.items())


# The trackers


class Tracker(Protocol):
    """One run on its way to one place."""

    keeps_what_it_took: ClassVar[bool] = True
    """Whether rows are there for good once `log` returned, also where the process is killed then. Else all are sent
    again after a kill."""

    def open(self, run: Result, id: str, next_step: int, killed: bool, sweep: str, trial: int | None) -> None:
        """Begin under an id, or go on with what was logged under it before `next_step`, 0 for nothing; by a session
        that was killed maybe more."""

    def log(self, rows: Sequence[Row]) -> None:
        """Write rows, in order; those that were taken by a session that was killed are left out or replaced."""

    def close(self, run: Result, state: str) -> None:
        """The run is finished, stopped (it may go on) or failed."""


class TensorBoard(Tracker):
    """Event files in the run's folder; `tensorboard --logdir RUNS` shows them all.

    Values are stored in single precision. Steps that a killed process wrote and did not account for are purged by the
    reader (`purge_step`), so each stands once.
    """

    def open(self, run: Result, id: str, next_step: int, killed: bool, sweep: str, trial: int | None) -> None:
        folder = run.folder / "tensorboard"
        own = f".{time.time_ns()}"  # the library names a file by the second, and would write over the one before
        library = importlib.import_module("tensorboardX")
        purge_step = next_step if next_step or killed else None
        self.writer = library.SummaryWriter(str(folder), purge_step=purge_step, filename_suffix=own)
        if not next_step:
            facts = {"settings": settings_of(run), "tags": tags_of(run), "sweep": sweep, "trial": trial}
            lines = [seed_label(run.folder), *json.dumps(facts, indent=4).splitlines()]
            self.writer.add_text("run", "".join(f"    {line}\n" for line in lines), 0)

    def log(self, rows: Sequence[Row]) -> None:
        for step, time_s, values in rows:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step, time_s)
        self.writer.flush()

    def close(self, run: Result, state: str) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """WANDB_* variables are respected; without a key, or with WANDB_MODE=offline, it writes files alone.

    They lie in the run's folder unless WANDB_DIR is set, and `wandb sync RUN/wandb/offline-run-*` sends them later. A
    run that went on has a folder for each time, under one id. W&B's own process holds rows back, which go with it where
    all processes are killed: files are written anew then, and a server says from which step on it lacks them.
    """

    keeps_what_it_took: ClassVar[bool] = False

    def open(self, run: Result, id: str, next_step: int, killed: bool, sweep: str, trial: int | None) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        wandb: Any = importlib.import_module("wandb")
        asked = os.environ.get("WANDB_MODE")
        offline = asked == "offline" or (not asked and not wandb.login(prompt=False, verify=False))
        place = Path(os.environ.get("WANDB_DIR") or run.folder)
        for folder in place.glob(f"wandb/offline-run-*-{id}") if killed else ():
            shutil.rmtree(folder)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "kinoray",
            id=id,
            name=seed_label(run.folder),
            group=sweep or None,
            config={**settings_of(run), **tags_of(run), **({} if trial is None else {"trial": trial})},
            dir=place,
            mode="offline" if offline else None,
            resume=None if offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True),
        )
        self.next_step = self.run.step

    def log(self, rows: Sequence[Row]) -> None:
        for step, _, values in rows:
            if step >= self.next_step:
                self.run.log(dict(values), step=step)

    def close(self, run: Result, state: str) -> None:
        self.run.config.update(tags_of(run), allow_val_change=True)
        self.run.finish(exit_code=int(state == "failed"))


class MLflow(Tracker):
    """MLFLOW_TRACKING_URI, or `mlflow.db` in the runs folder. A sweep's trials lie under one run with its name."""

    def open(self, run: Result, id: str, next_step: int, killed: bool, sweep: str, trial: int | None) -> None:
        for name, value in (("MLFLOW_DISABLE_TELEMETRY", "true"), ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")):
            os.environ.setdefault(name, value)
        for name in ("alembic", "mlflow"):  # they tell of every table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home_of(run.folder).parent / 'mlflow.db'}"
        self.client: Any = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        self.entities: Any = importlib.import_module("mlflow.entities")
        self.taken: dict[str, set[int]] | None = {} if killed else None
        home = self._experiment(uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.stream)
        known = self.client.search_runs([home], f"tags.`kinoray.id` = '{id}'")
        if known or (next_step and len(id) == OLD_ID):
            self.id = known[0].info.run_id if known else id
            self.client.set_terminated(self.id, "RUNNING")
        else:
            self.id = self._begun(run, home, id, sweep, trial)
        params = [
            self.entities.Param(mlflow_name(name), str(value)[:PARAM_LENGTH])
            for name, value in settings_of(run).items()
        ]
        for start in range(0, len(params), MOST_PARAMS) if killed or not next_step else ():
            self.client.log_batch(self.id, params=params[start : start + MOST_PARAMS])

    def _begun(self, run: Result, home: str, id: str, sweep: str, trial: int | None) -> str:
        """A new run in an experiment, found again by the tag of our id."""
        tags = {mlflow_name(name): value for name, value in tags_of(run).items()} | {"kinoray.id": id}
        if sweep:  # MLflow's own tag folds runs under the one that it names
            tags |= {"mlflow.parentRunId": self._parent(home, sweep)}
            tags |= {f"kinoray.sweep.{mlflow_name(sweep)}": str(trial)} if trial is not None else {}
        return self.client.create_run(home, tags=tags, run_name=seed_label(run.folder)).info.run_id

    def _experiment(self, uri: str, name: str) -> str:
        """MLflow's id of an experiment. Files of one kept in an SQLite file lie beside it, not where we stand."""
        known = self.client.get_experiment_by_name(name)
        if known is not None:
            return known.experiment_id
        place = None
        if uri.startswith("sqlite:///"):
            database = Path(uri.removeprefix("sqlite:///")).absolute()
            place = (database.parent / f"{database.stem}-artifacts" / mlflow_name(name).replace(":", "-")).as_uri()
        return self.client.create_experiment(name, artifact_location=place)

    def _parent(self, home: str, sweep: str) -> str:
        """The run that a sweep's trials lie under."""
        known = self.client.search_runs([home], f"tags.`kinoray.sweep` = '{mlflow_name(sweep)}'")
        if known:
            return known[0].info.run_id
        parent = self.client.create_run(home, tags={"kinoray.sweep": mlflow_name(sweep)}, run_name=sweep)
        self.client.set_terminated(parent.info.run_id, "FINISHED")
        return parent.info.run_id

    def log(self, rows: Sequence[Row]) -> None:
        numbers = [
            self.entities.Metric(mlflow_name(name), value, round(1000 * time_s), step)
            for step, time_s, values in rows
            for name, value in values.items()
            if step not in self._taken(mlflow_name(name))
        ]
        for start in range(0, len(numbers), MOST_METRICS):
            self.client.log_batch(self.id, metrics=numbers[start : start + MOST_METRICS])

    def _taken(self, name: str) -> set[int]:
        """Steps of a metric that a session which was killed had logged."""
        if self.taken is None:
            return set()
        if name not in self.taken:
            self.taken[name] = {metric.step for metric in self.client.get_metric_history(self.id, name)}
        return self.taken[name]

    def close(self, run: Result, state: str) -> None:
        if state == "finished":
            for name, value in tags_of(run).items():
                self.client.set_tag(self.id, mlflow_name(name), value)
            for file in FILES:
                if (run.folder / file).is_file():
                    self.client.log_artifact(self.id, str(run.folder / file))
        self.client.set_terminated(self.id, {"finished": "FINISHED", "failed": "FAILED"}.get(state, "KILLED"))


def mlflow_name(name: str) -> str:
    """A name as MLflow allows it, without `@` and its like."""
    return re.sub(r"[^\w\-. :/]", "", name)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
