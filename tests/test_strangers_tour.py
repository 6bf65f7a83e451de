"""A stranger's tour: a learner, a rule, a protocol, a backbone and a stream as new files only, run together."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.places import REPOSITORY
from support.strangers import PACKAGES, copy_files, paths_with

import kinoray
from kinoray.runs.result import Result

LONGEST = 50
"""Lines that a file of the tour may have: what the interface asks for must stay small."""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stranger's files, found by the engine, as the current one."""
    files = copy_files(tmp_path)
    for name, path in paths_with(tmp_path).items():
        monkeypatch.setattr(PACKAGES[name], "__path__", path)
    for file in files:
        if file.parent.name in PACKAGES:  # forgotten again at the end, whatever the test imports
            module = f"{PACKAGES[file.parent.name].__name__}.{file.stem}"
            monkeypatch.setitem(sys.modules, module, None)
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_files_alone_add_one_of_each_kind_and_run_together(there: Path, kino) -> None:
    named = ["./my_rule.py:./my_learner.py", "./my_learner.py"]
    words = ("--stream", "shades", "--num-workers", 0, "--runs", "runs", "--quiet")
    code, _, err = kino("run", *named, *words)
    assert code == 0, err
    folders = sorted(path.parent for path in (there / "runs").glob("*/seed-0/result.json"))
    assert len(folders) == 2
    for folder in folders:
        result = Result(folder)
        assert result.state == "finished"
        assert (result.stream, result.run["protocol"], result.run["backbone"]) == ("shades", "nearest-class", "mosaic")
        measured = result.matrix.notna().to_numpy()
        assert np.array_equal(measured, np.tri(2, dtype=bool))
        assert result.metrics["nearest"] == pytest.approx(result.matrix.iloc[-1].mean())
        assert result.metrics["nearest"] > 60, "colours are told apart"
        assert set(result.ranks["gallery"]) == {2, 4}, "classes of the tasks so far"
    lines = [json.loads(line) for folder in folders for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"loss/contrast", "loss/anchor"} <= {name for line in lines for name in line}

    code, table, err = kino("compare", *folders)
    assert code == 0 and "nearest" in table and "BWF" in table and "R@" not in table, err
    assert "my_rule:my_learner" in table
    code, page, err = kino("report", folders[0])
    assert code == 0, err
    text = Path(page.strip()).read_text()
    assert "Result matrix: nearest (%)" in text and "nearest to the mean of their class" in text and "R@" not in text

    # The same run from Python is found, not made again; from its folder alone it is opened again.
    again = kinoray.run(named[0], stream="shades", num_workers=0, runs="runs", quiet=True)
    assert isinstance(again, Result) and again.folder in folders


def test_lists_show_the_new_names(there: Path, kino) -> None:
    for kind, name, about in (
        ("streams", "shades", "two tasks of two colours each"),
        ("backbones", "mosaic", "colours of sixteen tiles"),
    ):
        code, out, err = kino("list", kind, "--json")
        assert code == 0, err
        (line,) = [row for row in json.loads(out)[kind] if row["name"] == name]
        assert about in line["about"]


def test_a_wrong_name_is_answered_with_the_new_one(there: Path, kino) -> None:
    for words, name in ((("--stream", "shade"), "shades"), (("--stream", "shades", "--backbone", "mosaics"), "mosaic")):
        code, _, err = kino("run", "./my_learner.py", *words, "--num-workers", 0)
        assert code == 2 and f"Did you mean '{name}'" in err


def test_none_of_the_files_is_long_and_no_file_of_the_engine_names_them(there: Path, record_property) -> None:
    lines = {str(f.relative_to(there)): len(f.read_text().splitlines()) for f in sorted(there.rglob("*.py"))}
    assert len(lines) == 5
    for name, count in lines.items():
        record_property(name, count)
        print(f"{name}: {count} lines")
        assert count <= LONGEST, name
    engine = "".join(path.read_text() for path in (REPOSITORY / "platform").rglob("*.py"))
    assert not [name for name in ("nearest-class", "nearest_class", "mosaic", "shades") if name in engine]
