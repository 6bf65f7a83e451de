"""What a rank is told of its run, and the method that it describes."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kinoray.backbones import load_backbone
from kinoray.backbones.backbone import Backbone
from kinoray.backbones.checkpointing import checkpoint_blocks
from kinoray.data.manifest import read_manifest
from kinoray.decoding.frame_cache import Cache
from kinoray.evaluation.tester import TestedRun
from kinoray.method import BaseMethod
from kinoray.runs.record import in_autocast, note_a_move, open_run
from kinoray.runs.request import IN_PROCESS, Way
from kinoray.runs.resolve import Resolved, facts_of
from kinoray.seeds import seed_libraries, seed_of
from kinoray.streams import TaskData
from kinoray.streams.rendering import rendered_of
from kinoray.streams.task_manifests import union_manifest
from kinoray.system.pool import usable_cores
from kinoray.training.distributed import World
from kinoray.training.stages import Stage

Heirs = tuple[tuple[int, Resolved], ...]
"""After how many tasks a run's state is handed on to which other run (`execution.beginnings`)."""


@dataclass(frozen=True)
class RunSpec:
    """What a rank is told: the resolved run, and what is settled when it starts. Travels to the workers."""

    run: Resolved
    trained: tuple[TaskData, ...]
    """What is trained: the tasks, or their union."""
    threads: int
    device: str
    """cpu or cuda; a trainer's rank takes the GPU that Ray gives it."""
    autocast: bool
    decode_slots: float
    """CPUs that decode for each rank by Ray Data; 0: processes of its own do."""
    reference: str = ""
    """The manifest of the reference set, where the method asks for one."""
    rendered: tuple[str, ...] = ()
    """Embedded streams that a machine renders where it lacks the videos."""
    cache: Cache | None = None
    """The frame cache that the user named; None: the usual one of the machine where the rank runs."""
    heirs: Heirs = ()

    @property
    def folder(self) -> str:
        """The run's folder."""
        return str(self.run.folder)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is learned and tested, in order."""
        return self.run.stages

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks, as tested."""
        return tuple(task.name for task in self.run.stream.tasks)

    @property
    def held_out(self) -> tuple[str, ...]:
        """Names of the sets that are tested and not learned from."""
        return tuple(data.name for data in self.run.stream.held_out)

    @property
    def tests(self) -> tuple[str, ...]:
        """Manifests of the tasks, as tested."""
        return tuple(str(task.manifest) for task in self.run.stream.tasks)

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of what is trained."""
        return tuple(task.name for task in self.trained)

    @property
    def tested(self) -> TestedRun:
        """What the tests need to know."""
        return TestedRun(
            folder=self.run.folder,
            names=(*self.names, *self.held_out),
            tests=(*self.tests, *(str(data.manifest) for data in self.run.stream.held_out)),
            held_out=len(self.held_out),
            train_names=self.train_names,
            trained=tuple(str(task.manifest) for task in self.trained),
            last_row=self.stages[-1].row,
            autocast=self.autocast,
        )

    @property
    def num_tasks(self) -> int:
        """Tasks that methods and memories make room for."""
        return max(len(self.names), self.run.recipe.planned_tasks)

    @property
    def num_clips(self) -> int:
        """Clips of the whole stream, all splits."""
        return sum(read_manifest(path).table.num_rows for path in self.tests)


def alone(spec: RunSpec) -> World:
    """The one rank of a run that is done in one process."""
    return World(device=torch.device(spec.device))


def build_method(spec: RunSpec, backbone: Backbone) -> BaseMethod:
    """The method with its initial weights: a function of the spec and the backbone's weights alone."""
    run = spec.run
    cls = run.method.load()
    seed_libraries(seed_of("build", run.seed))
    return cls(cls.Config(**run.settings), backbone, spec.num_tasks)


def grown(run: Resolved) -> BaseMethod:
    """The method as it enters the last task, with any weights. Raises: UsageError where a backbone's are not here."""
    backbone = load_backbone(run.backbone, run.recipe.size_px, run.seed)
    if run.recipe.checkpoint_activations:
        checkpoint_blocks(backbone)
    cls = run.method.load()
    method = cls(cls.Config(**run.settings), backbone, len(run.stream.tasks))
    for facts in facts_of(run):
        method.grow(facts)
    return method


def make_spec(
    run: Resolved,
    *,
    num_workers: int,
    decode_slots: float,
    gpu: bool,
    say: Callable[[str], None],
    concurrent: int = 1,
    threads: int | None = None,
    way: Way = IN_PROCESS,
    heirs: Heirs = (),
) -> RunSpec:
    """What the ranks need to know; `concurrent` of them share the machine. Threads are those of the run's first start.

    threads: of each rank; None: its part of this machine.
    """
    threads = threads or max(1, (usable_cores() - 1) // max(1, concurrent))
    note_a_move(run, num_workers, gpu, say)
    record = open_run(run, threads, num_workers, say, gpu, way)
    return replace(describe_ranks(run, record["threads"], decode_slots, gpu), heirs=heirs)


def describe_ranks(run: Resolved, threads: int, decode_slots: float, gpu: bool) -> RunSpec:
    """What the ranks of a run need to know, whose record is written; `make_spec` says the rest."""
    from kinoray.decoding.frame_cache import frame_cache

    trained = run.stream.tasks
    if run.joint:
        trained = (TaskData("joint", union_manifest(trained, run.folder / "joint.parquet").path),)
    return RunSpec(
        run=run,
        trained=trained,
        threads=threads,
        device="cuda" if gpu else "cpu",
        autocast=in_autocast(run, gpu),
        decode_slots=decode_slots,
        reference=reference_of(run),
        rendered=rendered_of([run.stream, *run.beside]),
        cache=frame_cache() if {"KINORAY_CACHE", "KINORAY_CACHE_BYTES"} & set(os.environ) else None,
    )


def reference_of(run: Resolved) -> str:
    """The manifest of the reference set of a run, written into its folder; "" where its method asks for none."""
    if run.reference is None:
        return ""
    return str(union_manifest(run.reference.tasks, run.folder / "reference.parquet").path)
