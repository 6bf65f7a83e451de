"""What a rule is: a method that wraps any learner and changes what its equations change.

    class Method(Rule):
        def loss(self, batch):
            output = self.learner.loss(batch)
            return self.with_term(output, "distill", self.config.distill_weight * ...)

`kinoray run lwf:base_moco` composes a rule and a learner into one method (`compose`): it has the settings of both, so a
rule names its own by their role (`distill_weight`, never `temperature`). Joint training of a rule is joint training of
its learner with the rule's equations standing by.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone, TwoTower
from kinoray.config import config, names_of
from kinoray.errors import UsageError
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, Rows, StepInfo, StepOutput, Task, TaskFacts, Tokens

C = TypeVar("C")


class Rule(BaseMethod):
    """Base of every rule: each verb passes to `self.learner`; a rule overrides those that its equations change.

    `self.config` holds the settings of both. The learner is built first, so that it begins with the weights that it has
    alone, and its state stands under `learner.`; what a rule needs beside it stands in parameters and buffers of the
    rule. A rule that is switched off by its settings leaves the learner's state and logged values as they are alone,
    bit for bit: it calls the learner's verb before it draws numbers of its own.

    A rule that grows calls the learner's `grow` first; `after_step` of the learner takes from `carry` what its own loss
    put there.

    Args:
        config: The settings of both.
        learner: The method that it wraps.
        num_tasks: How many tasks the run makes room for, >= 1.
    """

    parts: ClassVar[tuple[type[BaseMethod], ...]] = ()
    """The rule and the learner that a class was composed of; empty for a rule by itself."""
    compares_encoders: ClassVar[bool] = False
    """Whether the rule holds the encoder, weight by weight or by what it finds, to what it was: one for all tasks."""

    def __init__(self, config: Any, learner: BaseMethod, num_tasks: int) -> None:
        nn.Module.__init__(self)  # a rule has no backbone of its own
        self.config = config
        self.num_tasks = num_tasks
        self.learner = learner

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """What the rule asks of the plan beyond its learner: replay, more views, a plain view.

        Args:
            config: The rule's settings.
        """
        return Needs()

    def grow(self, task: TaskFacts) -> None:
        self.learner.grow(task)

    def begin_task(self, task: Task) -> None:
        self.learner.begin_task(task)

    def param_groups(self) -> dict[str, ParamGroup]:
        return self.learner.param_groups()

    def loss(self, batch: Batch) -> StepOutput:
        return self.learner.loss(batch)

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        self.learner.after_step(carry, step)

    def end_task(self, task: Task) -> Sequence[int]:
        return self.learner.end_task(task)

    def encoder(self) -> Backbone:
        return self.learner.encoder()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        return self.learner.embed_video(video, task_index)

    def probe_features(self, video: Tensor, task_index: int) -> Tensor:
        return self.learner.probe_features(video, task_index)

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        return self.learner.embed_text(text, task_index)

    def score(self, queries: Tensor, block: Tensor) -> Tensor:
        return self.learner.score(queries, block)

    def features(self, output: StepOutput, rows: Rows) -> dict[str, Tensor]:
        """The learner's features of some rows, with their graph: what its loss gave, or else encoded now.

        Args:
            output: What the learner's loss gave back.
            rows: The rows that it was of.

        Returns:
            Features (B, D) by name.
        """
        return output.features or encoded(self.encoder(), rows)

    def with_term(self, output: StepOutput, name: str, term: Tensor) -> StepOutput:
        """A learner's output with a term of the rule added to the objective and logged as `loss/{name}`.

        Where groups follow objectives of their own, it is added to those that hold parameters of `encoder()`: a
        generator that works against the encoder knows nothing of it. A group that rests in this step goes on resting.

        Args:
            output: What the learner's loss gave back.
            name: Of the term.
            term: A scalar, a sum over local rows divided by the global count.
        """
        objectives = output.objectives
        if isinstance(objectives, Tensor):
            objectives = objectives + term
        else:
            own = {id(parameter) for parameter in self.encoder().parameters()}
            groups = self.param_groups()
            holds = {name: any(id(p) in own for p in group.params.values()) for name, group in groups.items()}
            objectives = {
                group: value + term if value is not None and holds[group] else value
                for group, value in objectives.items()
            }
        return replace(output, objectives=objectives, log=output.log | {f"loss/{name}": term})

    def scaled(self, output: StepOutput, weight: float) -> StepOutput:
        """A learner's output with its objectives times a weight; a group that rests goes on resting.

        Args:
            output: What the learner's loss gave back.
            weight: The factor.
        """
        objectives = output.objectives
        if isinstance(objectives, Tensor):
            return replace(output, objectives=weight * objectives)
        weighed = {group: None if value is None else weight * value for group, value in objectives.items()}
        return replace(output, objectives=weighed)


def encoded(encoder: Backbone, rows: Rows) -> dict[str, Tensor]:
    """Features of rows by name: `video`, of the first view, and, where the encoder reads captions, `text`.

    Args:
        encoder: Gives the features.
        rows: The rows, B of them.

    Returns:
        Features (B, D) by name.
    """
    features = {"video": encoder.embed_video(rows.video)}
    return features | {"text": encoder.embed_text(rows.text)} if isinstance(encoder, TwoTower) else features


@functools.lru_cache(maxsize=64)
def compose(rule: type[Rule], learner: type[BaseMethod]) -> type[BaseMethod]:
    """One method of a rule and a learner: the settings of both, and what either says of itself.

    `RECIPES` and `RELEASED` are the learner's, then the rule's; `needs_labels`, `uses_num_tasks` and `per_block` hold
    if they hold for either; protocols are those that both suit, in the learner's order; backbones are the learner's;
    `needs` are joined.

    Args:
        rule: The rule's class.
        learner: The class of the method that it wraps.

    Raises:
        UsageError: The first is no rule, the second is one, both name the same setting, no protocol suits both, or the
            rule compares encoders and the learner has one for each task or block.
    """
    label = f"{title(rule)}:{title(learner)}"
    if not issubclass(rule, Rule) or rule.parts:
        raise UsageError(f"{label}: {title(rule)} is not a rule, and only a rule can wrap a learner.")
    if issubclass(learner, Rule):
        raise UsageError(f"{label}: {title(learner)} is a rule, too; a rule wraps a learner.")
    both = [name for name in names_of(rule.Config) if name in names_of(learner.Config)]
    if both:
        raise UsageError(
            f"{label}: both have a setting {both[0]}. Rename that of the rule after its purpose, such as "
            f"distill_{both[0]}."
        )
    if rule.compares_encoders and (learner.encoder_by_task or learner.per_block):
        raise UsageError(
            f"{label}: {title(rule)} compares the encoder with its earlier state, but {title(learner)} has a separate "
            "encoder for each task. Choose another learner."
        )
    suits = tuple(name for name in learner.suits or rule.suits if not rule.suits or name in rule.suits)
    if not suits and rule.suits:
        raise UsageError(
            f"{label}: they share no protocol: the rule works with {', '.join(rule.suits)}, the learner with "
            f"{', '.join(learner.suits)}. Choose another learner."
        )

    def init(self: Rule, config: Any, backbone: Any, num_tasks: int) -> None:
        inner = learner(_part(config, learner.Config), backbone, num_tasks)  # first: it draws what it draws alone
        rule.__init__(self, config, inner, num_tasks)

    def needs(cls: type, config: Any) -> Needs:
        return _joined_needs(rule.needs(config), learner.needs(_part(config, learner.Config)), label)

    return type(
        "Method",
        (rule,),
        {
            "__module__": f"{__name__}.{label}",
            "__qualname__": "Method",
            "__doc__": f"{title(rule)} around {title(learner)}. {rule.__doc__ or ''}".strip(),
            "__init__": init,
            "needs": classmethod(needs),
            "parts": (rule, learner),
            "Config": _joined_config(rule.Config, learner.Config),
            "RECIPES": _joined_settings(learner.RECIPES, rule.RECIPES),
            "RELEASED": _joined_settings(learner.RELEASED, rule.RELEASED),
            "suits": suits,
            "backbones": learner.backbones,
            "needs_labels": rule.needs_labels or learner.needs_labels,
            "uses_num_tasks": rule.uses_num_tasks or learner.uses_num_tasks,
            "per_block": rule.per_block or learner.per_block,
            "encoder_by_task": learner.encoder_by_task,
        },
    )


def title(cls: type) -> str:
    """What a method's class is called: a file's own `Method` by the name of its file.

    Args:
        cls: The class.
    """
    return cls.__module__.rpartition(".")[2] if cls.__name__ == "Method" else cls.__name__


def _joined_config(rule: type, learner: type) -> type:
    """A config with the fields, marks, properties and checks of both."""

    def post_init(self: Any) -> None:
        for part in (learner, rule):  # pydantic would call the first one's alone
            if hasattr(part, "__post_init__"):
                part.__post_init__(self)

    for part in (learner, rule):
        _mend_travelled(part)
    doc = "Settings of a rule and of its learner."
    return config(type("Config", (rule, learner), {"__post_init__": post_init, "__module__": __name__, "__doc__": doc}))


def _mend_travelled(cls: Any) -> None:
    """Give the fields of a config that came pickled by value the one MISSING that `dataclasses` asks for by identity;
    without it the class cannot be built upon."""
    for field in cls.__dataclass_fields__.values():
        for name in ("default", "default_factory"):
            if isinstance(getattr(field, name), type(MISSING)):
                setattr(field, name, MISSING)


def _part(config: Any, cls: type[C]) -> C:
    """The settings of one of the two."""
    return cls(**{name: getattr(config, name) for name in names_of(cls)})


def _joined_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings per stream; the second's win."""
    return {stream: first.get(stream, {}) | second.get(stream, {}) for stream in dict.fromkeys([*first, *second])}


def _joined_needs(rule: Needs, learner: Needs, label: str) -> Needs:
    """What both need: the larger number of views, the wider plain view, and all else from the one that asks for it."""
    usual, values = Needs(), {}
    for name in (field.name for field in fields(Needs)):
        asked = [getattr(part, name) for part in (rule, learner)]
        differing = [value for value in asked if value != getattr(usual, name)]
        if name == "views":
            values[name] = max(asked)
        elif name == "plain":
            values[name] = max(asked, key=("", "replay", "all").index)
        elif len(differing) == 2 and differing[0] != differing[1]:
            raise UsageError(f"{label}: rule and learner ask for different `{name}` in Needs. Wrap another learner.")
        else:
            values[name] = differing[0] if differing else getattr(usual, name)
    return Needs(**values)
