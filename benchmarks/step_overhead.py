"""What the engine adds to a training step: kinoray's loop against a bare PyTorch loop of the same method.

    python benchmarks/step_overhead.py [--json] [--only tiny|vit] [--blocks N]

Both sides train BMU-MoCo (full variant) from the same weights on the same batches in memory, in turns, a block of steps
each, with equal threads; the first losses must agree to 1e-4. The engine's side is `loop.train_task` as a run calls it,
with the run's own monitor client for logs and requests to stop; left out are decoding, validation and commits. The bare
side is `bare_loop.py`, which imports nothing of kinoray. Ratios are medians over neighbouring blocks, so that other
load on the machine falls on both; the same ratio in CPU seconds stands beside, for a machine that is not quiet.

Bars: 1.02 for `tiny`, 1.05 for `vit`; what follows the optimizer (pulls, averages, queues) <= 3 % of the large step.
Takes about half a minute for `tiny`, several minutes and 12 GB of memory for `vit`.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from shared.bare_loop import BareLoop, Towers

from kinoray.backbones import load_backbone
from kinoray.backbones.towers import Tokens, TowerShape, random_towers
from kinoray.config import Recipe
from kinoray.data.plan import StepFacts, TaskPlan, epoch_of, row_seed
from kinoray.execution.run_monitor import MonitorClient, RunMonitor
from kinoray.method import Batch, Task, TaskFacts
from kinoray.methods.bmu_moco import Config, Method
from kinoray.training.checkpoint import GivenWeights, Position
from kinoray.training.distributed import World, gather, noise_source
from kinoray.training.loop import RunState, train_task
from kinoray.training.stages import Stage

TOLERANCE = 1e-4
"""Largest difference of a loss between the two sides in the first steps."""
CHECKED_STEPS = 5
NO_END = 1 << 40
"""Steps of the engine's task: it never comes to an end by itself."""


@dataclass(frozen=True)
class Size:
    """One comparison."""

    batch: int
    frames: int
    size_px: int
    tokens: int
    queue: int
    threads: int
    block: int
    """Steps of a block."""
    blocks: int


SIZES = {
    "tiny": Size(batch=48, frames=3, size_px=32, tokens=20, queue=480, threads=1, block=5, blocks=40),
    "vit": Size(batch=2, frames=4, size_px=224, tokens=32, queue=1440, threads=2, block=1, blocks=8),
}
RECIPE = Recipe(optimizer="adamw", learning_rate=1e-4, schedule="constant")


@dataclass
class Memory:
    """The loop's surroundings (`loop.Surroundings`): batches in memory, after each block one of the bare loop."""

    size: Size
    batches_in_memory: list[Batch]
    bare: BareLoop
    client: MonitorClient
    given: GivenWeights
    world: World = field(default_factory=World)
    autocast: bool = False
    engine_s: list[tuple[float, float]] = field(default_factory=list)
    bare_s: list[tuple[float, float]] = field(default_factory=list)
    """(wall, CPU) seconds of each block."""
    losses: list[float] = field(default_factory=list)
    bare_losses: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def seed(self, stage: Stage, verb: str) -> int:
        return 0

    @contextmanager
    def batches(self, stage: Stage, start: int, state: RunState) -> Iterator[Iterator[tuple[StepFacts, Batch]]]:
        yield self._turns()

    def _turns(self) -> Iterator[tuple[StepFacts, Batch]]:
        """Steps for the engine, timed from asking for a block's first batch to asking for the next block's."""
        numbers = itertools.count()
        for steps in [CHECKED_STEPS] + [self.size.block] * self.size.blocks:
            block = list(itertools.islice(numbers, steps))
            began = clocks()
            for number in block:
                yield self._facts(number), self._batch(number)
            self.engine_s.append(since(began))
            began = clocks()
            for number in block:
                batch = self.batches_in_memory[number % len(self.batches_in_memory)]
                self.bare_losses.append(self.bare.step(batch.video, batch.text.ids, batch.text.mask))
            self.bare_s.append(since(began))
        self.client.target.request_stop()
        for number in numbers:  # the request is seen after the next step
            yield self._facts(number), self._batch(number)

    def _facts(self, step: int) -> StepFacts:
        """As `training.batches.BatchReader` gives them."""
        epoch = epoch_of(PLAN, step)
        return StepFacts(step, epoch, epoch_of(PLAN, step + 1) > epoch, row_seed(PLAN, step, -1))

    def _batch(self, step: int) -> Batch:
        """As `training.batches.BatchReader` gives them, but for pixels and tokens, which are there."""
        batch = self.batches_in_memory[step % len(self.batches_in_memory)]
        count = self.size.batch
        return Batch(
            views=batch.views,
            plain=None,
            text=batch.text,
            ids=batch.ids,
            labels=batch.labels,
            slots=batch.slots,
            replay=None,
            global_size=count,
            replay_size=0,
            order=torch.arange(count),
            gather=partial(gather, world=self.world),
            normal=noise_source(row_seed(PLAN, step, -1), count, slice(0, count), self.world.device),
            uniform=torch.rand,
            step=self._facts(step),
        )

    def steps(self, stage: Stage) -> int:
        return NO_END

    def task(self, stage: Stage, selections: Sequence[list[int]] = (), made: int = 0) -> Task:
        return Task(**vars(self.facts(stage)), encode=no_data, labels=np.empty(0))

    def facts(self, stage: Stage) -> TaskFacts:
        return TaskFacts(0, "memory", 1, num_samples=0, num_classes=0, steps=NO_END)

    def validate(self, stage: Stage) -> float:
        raise AssertionError("this task never reaches a validation")

    def evaluate(self, stage: Stage, state: RunState) -> bool:
        raise AssertionError("this task never ends")

    def log(self, record: dict[str, Any]) -> None:
        self.losses.append(record["loss"])
        self.client.log(record)

    def step_made(self, position: Position) -> None:
        """Nobody watches."""

    def stop_requested(self) -> bool:
        return self.world.is_first and self.client.poll()

    def commit_due(self) -> bool:
        return self.world.is_first and time.monotonic() - self.began > NO_END

    def commit(self, state: RunState, optimizer: Any, groups: Any) -> None:
        """Nothing is saved."""


PLAN = TaskPlan(seed=0, task=0, num_tasks=1, samples=(600,), batch_size=48, steps=(NO_END,))


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Wall and CPU seconds since `clocks` was called."""
    now = clocks()
    return now[0] - began[0], now[1] - began[1]


def no_data(*args: Any, **options: Any) -> Any:
    raise AssertionError("BMU-MoCo passes over no data at the start of a task")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {bar name: number} last")
    parser.add_argument("--only", choices=sorted(SIZES), help="one of the two comparisons")
    parser.add_argument("--blocks", type=int, help="blocks of each side, instead of the usual number")
    options = parser.parse_args()
    bars: dict[str, float] = {}
    print(
        f"{'':6}{'engine ms':>11}{'bare ms':>10}{'ratio':>8}{'middle half':>16}{'CPU ratio':>11}{'after step':>12}"
        f"{'loss differs':>14}"
    )
    names = [options.only] if options.only else list(SIZES)
    for name in names:
        size = SIZES[name]
        bars |= compare(name, Size(**vars(size) | {"blocks": options.blocks or size.blocks}))
    if options.json:
        print(json.dumps({key: round(value, 4) for key, value in bars.items()}))


def compare(name: str, size: Size) -> dict[str, float]:
    """Train both sides in turns and print a row. Returns the bars."""
    torch.set_num_threads(size.threads)
    towers: Any = (
        load_backbone("tiny") if name == "tiny" else random_towers(TowerShape(size_px=size.size_px), pieces(30522))
    )
    torch.manual_seed(0)
    method = Method(Config(queue_size=size.queue), towers, 1)
    after_s = timed_after_step(method)
    batches = random_batches(size, len(towers.vocabulary), count=4)
    bare = bare_copy(method)
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(size, batches, bare, MonitorClient(RunMonitor(folder)), GivenWeights(method))
        assert not train_task(method, Stage(0, (), 0), RECIPE, memory, RunState())
    differs = max(
        abs(a - b) for a, b in zip(memory.losses[:CHECKED_STEPS], memory.bare_losses[:CHECKED_STEPS], strict=True)
    )
    assert differs <= TOLERANCE, f"the two sides compute different things: losses differ by {differs}"
    (engine_s, engine_cpu_s), (bare_s, bare_cpu_s) = (
        np.array(side[1:]).T  # the first block warmed up
        for side in (memory.engine_s, memory.bare_s)
    )
    low, ratio, high = np.quantile(engine_s / bare_s, [0.25, 0.5, 0.75])
    cpu_ratio = np.median(engine_cpu_s / bare_cpu_s)
    updates_s = np.array(after_s[CHECKED_STEPS:][: size.block * size.blocks]).reshape(-1, size.block).sum(axis=1)
    share = float(np.median(updates_s / engine_s))
    step_ms = [1e3 * np.median(side) / size.block for side in (engine_s, bare_s)]
    middle = f"{low:.3f}..{high:.3f}"
    print(
        f"{name:6}{step_ms[0]:11.2f}{step_ms[1]:10.2f}{ratio:8.3f}{middle:>16}{cpu_ratio:11.3f}{share:12.1%}{differs:14.1e}",
        flush=True,
    )
    return {f"step_overhead_{name}": float(ratio)} | ({"after_step_share_vit": share} if name == "vit" else {})


def timed_after_step(method: Method) -> list[float]:
    """Make the method note the seconds of each of its updates after the optimizer's."""
    seconds: list[float] = []
    update = method.after_step

    def after_step(carry: Any, step: Any) -> None:
        began = time.perf_counter()
        update(carry, step)
        seconds.append(time.perf_counter() - began)

    method.after_step = after_step  # type: ignore[method-assign]
    return seconds


def bare_copy(method: Method) -> BareLoop:
    """The bare loop with the method's weights, queues and hyper-parameters."""
    online: Any = method.online
    towers = Towers(online.vision.config.to_dict(), online.text.config.to_dict(), online.dim)
    towers.load_state_dict(online.state_dict())
    queues = {
        f"{name}_{kind}": queue.keys_KD.clone()
        for name, family in zip(method.variant.families, method.families(), strict=True)
        for kind, queue in (("video", family.videos), ("text", family.texts))
    }
    config = method.config
    options = {"temperature": config.temperature, "m": config.m, "m_hat": config.m_hat}
    return BareLoop(towers, queues, torch.optim.AdamW, RECIPE.learning_rate, RECIPE.weight_decay, **options)


def random_batches(size: Size, vocabulary: int, count: int) -> list[Batch]:
    """Normalised noise and random tokens of different lengths."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        video = torch.randn(size.batch, size.frames, 3, size.size_px, size.size_px, generator=generator)
        ids = torch.randint(5, vocabulary, (size.batch, size.tokens), generator=generator)
        lengths = torch.randint(size.tokens // 2, size.tokens + 1, (size.batch,), generator=generator)
        lengths[0] = size.tokens
        mask = torch.arange(size.tokens) < lengths[:, None]
        numbers = torch.arange(size.batch)
        text = Tokens(ids * mask, mask)
        batches.append(
            Batch(
                views=(video,),
                plain=None,
                text=text,
                ids=numbers,
                labels=numbers * 0 - 1,
                slots=numbers * 0 - 1,
                replay=None,
                global_size=size.batch,
                replay_size=0,
                order=numbers,
                gather=torch.clone,
                normal=torch.randn,
                uniform=torch.rand,
                step=StepFacts(0, 0, False, 0),
            )
        )
    return batches


def pieces(count: int) -> tuple[str, ...]:
    """A vocabulary of BERT's size."""
    return ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"piece{n}" for n in range(count - 5)))


if __name__ == "__main__":
    main()
