"""`Task.encode(fn, split="memory")`: a method's features of what its replay memory holds."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kinoray.data.plan import TaskPlan, memory_rows, sample_id
from kinoray.method import Rows
from kinoray.training.batches import Feed


def encode_memory(
    feed: Feed, plan: TaskPlan, step: int, fn: Callable[[Rows], Tensor], views: int = 0
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
        ids, features = feed.encode(task, fn, "train", views, planned, slots[here])
        if len(ids):
            parts.append((slots[here][np.isin(sample_id(np.full_like(planned, task), planned), ids)], ids, features))
    if not parts:
        return np.empty(0, dtype=np.int64), torch.empty(0)
    order = np.argsort(np.concatenate([of_task for of_task, _, _ in parts]))
    ids = np.concatenate([of_task for _, of_task, _ in parts])
    return ids[order], torch.cat([of_task for _, _, of_task in parts])[torch.from_numpy(order)]
