"""Toy methods, one for each need that later methods have: they prove that the interface serves them.

`PerBlock` scores per task of the gallery, `Replays` draws on a memory, `Exemplars` chooses what to keep at a task's
end, `Opposed` follows two opposed objectives in one step, `Rehearses` has one loss over current and replayed rows and
keeps payloads with them, `BlockRehearses` keeps payloads beside queries per block.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from kinoray.backbones.norm import SplitBatchNorm1d
from kinoray.backbones.towers import TwoTower
from kinoray.config import Positive, config
from kinoray.equations import in_batch_nce, unit
from kinoray.method import (
    BaseMethod,
    Batch,
    Needs,
    ParamGroup,
    Replay,
    Rows,
    StepInfo,
    StepOutput,
    Task,
    TaskFacts,
    Tokens,
    trainable,
)
from kinoray.momentum import Frozen, Momentum, Queue, average_into, copy_into
from kinoray.rehearsal import Payloads, fill, joined


@config
class ToyConfig:
    temperature: Positive = 0.1


class _Toy(BaseMethod):
    """What the toys share: one pair of encoders."""

    Config = ToyConfig
    uses_num_tasks = False

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"encoders": trainable(self.online, "online")}

    def contrast(self, q_BD: Tensor, key_BD: Tensor, batch: Batch) -> Tensor:
        """In-batch contrast over the rows of all ranks, divided by their number."""
        return in_batch_nce(q_BD, key_BD, batch.gather(key_BD), self.config.temperature) / batch.global_size

    def encoder(self) -> TwoTower:
        return self.online


class PerBlock(_Toy):
    """Grows a random prototype per task; queries and scores depend on the task of the gallery block."""

    suits = ("ctvr", "cvlm")
    per_block = True

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.prototypes = nn.ParameterList()

    def grow(self, task: TaskFacts) -> None:
        self.prototypes.append(0.01 * torch.randn(self.online.dim))

    def param_groups(self) -> dict[str, ParamGroup]:
        newest = len(self.prototypes) - 1
        prototype = ParamGroup({f"prototypes.{newest}": self.prototypes[newest]}, rate=10.0)
        return super().param_groups() | {"prototype": prototype}

    def loss(self, batch: Batch) -> StepOutput:
        video = self.online.embed_video(batch.video)
        loss = self.contrast(self._query(batch.text, len(self.prototypes) - 1), video, batch)
        # Two groups, one objective for both.
        return StepOutput(objectives=loss)

    def _query(self, text: Tokens, task_index: int) -> Tensor:
        return unit(self.online.embed_text(text) + self.prototypes[task_index])

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        return self._query(text, task_index)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        return -torch.cdist(queries, block)


class Replays(_Toy):
    """Experience replay: the memory's rows join the loss."""

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        return Needs(replay=Replay(policy="ring", capacity=8, rows=4))

    def loss(self, batch: Batch) -> StepOutput:
        loss = self.contrast(self.online.embed_text(batch.text), self.online.embed_video(batch.video), batch)
        log = {"replayed": torch.tensor(0.0)}
        if batch.replay is not None:
            video, text = self.online.embed_video(batch.replay.video), self.online.embed_text(batch.replay.text)
            loss = loss + (1.0 - (video * text).sum(dim=1)).sum() / batch.replay_size
            log = {"replayed": torch.tensor(len(video) / batch.replay_size)}
        return StepOutput(objectives=loss, log=log)


class Exemplars(_Toy):
    """Keeps, at the end of a task, the clips that vary least under augmentation, and learns from a frozen teacher."""

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.teacher = Frozen(backbone)

    def begin_task(self, task: Task) -> None:
        copy_into(self.teacher.module, self.online)

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        return Needs(views=2, plain="all", replay=Replay(policy="exemplars", capacity=8, rows=2, views=("plain",)))

    def loss(self, batch: Batch) -> StepOutput:
        first, second = (self.online.embed_video(view) for view in batch.views)
        loss = self.contrast(first, second, batch)
        assert batch.plain is not None and batch.plain.shape == batch.video.shape
        if batch.replay is not None:
            kept, taught = (
                self.online.embed_video(batch.replay.video),
                self.teacher.module.embed_video(batch.replay.video),
            )
            kept = kept * (batch.uniform(1, replay=True) >= 0.1) / 0.9
            loss = loss - (kept * taught).sum() / batch.replay_size
        return StepOutput(objectives=loss, carry={"ids": batch.ids})

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        self.seen += len(carry["ids"])

    def end_task(self, task: Task) -> Sequence[int]:
        def features(rows: Rows) -> Tensor:
            return self.online.embed_video(rows.video)

        with torch.no_grad():
            ids, views = task.encode(features, split="train", views=3)
        assert not self.training, "between steps a method is in eval mode"
        spread = views.var(dim=1).sum(dim=1) + 1e-6 * torch.rand(len(views))
        return [int(ids[i]) for i in spread.argsort()[:3]]


class Opposed(_Toy):
    """A generator of pixel noise that raises the contrastive loss which the encoders lower, in one step."""

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.generator = nn.Linear(4, 3)

    def param_groups(self) -> dict[str, ParamGroup]:
        return super().param_groups() | {"generator": trainable(self.generator, "generator", rate=5.0)}

    def loss(self, batch: Batch) -> StepOutput:
        tint = self.generator(batch.normal(4))[:, None, :, None, None]
        video = self.online.embed_video(batch.video + 0.1 * tint)
        loss = self.contrast(self.online.embed_text(batch.text), video, batch)
        return StepOutput(objectives={"encoders": loss, "generator": -loss}, log={"contrast": loss})


class Draws(_Toy):
    """Draws from all three generators that a method may use: the same at every resume, and on every rank."""

    def loss(self, batch: Batch) -> StepOutput:
        loss = self.contrast(self.online.embed_text(batch.text), self.online.embed_video(batch.video), batch)
        drawn = random.random() + np.random.random() + torch.rand(())
        return StepOutput(objectives=loss * (1 + drawn))

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        shake = random.random() * np.random.random() * torch.rand(())
        for parameter in self.online.parameters():
            parameter.mul_(1 - 1e-3 * shake)


class Norms(_Toy):
    """A plain BatchNorm over the rows of each rank, whose statistics are other ones on every rank."""

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.norm = nn.BatchNorm1d(backbone.dim)

    def loss(self, batch: Batch) -> StepOutput:
        video = unit(self.norm(self.online.embed_video(batch.video)))
        return StepOutput(objectives=self.contrast(self.online.embed_text(batch.text), video, batch))


class Forgets(_Toy):
    """Counts its steps in a plain attribute, keeps keys in a plain list, and weighs its loss by both."""

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.count = 0
        self.past: list[Tensor] = []

    def loss(self, batch: Batch) -> StepOutput:
        video = self.online.embed_video(batch.video)
        loss = self.contrast(self.online.embed_text(batch.text), video, batch) * (1 + self.count + len(self.past))
        return StepOutput(objectives=loss, carry={"video": video.detach()})

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        self.count += 1
        self.past.append(carry["video"].mean())


class Normed(_Toy):
    """A head with batch normalisation, and a momentum encoder of videos whose head normalises as that one does."""

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.head = nn.Sequential(SplitBatchNorm1d(backbone.dim), nn.Linear(backbone.dim, 16))
        self.keys_head = Momentum(self.head, train=True)

    def param_groups(self) -> dict[str, ParamGroup]:
        return super().param_groups() | {"head": trainable(self.head, "head")}

    def loss(self, batch: Batch) -> StepOutput:
        video, text = self.online.embed_video(batch.video), self.online.embed_text(batch.text)
        with torch.no_grad():
            key = unit(self.keys_head.module(video))
        return StepOutput(objectives=self.contrast(unit(self.head(text)), key, batch))

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        average_into(self.keys_head.module, self.head, keep=0.9)


class Rehearses(_Toy):
    """One loss over the union of current and replayed rows; features of the day a row was written draw it back."""

    CAPACITY = 10

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.payloads = Payloads(self.CAPACITY, backbone.dim)
        self.queue = Queue(24, backbone.dim)

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        views = ("plain", "as-written")
        return Needs(views=2, plain="replay", replay=Replay("reservoir", cls.CAPACITY, rows=4, views=views))

    def begin_task(self, task: Task) -> None:
        fill(self.payloads, task, lambda rows: self.online.embed_video(rows.video))

    def loss(self, batch: Batch) -> StepOutput:
        assert batch.plain is None
        both = joined(batch)
        noisy = both.video + 0.01 * both.normal(*both.video.shape[1:]) * both.uniform(1, 1, 1, 1)
        video, text = self.online.embed_video(noisy), self.online.embed_text(both.text)
        logits = video @ self.queue.keys_KD.T / self.config.temperature
        loss = ((1.0 - (video * text).sum(dim=1)) + logits.logsumexp(dim=1)).sum() / both.global_size
        if batch.replay is not None:
            again = batch.replay
            assert again.plain is not None and torch.equal(again.plain, again.video)
            written, valid = self.payloads.read(again.slots, again.ids)
            apart = (self.online.embed_video(again.views[1]) - written).square().sum(dim=1)
            loss = loss + (valid * apart).sum() / batch.replay_size
        current = both.slots.clone()
        current[len(batch.ids) :] = -1  # replayed rows keep the payload of the day they were written
        carry = {"video": video.detach(), "slots": current, "ids": both.ids}
        return StepOutput(loss, carry=carry, gather=both.gather, features={"video": video})

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        self.queue.enqueue(carry["video"])
        self.payloads.write(carry["slots"], carry["ids"], carry["video"])


class BlockRehearses(PerBlock):
    """Queries per block, and features of the day a row was written that draw it back through its own task's block."""

    CAPACITY = 6

    def __init__(self, config: ToyConfig, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.payloads = Payloads(self.CAPACITY, backbone.dim)

    @classmethod
    def needs(cls, config: ToyConfig) -> Needs:
        return Needs(replay=Replay("reservoir", cls.CAPACITY, rows=4))

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        carry = {"slots": batch.slots, "ids": batch.ids, "video": self.online.embed_video(batch.video).detach()}
        if batch.replay is None:
            return replace(output, carry=carry)
        again = batch.replay
        written, valid = self.payloads.read(again.slots, again.ids)
        prototypes = torch.stack(list(self.prototypes))[again.tasks]
        query = unit(self.online.embed_text(again.text) + prototypes)
        apart = (query - written).square().sum(dim=1)
        loss = output.objectives + (valid * apart).sum() / batch.replay_size
        log = {"recalled": valid.sum() / batch.replay_size}
        return replace(output, objectives=loss, log=log, carry=carry)

    def param_groups(self) -> dict[str, ParamGroup]:
        learned = {f"prototypes.{index}": prototype for index, prototype in enumerate(self.prototypes)}
        return super().param_groups() | {"prototype": ParamGroup(learned, rate=10.0)}

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        self.payloads.write(carry["slots"], carry["ids"], carry["video"])


TOYS = {
    "draws": Draws,
    "per_block": PerBlock,
    "replays": Replays,
    "exemplars": Exemplars,
    "opposed": Opposed,
    "normed": Normed,
    "rehearses": Rehearses,
    "block_rehearses": BlockRehearses,
}
