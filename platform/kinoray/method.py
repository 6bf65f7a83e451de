"""What a continual-learning method is: one class with these verbs and no others.

A method file imports torch, `backbones`, `config`, `equations`, `errors`, `momentum`, `rehearsal`, `rule` and this
module. Tasks, plan, device, precision, processes, gradients, optimizer, evaluation and checkpoints are the engine's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from kinoray.backbones.attention import activation_attention
from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.data.memory import Replay
from kinoray.data.plan import TASK_SHIFT, StepFacts

__all__ = [
    "BaseMethod",
    "Batch",
    "Needs",
    "ParamGroup",
    "Reference",
    "Replay",
    "Rows",
    "StepFacts",
    "StepInfo",
    "StepOutput",
    "Stored",
    "Task",
    "TaskFacts",
    "Tokens",
    "trainable",
]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Features of earlier tasks' videos as their own models left them (`evaluation.gallery`), some for every step."""

    split: Literal["train", "test"] = "train"
    """Whose videos: test videos as negatives are what the released FrameFusionMoE takes, and a leak."""
    rows: int = 0
    """Rows of a step, >= 0; 0 is the batch size."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Rows of a set that is none of the stream's, some for every step."""

    source: str
    """A stream's name or a folder: the training samples of all its tasks."""
    rows: int = 0
    """Rows of a step, >= 0; 0 is the batch size."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the plan must deliver for every step."""

    views: int = 1
    """Augmented views of each sample, >= 1."""
    plain: Literal["", "replay", "all"] = ""
    """Also one view without augmentation, of no row, of the replayed rows, or of all."""
    replay: Replay | None = None
    """Rows of earlier samples (memory policy, capacity, rows per step). A capacity of 0 becomes None here, so that a
    method that replays from no memory is its learner, bit for bit."""
    stored: Stored | None = None
    """Features of earlier tasks' videos; the engine embeds what it asks for at the end of each task."""
    reference: Reference | None = None
    """Rows of a reference set (ZSCL)."""

    def __post_init__(self) -> None:
        if self.replay is not None and self.replay.capacity == 0:
            object.__setattr__(self, "replay", None)


@dataclass
class Rows:
    """Samples on this rank's device."""

    views: tuple[Tensor, ...]
    """Each (B, T, 3, H, W), normalised float."""
    plain: Tensor | None
    """The same without augmentation, where `Needs.plain` asks for it."""
    text: Tokens
    """Ids and mask (B, L). None where the backbone reads no captions: its methods know, those of two towers need not
    ask."""
    ids: Tensor
    """Sample ids (B,) int64: (task index << 40) | sample number."""
    labels: Tensor
    """Class numbers (B,) int64, -1 = none."""
    slots: Tensor
    """Slot of the memory that a replayed row came from, or that a current row is kept in from this step on, -1 = not
    kept; (B,) int64. A pure function of the plan (`data.plan.step_slots`); payloads that belong to rows go by it
    (`rehearsal`)."""

    @property
    def tasks(self) -> Tensor:
        """Index of each row's task, (B,)."""
        return self.ids >> TASK_SHIFT

    @property
    def samples(self) -> Tensor:
        """Sample number of each row in its task, (B,)."""
        return self.ids & ((1 << TASK_SHIFT) - 1)

    @property
    def video(self) -> Tensor:
        """The first view, (B, T, 3, H, W)."""
        return self.views[0]


@dataclass
class Batch(Rows):
    """This rank's slice of one step's rows: the fields of `Rows`, and what goes with them."""

    replay: Rows | None
    """This rank's slice of the replayed rows; None while the memory is empty."""
    global_size: int
    """Current rows over all ranks: what a sum over local rows is divided by."""
    replay_size: int
    """Replayed rows over all ranks."""
    order: Tensor
    """Position of each of this rank's rows among the rows of all ranks in plan order, as `gather` has them, (B,)."""
    gather: Callable[[Tensor], Tensor]
    """(B, ...) of every rank -> (global B, ...) in plan order; differentiable."""
    normal: Callable[..., Tensor]
    """normal(*shape) -> (B, *shape): this rank's rows of noise drawn at global shape, the same for any worker count.
    normal(*shape, replay=True) -> (R, *shape): the same for the replayed rows, from a generator of their own."""
    uniform: Callable[..., Tensor]
    """As `normal`, evenly in [0, 1)."""
    step: StepFacts
    """Step and epoch, counted from 0 in the task: the same on all ranks."""
    stored: Tensor | None = None
    """Features of R videos of earlier tasks (R, ...), the same on all ranks: rows step * R to (step + 1) * R - 1 of all
    that are stored, in order and again from the first; None in the first task."""
    reference: Rows | None = None
    """This rank's slice of the step's rows of the reference set: one view without augmentation, ids, labels and slots
    -1. They go through the set in an order of their own, task after task; the same for any number of ranks."""


@dataclass
class StepOutput:
    """What a step's loss gives back."""

    objectives: Tensor | Mapping[str, Tensor | None]
    """One scalar for all parameters, or one per named parameter group (each group follows its own objective).

    None instead of a group's scalar leaves the group alone in this step: no gradient, no optimizer step, no weight
    decay. All ranks must say the same, so decide by the batch's `step`, not by its rows. At least one is a scalar.
    """
    log: dict[str, Tensor] = field(default_factory=dict)
    """Scalars to log, each a sum over local rows / global count, so that ranks add up."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Detached, row-aligned tensors for `after_step`, which receives them from all ranks in plan order."""
    gather: Callable[[Tensor], Tensor] | None = None
    """Puts the rows of `carry` in plan order; None: they are this rank's current rows. Of a joined batch its own."""
    features: dict[str, Tensor] = field(default_factory=dict)
    """What `encoder()` makes of the rows, by name, row-aligned, with its graph: a rule needs no second forward then. {}
    where the loss takes another path than the encoder's. A method says in its docstring which names it gives."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that train now, by name, at a multiple of the stream's learning rate."""

    params: dict[str, nn.Parameter]
    """Name -> parameter."""
    rate: float = 1.0
    """The multiple."""
    weight_decay: float | None = None
    """Of this group, >= 0; None is the recipe's."""


@dataclass(frozen=True)
class StepInfo:
    """Where `after_step` stands."""

    step: int
    """Step just made, counted from 0 in the task."""
    last_of_epoch: bool
    """Whether the next step begins another epoch."""
    learning_rate: float
    """The stream's in this step, to be multiplied by each group's `rate`."""
    replay_size: int = 0
    """Replayed rows of the step over all ranks."""
    clip_scale: Tensor | float = 1.0
    """What the recipe's `clip_norm` has multiplied all gradients with, at most 1; a scalar on the device."""


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task before anything is learned. Joint training is one task, zero-shot has no steps."""

    index: int
    """Counted from 0."""
    name: str
    """As the stream names it."""
    num_tasks: int
    """Tasks that the run makes room for."""
    num_samples: int
    """Training samples (a clip with several captions is several)."""
    num_classes: int
    """Distinct labels of the training samples; 0 where they have none."""
    steps: int
    """Optimizer steps."""
    new_classes: int = field(default=0, kw_only=True)
    """Of the distinct labels those that no earlier task has: class numbers count through the tasks in order."""


@dataclass(frozen=True)
class Task(TaskFacts):
    """The task being learned, as a method sees it: the fields of `TaskFacts`, and its data."""

    encode: Callable[..., tuple[np.ndarray, Tensor]]
    """encode(fn, split="train", views=0) -> (sample ids (N,), features on the CPU): passes over the task's data in
    order, all rows on all ranks, without gradients and in the run's precision. fn takes `Rows`; views = 0 gives the
    plain view and features (N, ...), views = k gives k augmented views, fn sees one at a time, features (N, k, ...).
    split="memory" passes over what the replay memory holds instead: before the task's first step in `begin_task`, after
    its last in `end_task` (exemplars and class-balanced memories change between tasks alone). One row per filled slot
    whose clip can be read, in the order of the slots, which fn finds in `rows.slots`; no rows while there are none."""
    total: Callable[[Callable[[Rows], Tensor]], Tensor]
    """total(fn) -> the sum of what fn makes of batches of plain views, over the task's training data, on the CPU in
    float64, on all ranks: for a covariance, say, which is larger than the rows that it is of. No gradients."""
    labels: np.ndarray
    """Class number of each training sample, (num_samples,), -1 = none; sample ids count through the same order."""


class BaseMethod(nn.Module, ABC):
    """Base of every method. The engine calls the verbs in this order, on every rank alike:

        needs | per task: grow, begin_task, param_groups, (loss, optimizer, after_step)*, end_task
              | embed_*, probe_features, score

    State lives in parameters and buffers, so it is saved and a resumed run goes on with it; what stands in plain Python
    attributes is lost at resume, but for what `__init__`, `grow` and `begin_task` make anew. All verbs but `loss` and
    `after_step` find the method in eval mode and random numbers that depend on the run's seed, the task and the verb
    alone; `loss` finds train mode and the step's, equal on all ranks but in dropout layers.

    `Config` (made by `kinoray.config.config`) and, where a paper gives settings per data set, `RECIPES` (stream ->
    {setting: value}; "shapes-*" for all streams of such names, "protocol:NAME" for all that a protocol tests) stand
    beside the class in its file, or in the class itself.

    Args:
        config: The settings, an instance of `Config`.
        backbone: The method's to keep and to change, of the class `backbones`.
        num_tasks: How many tasks the run makes room for, >= 1.
    """

    Config: ClassVar[type]
    RECIPES: ClassVar[dict[str, dict[str, Any]]] = {}
    RELEASED: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings of the authors' code where it differs from the paper, by stream as RECIPES, "" for every stream."""
    whole: ClassVar[bool] = False
    """Whether it is a continual method by itself, rather than a learner for rules to wrap; `kinoray list methods` says
    so."""
    suits: ClassVar[tuple[str, ...]] = ()
    """Protocols that can test the method; empty: any. Its conformance is tested under the first."""
    tested_by: ClassVar[str] = ""
    """The protocol that tests the method where it does not suit the stream's own, which tests it else; empty: none."""
    backbones: ClassVar[type] = TwoTower
    """What the backbone must be."""
    acts_inside: ClassVar[bool] = False
    """Whether it changes layers inside the towers, so that stored outputs of a backbone are not enough."""
    needs_labels: ClassVar[bool] = False
    """Whether each task and held-out set must have samples with labels."""
    per_block: bool = False
    """Whether `embed_text` depends on the task whose gallery block is searched; False embeds each query once. Settings
    may decide it in `__init__`. Rules that compare encoders are then refused."""
    encoder_by_task: ClassVar[bool] = False
    """Whether `encoder()` is another one for each task: gets weights with it, or goes another way. Rules that compare
    it with what it was are then refused."""
    uses_num_tasks: ClassVar[bool] = True
    """Whether `num_tasks` can reach the state. False lets finished runs learn one more task (`kinoray extend`) and runs
    of longer streams share their first tasks. True is always safe."""

    def __init__(self, config: Any, backbone: Backbone, num_tasks: int) -> None:
        """Build everything that is there before the first task; the backbone is the method's to keep and to change."""
        super().__init__()
        self.config = config
        self.num_tasks = num_tasks

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """What the plan must deliver, asked before anything is built.

        Args:
            config: The settings; the answer depends on nothing else.
        """
        return Needs()

    def grow(self, task: TaskFacts) -> None:
        """Create the modules and buffers of a new task.

        Called before the task and again, for every task so far, at resume, where what is stored is then loaded: shapes
        only, no data, nothing that depends on trained weights.

        Args:
            task: What is known of it.
        """

    def begin_task(self, task: Task) -> None:
        """Copy teachers and momentum encoders, freeze.

        Called once `grow` has been; at a resume inside the task it is called again, and the tensors are loaded after
        it.

        Args:
            task: The task, whose data it may pass over (`task.encode`).
        """

    @abstractmethod
    def param_groups(self) -> dict[str, ParamGroup]:
        """What trains in this task, by group name; called after `begin_task`. A parameter that is not in it rests."""

    @abstractmethod
    def loss(self, batch: Batch) -> StepOutput:
        """The step's objectives.

        Gradients are on, precision is the engine's; nothing of the state may change here (the statistics of BatchNorm
        aside).

        Args:
            batch: This rank's rows.

        Returns:
            Objectives, each a sum over local rows divided by the global count, and what goes with them.
        """

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Pulls, averages, queues in the paper's order.

        Called after the optimizer's step, under no_grad, while the gradients still stand.

        Args:
            carry: What `loss` put there, of all ranks in plan order, detached.
            step: The step just made.
        """

    def end_task(self, task: Task) -> Sequence[int]:
        """Consolidate, once the best weights by validation are back.

        Args:
            task: The task, whose data it may pass over (`task.encode`).

        Returns:
            The sample ids kept as exemplars (for `Replay(policy="exemplars")`); those of the first rank count.
        """
        return ()

    @abstractmethod
    def encoder(self) -> Backbone:
        """The module that is probed, fine-tuned, exported and, unless `embed_*` or `probe_features` say
        otherwise, tested."""

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """Features of videos, which the gallery of a task stores; under inference_mode.

        Args:
            video: Normalised frames (B, T, 3, H, W).
            task_index: The task, from 0.

        Returns:
            Features (B, ...).
        """
        return self.encoder().embed_video(video)

    def probe_features(self, video: Tensor, task_index: int) -> Tensor:
        """Features of a task's videos, which a probe or a nearest-neighbour classifier sees; under inference_mode.

        Those of `encoder()`, unless each task has an encoder of its own.

        Args:
            video: Normalised frames (B, T, 3, H, W).
            task_index: The task, from 0.

        Returns:
            Features (B, F).
        """
        return self.encoder().features(video)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """Query features for the gallery block of a task; under inference_mode.

        Args:
            text: Captions as tokens (B, L).
            task_index: The task, from 0.

        Returns:
            Features (B, ...).
        """
        towers = self.encoder()
        assert isinstance(towers, TwoTower), "retrieval by text was refused for other backbones"
        return towers.embed_text(text)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        """Similarity of queries to a gallery block; a dot product unless overridden.

        On this rank's device, under inference_mode, in float32.

        Args:
            queries: Features of Q queries, (Q, ...).
            block: Features of V videos, (V, ...).

        Returns:
            Scores (Q, V); higher is nearer.
        """
        return queries @ block.T

    def attention_maps(self, video: Tensor) -> dict[str, Tensor]:
        """Where the method looks; called for pictures alone, under inference_mode.

        Unless overridden: where the last maps of a space-time network are strong.

        Args:
            video: Normalised frames (B, T, 3, H, W).

        Returns:
            By the name of each attention, weights over the patches of every frame, (B, T, rows, columns), >= 0. {}
            where there is none to show.
        """
        maps = self.encoder().trunk.last_maps(video)
        return {} if maps is None else {"activation": activation_attention(maps, video.shape[1])}


def trainable(module: nn.Module, prefix: str, rate: float = 1.0, weight_decay: float | None = None) -> ParamGroup:
    """A group of all of a module's parameters, named `prefix.name`.

    Args:
        module: The module.
        prefix: Begins the names.
        rate: Multiple of the stream's learning rate.
        weight_decay: Of this group, >= 0; None: the recipe's.
    """
    return ParamGroup({f"{prefix}.{name}": p for name, p in module.named_parameters()}, rate, weight_decay)
