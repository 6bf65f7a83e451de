"""The forgetting curve inside a task: a process beside the training tests its newest weights on the earlier tasks.

Every so many steps the first rank lets the momentum actor have the method's weights and goes on; the process takes the
newest from there, ranks the validation splits of the tasks before, and logs the scores. The result does not know it.
"""

import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kinoray.evaluation.protocol import load_protocol
from kinoray.evaluation.tester import Tester
from kinoray.execution.rank_session import StageFacts, built
from kinoray.runs.run_spec import RunSpec, alone
from kinoray.system.actors import call, start_actor
from kinoray.training.checkpoint import Phase, Position
from kinoray.training.loop import grow

NICE = 19
"""The training goes first."""
PLACED_S = 30.0
"""How long a GPU that was free is waited for."""
LOOK_S = 0.2
"""How often the process looks for newer weights."""

Place = tuple[int, int]
"""Stage, and how many steps of it are made."""


def start_watcher(spec: RunSpec, name: str, monitor: Any, momentum: Any, gpus: float) -> Any:
    """A `Watcher` as an actor: on a GPU where the run's ranks, which take so many, leave one, else on a CPU.

    It decodes by processes of its own: Ray's tasks decode for the training.
    """
    import ray

    beside = replace(spec, decode_slots=0)
    if spec.device == "cuda" and ray.available_resources().get("GPU", 0.0) >= gpus + 1:
        watcher = start_actor(Watcher, name, beside, monitor, momentum, gpus=1.0)
        if ray.wait([watcher.ready.remote()], timeout=PLACED_S)[0]:
            return watcher
        ray.kill(watcher)  # somebody took it
        name += "-on-cpu"  # Ray holds a killed actor's name for a moment
    return start_actor(Watcher, name, replace(beside, device="cpu", autocast=False), monitor, momentum)


class Watcher:
    """An actor of no CPUs; the work is done by a thread of it, on the newest weights alone."""

    def __init__(self, spec: RunSpec, monitor: Any, momentum: Any) -> None:
        self.spec, self.monitor, self.momentum = spec, monitor, momentum
        threading.Thread(target=self._work, daemon=True).start()

    def ready(self) -> None:
        """Answered once the actor is there."""

    def _work(self) -> None:
        import ray

        os.nice(max(0, NICE - os.nice(0)))
        torch.set_num_threads(1)
        curve = Curve(self.spec, note=partial(call, self.monitor, "note"))
        seen = None
        while True:
            newest = call(self.momentum, "fetch", (), True)
            if newest is None or newest["version"] == seen:
                time.sleep(LOOK_S)
                continue
            across, others = ray.get(newest["ref"])
            stage, _, step = seen = newest["version"]
            scores = curve.scores((stage, step), across | others)
            call(self.monitor, "log_watched", {"task": stage, "step": step, "scores": scores})
            named = {self.spec.tested.train_names[int(earlier)]: score for earlier, score in scores.items()}
            call(self.monitor, "show_scores", {"watched": named})


class Curve:
    """A method of its own that is given the weights of another and tested."""

    def __init__(self, spec: RunSpec, note: Any) -> None:
        self.spec, self.note = spec, note
        self.protocol = load_protocol(spec.run.stream.protocol)
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
