"""The Optuna study of a sweep: opened, waited for, requeued, owned; its objectives, its pruning rule and its samplers.

The study lies in Optuna's journal, a file that neither a full disk nor a killed sweep leaves damaged or locked.
"""

import itertools
import json
import math
import socket
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from kinoray.errors import RunFailed, UsageError, unknown
from kinoray.evaluation.protocol import load_protocol, recorded_protocol
from kinoray.system.durable import append_whole, cut_torn_line, storage_error
from kinoray.system.text import one_line


def quiet_optuna() -> None:
    """Optuna says what it does on stderr; a sweep says it itself."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


T = TypeVar("T")

STORAGE_WAIT_S = 60.0
"""How long the study's storage may be locked or gone."""


def patiently(work: Callable[[], T]) -> T:
    """Ask the storage until it answers: a locked SQLite file, a data base that restarts. Raises: RunFailed."""
    end = time.monotonic() + STORAGE_WAIT_S
    pause = 0.05
    while True:
        try:
            return work()
        except optuna.exceptions.StorageInternalError as error:
            if time.monotonic() > end:
                message = one_line(error.__cause__ or error)[:200]
                raise RunFailed(f"The study's storage did not answer for {STORAGE_WAIT_S:.0f} s: {message}") from None
            time.sleep(pause)
            pause = min(1.0, 2 * pause)


def requeue(study: optuna.Study, storage: BaseStorage, but: Collection[int] = ()) -> list[int]:
    """Put what was RUNNING back in the queue, with its number, parameters and values so far. Nobody else may run it.

    but: numbers of trials that do run.
    """
    trials = patiently(lambda: study.get_trials(deepcopy=False))
    left = [t for t in trials if t.state is TrialState.RUNNING and t.number not in but]
    for trial in left:
        patiently(lambda t=trial: storage.set_trial_state_values(trial_id_of(study, storage, t), TrialState.WAITING))  # type: ignore[misc]
    return [trial.number for trial in left]


def trial_id_of(study: optuna.Study, storage: BaseStorage, trial: FrozenTrial) -> int:
    """The storage's own number of a trial."""
    return storage.get_trial_id_from_study_id_trial_number(
        storage.get_study_id_from_name(study.study_name), trial.number
    )


SQLITE_WAIT_S = 20.0
"""How long SQLite itself waits for a file that another process has locked."""


def open_study(folder: Path, record: Mapping[str, Any], create: bool = False) -> tuple[optuna.Study, Any]:
    """The sweep's study and its storage. Raises: UsageError where the storage cannot be reached, or is damaged.

    create: the caller owns the sweep's folder, and goes on with the study.
    """
    quiet_optuna()
    better, name = known_objectives(record), record.get("study", record["name"])
    try:
        if create:
            mend_journal(folder)
        storage = open_storage(folder, record.get("storage"))
        if create:
            directions: list[Any] = ["maximize" if better[o] == "max" else "minimize" for o in record["objectives"]]
            study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
            if study.metric_names is None:  # as viewers call the objectives
                with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
                    study.set_metric_names(list(record["objectives"]))
        else:
            study = optuna.load_study(study_name=name, storage=storage)
    except (
        optuna.exceptions.StorageInternalError,
        SQLAlchemyError,
        KeyError,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        where = f"of {folder}" if record.get("storage") else str(folder / JOURNAL)
        raise UsageError(f"The study {where} cannot be read: {one_line(error)[:200]}.") from None
    return study, storage


def open_storage(folder: Path, url: str | None) -> Any:
    """The journal in the sweep's folder, or a data base by its URL."""
    if not url:
        return optuna.storages.JournalStorage(StudyJournal(folder))
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": SQLITE_WAIT_S}}
    return optuna.storages.RDBStorage(url, engine_kwargs=options)


def retried(trials: list[FrozenTrial]) -> set[int]:
    """Numbers of failed trials that a retry replaced."""
    return {t.user_attrs["retry_of"] for t in trials if "retry_of" in t.user_attrs}


def ended(trials: list[FrozenTrial]) -> int:
    """How many trials are done, whatever became of them; one that is tried again is not."""
    again = retried(trials)
    return sum(t.state.is_finished() and t.number not in again for t in trials)


# Who runs a study in a data base: one sweep folder at a time, told by a beat that its process counts on.
#
# A lock on the sweep's folder cannot see a second copy of it, on another machine say, whose study is the same; two of
# them would take each other's running trials. Clocks of two machines need not agree, so a beat is a number that
# grows, and whoever finds another's waits for three of its beats. Of two that take a study at once the later has it.

BEAT_S = 5.0
PATIENCE_BEATS = 3
SETTLED_BEATS = 0.2
"""Longer than a write takes that was under way."""
OWNER, BEAT = "owner", "owner_beat"
"""Attributes of the study."""


class Ownership:
    """What a sweep holds of its study. A process that was suspended for some beats may have lost it to another one."""

    def __init__(self, study: optuna.Study, here: str) -> None:
        self.study, self.here = study, here
        self.noticed = threading.Event()
        """Set once the study was seen to be another's."""

    def lost(self) -> bool:
        """Whether another sweep runs the study by now; asked before anything is written to it."""
        if not self.noticed.is_set() and patiently(lambda: self.study.user_attrs.get(OWNER, "")) not in ("", self.here):
            self.noticed.set()
        return self.noticed.is_set()

    def check(self, name: str) -> None:
        """Raises: RunFailed where the study was lost; name: of the sweep."""
        if self.lost():
            raise RunFailed(
                f"{name}: this process hung for {PATIENCE_BEATS * BEAT_S:.0f} s, and "
                f"{self.study.user_attrs.get(OWNER)} has taken over the study. The trials here have committed and "
                "stopped. Run the study from one process only."
            )


@contextmanager
def owned(study: optuna.Study, folder: Path, say: Callable[[str], None]) -> Iterator[Ownership]:
    """Own the study for the length of the block, or until another sweep finds that nobody counts on.

    Raises: UsageError where another folder's sweep owns it.
    """
    here = f"{socket.gethostname()}:{folder.absolute()}"
    _wait_for_its_owner(study, here, say)
    patiently(lambda: study.set_user_attr(OWNER, here))
    _beat(study)  # whoever waits for another one's beats sees it
    time.sleep(SETTLED_BEATS * BEAT_S)
    ownership = Ownership(study, here)
    if ownership.lost():
        raise _busy(study, study.user_attrs[OWNER])
    over = threading.Event()
    beating = threading.Thread(target=_beat_until, args=(ownership, over), daemon=True)
    beating.start()
    try:
        yield ownership
    finally:
        over.set()
        beating.join()
        if not ownership.lost():
            patiently(lambda: study.set_user_attr(OWNER, ""))


def _wait_for_its_owner(study: optuna.Study, here: str, say: Callable[[str], None]) -> None:
    """Return once no other folder's sweep is at the study."""
    owner = patiently(lambda: study.user_attrs.get(OWNER, ""))
    if owner in ("", here):  # of the same folder its lock is ours
        return
    say(f"The study was last run by {owner}. Checking whether it still runs there ...")
    before = patiently(lambda: study.user_attrs.get(BEAT, 0))
    time.sleep(PATIENCE_BEATS * BEAT_S)
    attributes = patiently(lambda: study.user_attrs)
    if attributes.get(BEAT, 0) != before and attributes.get(OWNER, ""):
        raise _busy(study, attributes[OWNER])


def _busy(study: optuna.Study, owner: str) -> UsageError:
    return UsageError(f"{study.study_name} in this database is being run by {owner}. Wait, or give another --name.")


def _beat(study: optuna.Study) -> None:
    patiently(lambda: study.set_user_attr(BEAT, study.user_attrs.get(BEAT, 0) + 1))


def _beat_until(ownership: Ownership, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        with suppress(RunFailed):  # the data base is away; the sweep itself says so when it needs it
            if ownership.lost():
                return
            _beat(ownership.study)


# What a sweep optimises

OF_RUNS = {"step_s": "min", "parameters": "min"}
"""What a sweep can optimise whatever the protocol, and which way is better.

step_s: seconds per optimizer step, data and evaluation left out. parameters: trained ones of the last task.
"""


def known_objectives(record: Mapping[str, Any]) -> dict[str, str]:
    """What a sweep can optimise -> which way is better, "max" or "min": metrics of the validation splits, and costs.

    record: a sweep's (`sweep.json`), with its `protocol` and, where a method comes then, `then`, its name and protocol.
    """
    return recorded_protocol(record).objectives | OF_RUNS | _downstream_objectives(record.get("then"))


def _downstream_objectives(then: Sequence[str] | None) -> dict[str, str]:
    """Metrics of the method that comes then, on the validation splits of the downstream sets: "classify/accuracy"."""
    if not then:
        return {}
    method, protocol = then
    return {of_then(method, name): better for name, better in load_protocol(protocol).objectives.items()}


def of_then(method: str, metric: str) -> str:
    """How a sweep calls a metric of the method that comes then."""
    return f"{method}/{metric}"


def objectives_of(names: str | Sequence[str] | None, record: Mapping[str, Any]) -> list[str]:
    """What a sweep optimises: these, or the own metric of the method that comes then, or the protocol's.

    record: as of `known_objectives`. Raises: UsageError for a metric that is not there.
    """
    if not names:
        then = record.get("then")
        return [of_then(then[0], load_protocol(then[1]).objective) if then else recorded_protocol(record).objective]
    names = [names] if isinstance(names, str) else list(names)
    known = known_objectives(record)
    for name in names:
        if name not in known:
            raise unknown("objective", name, known)
    if len(set(names)) < len(names):
        raise UsageError(f"The objectives must differ, but are {', '.join(names)}.")
    return names


def falls_behind(value: float, others: Sequence[float], direction: str, keep: float, startup: int) -> bool:
    """Whether a trial is pruned: it is not among the best `keep` of all trials that got to the same task.

    others: what those trials had right after the same task. The first `startup` of them are never pruned.
    """
    if len(others) < startup:
        return False
    better = sum(o > value if direction == "max" else o < value for o in others)
    return better >= max(1, math.ceil(keep * (len(others) + 1)))


JOURNAL = "study.journal"
OLD_LOCK_S = 5.0
"""A lock is held for one write; an older one was left by a process that died."""


class StudyJournal(JournalFileBackend):
    """The journal in a sweep's folder. An append is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.lock = JournalFileSymlinkLock(str(self.path))
        super().__init__(str(self.path), self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, durably. Raises: StorageFull; the file is then as it was."""
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self.lock.acquire()
        try:
            with open(self.path, "ab", buffering=0) as file:
                append_whole(file, data, durable=True)
        except OSError as error:
            raise storage_error(error, self.path.parent) from None
        finally:
            self.lock.release()


def mend_journal(folder: Path) -> None:
    """Drop what a sweep that was killed may have left: half a line, and Optuna's lock. The caller owns the folder."""
    cut_torn_line(folder / JOURNAL)
    lock = folder / f"{JOURNAL}.lock"
    with suppress(FileNotFoundError):
        if abs(time.time() - lock.lstat().st_mtime) > OLD_LOCK_S:
            lock.unlink()


GRID_POINTS = 5
"""Values of a continuous knob in a grid: evenly spaced, both ends included (evenly in the logarithm where `log`)."""


MOST_GRID = 10_000


STARTUP = 10
"""TPE draws so many trials at random before it models."""


class PointSampler(BaseSampler):
    """Trial n gets point n of a sequence: independent random numbers, or Sobol's."""

    def __init__(self, kind: str, seed: int, space: Mapping[str, BaseDistribution]) -> None:
        self.kind, self.seed, self.space = kind, seed, dict(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        point = unit_point(self.kind, self.seed, trial.number, len(search_space))
        return {name: value_at(knob, u) for (name, knob), u in zip(search_space.items(), point, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        seed = [self.seed, trial.number, zlib.crc32(param_name.encode())]
        return value_at(param_distribution, np.random.default_rng(seed).random())


def make_sampler(kind: str, seed: int, number: int, space: Mapping[str, BaseDistribution]) -> BaseSampler:
    """What draws trial `number`. A grid is enqueued beforehand, so it never asks."""
    if kind == "tpe":
        drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return TPESampler(seed=drawn, n_startup_trials=STARTUP, multivariate=True)
    return PointSampler("qmc" if kind == "qmc" else "random", seed, space)


def unit_point(kind: str, seed: int, number: int, dimensions: int) -> np.ndarray:
    """Point `number` of a sequence in the unit cube."""
    if kind == "random":
        return np.random.default_rng([seed, number]).random(dimensions)
    from scipy.stats import qmc

    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return sequence.fast_forward(number).random(1)[0] if number else sequence.random(1)[0]


def value_at(knob: BaseDistribution, u: float) -> Any:
    """The value at share `u` (0 <= u < 1) of a knob's range."""
    if isinstance(knob, CategoricalDistribution):
        return knob.choices[min(int(u * len(knob.choices)), len(knob.choices) - 1)]
    assert isinstance(knob, FloatDistribution | IntDistribution)
    if isinstance(knob, FloatDistribution) and knob.step is None:
        if knob.log:
            return math.exp(math.log(knob.low) + u * (math.log(knob.high) - math.log(knob.low)))
        return knob.low + u * (knob.high - knob.low)
    if knob.log:
        low, high = math.log(knob.low - 0.5), math.log(knob.high + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), int(knob.low)), int(knob.high))
    values = _stepped(knob)
    return values[min(int(u * len(values)), len(values) - 1)]


def _stepped(knob: FloatDistribution | IntDistribution) -> list[Any]:
    """All values of a knob with a step."""
    assert knob.step is not None
    count = math.floor((knob.high - knob.low) / knob.step + 1e-9) + 1
    values = [knob.low + i * knob.step for i in range(count)]
    return [round(value, 12) for value in values] if isinstance(knob, FloatDistribution) else values


def grid(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """Every combination, the last knob fastest. Raises: UsageError for more than `MOST_GRID`."""
    axes = {name: axis_of(knob) for name, knob in space.items()}
    size = math.prod(len(axis) for axis in axes.values())
    if size > MOST_GRID:
        raise UsageError(f"The grid has {size:,} points; the limit is {MOST_GRID:,}. Give larger steps or fewer knobs.")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def axis_of(knob: BaseDistribution) -> list[Any]:
    if isinstance(knob, CategoricalDistribution):
        return list(knob.choices)
    assert isinstance(knob, FloatDistribution | IntDistribution)
    if knob.log or knob.step is None:
        spaced = (np.geomspace if knob.log else np.linspace)(knob.low, knob.high, GRID_POINTS)
        whole = isinstance(knob, IntDistribution)
        return sorted({round(v) if whole else min(max(round(float(v), 12), knob.low), knob.high) for v in spaced})
    return _stepped(knob)
