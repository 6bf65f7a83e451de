"""`kinoray check`: one line per promise, and where it breaks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinoray.testing import backbone
from kinoray.testing.suite import (
    grows_the_same_again,
    keeps_no_state_in_plain_attributes,
    learns_two_tasks,
    resumes_bit_for_bit,
)

Outcome = tuple[int, str, str]

FORGETFUL = """
from kinoray.cli.templates.method import Config, Method as Template


class Method(Template):
    Config = Config

    def after_step(self, carry, step):
        self.steps = step.step + 1

    def loss(self, batch):
        output = super().loss(batch)
        output.objectives = output.objectives * (1 + getattr(self, "steps", 0))
        return output
"""


def test_check_names_what_breaks_a_promise_with_file_and_line(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    promises = (grows_the_same_again, keeps_no_state_in_plain_attributes, resumes_bit_for_bit)
    monkeypatch.setattr("kinoray.testing.suite.PROMISES", promises)
    line = 1 + FORGETFUL.splitlines().index("        self.steps = step.step + 1")
    code, out, _ = kino("check", "./forgetful.py", "--json")
    assert code == 1
    tried = json.loads(out)["promises"]
    assert [each["promise"] for each in tried] == [promise.__name__ for promise in promises]
    broken = {each["promise"]: each for each in tried if not each["kept"]}
    assert set(broken) == {"keeps_no_state_in_plain_attributes", "resumes_bit_for_bit"}
    assert {each["place"] for each in broken.values()} == {f"forgetful.py:{line}"}
    code, out, _ = kino("check", "./forgetful.py")
    assert code == 1
    assert [line[:6].strip() for line in out.splitlines()] == ["ok", "FAILED", "FAILED"]
    assert out.splitlines()[1].endswith(f"(forgetful.py:{line})")
    what = "attribute steps of Method is lost at a resume; self.register_buffer keeps it"
    assert broken["keeps_no_state_in_plain_attributes"]["what"] == what


def test_check_refuses_what_is_no_method(kino: Callable[..., Outcome], tmp_path: Path) -> None:
    assert kino("check", "bas_moco")[0] == 2
    code, _, error = kino("check", "base_moco", "--device", "tpu")
    assert code == 2 and "device='tpu': use one of cpu, cuda." in error
    (tmp_path / "empty.py").write_text("")
    assert kino("check", tmp_path / "empty.py")[0] == 2


def test_a_class_that_lacks_a_verb_is_refused_at_once_by_check_and_run(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    text = FORGETFUL.replace("from kinoray.cli.templates.method import Config, Method as Template", "")
    text = "from kinoray.cli.templates.method import Config\nfrom kinoray.method import BaseMethod as Template\n" + text
    (tmp_path / "half.py").write_text(text)
    for words in (["check", "./half.py"], ["run", "./half.py", "--dry-run"]):
        code, out, err = kino(*words)
        assert (code, out) == (2, "") and "half: its class lacks encoder and param_groups." in err, err


PROMPTED = """
import torch
from kinoray.cli.templates.method import Config, Method as Template
from kinoray.method import ParamGroup


class Method(Template):
    Config = Config

    def __init__(self, config, backbone, num_tasks):
        super().__init__(config, backbone.requires_grad_(False), num_tasks)
        self.prompt = torch.nn.Parameter(torch.zeros(backbone.dim))

    def param_groups(self):
        return {"prompt": ParamGroup({"prompt": self.prompt})}

    def loss(self, batch):
        output = super().loss(batch)
        output.objectives = (self.prompt * self.towers.embed_video(batch.video)).sum() / batch.global_size
        return output
"""


def test_check_of_a_failing_method_says_its_own_error_alone(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(
        FORGETFUL.replace("output = super().loss(batch)", "raise RuntimeError('boom')")
    )
    promises = (learns_two_tasks, keeps_no_state_in_plain_attributes, resumes_bit_for_bit)
    monkeypatch.setattr("kinoray.testing.suite.PROMISES", promises)
    _, out, _ = kino("check", "./failing.py", "--json")
    assert [each["what"] for each in json.loads(out)["promises"]] == ["RuntimeError: boom"] * 3


def test_check_lets_prompts_train_beside_a_frozen_encoder(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kinoray.testing.suite.PROMISES", (learns_two_tasks,))
    (tmp_path / "prompted.py").write_text(PROMPTED)
    code, out, _ = kino("check", "./prompted.py")
    assert code == 0, out
    (tmp_path / "still.py").write_text(PROMPTED.replace("(self.prompt *", "(0 * self.prompt *"))
    code, out, _ = kino("check", "./still.py")
    assert code == 1 and "have moved nothing" in out


STAGES = """    def stages(self, tasks, joint=False, zero_shot=False):
        first, *later = super().stages(tasks, joint, zero_shot)
        return (replace(first, tests=(0, 1)[:tasks]), *later)

    def validate("""
TURNED = """found = own_galleries(tester, stage, split)
        return {"": {task: replace(r, middle=r.gallery - 1 - r.middle) for task, r in found.items()}}"""
EASY = """found = own_galleries(tester, stage, split)
        return {"": {task: replace(r, middle=0 * r.middle) for task, r in found.items()}}"""
TEMPLATES = Path(backbone.__file__).parents[1] / "cli" / "templates"


def broken_promises(kino: Callable[..., Outcome], path: Path, text: str) -> dict[str, str]:
    """What `kinoray check` says of each promise that a file breaks."""
    path.write_text(text)
    _, out, err = kino("check", path, "--json")
    assert not err.strip() or "Rendering" in err, err
    return {each["promise"]: each["what"] for each in json.loads(out)["promises"] if not each["kept"]}


@pytest.mark.parametrize(
    ("old", "new", "promise", "what"),
    [
        ("", "", "", ""),
        (".mean(dim=1)\n", ".mean(dim=1) / 0\n", "says_what_it_takes_and_gives", "is not finite"),
        ("self.dim = dim", "self.dim = dim + 1", "says_what_it_takes_and_gives", "not (3, 33)"),
        (".mean(dim=1)\n", ".mean(dim=1).cumsum(0)\n", "sees_each_clip_by_itself", "other features than among others"),
        (
            "self.dim = dim",
            "self.dim = dim; self.x = __import__('os').urandom(1)[0]",
            "begins_as_its_seed_says",
            "other weights",
        ),
        (
            "self.dim = dim",
            "self.dim = dim; self.x = float(__import__('torch').rand(1))",
            "loads_its_state",
            "not a parameter or buffer",
        ),
        (".mean(dim=1)\n", ".mean(dim=1).detach()\n", "learns", "does not require grad"),
    ],
)
def test_check_of_a_backbone_finds_what_it_breaks(
    kino: Callable[..., Outcome], tmp_path: Path, old: str, new: str, promise: str, what: str
) -> None:
    text = (TEMPLATES / "backbone.py").read_text()
    text = text.replace(old, new, 1) if old else text
    if "self.x" in new:
        text = text.replace(".mean(dim=1)\n", ".mean(dim=1) + self.x\n")
    broken = broken_promises(kino, tmp_path / "own.py", text)
    assert what in broken[promise] if promise else not broken, broken


@pytest.mark.parametrize(
    ("old", "new", "promise", "what"),
    [
        ("", "", "", ""),
        ("    def validate(", STAGES, "lists_stages_that_can_be_learned", "tests (0, 1) after training [0]"),
        (
            'return {"": own',
            'stage = replace(stage, tests=stage.tests[:1])\n        return {"": own',
            "finds_all_by_perfect_features",
            "other tasks",
        ),
        (
            'return {"": own_galleries(tester, stage, split)}',
            TURNED,
            "finds_all_by_perfect_features",
            "reach 0.0 in R@1",
        ),
        (
            'return {"": own_galleries(tester, stage, split)}',
            EASY,
            "finds_by_chance_with_random_features",
            "where chance finds",
        ),
        (
            '"worst": worst',
            '"worst": -worst if worst else worst',
            "finds_by_chance_with_random_features",
            "better than perfect",
        ),
        (
            'super().metrics | {"worst"',
            'super().metrics | {"best": "max", "worst"',
            "finds_all_by_perfect_features",
            "other metrics",
        ),
    ],
)
def test_check_of_a_protocol_finds_what_it_breaks(
    kino: Callable[..., Outcome], tmp_path: Path, old: str, new: str, promise: str, what: str
) -> None:
    text = (
        (TEMPLATES / "protocol.py")
        .read_text()
        .replace("from collections", "from dataclasses import replace\nfrom collections", 1)
    )
    broken = broken_promises(kino, tmp_path / "own.py", text.replace(old, new, 1) if old else text)
    assert what in broken[promise] if promise else not broken, broken


@pytest.mark.parametrize(
    ("old", "new", "promise", "what"),
    [
        ("", "", "", ""),
        (
            '"uri": f"clips/{number:03d}.mp4"',
            '"uri": f"clips/{number % 12:03d}.mp4"',
            "keeps_its_splits_apart",
            "24 clips are both train and test",
        ),
        (
            '("train", "validation", "test")',
            '("train", "test")',
            "has_clips_of_every_split",
            "'warm' has no validation clips",
        ),
        ('f"{task}-{number}"', '__import__("os").urandom(4).hex()', "is_the_same_data_again", "other digests"),
        ('backbone="tiny"', 'backbone="tiny-cnn"', "can_be_run", "reads no text"),
    ],
)
def test_check_of_a_stream_finds_what_it_breaks(
    kino: Callable[..., Outcome], tmp_path: Path, old: str, new: str, promise: str, what: str
) -> None:
    text = (TEMPLATES / "stream.py").read_text()
    broken = broken_promises(kino, tmp_path / "own.py", text.replace(old, new, 1) if old else text)
    assert what in broken[promise] if promise else not broken, broken
