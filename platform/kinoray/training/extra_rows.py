"""What a step may need beside its samples: stored features of earlier tasks, and rows of a reference set."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import numpy as np
import torch
from torch import Tensor

from kinoray.data.manifest import read_manifest
from kinoray.data.pipeline import DecodedRows, decode_rows
from kinoray.data.plan import TaskPlan
from kinoray.data.presets import decode_px, test_sampling
from kinoray.data.slots import TrainFeed
from kinoray.method import Rows
from kinoray.on_device import on_device
from kinoray.training.batches import Batches, Feed, own_processes

StoredRows = Callable[[int], Tensor]
"""Step -> what `Needs.stored` asks for of earlier tasks, (R, ...)."""
NAME = "reference"


@contextmanager
def with_extra_rows(
    batches: AbstractContextManager[Batches], feed: Feed, plan: TaskPlan, start: int, stored: StoredRows | None
) -> Iterator[Batches]:
    """The batches of a task's remaining steps with what `Needs.stored` and `Needs.reference` ask for."""
    with batches as plain, _reference(feed, plan, start) as reference:
        yield _filled(plain, feed, stored, reference)


def _filled(batches: Batches, feed: Feed, stored: StoredRows | None, reference: Iterator[Rows] | None) -> Batches:
    for facts, batch in batches:
        if stored is not None:
            batch.stored = on_device(stored(facts.step), feed.world.device)
        if reference is not None:
            batch.reference = next(reference)
        yield facts, batch


@contextmanager
def _reference(feed: Feed, plan: TaskPlan, start: int) -> Iterator[Iterator[Rows] | None]:
    """The reference rows of each remaining step: the set in an order of its own, on and on through all tasks.

    They are a plan of one task, so they are read as the run's own rows are, and are the same after a resume.
    """
    needed = feed.needs.reference
    if needed is None:
        yield None
        return
    before = sum(plan.steps[: plan.task])
    manifest = read_manifest(feed.reference)
    rows_of_set = TaskPlan(
        seed=feed.seed,
        task=0,
        num_tasks=1,
        samples=(len(manifest.samples("train")[0]),),
        batch_size=needed.rows or plan.batch_size,
        steps=(before + plan.steps[plan.task],),
    )
    reader = TrainFeed(
        plan=rows_of_set,
        manifests=(feed.reference,),
        names=(NAME,),
        sampling=test_sampling(feed.recipe, feed.recipe.frames),
        size_px=decode_px(feed.preset, feed.recipe.size_px),
        rank=feed.world.rank,
        world=feed.world.size,
        start_step=before + start,
        cache=feed.cache,
    )
    decoded = decode_rows(reader, feed.decode_slots, own_processes())
    with closing(decoded):
        yield (_rows(feed, rows) for rows in decoded)


def _rows(feed: Feed, decoded: DecodedRows) -> Rows:
    """Reference rows on the device: one view without augmentation; they belong to no task."""
    feed.report_bad(decoded.bad)
    manifest = read_manifest(feed.reference)
    clips, numbers = manifest.samples("train")
    captions = [manifest.caption(int(clips[s]), int(numbers[s])) for s in decoded.sample.tolist()]
    nowhere = torch.full((len(captions),), -1, device=feed.world.device)
    return Rows(
        views=feed.views(decoded.video, np.empty(0), 0, manifest.aspects[clips[decoded.sample]]),
        plain=None,
        text=feed.tokens(captions),
        ids=nowhere,
        labels=nowhere,
        slots=nowhere,
    )
