"""`Task.encode`: what a method makes of the data outside the steps, in order, all of it on all ranks."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kinoray.data.manifest import read_manifest
from kinoray.data.plan import TaskPlan, memory_rows, sample_id
from kinoray.method import Rows
from kinoray.seeds import sample_seed
from kinoray.training.batches import BatchReader
from kinoray.training.distributed import eval_batch, gather_objects, in_order

Encoded = tuple[np.ndarray, Tensor]
"""Sample ids (N,) int64 and their features (N, ...)."""


def encode(
    reader: BatchReader,
    task: int,
    selections: Sequence[list[int]],
    made: int,
    fn: Callable[[Rows], Tensor],
    split: str = "train",
    views: int = 0,
) -> Encoded:
    """`Task.encode` of a task of which `made` steps are made; `selections` are those of the tasks before it."""
    if split == "memory":
        return encode_memory(reader, reader.plan(task, list(selections)), made, fn, views)
    return encode_split(reader, task, fn, split, views)


def encode_split(
    reader: BatchReader,
    task: int,
    fn: Callable[[Rows], Tensor],
    split: str = "train",
    views: int = 0,
    wanted: np.ndarray | None = None,
    slots: np.ndarray | None = None,
) -> tuple[np.ndarray, Tensor]:
    """Sample ids (N,) and features on the CPU of every readable sample of a split, in order, on all ranks.

    wanted: some sample numbers of split="train" alone, ascending, repeats allowed; slots: where memory holds each.
    """
    manifest = read_manifest(reader.manifests[task])
    batch = eval_batch(reader.recipe.frames, reader.recipe.size_px)
    clip_rows, numbers = manifest.samples(split)
    only = None if wanted is None else np.unique(clip_rows[wanted])
    wanted = np.arange(len(clip_rows)) if wanted is None else wanted
    slots = np.full(len(wanted), -1) if slots is None else slots
    wanted_rows = clip_rows[wanted]
    ids: dict[int, Tensor] = {}
    features: dict[int, Tensor] = {}
    form = reader.train_form if views else reader.test_form
    for start, clips in reader.clips(reader.names[task], manifest, split, reader.recipe.frames, only, form):
        good = clips.rows
        places = {int(row): place for place, row in enumerate(good)}
        if not len(good):
            continue
        # Samples stand in manifest order, so those of a batch of clips are neighbours.
        first, last = np.searchsorted(wanted_rows, [good[0], good[-1] + 1])
        chosen = first + np.flatnonzero(np.isin(wanted_rows[first:last], good))
        samples = wanted[chosen]
        parts = []
        for part in np.split(chosen, range(batch, len(chosen), batch)):
            chunk = wanted[part]
            repeated = [places[int(row)] for row in clip_rows[chunk]]
            video, sizes = clips.video[repeated], clips.sizes[repeated]
            captions = [manifest.caption(int(clip_rows[s]), int(numbers[s])) for s in chunk]
            labels = [reader.classes.get(label or "", -1) for label in manifest.labels(clip_rows[chunk])]
            seeds = np.array([sample_seed(reader.seed, task, int(s)) for s in chunk], dtype=np.uint64)
            seen = reader.views(video, seeds, views, sizes) if views else (reader.test_view(video),)
            outputs = [
                fn(
                    Rows(
                        views=(view,),
                        plain=view if views == 0 else None,
                        text=reader.tokens(captions),
                        ids=torch.from_numpy(sample_id(np.full_like(chunk, task), chunk)).to(reader.world.device),
                        labels=torch.tensor(labels, device=reader.world.device),
                        slots=torch.from_numpy(slots[part]).to(reader.world.device),
                    )
                )
                for view in seen
            ]
            parts.append((outputs[0] if views == 0 else torch.stack(outputs, dim=1)).detach().cpu())
        ids[start] = torch.from_numpy(sample_id(np.full_like(samples, task), samples))
        features[start] = torch.cat(parts)
    if not any(gather_objects(bool(ids), reader.world)):
        return np.empty(0, dtype=np.int64), torch.empty(0)
    return in_order(ids, reader.world).numpy(), in_order(features, reader.world)


def total(reader: BatchReader, task: int, fn: Callable[[Rows], Tensor]) -> Tensor:
    """The sum of what fn makes of batches of a task's training samples, in float64 on the CPU, on all ranks."""
    own: list[Tensor] = []

    def added(rows: Rows) -> Tensor:
        made = fn(rows).cpu().double()
        own[:] = [own[0] + made if own else made]
        return made.new_empty(len(rows.ids), 0)

    encode_split(reader, task, added)
    return torch.stack([part for parts in gather_objects(own, reader.world) for part in parts]).sum(dim=0)


def encode_memory(
    reader: BatchReader, plan: TaskPlan, step: int, fn: Callable[[Rows], Tensor], views: int = 0
) -> tuple[np.ndarray, Tensor]:
    """Sample ids (M,) and features on the CPU of the memory before a step of the plan, on all ranks.

    One row per filled slot, ascending, but for those whose clip cannot be read; fn finds the slots in `rows.slots`.
    Features are (M, ...) of plain views, or (M, k, ...) of k augmented ones; (0,) where the memory is empty.
    """
    slots, rows = memory_rows(plan, step)
    parts: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
    for task in np.unique(rows[:, 0]).tolist():
        here = np.flatnonzero(rows[:, 0] == task)
        here = here[np.argsort(rows[here, 1], kind="stable")]
        planned = rows[here, 1]
        ids, features = encode_split(reader, task, fn, "train", views, planned, slots[here])
        if len(ids):
            parts.append((slots[here][np.isin(sample_id(np.full_like(planned, task), planned), ids)], ids, features))
    if not parts:
        return np.empty(0, dtype=np.int64), torch.empty(0)
    order = np.argsort(np.concatenate([of_task for of_task, _, _ in parts]))
    ids = np.concatenate([of_task for _, of_task, _ in parts])
    return ids[order], torch.cat([of_task for _, _, of_task in parts])[torch.from_numpy(order)]
