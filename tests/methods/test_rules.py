"""Rules around learners: composed settings, words and needs; switched off, a rule is its learner bit for bit."""

from typing import Annotated, Any

import pytest
import torch
import torch.multiprocessing as mp
from pydantic import Field
from support.ranks import train_two
from support.rules import OFF, Distill, Pairs, Rehearse, assert_same, base_moco, learned
from support.toys import TOYS, Exemplars, Opposed, ToyConfig

from kinoray.backbones import load_backbone
from kinoray.config import Positive, Recipe, build, config, names_of
from kinoray.errors import UsageError
from kinoray.method import Needs, Replay
from kinoray.rule import Rule, compose
from kinoray.runs.method_source import find_method, method_names, methods_folder, with_learner
from kinoray.runs.resolve import counts_tasks
from kinoray.testing.engine import built, run_spec, spec_of, state_of
from kinoray.testing.subject import Subject
from kinoray.testing.suite import BrokenPromise, two_ranks_equal_one

LEARNERS = {"base_moco": base_moco, "pairs": Pairs}


def off(rule: type[Rule]) -> dict[str, Any]:
    return {name: value for name, value in OFF.items() if name in names_of(rule.Config)}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("rule", [Distill, Rehearse])
def test_a_rule_switched_off_is_its_learner_bit_for_bit(rule, learner, micro, tmp_path) -> None:
    alone = spec_of(LEARNERS[learner], micro, tmp_path)
    wrapped = spec_of(compose(rule, LEARNERS[learner]), micro, tmp_path, settings=off(rule))
    assert run_spec(alone)
    assert run_spec(wrapped)
    assert_same(alone, wrapped)


@pytest.mark.slow
def test_rules_switched_off_are_their_learners_on_two_ranks(micro, tmp_path) -> None:
    short = {"max_steps": 2, "validations": 1}
    alone = {name: spec_of(learner, micro, tmp_path, settings=short) for name, learner in LEARNERS.items()}
    wrapped = [
        (name, spec_of(compose(rule, learner), micro, tmp_path, settings=short | off(rule)))
        for rule in (Distill, Rehearse)
        for name, learner in LEARNERS.items()
    ]
    specs = [*alone.values(), *(spec for _, spec in wrapped)]
    mp.spawn(train_two, (str(tmp_path), specs), nprocs=2)
    for name, spec in wrapped:
        assert_same(alone[name], spec)


def test_a_rule_that_divides_by_its_own_rows_breaks_the_promise_of_two_ranks(micro, tmp_path) -> None:
    text = (methods_folder() / "der.py").read_text()
    wrong = text.replace("* theirs_R).sum() / batch.replay_size", "* theirs_R).sum() / len(again.ids)")
    assert wrong != text
    (tmp_path / "wrong.py").write_text(wrong)
    source = with_learner(find_method(str(tmp_path / "wrong.py")), "cvlm")
    with pytest.raises(BrokenPromise, match=r"divide by batch\.global_size"):
        two_ranks_equal_one(Subject(source, micro, tmp_path / "runs"))


def test_a_rule_that_is_on_moves_the_learner(micro, tmp_path) -> None:
    for rule in (Distill, Rehearse):
        weak, strong = (
            spec_of(compose(rule, Pairs), micro, tmp_path, settings=settings) for settings in (off(rule), {})
        )
        assert run_spec(weak) and run_spec(strong)
        (first, _), (second, _) = learned(weak), learned(strong)
        assert any(not torch.equal(first[name], value) for name, value in second.items() if "learner" in name)


def test_the_learner_begins_with_the_weights_that_it_has_alone(micro, tmp_path) -> None:
    class Noisy(Distill):
        def __init__(self, config, learner, num_tasks) -> None:
            super().__init__(config, learner, num_tasks)
            self.extra = torch.nn.Linear(3, 3)

    alone = state_of(built(spec_of(base_moco, micro, tmp_path)))
    whole = state_of(built(spec_of(compose(Noisy, base_moco), micro, tmp_path)))
    assert all(torch.equal(whole[f"learner.{name}"], value) for name, value in alone.items())
    assert {name for name in whole if not name.startswith(("learner.", "teacher."))} == {
        "task",
        "extra.weight",
        "extra.bias",
    }


def test_a_term_of_a_rule_leaves_a_generator_alone() -> None:
    from kinoray.method import StepOutput

    cls = compose(Distill, Opposed)
    method = cls(cls.Config(), load_backbone("tiny"), 2)
    one = torch.tensor(1.0)
    output = method.with_term(StepOutput(objectives={"encoders": one, "generator": -one}), "near", 2 * one)
    assert output.objectives == {"encoders": 3 * one, "generator": -one}
    assert output.log == {"loss/near": 2 * one}


# What a composed class says of itself


def test_the_settings_are_those_of_both_with_their_ranges() -> None:
    both = compose(Distill, base_moco)
    assert set(names_of(both.Config)) == {"distill_weight", "temperature", "m", "queue_size"}
    with pytest.raises(UsageError, match="m=3"):
        build(both.Config, {"m": 3}, "x")
    with pytest.raises(UsageError, match="distill_weight"):
        build(both.Config, {"distill_weight": -1}, "x")
    assert compose(Distill, base_moco) is both


@config
class Even:
    even: int = 2

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ValueError(f"`even` must be even, but got {self.even}.")


@config
class Small:
    small: float = 0.5

    def __post_init__(self) -> None:
        if self.small > 1:
            raise ValueError(f"`small` must be at most 1, but got {self.small}.")


def test_the_checks_of_both_configs_are_made() -> None:
    class EvenRule(Distill):
        Config = Even

    class SmallLearner(Pairs):
        Config = Small

    both = compose(EvenRule, SmallLearner).Config
    assert both(even=4, small=1.0)
    for wrong, message in (({"even": 3}, "must be even"), ({"small": 2.0}, "at most 1")):
        with pytest.raises(UsageError, match=message) as error:
            build(both, wrong, "x")
        assert "\n" not in str(error.value)


def test_what_is_said_beside_the_config_is_joined_and_the_rule_wins() -> None:
    class Learner(Pairs):
        RECIPES = {"micro": {"pairs_temperature": 0.2, "epochs": 1}, "ucl": {"epochs": 3}}
        RELEASED = {"": {"pairs_temperature": 0.3}}
        suits = ("cvlm", "ctvr", "ucl")

    class Wide(Distill):
        RECIPES = {"micro": {"epochs": 2}}
        suits = ("ctvr", "cvlm")

    both = compose(Wide, Learner)
    assert both.RECIPES == {"micro": {"pairs_temperature": 0.2, "epochs": 2}, "ucl": {"epochs": 3}}
    assert both.RELEASED == {"": {"pairs_temperature": 0.3}}
    assert both.suits == ("cvlm", "ctvr")
    assert compose(Distill, Learner).suits == Learner.suits
    assert compose(Wide, Pairs).suits == Wide.suits
    assert not both.per_block and not both.uses_num_tasks

    class Counts(Distill):
        uses_num_tasks = True

    class Blocks(Pairs):
        per_block = True

    joined = compose(Counts, Blocks)
    assert joined.per_block and joined.uses_num_tasks


@config
class Plain:
    ring: Annotated[int, Field(ge=0)] = 4


class Asks(Rule):
    """Asks for what its config says."""

    Config = Plain

    @classmethod
    def needs(cls, config: Plain) -> Needs:
        return Needs(replay=Replay(policy="ring", capacity=config.ring, rows=2))


def test_needs_are_joined_and_two_memories_are_refused() -> None:
    both = compose(Asks, base_moco)
    assert both.needs(both.Config()).replay == Replay(policy="ring", capacity=4, rows=2)
    assert both.needs(both.Config(ring=0)) == Needs()
    two = compose(Asks, Exemplars)
    needs = two.needs(two.Config(ring=0))
    assert needs == Exemplars.needs(ToyConfig())
    with pytest.raises(UsageError, match="Asks:Exemplars: rule and learner ask for different `replay`"):
        two.needs(two.Config())


def test_what_does_not_go_together_is_refused_in_one_line() -> None:
    @config
    class Clash:
        temperature: Positive = 1.0

    class Clashing(Distill):
        Config = Clash

    class ForImages(Distill):
        suits = ("ucl",)

    class Comparing(Distill):
        compares_encoders = True

    class ByTask(Pairs):
        encoder_by_task = True

    class ForText(Pairs):
        suits = ("cvlm",)

    for rule, learner, message in (
        (Clashing, base_moco, "Clashing:base_moco: both have a setting temperature"),
        (base_moco, Pairs, "base_moco is not a rule"),
        (Distill, Rehearse, "Rehearse is a rule, too"),
        (Distill, compose(Rehearse, Pairs), "is a rule, too"),
        (compose(Rehearse, Pairs), Pairs, "is not a rule"),
        (ForImages, ForText, "the rule works with ucl, the learner with cvlm"),
        (Comparing, ByTask, "Comparing compares the encoder with its earlier state"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            compose(rule, learner)
        assert "\n" not in str(error.value)


def test_every_rule_and_every_learner_have_settings_of_their_own() -> None:
    classes = [find_method(name).load() for name in method_names()] + list(TOYS.values())
    rules = [cls for cls in classes if issubclass(cls, Rule)] + [Distill, Rehearse]
    for rule in rules:
        for learner in (cls for cls in classes if not issubclass(cls, Rule)):
            assert not set(names_of(rule.Config)) & set(names_of(learner.Config)), (rule, learner)
            assert not set(names_of(rule.Config)) & set(names_of(Recipe)), rule


def test_a_ring_counts_tasks_and_none_does_not(micro, tmp_path) -> None:
    from kinoray.testing.engine import resolved

    cls = compose(Rehearse, Pairs)
    assert counts_tasks(resolved(cls, micro, tmp_path))
    assert not counts_tasks(resolved(cls, micro, tmp_path, settings={"memory_capacity": 0}))


def test_what_a_probe_sees_of_a_rule_is_what_it_sees_of_its_learner() -> None:
    class Columns(Pairs):
        def probe_features(self, video: torch.Tensor, task_index: int) -> torch.Tensor:
            return self.encoder().features(video) + task_index

    video = torch.randn(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cls = compose(Distill, Columns)
    method = cls(cls.Config(), load_backbone("tiny"), 2).eval()
    with torch.inference_mode():
        assert torch.equal(method.probe_features(video, 3), method.encoder().features(video) + 3)
