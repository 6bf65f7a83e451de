"""The process beside the training that logs: it reads what runs write into their folders and sends it to one logger.

Training knows nothing of it. A run that is rewound after a crash makes steps again, with the same numbers: what was
logged is noted after every write (`NAME/logged.json` in the run's folder), and nothing is sent twice.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinoray.disk.durable import write_json
from kinoray.disk.locks import hold
from kinoray.display.text import one_line
from kinoray.errors import Busy
from kinoray.runs.result import Result
from kinoray.tracking.exported import name_of, scores_of, settings_of, step_metrics, tags_of
from kinoray.tracking.logger import BaseLogger, Row, Subject, load_logger
from kinoray.tracking.tail import Tail

LOOK_S = 1.0
"""How often it looks into the folders."""
LOGGED = "logged.json"
NICE = 10
"""It gives way to the training."""
AT_END = 1 << 62
"""Where the scores of a task stand among its steps."""

Key = tuple[int, int, int]
"""A row's place: stage, step, and 0 for training, 1 for validation."""


@dataclass
class Followed:
    """One run on its way to one logger."""

    logger_name: str
    folder: Path
    sweep: str = ""
    trial: int | None = None
    pending: dict[Key, tuple[dict[str, float], float]] = field(default_factory=dict)
    """What is not logged yet: values and when they were read."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Steps of each stage so far."""
    tested: set[int] = field(default_factory=set)
    """Stages whose scores are known."""
    seen: list[int] = field(default_factory=list)
    """Times of the files that were read last."""
    known: dict[str, Any] = field(default_factory=dict)
    """What is logged: under which id, up to which place, and the run's state."""
    logger: BaseLogger | None = None

    def __post_init__(self) -> None:
        self.tail = Tail(self.folder / "metrics.jsonl")
        self.home = self.folder / self.logger_name
        self.locks = ExitStack()

    def advance(self, over: bool) -> None:
        """Log what is new. over: nothing more will come. Raises: Busy while another process logs the run there."""
        files = [self.folder / "result.json", self.folder / "metrics.jsonl"]
        seen = [file.stat().st_mtime_ns if file.is_file() else 0 for file in files]
        if not (self.folder / "run.json").is_file() or (seen == self.seen and not over):
            return
        if self.logger is None:
            self.locks.close()
            self.locks.enter_context(hold(self.home, f"{self.home} is being written by another process"))
            self.known = self._known()
        run = Result(self.folder)
        state = run.state if seen[0] else "running"
        self._read_scores(run, state)  # before the steps: what is scored has all its steps on the disk
        for record in self.tail.read():
            self._read_step(record)
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
        now = time.time()
        for name, value, tasks in scores_of(run):
            stage = min(tasks, stages) - 1
            if tasks < count or state == "finished":
                self.pending.setdefault((stage, AT_END, 0), ({}, now))[0][name] = float(value)
                self.tested.add(stage)

    def _read_step(self, record: dict[str, Any]) -> None:
        stage, step = record["task"], record["step"]
        self.lengths[stage] = max(self.lengths.get(stage, 0), step + 1)
        self.pending[stage, step, int("loss" not in record)] = (step_metrics(record), time.time())

    def _log(self, run: Result, ready: list[Key]) -> None:
        if self.logger is None:
            logger, last = load_logger(self.logger_name), tuple(self.known["place"])
            id = logger.open(self._subject(run), self.known["id"], self._steps_until(last) + 1)
            self.logger, self.known = logger, self.known | {"id": id}
        values = [(self._steps_until(key), *self.pending[key]) for key in ready]
        self.logger.log([Row(step=step, values=row, time_s=time_s) for step, row, time_s in values if row])
        self._note(place=ready[-1] if ready else self.known["place"], state="running")
        for key in ready:
            del self.pending[key]

    def _steps_until(self, key: Key) -> int:
        """Optimizer steps made when a row stands at its place."""
        stage, step, _ = key
        own = self.lengths.get(stage, 0) if step == AT_END else step + 1
        return sum(length for earlier, length in self.lengths.items() if earlier < stage) + own

    def _subject(self, run: Result) -> Subject:
        return Subject(
            folder=self.folder,
            name=name_of(run),
            stream=run.stream,
            settings=settings_of(run),
            tags=tags_of(run),
            sweep=self.sweep or run.sweep,
            trial=self.trial,
        )

    def _known(self) -> dict[str, Any]:
        file = self.home / LOGGED
        return json.loads(file.read_text()) if file.is_file() else {"id": None, "place": [-1, -1, 0], "state": ""}

    def _note(self, **news: Any) -> None:
        self.known = self.known | news
        write_json(self.home / LOGGED, self.known)

    def close(self, state: str) -> None:
        """Leave the place where it is written to, and note in which state the run was."""
        if self.logger is not None:
            self.logger.close(self._subject(Result(self.folder)), state)
            self._note(state=state)
            self.logger = None
        self.locks.close()
        self.tail.close()


def follow(logger_name: str, runs: list[str], sweep: str, ended: threading.Event) -> None:
    """Log runs, and those of a sweep's trials as they come, until `ended` is set and all is written.

    Raises: what the logger raises.
    """
    followed = {Path(run): Followed(logger_name, Path(run)) for run in runs}
    while True:
        over = ended.wait(LOOK_S)
        for folder, trial in _runs_of(Path(sweep)) if sweep else ():
            followed.setdefault(folder, Followed(logger_name, folder, Path(sweep).name, trial))
        for run in followed.values():
            with contextlib.suppress(Busy) if not over else contextlib.nullcontext():
                run.advance(over)
        if over:
            return


def _runs_of(sweep: Path) -> Iterator[tuple[Path, int]]:
    """The runs of a sweep's trials, with the trials' numbers."""
    for link in sorted((sweep / "trials").glob("[0-9]*/seed-*")):
        yield link.resolve(), int(link.parent.name)


def main() -> None:
    """Follow until the standard input, which nobody writes to, is closed by the process that started this one."""
    asked, ended = json.loads(sys.argv[1]), threading.Event()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print belongs into the log
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a batch system's: the training commits first, then this ends
    os.nice(NICE)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        follow(asked["logger"], asked["runs"], asked["sweep"], ended)
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {one_line(error)[:300]}", file=answers, flush=True)
        os._exit(0)  # what a library still does in threads is not waited for


if __name__ == "__main__":
    main()
