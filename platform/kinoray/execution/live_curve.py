"""The forgetting curve inside a task: a process beside the training tests its newest weights on the earlier tasks.

Every so many steps the first rank sends the method's weights and goes on; the process takes the newest that came, ranks
the validation splits of the tasks before, and logs the scores. It never answers, so the run's result does not know it.
"""

import os
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kinoray.evaluation.protocol import load_protocol
from kinoray.evaluation.tester import Tester
from kinoray.execution.stage_facts import StageFacts, built
from kinoray.method import BaseMethod
from kinoray.processes.actors import call, start_actor
from kinoray.runs.run_spec import RunSpec, alone
from kinoray.training.checkpoint import Phase, Position
from kinoray.training.given_weights import GivenWeights
from kinoray.training.loop import grow

NICE = 19
"""The training goes first."""
PLACED_S = 30.0
"""How long a GPU that was free is waited for."""

Place = tuple[int, int]
"""Stage, and how many steps of it are made."""


def send_weights(watcher: Any, method: BaseMethod, given: GivenWeights, place: Place) -> None:
    """Send a method's weights to a `Watcher`, but for those that it was given and leaves alone; does not wait."""
    import ray

    alone = given.untouched()
    arrays = {name: value.detach().cpu().numpy() for name, value in method.state_dict().items() if name not in alone}
    watcher.take.remote(place, [ray.put(arrays)])


def start_watcher(spec: RunSpec, name: str, monitor: Any, gpus: float) -> Any:
    """A `Watcher` as an actor: on a GPU where the run's ranks, which take so many, leave one, else on a CPU.

    It decodes by processes of its own: Ray's tasks decode for the training.
    """
    import ray

    beside = replace(spec, decode_slots=0)
    if spec.device == "cuda" and ray.available_resources().get("GPU", 0.0) >= gpus + 1:
        watcher = start_actor(Watcher, name, beside, monitor, gpus=1.0)
        if ray.wait([watcher.ready.remote()], timeout=PLACED_S)[0]:
            return watcher
        ray.kill(watcher)  # somebody took it; weights that nobody takes must not pile up
        name += "-on-cpu"  # Ray holds a killed actor's name for a moment
    return start_actor(Watcher, name, replace(beside, device="cpu", autocast=False), monitor)


class Watcher:
    """An actor of no CPUs; the work is done by a thread of it, on the newest weights alone."""

    def __init__(self, spec: RunSpec, monitor: Any) -> None:
        self.spec, self.monitor = spec, monitor
        self.newest: tuple[Place, Any] | None = None
        self.came = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def ready(self) -> None:
        """Answered once the actor is there."""

    def take(self, place: Place, held: list[Any]) -> None:
        """Weights behind an object ref, {name: array}; older ones that nobody looked at yet are dropped."""
        with self.came:
            self.newest = place, held[0]
            self.came.notify()

    def _work(self) -> None:
        import ray

        os.nice(max(0, NICE - os.nice(0)))
        torch.set_num_threads(1)
        curve = Curve(self.spec, note=partial(call, self.monitor, "note"))
        while True:
            with self.came:
                self.came.wait_for(lambda: self.newest is not None)
                assert self.newest is not None
                (place, ref), self.newest = self.newest, None
            scores = curve.scores(place, ray.get(ref))
            call(self.monitor, "log_watched", {"task": place[0], "step": place[1], "scores": scores})
            named = {self.spec.tested.train_names[int(earlier)]: score for earlier, score in scores.items()}
            call(self.monitor, "show_scores", {"watched": named})


class Curve:
    """A method of its own that is given the weights of another and tested."""

    def __init__(self, spec: RunSpec, note: Any) -> None:
        self.spec, self.note = spec, note
        self.protocol = load_protocol(spec.protocol)
        self._build()

    def _build(self) -> None:
        spec, world = self.spec, alone(self.spec)
        self.method, feed = built(spec, world, note=self.note)
        self.facts, self.tester = StageFacts(spec, feed, world), Tester(spec.tested, self.method, feed)
        self.grown = 0

    def scores(self, place: Place, weights: dict[str, Any]) -> dict[str, float]:
        """Main score in percent on the validation split of each task before the one that is learned, by task number."""
        stages = self.facts.stages_grown(Position(place[0], Phase.TRAIN, max(1, place[1])))
        if len(stages) < self.grown:  # the run went back behind a task's beginning
            self._build()
        for stage in stages[self.grown :]:
            grow(self.method, stage, self.facts)
        self.grown = len(stages)
        self.method.load_state_dict({name: torch.tensor(value) for name, value in weights.items()}, strict=False)
        task = self.spec.stages[place[0]].train
        among = self.protocol.scores[self.protocol.score]
        ranks = ((earlier, self.protocol.validate(self.tester, earlier)) for earlier in range(task or 0))
        return {str(earlier): round(of_task.score(among), 3) for earlier, of_task in ranks if len(of_task)}
