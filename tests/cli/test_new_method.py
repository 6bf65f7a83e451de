"""What `kinoray new method` writes: real files, which keep every promise as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinoray.cli.templates import test_method, test_rule
from kinoray.testing.check import kind_of
from kinoray.testing.suite import PROMISES

Outcome = tuple[int, str, str]


@pytest.mark.slow
def test_a_new_method_keeps_every_promise_as_it_is(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kino("new", "method", "other_name", "--single")[0] == 0
    assert (tmp_path / "other_name.py").read_text().startswith('"""other_name: ')
    code, out, _ = kino("check", "./other_name.py")
    assert code == 0, out
    assert out.count("ok  ") == len(out.splitlines()) == len(PROMISES)
    assert kino("new", "method", "other_name", "--single")[0] == 2  # nothing is overwritten


def test_a_new_method_in_the_repository_is_three_files(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kino("new", "method", "my_method")[0] == 2
    for name in ("methods", "search_spaces", "tests/methods"):
        (tmp_path / name).mkdir(parents=True)
    assert kino("new", "method", "my_method")[0] == 0
    written = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.py"))
    assert written == ["methods/my_method.py", "search_spaces/my_method.py", "tests/methods/test_my_method.py"]
    for file in written:
        text = (tmp_path / file).read_text()
        compile(text, file, "exec")
        assert "templates" not in text
    assert "from kinoray.methods.my_method import" in (tmp_path / "tests/methods/test_my_method.py").read_text()


@pytest.mark.slow
def test_a_new_rule_keeps_every_promise_around_a_learner(
    kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kino("new", "rule", "other_rule", "--single")[0] == 0
    text = (tmp_path / "other_rule.py").read_text()
    assert "other_rule_weight" in text and "my_method" not in text
    code, out, _ = kino("check", "./other_rule.py")
    assert code == 0, out
    assert out.count("ok  ") == len(PROMISES)


def test_the_tests_that_it_writes_pass() -> None:
    test_method.test_matching_equals_plain_loops()
    test_rule.test_apart_equals_plain_loops()


@pytest.mark.parametrize("kind", ["backbone", "protocol", "stream"])
def test_a_new_part_is_one_file_of_its_kind(
    kind: str, kino: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kino("new", kind, "other_name")[:2] == (0, "Wrote other_name.py\n")
    text = (tmp_path / "other_name.py").read_text()
    assert text.startswith('"""other_name: ') and f"my_{kind}" not in text
    assert kind_of("./other_name.py") == kind
    assert kino("new", kind, "other_name")[0] == 2  # nothing is overwritten
