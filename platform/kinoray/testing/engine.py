"""Drives the engine in this process, without Ray: whole runs, runs stopped on the way, and single steps."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from kinoray.backbones import load_backbone
from kinoray.data.plan import StepFacts
from kinoray.execution.equal_flops import count_steps
from kinoray.execution.rank_session import RankSession
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.run_rank import compute_repeatably, run_rank, stage_by_stage
from kinoray.method import BaseMethod, Batch
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.run_spec import RunSpec, alone, build_method, make_spec
from kinoray.streams import Stream
from kinoray.system.variables import SAFE_PATH, environment
from kinoray.training.checkpoint import newest, state_digest
from kinoray.training.distributed import World
from kinoray.training.loop import RunState, begin_task, grow, train_step, train_stream
from kinoray.training.optim import make_optimizer, names_and_params
from kinoray.training.stages import Stage


class StopAfter(RunMonitor):
    """A run monitor that asks to stop at the n-th time a rank looks (once per step)."""

    def __init__(self, folder: str, looks: int) -> None:
        super().__init__(folder)
        self.looks = looks

    def stop_requested(self) -> bool:
        """True from the n-th time on."""
        self.looks -= 1
        return self.looks < 0


def resolved(method: Any, stream: Stream, folder: Path, seed: int = 0, **options: Any) -> Resolved:
    """A run that has not started."""
    return resolve(RunRequest(method, stream=stream, seed=seed, runs=folder, **options))


def spec_of(method: Any, stream: Stream, folder: Path, seed: int = 0, device: str = "cpu", **options: Any) -> RunSpec:
    """What a rank of the run gets."""
    return spec_on(device, resolved(method, stream, folder, seed, **options))


def spec_on(device: str, run: Resolved) -> RunSpec:
    """What a rank of the run gets on cpu or cuda."""
    return make_spec(run, num_workers=0, decode_slots=0, gpu=device == "cuda", say=lambda text: None)


def run_spec(spec: RunSpec, monitor: RunMonitor | None = None) -> bool:
    """The whole run, or until the monitor stops it."""
    return run_rank(spec, alone(spec), monitor or RunMonitor(spec.folder), None)


def stages_of(spec: RunSpec) -> Iterator[int]:
    """The run stage by stage; yields the number of stages done."""
    yield from stage_by_stage(spec, alone(spec), RunMonitor(spec.folder), None)


def committed_after(spec: RunSpec, stages: int) -> dict[str, str]:
    """The run up to so many stages; digests of all tensors that it has committed by then, by name."""
    return committed(spec, next(done for done in stages_of(spec) if done == stages))


def committed(spec: RunSpec, stages: int) -> dict[str, str]:
    """Digests of all tensors in a run's newest checkpoint, which is that of so many stages, by name."""
    checkpoint = newest(Path(spec.folder) / "checkpoints", say=print)
    assert checkpoint is not None and checkpoint.position.stage == stages
    return {
        f"{kind}.{name}": state_digest({name: value}, {})
        for kind in ("method", "ranks", "validation")
        for name, value in checkpoint.tensors(kind).items()
    }


def stopped(spec: RunSpec, looks: int, begin: Callable[[BaseMethod], None] = lambda method: None) -> BaseMethod:
    """Go on with a run until its monitor stops it, or to its end; the method as the process leaves it.

    begin: called with the method as the process finds it, before its next step.
    """
    compute_repeatably(spec, alone(spec))
    assert count_steps(spec, alone(spec), RunMonitor(spec.folder))
    session = RankSession(spec, alone(spec), StopAfter(spec.folder, looks), None)
    state = session.resume()
    begin(session.method)
    for _ in train_stream(session.method, spec.stages, session.recipe, session, state):
        pass
    session.client.flush()
    return session.method


def resumed(spec: RunSpec) -> BaseMethod:
    """The method of a stopped run, as another process finds it before its next step."""
    session = RankSession(spec, alone(spec), RunMonitor(spec.folder), None)
    session.resume()
    return session.method


def digest_of_run(spec: RunSpec) -> str:
    """The finished run's `state_digest`."""
    outcome = json.loads((Path(spec.folder) / "result.json").read_text())
    assert outcome["state"] == "finished", outcome
    return outcome["state_digest"]


def built(spec: RunSpec) -> BaseMethod:
    """The method with its initial weights."""
    return build_method(spec, load_backbone(spec.run.backbone, seed=spec.run.seed))


def fresh_session(spec: RunSpec, world: World | None = None) -> RankSession:
    """A rank before its first step, its first task begun; commits in the folder are left alone."""
    return begun(spec, world, False)[0]


def begun(spec: RunSpec, world: World | None, goes_on: bool) -> tuple[RankSession, Stage, RunState]:
    """A rank that has begun its first task, or the one behind the run's newest commit."""
    session = RankSession(spec, world or alone(spec), RunMonitor(spec.folder), None)
    state = session.resume() if goes_on else RunState()
    stage = spec.stages[state.position.stage]
    grow(session.method, stage, session)
    begin_task(session.method, stage, session, state.selections)
    return session, stage, state


def first_batch(session: RankSession) -> tuple[StepFacts, Batch]:
    """The first step of the first task."""
    with session.batches(session.spec.stages[0], 0, RunState()) as batches:
        return next(batches)


def state_of(method: BaseMethod) -> dict[str, torch.Tensor]:
    """A copy of all tensors."""
    return {name: value.detach().clone() for name, value in method.state_dict().items()}


MOVED = 1.01
"""By what the weights of a step are multiplied that has none before it."""


def one_step(spec: RunSpec, world: World | None = None, goes_on: bool = False) -> dict[str, Any]:
    """The second step of a run's first task: logged values, gradients, and weights before the optimizer, between it
    and `after_step`, and after. goes_on: of the task behind its newest commit, with weights that have moved since it
    began: a pull towards what they were then would be 0."""
    session, stage, state = begun(spec, world, goes_on)
    torch.set_num_threads(1)
    method = session.method
    groups = method.param_groups()
    if goes_on:
        with torch.no_grad():
            for parameter in names_and_params(groups).values():
                parameter.mul_(MOVED)
    before, between = state_of(method), {}
    optimizer = make_optimizer(session.recipe, groups)
    original = method.after_step

    def after_step(*arguments: Any) -> None:
        between.update(state_of(method))
        original(*arguments)

    method.after_step = after_step  # type: ignore[method-assign, assignment]
    with session.batches(stage, 1, state) as batches:
        facts, batch = next(batches)
        values = train_step(method, batch, facts, 1e-3, groups, optimizer, session.recipe, session)
    return {
        "values": dict(zip(values.names, values.numbers.tolist(), strict=False)),
        "gradients": {name: p.grad for name, p in names_and_params(groups).items() if p.grad is not None},
        "before": before,
        "between": between,
        "after": state_of(method),
        "method": method,
    }


def rank_of_two(rank: int, folder: str, specs: dict[str, RunSpec], goes_on: bool = False) -> None:
    """`one_step` of each run, as one of two gloo processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name, spec in specs.items():
        try:
            whole = one_step(spec, World(rank, 2), goes_on)
            step = {name: whole[name] for name in ("values", "gradients", "after")}
        except Exception as error:  # one method's fault must not hide what the others do
            step = {"error": f"{type(error).__name__}: {error}"}
        torch.save(step, Path(folder) / f"{name}-{rank}.pt")
    dist.destroy_process_group()


def on_two_ranks(specs: Mapping[str, RunSpec], goes_on: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The values, gradients and later weights of `one_step` on each of two gloo processes, started once for all runs.

    Where a step fails its place holds {"error": message}.
    """
    with tempfile.TemporaryDirectory(prefix="kinoray-ranks-") as folder:
        with environment(SAFE_PATH):
            ranks = mp.spawn(rank_of_two, (folder, dict(specs), goes_on), nprocs=2, join=False)
        while not ranks.join():
            pass
        return {name: [torch.load(f"{folder}/{name}-{rank}.pt") for rank in range(2)] for name in specs}
