"""What the processes of multi-rank tests run; importable by spawned processes."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from kinoray.training.distributed import BUCKET_NUMEL, World, gather, sum_over_ranks


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


def train_four(rank: int, folder: str, stream) -> None:
    """A run by four ranks of two rows each; the same stopped in the middle of its first task and resumed."""
    from kinoray.execution.run_rank import run_rank
    from kinoray.monitoring.run_monitor import RunMonitor
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
    from kinoray.execution.run_rank import run_rank
    from kinoray.monitoring.run_monitor import RunMonitor
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
