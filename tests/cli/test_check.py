"""`kinoray check`: one line per promise, and where it breaks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinoray.testing.suite import (
    grows_the_same_again,
    keeps_no_state_in_plain_attributes,
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
