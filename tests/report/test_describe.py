"""What `kinoray describe` says: of every method all settings, of streams and backbones without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinoray.config import Count, Share, config, names_of
from kinoray.errors import UsageError
from kinoray.report.describe import allowed, describe, field_docs, settings_of
from kinoray.runs.method_source import find_method, method_names

TEXT = '''
class Config:
    m: Share = 0.99
    """Kept in each
    average."""
    size: Count = 3
    on: bool = False
    """Whether."""
'''


@config
class Config:
    m: Share = 0.99
    size: Count = 3
    on: bool = False


def test_a_setting_comes_with_its_default_range_and_docstring() -> None:
    m, size, on = settings_of(Config, TEXT)
    assert m == {"name": "m", "default": 0.99, "range": ">= 0, <= 1", "about": "Kept in each average."}
    assert (size["range"], size["about"]) == (">= 1", "")
    assert (on["range"], on["about"]) == ("true, false", "Whether.")


@pytest.mark.parametrize("name", method_names())
def test_every_method_tells_all_its_settings(name: str) -> None:
    facts = describe(name)
    cls = find_method(name).load()
    assert [setting["name"] for setting in facts["settings"]] == names_of(cls.Config)
    assert facts["about"] and facts["suits"] == list(cls.suits) and facts["recipes"] == cls.RECIPES
    json.dumps(facts)


def test_a_rule_is_told_with_its_learner() -> None:
    facts = describe("lwf:base_moco")
    assert facts["role"] == "rule" and facts["learner"]["name"] == "base_moco"
    assert facts["settings"][0]["name"] == "distill_weight"
    assert "distill_weight" in facts["spaces"][""]


def test_a_method_of_ones_own_tells_its_docstrings_and_space(
    kino: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kino("new", "method", "mine", "--single")
    file = tmp_path / "mine.py"
    file.write_text(file.read_text() + '\nSPACE = {"temperature": {"low": 0.02, "high": 0.5}}\n')
    facts = describe("./mine.py")
    assert facts["name"] == "mine" and list(facts["spaces"][""]) == ["temperature"]
    assert all(setting["about"] for setting in facts["settings"])


def test_a_stream_tells_protocol_tasks_and_what_its_recipe_sets() -> None:
    facts = describe("digits-5")
    assert (facts["protocol"], facts["backbone"], len(facts["tasks"])) == ("ucl", "tiny-cnn", 5)
    sets = {setting["name"]: setting["value"] for setting in facts["recipe_sets"]}
    assert sets["optimizer"] == "sgd" and "betas" not in sets and facts["recipe"]["betas"] == [0.9, 0.999]
    rest = {setting["name"]: setting["about"] for setting in facts["recipe_rest"]}
    assert rest.keys() | sets.keys() == facts["recipe"].keys() and all(rest.values())


def test_a_downstream_set_is_a_stream_by_name() -> None:
    assert describe("moving-actions/downstream")["tasks"] == ["downstream"]


def test_a_stream_without_its_data_says_what_it_needs() -> None:
    assert "kinoray data prepare vatex" in describe("cvlm")["needs"]


def test_streams_and_backbones_are_told_without_torch() -> None:
    code = (
        "import sys, kinoray; kinoray.describe('digits-5'); kinoray.describe('vit-bert');"
        "print([name for name in ('torch', 'ray', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_command_prints_a_line_for_each_setting_and_one_json_object(kino: Callable) -> None:
    code, out, _ = kino("describe", "bmu_moco")
    assert code == 0 and "  m_hat=0.99 " in out and "moving-cvlm: queue_size=480" in out
    assert json.loads(kino("describe", "tiny", "--json")[1])["kind"] == "backbone"


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match="'bmu_moco'"):
        describe("bmu_moc")


def test_docs_of_a_class_that_is_not_there_are_none() -> None:
    assert field_docs(TEXT, "Recipe") == {}


def test_a_field_of_any_value_has_no_range() -> None:
    @config
    class Free:
        words: str = ""

    assert allowed(Free.__pydantic_fields__["words"]) == ""
