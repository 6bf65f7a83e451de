"""What the processes of multi-rank tests run; importable by spawned processes."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kinoray.backbones.norm import SplitBatchNorm2d, blocks_of_rows
from kinoray.training.distributed import BUCKET_NUMEL, World, gather, set_world, sum_over_ranks


def gather_and_reduce(rank: int, folder: str, size: int) -> None:
    """Gather rows with a gradient, and sum tensors larger and smaller than a bucket."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    world = World(rank, size)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(2, 3, generator=generator, requires_grad=True)
    w = torch.randn(2 * size, 3, generator=torch.Generator().manual_seed(99))
    gathered = gather(x, world)
    ((rank + 1) * (w * gathered).sum()).backward()
    values = [torch.randn(n, generator=generator) for n in (10, BUCKET_NUMEL + 1)]
    summed = [v.clone() for v in values]
    sum_over_ranks(summed, world)
    result = {"x": x.detach(), "w": w, "gathered": gathered.detach(), "grad": x.grad, "values": values}
    torch.save(result | {"summed": summed}, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def choose_apart(rank: int, folder: str, stream) -> None:
    """Two tasks by two ranks that choose different exemplars; keeps each rank's selections and replayed ids."""
    from kinoray.execution.rank_session import RankSession
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.method import Needs, Replay
    from kinoray.testing.engine import spec_of
    from kinoray.training.loop import RunState, train_stream
    from support.toys import Replays

    class Undecided(Replays):
        """Chooses by its rank, as a clustering may whose last bit differs."""

        replayed: list[int] = []

        @classmethod
        def needs(cls, config):
            return Needs(replay=Replay("exemplars", 4, rows=2))

        def loss(self, batch):
            if batch.replay is not None:
                self.replayed.extend(batch.gather(batch.replay.ids).tolist())
            return super().loss(batch)

        def end_task(self, task):
            return [dist.get_rank(), 5]

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    spec = spec_of(Undecided, stream, Path(folder) / "runs")
    session, state = RankSession(spec, World(rank, 2), RunMonitor(spec.folder), None), RunState()
    list(train_stream(session.method, list(spec.stages), session.recipe, session, state))
    replayed = type(session.method).replayed
    torch.save({"selections": state.selections, "replayed": replayed}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def train_four(rank: int, folder: str, stream) -> None:
    """A run by four ranks of two rows each; the same stopped in the middle of its first task and resumed."""
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.execution.run_rank import run_rank
    from kinoray.testing.engine import StopAfter, digest_of_run, spec_of

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    for name, stops in (("whole", [None]), ("broken", [2, None])):
        for looks in stops:
            spec = spec_of("bmu_moco", stream, Path(folder) / name)
            monitor = RunMonitor(spec.folder) if looks is None else StopAfter(spec.folder, looks)
            finished = run_rank(spec, World(rank, 4), monitor, None)
            assert finished == (looks is None)
            dist.barrier()
        if rank == 0:
            with (Path(folder) / "digests").open("a") as file:
                file.write(digest_of_run(spec) + "\n")
    dist.destroy_process_group()


def train_norms(rank: int, folder: str, stream) -> None:
    """A run by two ranks of a method whose state differs between them; writes how it failed."""
    from kinoray.errors import RunFailed
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.execution.run_rank import run_rank
    from kinoray.testing.engine import spec_of
    from support.toys import Norms

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    spec = spec_of(Norms, stream, Path(folder))
    try:
        run_rank(spec, World(rank, 2), RunMonitor(spec.folder), None)
    except RunFailed as error:
        (Path(folder) / f"{rank}.txt").write_text(str(error))
    (Path(folder) / f"{rank}-folder.txt").write_text(spec.folder)
    dist.destroy_process_group()


def train_two(rank: int, folder: str, specs: list[Any]) -> None:
    """Whole runs by two ranks, one after the other."""
    from kinoray.execution.run_monitor import RunMonitor
    from kinoray.execution.run_rank import run_rank

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for spec in specs:
        assert run_rank(spec, World(rank, 2), RunMonitor(spec.folder), None)
        dist.barrier()
    dist.destroy_process_group()


def two_ranks_with(rank: int, folder: str, specs: dict[str, Any], strangers: str) -> None:
    """`rank_of_two` where a stranger's protocols, backbones and streams are found."""
    from kinoray.testing.engine import rank_of_two
    from support.strangers import PACKAGES, paths_with

    for name, path in paths_with(Path(strangers)).items():
        PACKAGES[name].__path__ = path
    rank_of_two(rank, folder, specs)


NORMS = {str(groups): (groups, (24,)) for groups in (1, 2, 4, 8)} | {"3 across ranks": (3, (24,))}
NORMS |= {"current and replayed rows": (8, (16, 8))}
"""Groups, and of how many rows of all ranks each block is."""


def normalised(name: str, world: World) -> dict[str, torch.Tensor]:
    """This rank's share of 24 rows through two layers of `SplitBatchNorm2d`, and the gradients of a loss of its own
    rows that passes through the statistics of all; `places`: which rows these are."""
    torch.manual_seed(0)
    groups, blocks = NORMS[name]
    layer = torch.nn.Sequential(SplitBatchNorm2d(3, groups), torch.nn.Tanh(), SplitBatchNorm2d(3, groups))
    set_world(layer, world)
    x, w = torch.randn(2, 24, 3, 4, 4)
    x = x * torch.linspace(0.5, 2, len(x)).view(-1, 1, 1, 1)
    places = torch.cat([part.chunk(world.size)[world.rank] for part in torch.arange(24).split(blocks)])
    rows = x[places].clone().requires_grad_()
    with blocks_of_rows(*(block // world.size for block in blocks)):
        out = layer(rows)
    ((out * w[places]).sin().sum() / len(x)).backward()
    last = layer[2]
    gradients = {"rows": rows.grad, "weight": layer[0].weight.grad, "bias": layer[0].bias.grad}
    state = {"running_mean": last.running_mean, "running_var": last.running_var}
    return {"out": out.detach(), "places": places} | state | gradients


def normalise(rank: int, folder: str, size: int) -> None:
    """`normalised` as one of several processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    results = {name: normalised(name, World(rank, size)) for name in NORMS}
    torch.save(results, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()
