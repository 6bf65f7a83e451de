"""A run whose tasks the caller's own code walks through, in this process.

    with kinoray.loop("bmu_moco", stream="moving-cvlm", seed=0) as run:
        for task in run:
            task.train()
            print(task.name, task.test())

It is the run that `kinoray.run` makes of the same arguments: same folder, same commits, same bits. Either goes on with
what the other left.
"""

import copy
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kinoray.errors import UsageError
from kinoray.evaluation.tester import Tester
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run import progress_of, update_bar
from kinoray.execution.run_monitor import RunMonitor, forget_start
from kinoray.execution.run_rank import begin, compute_repeatably, end, resources_named, settings_kept
from kinoray.execution.trackers import logged, require_trackers
from kinoray.metrics import Cells
from kinoray.runs.copying import copying
from kinoray.runs.request import RunRequest, request_of, shows_options
from kinoray.runs.resolve import Resolved, each_run
from kinoray.runs.result import Result
from kinoray.runs.run_folder import failed, hold_run, is_finished, set_aside
from kinoray.runs.run_spec import alone, make_spec
from kinoray.system.signals import Stopped, caught_signals
from kinoray.system.text import printer
from kinoray.training.checkpoint import Phase, Position
from kinoray.training.loop import RunState, between_steps, grow, learn_stage, test_stage


@shows_options(RunRequest)
@contextmanager
def loop(method: Any, **options: Any) -> Iterator["OwnLoop"]:
    """Hold a run and walk through its tasks; one seed, in this process.

    Leaving early, an exception and Ctrl-C leave a run that the same call, or `run`, goes on with: iteration begins with
    the task that is not done. Of a finished run nothing is left to iterate over.

    Args:
        method: As of `run`.
        **options: Fields of `RunRequest`.

    Raises:
        UsageError: Before anything starts.
        Busy: Another process holds the run.
        RunFailed: In a task's verbs; so are BadData, StorageFull and Stopped, as by `run`.
    """
    request = request_of(RunRequest, method, options)
    if request.seeds or request.orders:
        raise UsageError("`loop` drives a single run: give `seed`, and leave out `seeds` and `orders`.")
    if request.num_workers or request.per_worker:
        raise UsageError("`loop` trains in this process: leave out `num_workers`, or use `kinoray.run`.")
    require_trackers(request.log)
    (run,) = each_run(request)
    with hold_run(run):
        if request.fresh:
            set_aside(run.folder)
        walk = OwnLoop(run, request.quiet)
        say = printer(False)
        with logged(request.log, [run.folder], say), copying(request.copy_to, lambda: [run.folder], say):
            try:
                yield walk
            finally:
                walk.leave()


class OwnLoop:
    """The tasks of a held run that are left, in their order."""

    def __init__(self, run: Resolved, quiet: bool) -> None:
        self.run, self.quiet = run, quiet
        self.session: RankSession | None = None
        self.state = RunState()
        self.has_failed = False
        say = printer(quiet)
        if is_finished(run, say):
            return
        self.spec = make_spec(run, num_workers=0, decode_slots=0, gpu=torch.cuda.is_available(), say=say)
        forget_start(self.spec.folder)
        self.monitor = RunMonitor(self.spec.folder, on_record=lambda last: update_bar(self.bar, run, last))
        self.left_s = time.monotonic()
        with self.at_work():
            begun = begin(self.spec, alone(self.spec), self.monitor, None)
        if begun is None:
            raise Stopped(run.label, None)
        self.session, self.state = begun

    def __repr__(self) -> str:
        return f"OwnLoop({self.run.label}: {len(self)} tasks left)"

    def __len__(self) -> int:
        """How many tasks are left."""
        return 0 if self.session is None else len(self.spec.stages) - self.state.position.stage

    def __iter__(self) -> Iterator["LoopTask"]:
        """The tasks that are left. Raises: UsageError where the caller goes on from one that is not tested."""
        while self.session is not None and len(self):
            task = LoopTask(self, self.session)
            yield task
            if not task.is_tested:
                raise UsageError(
                    f"{task.name} must be learned and tested before the next task: call train() and test()."
                )

    @property
    def result(self) -> Result:
        """What the run has come to, as `run` returns it."""
        return Result(self.run.folder)

    def leave(self) -> None:
        """Write how the run stands, where that is not written already."""
        if self.session is not None and not self.has_failed:
            with resources_named(self.spec):
                end(self.session, self.state, finished=not len(self))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within the block torch computes as in a run, Ctrl-C commits, and the run's clock goes. Raises: as `run`."""
        if self.session is not None:
            self.session.clock.leave_out(self.left_s)
        with caught_signals() as signals, progress_of([self.run], self.quiet) as self.bar, settings_kept():
            compute_repeatably(self.spec, alone(self.spec))
            try:
                with signals.passed_to(self.monitor.request_stop), resources_named(self.spec):
                    yield
            except Exception as error:
                self.has_failed = True
                raise failed(self.run, error) from error
            finally:
                self.left_s = time.monotonic()
            signals.check(self.run.label)


class LoopTask:
    """A task that is to be learned and tested."""

    def __init__(self, walk: OwnLoop, session: RankSession) -> None:
        self.walk, self.session, self.number = walk, session, walk.state.position.stage
        self.stage = walk.spec.stages[self.number]
        self.name: str = walk.spec.train_names[self.stage.grown]
        self.was_called = False

    def __repr__(self) -> str:
        done = "tested" if self.is_tested else "learned" if self.is_learned else "not learned yet"
        return f"LoopTask({self.name}: {done})"

    @property
    def is_learned(self) -> bool:
        """Whether its training is done and committed."""
        return self.is_tested or self.walk.state.position.phase == Phase.EVALUATE

    @property
    def is_tested(self) -> bool:
        """Whether it is learned, tested and committed."""
        return self.walk.state.position.stage > self.number

    def train(self) -> None:
        """Learn the task, or what a run that was left has not learned of it, and commit.

        Raises: UsageError where it was called before; else as `run`.
        """
        if self.was_called or self.is_tested:
            raise UsageError(f"{self.name} is learned already: call train() only once per task.")
        self.was_called = True
        walk, session = self.walk, self.session
        with walk.at_work():
            learn_stage(session.method, self.stage, session.recipe, session, walk.state)  # a stop raises behind it

    def test(self) -> dict[str, float]:
        """Test all tasks so far, and commit; the score of each in percent, by name.

        Before `train` it tests the model as it is, and nothing is committed. Raises: as `run`.
        """
        if self.stage.train is None and not self.was_called:
            self.train()
        walk = self.walk
        if self.stage.train is not None and not self.is_learned:
            return self._scores(self._untrained())
        if not self.is_tested:
            with walk.at_work():
                test_stage(self.session.method, self.stage, self.session, walk.state)
        return self._scores(walk.state.ranks)

    def _untrained(self) -> Cells:
        """Ranks of the tasks so far by a copy of the model that has grown for this one, in a folder that goes."""
        walk, session = self.walk, self.session
        with walk.at_work(), tempfile.TemporaryDirectory(prefix="kinoray-untrained-") as folder:
            if (kept := session.tester.store).is_dir():
                shutil.copytree(kept, Path(folder) / kept.name)
            method = copy.deepcopy(session.method)
            if walk.state.position == Position(self.number):  # else it has grown, in what was left
                grow(method, self.stage, session)
            tester = Tester(replace(walk.spec.tested, folder=Path(folder)), method, session.reader)
            tester.restore(copy.deepcopy(session.tester.facts()))
            between_steps(method, session.seed(self.stage, "evaluate"), session.world.device)
            ranks = session.protocol.test(tester, self.stage, "test")[""]
        return {("", self.stage.row, task): of_task for task, of_task in ranks.items()}

    def _scores(self, ranks: Cells) -> dict[str, float]:
        protocol, names = self.session.protocol, self.walk.spec.names
        k = protocol.scores[protocol.score]
        return {names[task]: ranks["", self.stage.row, task].score(k) for task in self.stage.tests}
