"""What a run's folder is named by: what differs from the defaults, and a user's own code."""

from pathlib import Path

import pytest

from kinoray.config import Recipe, config
from kinoray.errors import UsageError
from kinoray.method import BaseMethod
from kinoray.runs import resolve
from kinoray.runs.method_source import find_method, methods_folder
from kinoray.runs.record import open_run
from kinoray.sweeps import plan
from kinoray.sweeps.request import SweepRequest
from kinoray.testing.engine import resolved

FIXED = {"queue_size": 16}


@config
class LongerRecipe(Recipe):
    new_field: int = 3


def more_settings(name: str) -> type[BaseMethod]:
    """A shipped method whose Config has one field more."""
    cls = find_method(name).load()
    return config(type("Config", (cls.Config,), {"__annotations__": {"new_knob": float}, "new_knob": 0.5}))


def test_a_new_field_at_its_default_renames_no_run_and_no_sweep(micro, tmp_path, monkeypatch) -> None:
    def names() -> list[str]:
        run = resolved("bmu_moco", micro, tmp_path, settings=FIXED | {"m_hat": 0.9, "learning_rate": 1e-3})
        sweep = plan.make_plan(SweepRequest("bmu_moco", stream=micro, settings=FIXED, space="momenta", runs=tmp_path))
        return [run.folder.parent.name, sweep.folder.name]

    before = names()
    monkeypatch.setattr(resolve, "Recipe", LongerRecipe)
    monkeypatch.setattr(find_method("bmu_moco").load(), "Config", more_settings("bmu_moco"))
    longer = resolved("bmu_moco", micro, tmp_path, settings=FIXED)
    assert longer.recipe.new_field == 3 and longer.settings["new_knob"] == 0.5
    assert names() == before
    other = resolved("bmu_moco", micro, tmp_path, settings=FIXED | {"new_field": 4})
    assert other.folder.parent != longer.folder.parent != resolved("bmu_moco", micro, tmp_path).folder.parent


def test_a_run_goes_on_when_a_field_was_added_since_and_not_when_a_default_moved(micro, tmp_path, monkeypatch) -> None:
    run = resolved("base_moco", micro, tmp_path, settings=FIXED)
    open_run(run, 1, 0, print)
    monkeypatch.setattr(resolve, "Recipe", LongerRecipe)
    longer = resolved("base_moco", micro, tmp_path, settings=FIXED)
    assert open_run(longer, 1, 0, print)["config"]["recipe"]["new_field"] == 3


def test_an_edited_file_is_a_new_run_and_an_edited_shipped_method_is_not(micro, tmp_path, monkeypatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text((methods_folder() / "base_moco.py").read_text())
    first = resolved(str(path), micro, tmp_path)
    assert resolved(path, micro, tmp_path).folder == first.folder
    path.write_text(path.read_text() + "\nSCALE = 2\n")
    assert resolved(str(path), micro, tmp_path).folder != first.folder
    shipped = tmp_path / "base_moco.py"
    shipped.write_text((methods_folder() / "base_moco.py").read_text())
    assert resolved(str(shipped), micro, tmp_path).folder != resolved("base_moco", micro, tmp_path).folder


def test_a_run_folder_holds_the_code_of_an_own_method_and_the_record_where_it_came_from(micro, tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text((methods_folder() / "base_moco.py").read_text())
    run = resolved(path, micro, tmp_path / "runs")
    record = open_run(run, 1, 0, print)
    assert record["format"] == 2 and record["protocol"] == micro.protocol
    assert (run.folder / record["method_source"]["file"]).read_text() == path.read_text()
    assert [Path(p) for p in record["manifests"]] == [task.manifest for task in micro.tasks]
    shipped = resolved("base_moco", micro, tmp_path / "runs")
    assert open_run(shipped, 1, 0, print)["method_source"] == {"kind": "kinoray"}
    assert not (shipped.folder / "method.py").exists()


def test_a_method_file_that_marks_settings_as_earlier_versions_did_is_read(micro, tmp_path) -> None:
    path, text = tmp_path / "mine.py", (methods_folder() / "base_moco.py").read_text()
    old = "    temperature: Positive = "
    assert old in text
    marked = text.replace(old, "    temperature: Annotated[Positive, from_task(2)] = ")
    path.write_text("from typing import Annotated\nfrom kinoray.config import from_task\n" + marked)
    assert resolved(path, micro, tmp_path, settings={"temperature": 0.2}).settings["temperature"] == 0.2
    with pytest.raises(UsageError, match="temperature"):
        resolved(path, micro, tmp_path, settings={"temperature": -1.0})
