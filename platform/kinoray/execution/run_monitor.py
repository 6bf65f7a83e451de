"""The run monitor: what ranks tell of a run, written to its folder and shown, and the request to stop that they get.

An actor, created by the driver and named by the run; it holds a cache, never truth, and rebuilds itself from the run
folder. Every write carries its place in the run and counts once, so a retried call changes nothing. It is a plain
class: with `num_workers=0` the driver uses it directly.

It exports a run's numbers as Ray metrics, for the dashboard, Prometheus and Grafana: an allowed list, so that nothing a
method logs, and no clip or trial, becomes a series of its own. `cluster/README.md` has the same list as a table.
"""

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kinoray.system.actors import call
from kinoray.system.durable import cut_torn_line, read_json, read_jsonl, replace_lines, write_json
from kinoray.system.folders import seed_label
from kinoray.system.progress import GOES_ON

FAILURE = "failure.json"
"""In a run's folder: the error that ended its present start."""
ATTEMPTS = "attempts.json"
"""In a run's folder, while it is on: how often its ranks began."""
NOTES = "notes.json"
"""In a run's folder, while it is on: what its user should read."""
WATCHED = "watched.jsonl"
"""In a run's folder: the forgetting curve inside the tasks."""
FLUSH_S = 0.5
"""How often a rank sends its numbers."""
MOST_EXCUSED = 10
"""Times that the ranks may end, one after the other, as a machine goes: they may be what takes it along."""


@dataclass(frozen=True)
class Attempts:
    """How often the ranks began since they last got on."""

    count: int = 0
    excused: int = 0
    """Beginnings that do not count, as a machine had gone."""
    furthest: tuple[int, int] = (-1, -1)
    """Stage and step up to which they got."""
    machines: tuple[str, ...] = ()
    """Ids of those that were there at the last beginning."""

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """As `asdict` gave them, by way of JSON."""
        return cls(saved["count"], saved["excused"], tuple(saved["furthest"]), tuple(saved["machines"]))


def forget_start(folder: str | Path, failure: bool = True) -> None:
    """Remove what the monitors of one start of a run leave for each other.

    failure: also the error that ended it, which stays until the next one begins.
    """
    for name in (ATTEMPTS, NOTES, *([FAILURE] if failure else [])):
        (Path(folder) / name).unlink(missing_ok=True)


class RunMonitor:
    """Writes per-step numbers and bad samples to the run folder, answers progress bars, passes on a request to stop."""

    def __init__(
        self, folder: str, gauges: bool = False, on_record: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.on_record = on_record
        self.start = time.monotonic()
        self.stopping = False
        # What a monitor before this one left, that died:
        self.last: dict[str, Any] = {"notes": self._left(NOTES) or [], "begun": False, "doing": ""}
        self.failure: dict[str, Any] | None = self._left(FAILURE)
        attempts = self._left(ATTEMPTS)
        self.attempts = Attempts.of(attempts) if attempts else Attempts()
        for name in ("metrics.jsonl", WATCHED):  # an earlier monitor may have been killed inside a write
            cut_torn_line(self.folder / name)
        self.newest = _place(read_jsonl(self.folder / "metrics.jsonl", "task", "step")[-1:])
        self.bad = {(r["task"], r["id"]): r for r in read_jsonl(self.folder / "bad_samples.jsonl", "task", "id")}
        self.gauges = Gauges("run", seed_label(self.folder)) if gauges else None

    def begin_attempt(self, machines: Collection[str] = ()) -> int:
        """Note that the ranks begin; returns how often they began since they last got on.

        A call that Ray repeats, as the monitor died in its midst, may count twice.

        machines: ids of all that are there. Where one has gone since they began before, they are taken to have ended
        with it, which is no failure of theirs and does not count (`MOST_EXCUSED`).
        """
        before = self.attempts
        excused = not set(before.machines) <= set(machines) and before.excused < MOST_EXCUSED
        count = before.count + (not excused)
        self._count(Attempts(count, before.excused + excused, before.furthest, tuple(machines)))
        self.last = self.last | {"begun": True}
        return count

    def _left(self, name: str) -> Any:
        """What `_leave` wrote, None where there is nothing."""
        path = self.folder / name
        return read_json(path, "Remove it and give the run's command again.") if path.is_file() else None

    def _leave(self, name: str, value: Any) -> None:
        """Write down what a monitor after this one has to know."""
        with suppress(OSError):  # a full disk ends the run by what it cannot do without
            write_json(self.folder / name, value)

    def _count(self, attempts: Attempts) -> None:
        """On disk, too: a monitor after this one would let the ranks die as often again."""
        self.attempts = attempts
        self._leave(ATTEMPTS, asdict(attempts))

    def rewind(self, stage: int, step: int, bad: list[dict[str, str]] | None = None) -> None:
        """Drop what was logged after a checkpoint, from which the ranks go on: those steps will be made again.

        Args:
            stage: Of the checkpoint.
            step: Of the checkpoint.
            bad: The unreadable clips that the checkpoint knows of; None: it is of before they were kept there.
        """
        self.last = self.last | {"begun": True}
        if bad is not None:
            self.bad = {}
            self.report_bad(bad)
        if self.attempts.count and (stage, step) > self.attempts.furthest:  # without Ray nobody counts
            self._count(Attempts(1, 0, (stage, step), self.attempts.machines))
        path = self.folder / "metrics.jsonl"
        earlier = [r for r in read_jsonl(path, "task", "step") if (r["task"], r["step"]) < (stage, step)]
        replace_lines(path, earlier)
        self.newest = _place(earlier[-1:])
        if (watched := self.folder / WATCHED).exists():
            replace_lines(
                watched, [r for r in read_jsonl(watched, "task", "step") if (r["task"], r["step"]) <= (stage, step)]
            )

    def log_watched(self, record: dict[str, Any]) -> None:
        """Append what the newest weights score on the earlier tasks (`execution.workers.Watcher`)."""
        with (self.folder / WATCHED).open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.last = self.last | {"watched": record["scores"]}

    def log(self, records: list[dict[str, Any]], vitals: Mapping[str, Any] | None = None) -> bool:
        """Append records that are not there yet; True when the run should stop.

        vitals: what else the metrics show of the rank; it is not written down.
        """
        records = [r for r in records if _place([r]) > self.newest]
        self.newest = _place(records[-1:]) if records else self.newest
        now = round(time.monotonic() - self.start, 3)
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(r | {"time_s": now}) + "\n" for r in records)
        for record in records:
            self.last = self.last | record | {"doing": ""}
        if self.gauges:
            here = {"decode_errors": len(self.bad), "free_disk_bytes": shutil.disk_usage(self.folder).free}
            logged = {name: value for record in records for name, value in record.items()}
            self.gauges.set(logged | dict(vitals or {}) | here)
        if self.on_record and any("loss" in record for record in records):
            self.on_record(self.last)
        return self.stop_requested()

    def show_scores(self, scores: Mapping[str, Any]) -> None:
        """Pass on what the run scores so far to the metrics; the result itself is in the run folder."""
        if self.gauges:
            self.gauges.set(scores)

    def report_bad(self, records: list[dict[str, str]]) -> int:
        """Note unreadable clips, each once; returns how many the run has met."""
        self.bad |= {(r["task"], r["id"]): r for r in records}
        replace_lines(self.folder / "bad_samples.jsonl", self.bad_records())
        return len(self.bad)

    def show(self, doing: str) -> None:
        """What the run does where it makes no steps, `what` or `what: detail`; where it goes on stays to be read."""
        self.last = self.last | {"goes_on" if doing.startswith(GOES_ON) else "doing": doing}
        if self.on_record:
            self.on_record(self.last)

    def note(self, text: str) -> None:
        """Something the user should read; on disk, too, for this monitor may die before it is shown."""
        self.last = self.last | {"notes": [*self.last["notes"], text]}
        self._leave(NOTES, self.last["notes"])
        if self.on_record:
            self.on_record(self.last)

    def note_failure(self, answer: dict[str, Any]) -> None:
        """Record the first error of a rank's own; those of its peers only follow from it.

        On disk, too: a monitor that dies now would forget that the error is not to be tried again.
        """
        self.failure = self.failure or answer
        self._leave(FAILURE, self.failure)

    def failed(self) -> dict[str, Any] | None:
        """The error that `note_failure` recorded."""
        return self.failure

    def bad_records(self) -> list[dict[str, str]]:
        """The unreadable clips met so far."""
        return [self.bad[key] for key in sorted(self.bad)]

    def num_bad(self) -> int:
        """Unreadable clips met so far."""
        return len(self.bad)

    def stop_requested(self) -> bool:
        """Whether the run is to commit and stop: asked for once a step."""
        return self.stopping

    def request_stop(self) -> None:
        """Ask the ranks to commit and stop after their current step."""
        self.stopping = True

    def latest(self) -> dict[str, Any]:
        """The newest value of everything logged."""
        return self.last


class MonitorClient:
    """A rank's side of the monitor: buffers numbers and never waits for them, except before a commit."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.buffer: list[dict[str, Any]] = []
        self.sent: list[Any] = []
        self.sent_at = time.monotonic()
        self.stopping = False
        self.vitals: Callable[[], Mapping[str, Any]] = dict
        """Asked for with everything that is sent to a monitor that exports it."""

    def log(self, record: dict[str, Any]) -> None:
        """Queue one record; sends at most twice a second."""
        self.buffer.append(record)
        if time.monotonic() - self.sent_at > FLUSH_S:
            self._send()

    def show(self, doing: str) -> None:
        """Say what the run does; nobody waits for that."""
        if isinstance(self.target, RunMonitor):
            self.target.show(doing)
        else:
            self.target.show.remote(doing)

    def poll(self) -> bool:
        """Whether a stop of the run was requested."""
        if isinstance(self.target, RunMonitor):
            return self.target.stop_requested()
        if self.sent:
            import ray

            ready, self.sent = ray.wait(self.sent, num_returns=len(self.sent), timeout=0)
            self.stopping = any(ray.get(ready)) or self.stopping
        return self.stopping

    def flush(self) -> None:
        """Send everything and wait until it is written."""
        self._send()
        if self.sent:
            import ray

            self.stopping = any(ray.get(self.sent)) or self.stopping
            self.sent = []

    def call(self, verb: str, *args: Any) -> Any:
        """Call the monitor and wait for the answer."""
        return call(self.target, verb, *args)

    def _send(self) -> None:
        self.sent_at = time.monotonic()
        if isinstance(self.target, RunMonitor):
            self.target.log(self.buffer, self.vitals() if self.target.gauges else None)
        else:
            self.sent.append(self.target.log.remote(self.buffer, self.vitals()))
        self.buffer = []


def _place(records: list[dict[str, Any]]) -> tuple[int, int, bool]:
    """Where in the run the last of some records stands: stage, step, and validation after training."""
    return max(((r["task"], r["step"], "loss" not in r) for r in records[-1:]), default=(-1, -1, False))


PREFIX = "kinoray_"


@dataclass(frozen=True)
class Metric:
    """One metric. Ray exports it as `ray_kinoray_NAME`."""

    about: str
    owner: str = "run"
    """The label that says whose it is: run or sweep."""
    label: str = ""
    """A second label, of few values."""


METRICS = {
    "task": Metric("task that is learned, counted from 0"),
    "step": Metric("optimizer steps made in the task"),
    "loss": Metric("loss of the newest step"),
    "learning_rate": Metric("the stream's rate at that step"),
    "validation": Metric("main score on the task's validation split, percent"),
    "step_seconds": Metric("mean time of a step since the last look"),
    "data_wait_seconds": Metric("the part of it that waits for clips"),
    "clips_per_second": Metric("training clips per second since the last look"),
    "clips_cached": Metric("clips of rank 0 from the frame cache, in this attempt"),
    "clips_decoded": Metric("clips of rank 0 that were decoded, in this attempt"),
    "decode_errors": Metric("unreadable clips that the run has met"),
    "drift": Metric("distance of the encoder from a momentum encoder / norm of the encoder", label="momentum"),
    "gradient_norm": Metric("length of the gradient of all weights, of a recent step"),
    "queue_age": Metric("steps after which all keys of a queue are new ones", label="queue"),
    "router_entropy": Metric("entropy of a row's gates among the experts, nats, mean of a recent step"),
    "expert_load": Metric("share of the gates that the busiest expert of a mixture has, mean of a recent step"),
    "score": Metric("main test score after the newest task, percent", label="task"),
    "watched": Metric(
        "main score on an earlier task's validation split as a later one is learned, percent", label="task"
    ),
    "forgetting": Metric("FR after the newest task, points"),
    "harmonic_mean": Metric("HM after the newest task, percent"),
    "store_bytes": Metric("size of the committed feature files"),
    "search_seconds": Metric("time of the newest question to the feature store's actor"),
    "free_disk_bytes": Metric("free space where the run lies"),
    "trials": Metric("trials by state", owner="sweep", label="state"),
    "best_trial": Metric("best value of the objective so far", owner="sweep"),
}
"""All that is exported, by name."""


class Gauges:
    """The metrics of one run or sweep. Where no Ray runs they go nowhere."""

    def __init__(self, owner: str, name: str) -> None:
        """owner: run or sweep, whose `name` is the label's value."""
        self.owner, self.name = owner, name
        self.known: dict[str, Any] = {}

    def set(self, values: Mapping[str, Any]) -> None:
        """Set those of the values that are metrics of this owner: a number each, or label -> number; None is left out.

        Other names are passed over: a method may log what it likes.
        """
        for name, metric in METRICS.items():
            if metric.owner != self.owner or values.get(name) is None:
                continue
            numbers = values[name] if metric.label else {"": values[name]}
            for label, number in numbers.items():
                if number is not None:
                    tags = {metric.owner: self.name} | ({metric.label: str(label)} if metric.label else {})
                    self._gauge(name, metric).set(float(number), tags=tags)

    def _gauge(self, name: str, metric: Metric) -> Any:
        from ray.util.metrics import Gauge

        if name not in self.known:
            labels = (metric.owner, metric.label) if metric.label else (metric.owner,)
            self.known[name] = Gauge(PREFIX + name, description=metric.about, tag_keys=labels)
        return self.known[name]
