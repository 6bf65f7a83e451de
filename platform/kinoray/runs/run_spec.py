"""What a rank is told: a run as plain data, and the method that it describes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinoray.backbones.backbone import Backbone
from kinoray.config import plain
from kinoray.data.manifest import read_manifest
from kinoray.decoding.frame_cache import Cache
from kinoray.evaluation.tester import TestedRun
from kinoray.method import BaseMethod
from kinoray.runs.method_source import MethodSource
from kinoray.runs.record import in_autocast, note_a_move, open_run
from kinoray.runs.request import IN_PROCESS, Way
from kinoray.runs.resolve import Resolved
from kinoray.seeds import seed_libraries, seed_of
from kinoray.streams.rendering import rendered_of
from kinoray.streams.task_manifests import union_manifest
from kinoray.system.cores import usable_cores
from kinoray.training.distributed import World
from kinoray.training.stages import Stage


@dataclass(frozen=True)
class RunSpec:
    """All that a rank needs to know; travels to the workers as plain data."""

    folder: str
    method: MethodSource
    settings: dict[str, Any]
    recipe: dict[str, Any]
    protocol: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    """Names and manifests of the tasks, as tested."""
    train_names: tuple[str, ...]
    trained: tuple[str, ...]
    """Names and manifests of what is trained: the tasks, or their union."""
    stages: tuple[Stage, ...]
    backbone: str
    seed: int
    threads: int
    device: str
    """cpu or cuda; a trainer's rank takes the GPU that Ray gives it."""
    autocast: bool
    decode_slots: float
    reference: str = ""
    """The manifest of the reference set, where the method asks for one."""
    rendered: tuple[str, ...] = ()
    """Embedded streams that a machine renders where it lacks the videos."""
    cache: Cache | None = None
    """The frame cache that the user named; None: the usual one of the machine where the rank runs."""

    @property
    def tested(self) -> TestedRun:
        """What the tests need to know."""
        return TestedRun(
            folder=Path(self.folder),
            names=self.names,
            tests=self.tests,
            train_names=self.train_names,
            trained=self.trained,
            last_row=self.stages[-1].row,
            autocast=self.autocast,
        )

    @property
    def num_tasks(self) -> int:
        """Tasks that methods and memories make room for."""
        return max(len(self.names), self.recipe["planned_tasks"])

    @property
    def num_clips(self) -> int:
        """Clips of the whole stream, all splits."""
        return sum(read_manifest(path).table.num_rows for path in self.tests)


def alone(spec: RunSpec) -> World:
    """The one rank of a run that is done in one process."""
    return World(device=torch.device(spec.device))


def build_method(spec: RunSpec, backbone: Backbone) -> BaseMethod:
    """The method with its initial weights: a function of the spec and the backbone's weights alone."""
    cls = spec.method.load()
    seed_libraries(seed_of("build", spec.seed))
    return cls(cls.Config(**spec.settings), backbone, spec.num_tasks)


def make_spec(
    run: Resolved,
    *,
    num_workers: int,
    decode_slots: float,
    gpu: bool,
    say: Callable[[str], None],
    abreast: int = 1,
    threads: int | None = None,
    way: Way = IN_PROCESS,
) -> RunSpec:
    """What the ranks need to know; `abreast` of them share the machine. Threads are those of the run's first start.

    threads: of each rank; None: its part of this machine.
    """
    threads = threads or max(1, (usable_cores() - 1) // max(1, abreast))
    note_a_move(run, num_workers, gpu, say)
    record = open_run(run, threads, num_workers, say, gpu, way)
    return describe_ranks(run, record["threads"], decode_slots, gpu)


def describe_ranks(run: Resolved, threads: int, decode_slots: float, gpu: bool) -> RunSpec:
    """What the ranks of a run need to know, whose record is written; `make_spec` says the rest."""
    from kinoray.decoding.frame_cache import frame_cache

    tasks = run.stream.tasks
    trained = [(task.name, str(task.manifest)) for task in tasks]
    if run.joint:
        trained = [("joint", str(union_manifest(tasks, run.folder / "joint.parquet").path))]
    reference = ""
    if run.reference is not None:
        reference = str(union_manifest(run.reference.tasks, run.folder / "reference.parquet").path)
    return RunSpec(
        folder=str(run.folder),
        method=run.method,
        settings=run.settings,
        recipe=plain(run.recipe),
        protocol=run.stream.protocol,
        names=tuple(task.name for task in tasks),
        tests=tuple(str(task.manifest) for task in tasks),
        train_names=tuple(name for name, _ in trained),
        trained=tuple(path for _, path in trained),
        stages=run.stages,
        backbone=run.backbone,
        seed=run.seed,
        threads=threads,
        device="cuda" if gpu else "cpu",
        autocast=in_autocast(run, gpu),
        decode_slots=decode_slots,
        reference=reference,
        rendered=rendered_of([run.stream, *filter(None, [run.reference])]),
        cache=frame_cache() if {"KINORAY_CACHE", "KINORAY_CACHE_BYTES"} & set(os.environ) else None,
    )
