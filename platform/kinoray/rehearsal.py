"""Ground for methods that rehearse: current and replayed rows as one batch, and payloads that belong to memory's rows.

The engine decides which rows come back (`Replay`); what a method keeps with them, logits or features of the step that
wrote them, it keeps here, by the slot of the memory. And ways to choose exemplars at a task's end.
"""

# B current rows   R replayed rows   C slots   n any rows   N samples of a task   V views   D embedding

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from kinoray.errors import RunFailed
from kinoray.method import TASK_SHIFT, Batch, Rows, Task, Tokens


def joined(batch: Batch) -> Batch:
    """Current and replayed rows as one batch of B + R rows, for methods with one loss over the union.

    Its sizes and its `gather` are those of the union: the current rows of all ranks in plan order, then the replayed
    ones, so that losses, queues and payloads do not depend on the number of ranks. Give `gather` on with the output,
    `StepOutput(..., gather=batch.gather)`, where `carry` holds joined rows. `plain` is there where both have it. Batch
    normalisation sees the same union on any number of ranks, in the same groups (`backbones.norm`).

    Args:
        batch: The step's batch; without replayed rows it comes back as it is.

    Raises:
        RunFailed: Replayed rows come with another number of views (`Replay.views`) than the current ones.
    """
    again = batch.replay
    if again is None:
        return batch
    if len(again.views) != len(batch.views):
        raise RunFailed(
            f"Current rows have {len(batch.views)} views and replayed ones {len(again.views)}, so they cannot be "
            f"joined. Name {len(batch.views)} in Replay(views=...), or leave `views` out."
        )
    rows = len(batch.ids)

    def gather(x: Tensor) -> Tensor:
        return torch.cat([batch.gather(x[:rows]), batch.gather(x[rows:])])

    def of_both(noise: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *shape: torch.cat([noise(*shape), noise(*shape, replay=True)])

    return replace(
        batch,
        views=tuple(map(_stacked, batch.views, again.views)),
        plain=None if batch.plain is None or again.plain is None else _stacked(batch.plain, again.plain),
        text=_texts(batch.text, again.text),
        ids=_stacked(batch.ids, again.ids),
        labels=_stacked(batch.labels, again.labels),
        slots=_stacked(batch.slots, again.slots),
        replay=None,
        global_size=batch.global_size + batch.replay_size,
        replay_size=0,
        order=torch.cat([batch.order, batch.global_size + _order_of(again, batch)]),
        gather=gather,
        normal=of_both(batch.normal),
        uniform=of_both(batch.uniform),
    )


def _order_of(again: Rows, batch: Batch) -> Tensor:
    """Positions of this rank's replayed rows among those of all ranks: ranks have equally many of both kinds."""
    rank, rows = batch.order[0] // len(batch.order), len(again.ids)
    return rank * rows + torch.arange(rows, device=batch.order.device)


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first, second])


def _texts(first: Tokens, second: Tokens) -> Tokens:
    """Tokens of both, the shorter ones padded; None where the backbone reads no captions."""
    if first is None:
        return first
    length = max(first.ids.shape[1], second.ids.shape[1])
    ids, mask = (
        torch.cat([nn.functional.pad(part, (0, length - part.shape[1])) for part in parts])
        for parts in ((first.ids, second.ids), (first.mask, second.mask))
    )
    return Tokens(ids, mask)


class Payloads(nn.Module):
    """One tensor per slot of a memory, in buffers, so that it is saved and resumes.

    A payload carries the id of the sample that it was made of: where a file is unreadable a substitute takes its place,
    which is another at replay than at writing, and after a later row took the slot the payload is that row's. Where
    validation goes back to the weights of an earlier step, payloads do not: they belong to memory's rows, which stay.

    Args:
        capacity: How many, all empty at first.
        *shape: Of each, float32.
    """

    ids: Tensor
    values: Tensor

    def __init__(self, capacity: int, *shape: int) -> None:
        super().__init__()
        self.register_buffer("ids", torch.full((capacity,), -1))
        self.register_buffer("values", torch.zeros(capacity, *shape))

    @torch.no_grad()
    def write(self, slots: Tensor, ids: Tensor, values: Tensor) -> None:
        """Keep the payloads of rows that are kept; call it with the rows of all ranks, in `after_step`.

        Args:
            slots: Slots (n,) as of `Rows`. Rows with slot -1 are passed over; the others must have different slots, as
                the current rows of a step have.
            ids: Sample ids (n,).
            values: The payloads (n, *shape).

        Raises:
            RunFailed: There is no such slot.
        """
        if not len(slots):
            return
        # Of fixed shapes, and asked on the CPU alone: nothing waits for a GPU.
        if not slots.is_cuda and int(slots.max()) >= len(self.ids):
            raise RunFailed(
                f"Payloads of {len(self.ids)} slots got slot {int(slots.max())}. Make as many as the memory has: "
                "`capacity` for a ring, a reservoir and class-balanced ones, one per chosen sample for exemplars."
            )
        is_kept = slots >= 0
        any_kept, first = is_kept.any(), is_kept.int().argmax()
        # Rows that are not kept write what the first kept one does; without any, slot 0 gets what it has.
        row = torch.arange(len(slots), device=slots.device).where(is_kept, first)
        at = slots[row].clamp(min=0)
        self.ids[at] = ids[row].where(any_kept, self.ids[:1])
        self.values[at] = values[row].to(self.values.dtype).where(any_kept, self.values[:1])

    def read(self, slots: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Payloads of rows, and which are theirs; the others are zeros.

        Not theirs: slot -1, a slot never written, or one that was written for another sample.

        Args:
            slots: Slots (n,) as of `Rows`.
            ids: Sample ids (n,).

        Returns:
            Payloads (n, *shape) and whether they are the rows' own, (n,) bool.
        """
        at = slots.clamp(min=0)
        valid = (slots >= 0) & (self.ids[at] == ids)
        empty = ~valid.reshape(-1, *[1] * (self.values.ndim - 1))
        return self.values[at].masked_fill(empty, 0.0), valid


def payload_names(method: nn.Module) -> set[str]:
    """Names in the state of a method's payloads.

    Args:
        method: The method.
    """
    inside = {name: module for name, module in method.named_modules() if isinstance(module, Payloads)}
    return {f"{name}.{key}".lstrip(".") for name, module in inside.items() for key in module.state_dict()}


def fill(payloads: Payloads, task: Task, fn: Callable[[Rows], Tensor]) -> None:
    """Write the payloads of memory's rows that have none, in `begin_task`: for memories that change between tasks.

    Args:
        payloads: What is written to.
        task: The task that begins; the function passes over all of the memory.
        fn: `Rows` -> values (n, *shape), under no gradient.
    """

    def with_slots(rows: Rows) -> Tensor:
        return torch.cat([rows.slots[:, None].double(), fn(rows).flatten(1).double()], dim=1)

    with torch.no_grad():
        numbers, table = task.encode(with_slots, split="memory")
    if len(numbers):
        table = table.to(payloads.ids.device)
        slots, ids = table[:, 0].long(), torch.from_numpy(numbers).to(payloads.ids.device)
        slots = slots.masked_fill(payloads.read(slots, ids)[1], -1)
        payloads.write(slots, ids, table[:, 1:].reshape(-1, *payloads.values.shape[1:]))


def some_of_each_class(task: Task, count: int) -> list[int]:
    """Ids of random samples of every class of a task; samples without a label are a class of their own.

    Drawn from torch's global generator, on the CPU.

    Args:
        task: The task.
        count: Samples of each class; all of a class that has fewer.
    """
    labels = torch.from_numpy(task.labels)
    order = torch.randperm(len(labels))
    chosen = [order[labels[order] == label][:count] for label in labels.unique()]
    return ((task.index << TASK_SHIFT) | torch.cat(chosen)).tolist()


def labelled(task: Task, fn: Callable[[Rows], Tensor]) -> tuple[Tensor, Tensor]:
    """Classes and features of the training samples with a label, in double precision on the CPU.

    Args:
        task: The task that is passed over.
        fn: `Rows` of plain views -> features (n, F).

    Returns:
        Class numbers (N,) and features (N, F).
    """
    ids, features_NF = task.encode(fn)
    labels = torch.from_numpy(task.labels)[torch.from_numpy(ids) & ((1 << TASK_SHIFT) - 1)]
    return labels[labels >= 0], features_NF[labels >= 0].double()


def view_variance(views_NVD: Tensor) -> Tensor:
    """How much the embeddings of a sample's views differ: their population variance, summed over D.

    It is the mean squared distance to their mean (CCSL, Sec. 3.2, names no reduction).

    Args:
        views_NVD: Embeddings of V views of N samples, (N, V, D).

    Returns:
        Variances (N,).
    """
    return views_NVD.double().var(dim=1, correction=0).sum(dim=1)


def steadiest_of_clusters(plain_ND: Tensor, views_NVD: Tensor, clusters: int, count: int) -> Tensor:
    """The samples of each cluster whose views vary least.

    Clusters are k-means' of the plain embeddings (scikit-learn, ten starts, seeded by torch's global generator); ties
    go to the first. Threads may round sums otherwise, so all ranks must take one rank's answer, as the engine does.

    Args:
        plain_ND: Embeddings of the plain views, (N, D).
        views_NVD: Embeddings of V views, (N, V, D).
        clusters: How many clusters.
        count: Samples of each cluster; all of a cluster that has fewer.

    Returns:
        Places in N, int64.

    Source:
        CCSL, Sec. 3.2.
    """
    from sklearn.cluster import KMeans  # a second of import that few methods need

    seed = int(torch.randint(2**31, ()))
    kmeans = KMeans(min(clusters, len(plain_ND)), n_init=10, random_state=seed).fit(plain_ND.double().numpy())
    order = view_variance(views_NVD).argsort(stable=True)
    group = torch.from_numpy(kmeans.labels_)[order]
    return torch.cat([order[group == number][:count] for number in range(int(group.max()) + 1)])
