"""Rules by name: names and files of `rule:learner`, a rule alone, what travels, what is merged, released settings."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from support.rules import Distill, Pairs, base_moco

import kinoray
from kinoray.backbones.backbone import TwoTower
from kinoray.config import names_of
from kinoray.errors import UsageError
from kinoray.report.describe import kind_of, list_methods
from kinoray.rule import Rule, compose
from kinoray.runs.method_source import find_method, method_names, methods_folder, names_in, with_learner
from kinoray.sweeps.space import check_space, load_space, space_names
from kinoray.testing.engine import resolved

RULE = '''"""Keeps the average weight small: a rule by itself in one file."""

from dataclasses import replace

from kinoray.config import config
from kinoray.method import Batch, StepOutput
from kinoray.rule import Rule

SPACE = {"decay_weight": {"low": 0.0, "high": 1.0}}
SPACES = {"decay": {"decay_weight": {"choices": [0.0, 0.1]}}, "momentum": {"decay_weight": 0.5}}


@config
class Config:
    """Hyper-parameters."""

    decay_weight: float = 0.1


RELEASED = {"": {"decay_weight": 0.3}, "micro": {"learning_rate": 0.001}}


class Method(Rule):
    """Adds the mean square of all weights."""

    uses_num_tasks = False

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        size = sum(p.square().sum() for p in self.encoder().parameters())
        share = len(batch.ids) / batch.global_size
        return self.with_term(output, "decay", self.config.decay_weight * share * size)
'''


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    path = tmp_path / "my_rule.py"
    path.write_text(RULE)
    return path


@pytest.fixture
def learner(tmp_path: Path) -> Path:
    """A learner of one's own: base_moco as a file."""
    path = tmp_path / "mine.py"
    path.write_text((methods_folder() / "base_moco.py").read_text())
    return path


def test_a_text_names_one_method_or_a_rule_and_a_learner(tmp_path: Path) -> None:
    assert names_in("bmu_moco") == ["bmu_moco"]
    assert names_in("lwf:bmu_moco") == ["lwf", "bmu_moco"]
    assert names_in("./my_rule.py") == ["./my_rule.py"]
    assert names_in("./my_rule.py:base_moco") == ["./my_rule.py", "base_moco"]
    assert names_in("lwf:./mine.py") == ["lwf", "./mine.py"]
    assert names_in("./a:b/r.py:./mine.py") == ["./a:b/r.py", "./mine.py"]
    odd = tmp_path / "a:b" / "r.py"
    odd.parent.mkdir()
    odd.touch()
    assert names_in(str(odd)) == [str(odd)]


def test_a_rule_outside_the_repository_runs_around_a_learner_by_name(rule: Path, micro, tmp_path: Path) -> None:
    settings = {"max_steps": 1, "validations": 1}
    options = {"stream": micro, "num_workers": 0, "runs": tmp_path / "runs", "quiet": True, "settings": settings}
    alone = kinoray.run(rule, **options)
    assert alone.state == "finished" and alone.method == "my_rule"
    assert kinoray.run(f"{rule}:base_moco", **options).folder == alone.folder  # one run, finished already
    other = kinoray.run(f"{rule}:bmu_moco", **options)
    assert other.method == "my_rule:bmu_moco"
    assert other.folder.parent.name.startswith("my_rule-bmu_moco-micro-")
    assert {"decay_weight", "m_hat"} <= set(other.config["method"])


def test_a_source_is_made_of_both_and_travels(rule: Path, learner: Path, micro, tmp_path: Path) -> None:
    source = find_method(f"{rule}:{learner}")
    assert source.name == "my_rule:mine"
    assert [part.text is not None for part in source.files] == [True, True]
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert names_of(again.load().Config) == names_of(source.load().Config)
    learner.write_text(learner.read_text() + "\n# edited\n")
    assert find_method(f"{rule}:{learner}").digest != source.digest
    assert resolved(f"{rule}:{learner}", micro, tmp_path).method.load().parts[1].__name__ == "Method"


def test_a_rule_alone_wraps_the_protocols_learner_under_its_own_name(rule: Path, micro, tmp_path: Path) -> None:
    alone, named = with_learner(find_method(rule), "cvlm"), with_learner(find_method(f"{rule}:base_moco"), "cvlm")
    assert alone == named
    assert alone.name == "my_rule"
    assert with_learner(find_method("base_moco"), "cvlm") == find_method("base_moco")
    folders = {resolved(text, micro, tmp_path).folder for text in (rule, f"{rule}:base_moco")}
    assert len(folders) == 1
    assert resolved(Distill, micro, tmp_path).folder == resolved(compose(Distill, base_moco), micro, tmp_path).folder
    assert resolved(compose(Distill, Pairs), micro, tmp_path).method.name == "Distill:Pairs"


def test_what_is_no_rule_or_no_learner_is_refused_in_one_line(rule: Path, micro, tmp_path: Path) -> None:
    for text, message in (
        ("bmu_moco:base_moco", "bmu_moco is not a rule"),
        (f"{rule}:{rule}", "my_rule is a rule, too"),
        (f"{rule}:base_mocco", "base_moco"),
        (f"{rule}:{tmp_path / 'gone.py'}", "no method file"),
        (f"{rule}:", "no method named ''"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            resolved(text, micro, tmp_path)
        assert "\n" not in str(error.value)


def test_spaces_of_rule_and_learner_are_joined_and_every_knob_is_a_setting(rule: Path) -> None:
    source = find_method(f"{rule}:base_moco")
    assert set(load_space(source)) == {"decay_weight", "m", "temperature", "queue_size"}
    assert set(space_names(source)) == {"decay", "momentum", "budget", "recipe"}
    assert set(load_space(source, "decay")) == {"decay_weight"}
    assert set(load_space(source, "momentum")) == {"m", "decay_weight"}
    for asked in (None, "decay", "momentum"):
        space = load_space(source, asked)
        assert set(space) <= set(names_of(source.load().Config))
        check_space(space, source, {})
    with pytest.raises(UsageError, match="momentum"):
        load_space(source, "momentun")


def test_the_kind_of_a_method_is_read_without_running_it(rule: Path, tmp_path: Path) -> None:
    kinds = {row["name"]: row["kind"] for row in list_methods()}
    assert (kinds["base_moco"], kinds["bmu_moco"]) == ("learner", "whole")
    rule.write_text(RULE + "\nraise SystemExit\n")
    assert kind_of(rule) == "rule"
    for name in method_names():
        cls = find_method(name).load()
        assert kinds[name] == ("rule" if issubclass(cls, Rule) else "whole" if cls.whole else "learner")


# Released settings


class Released(Pairs):
    RECIPES = {"micro": {"pairs_temperature": 0.2}}
    RELEASED = {"": {"pairs_temperature": 0.3, "weight_decay": 0.1}, "micro": {"learning_rate": 0.001}}


def test_released_settings_stand_where_the_papers_would_and_given_ones_win(micro, tmp_path: Path) -> None:
    paper, released = resolved(Released, micro, tmp_path), resolved(Released, micro, tmp_path, as_released=True)
    assert (paper.settings["pairs_temperature"], released.settings["pairs_temperature"]) == (0.2, 0.3)
    assert (released.recipe.weight_decay, released.recipe.learning_rate) == (0.1, 0.001)
    assert released.overrides == {}
    assert released.folder != paper.folder
    given = resolved(Released, micro, tmp_path, as_released=True, settings={"weight_decay": 0.0})
    assert given.overrides == {"weight_decay": 0.0}


def test_a_rule_takes_the_released_settings_of_both(micro, tmp_path: Path) -> None:
    run = resolved(compose(Distill, Released), micro, tmp_path, as_released=True)
    assert run.settings["pairs_temperature"] == 0.3


def test_released_settings_are_told_by_record_and_label(micro, tmp_path: Path) -> None:
    short = replace(micro, recipe=replace(micro.recipe, max_steps=1, validations=1))
    result = kinoray.run(Released, stream=short, num_workers=0, runs=tmp_path, quiet=True, as_released=True)
    assert result.run["as_released"] is True
    assert result.label == "Released (as released)"
    again = kinoray.run(Released, stream=short, num_workers=0, runs=tmp_path, quiet=True, as_released=True)
    assert again.folder == result.folder


def test_a_method_without_released_settings_refuses_in_one_line(micro, tmp_path: Path, kino, monkeypatch) -> None:
    class Elsewhere(Pairs):
        RELEASED = {"ucl-cifar10": {"epochs": 3}}

    with pytest.raises(UsageError, match="base_moco lists no settings of the authors' code"):
        resolved("base_moco", micro, tmp_path, as_released=True)
    with pytest.raises(UsageError, match="only for ucl-cifar10"):
        resolved(Elsewhere, micro, tmp_path, as_released=True)
    monkeypatch.setattr("kinoray.runs.resolve.load_stream", lambda name: micro)
    code, _, err = kino("run", "base_moco", "--as-released", "--runs", tmp_path)
    assert code == 2 and "base_moco lists no settings of the authors' code" in err
    experiment = tmp_path / "run.yaml"
    experiment.write_text("method: base_moco\nas_released: true\n")
    code, _, err = kino("run", experiment, "--runs", tmp_path)
    assert code == 2 and "base_moco lists no settings of the authors' code" in err


# What a method suits


def test_a_method_is_refused_on_a_stream_of_another_protocol_before_it_starts(micro, tmp_path: Path) -> None:
    class Images(Pairs):
        suits = ("ucl",)

    class TinyTowers(TwoTower):
        pass

    class Towers(Pairs):
        backbones = TinyTowers

    with pytest.raises(UsageError, match="Images needs a stream tested by ucl, but micro is tested by cvlm"):
        resolved(Images, micro, tmp_path)
    with pytest.raises(UsageError, match="Towers builds on a TinyTowers, but the backbone tiny is a") as error:
        resolved(Towers, micro, tmp_path)
    assert "\n" not in str(error.value)
    assert resolved(Pairs, micro, tmp_path).method.name == "Pairs"


# Elsewhere: workers, extended runs


@pytest.mark.ray
@pytest.mark.slow
def test_a_rule_outside_the_repository_travels_to_a_worker(cluster, rule: Path, micro, tmp_path: Path) -> None:
    settings = {"max_steps": 1, "validations": 1}
    options = {"stream": micro, "quiet": True, "settings": settings}
    here = kinoray.run(f"{rule}:base_moco", num_workers=0, runs=tmp_path / "here", **options)
    there = kinoray.run(f"{rule}:base_moco", num_workers=1, runs=tmp_path / "there", **options)
    assert there.outcome["state_digest"] == here.outcome["state_digest"]


def test_a_finished_run_of_a_rule_learns_one_more_task(rule: Path, micro, tmp_path: Path) -> None:
    settings = {"max_steps": 1, "validations": 1}
    options = {"num_workers": 0, "quiet": True, "settings": settings, "runs": tmp_path, "as_released": True}
    short = replace(micro, tasks=micro.tasks[:1])
    first = kinoray.run(rule, stream=short, **options)
    kept = rule.read_text()
    rule.unlink()  # the run folder knows its method
    extended = kinoray.extend(first, micro.tasks[1], quiet=True)
    rule.write_text(kept)
    whole = kinoray.run(rule, stream=micro, fresh=True, **options)
    assert extended.folder == whole.folder
    assert extended.outcome["state_digest"] == whole.outcome["state_digest"]
    with pytest.raises(UsageError, match="not of my_rule:bmu_moco"):
        kinoray.extend(first, micro.tasks[1], method=f"{rule}:bmu_moco", quiet=True)
    again = kinoray.extend(first, micro.tasks[1], method=f"{rule}:base_moco", quiet=True)
    assert again.folder == whole.folder
    rule.write_text(kept.replace("decay_weight * share", "decay_weight * 2 * share"))
    assert kinoray.dry_run(rule, **options | {"stream": micro})["folder"] != str(whole.folder.parent)
    with pytest.raises(UsageError, match="an edited method is a new run"):
        kinoray.extend(first, micro.tasks[1], method=rule, quiet=True)
