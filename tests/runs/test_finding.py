"""Which runs words mean, and how runs are removed by the shell alone."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.places import REPOSITORY
from support.run_folders import make_run

from kinoray.errors import UsageError
from kinoray.report.tables import compare
from kinoray.runs.finding import load, select_run, select_runs
from kinoray.runs.result import MADE_BY, SWEEP_RECORD, Result, Results
from kinoray.system.durable import write_json

BMU, BASE = "bmu_moco-moving-cvlm-0a1b2c3d", "base_moco-moving-cvlm-0a1b2c3d"
TRIAL = "bmu_moco-0.9-moving-cvlm-0a1b2c3d"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two seeds of one run, one of another that is stopped, a sweep and its trial; the current folder is beside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KINORAY_RUNS", raising=False)
    runs = tmp_path / "runs"
    for seed in (0, 1):
        make_run(runs, "bmu_moco", seed)
    make_run(runs, "base_moco", state="stopped")
    (make_run(runs, "bmu_moco", overrides={"m_hat": 0.9}) / MADE_BY).write_text("s\n")
    (runs / "s").mkdir()
    write_json(runs / "s" / SWEEP_RECORD, {"name": "s"})
    return runs


def test_functions_take_what_commands_take(root: Path) -> None:
    assert isinstance(load(BMU), Results) and isinstance(load(f"{BMU}/seed-1"), Result)
    assert load(BASE).folder.samefile(load(root / BASE).folder)
    assert len(compare([BASE, "bmu_moco-*"]).rows) == 2 == len(compare([root / BASE, load(f"{BMU}/seed-0")]).rows)
    for asked in (lambda: load("bmu"), lambda: compare(["bmu"])):
        with pytest.raises(UsageError, match="no run named 'bmu'"):
            asked()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([BMU], [BMU]),
        ([f"runs/{BMU}"], [BMU]),
        ([f"{BMU}/seed-1"], [f"{BMU}/seed-1"]),
        (["bmu_moco-*"], [BMU]),
        (["*_moco-*"], [BASE, BMU]),
        ([f"runs/{BMU}/seed-*"], [f"{BMU}/seed-0", f"{BMU}/seed-1"]),
        ([BMU, "bmu*"], [BMU]),
        (["s"], ["s"]),
        (["method=bmu_moco"], [BMU]),
        (["method=bmu*,base_moco", "stream=moving-cvlm"], [BASE, BMU]),
        (["method=bmu_moco", "seed=1"], [f"{BMU}/seed-1"]),
        (["seed=0,1", "method=bmu_moco"], [BMU]),
        (["state=stopped"], [BASE]),
        (["temperature=0.070"], [BASE, BMU]),
        (["sweep=s"], [TRIAL]),
        (["sweep="], [BASE, BMU]),
        ([BASE, BMU, "state=finished"], [BMU]),
        ([TRIAL], [TRIAL]),
    ],
)
def test_words_mean_runs(root: Path, words: list[str], meant: list[str]) -> None:
    assert sorted(folder.resolve() for folder in select_runs(words)) == [root / name for name in meant]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such"], "There is no run named 'no-such'"),
        (["no-such*"], "has a name like no-such*"),
        (["method=no-such"], "matches method=no-such"),
        (["metod=bmu_moco"], "Did you mean 'method'"),
        (["seed=1", "method=base_moco"], "matches seed=1 method=base_moco"),
    ],
)
def test_words_that_mean_nothing_are_refused_in_one_line(root: Path, words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        select_runs(words)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_where_one_run_is_asked_for_several_are_refused(root: Path) -> None:
    assert select_run("method=bmu_moco") == Path("runs") / BMU
    with pytest.raises(UsageError, match="matches 2 runs, but one is needed: base_moco"):
        select_run("*_moco-*")


def test_commands_take_patterns_and_selectors(root: Path, kino: Callable) -> None:
    code, out, _ = kino("compare", "method=bmu*,base_moco", "--json")
    assert code == 0 and {row["label"] for row in json.loads(out)["rows"]} == {"bmu_moco", "base_moco"}
    assert kino("report", "method=bmu_moco")[1].strip() == f"runs/{BMU}/report.html"
    listed = json.loads(kino("list", "runs", "method=bmu_moco", "--json")[1])["runs"]
    assert [(row["name"], row["seed"]) for row in listed] == [("bmu_moco", 0), ("bmu_moco", 1)]
    assert json.loads(kino("status", "method=bmu_moco", "--json")[1]) == {"runs": [], "sweeps": []}


def documented(start: str) -> list[str]:
    """The lines of the page on operations that begin so, without their comments."""
    lines = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8").splitlines()
    return [line.partition("  #")[0].rstrip() for line in lines if line.startswith(start)]


def test_the_documented_lines_remove_a_sweeps_runs_and_what_fresh_set_aside(root: Path, kino: Callable) -> None:
    shutil.copytree(root / BASE / "seed-0", root / BASE / "seed-0.old-1")
    aside, trials, whole = documented("find runs") + documented("grep -rlx") + documented("rm -r runs/RUN")
    subprocess.run(["bash", "-ec", aside], check=True)
    assert [path.name for path in (root / BASE).iterdir()] == ["seed-0"]
    subprocess.run(["bash", "-ec", trials.replace("SWEEP", "s")], check=True)
    assert not (root / TRIAL / "seed-0").exists() and (root / BMU / "seed-1").is_dir()
    subprocess.run(["bash", "-ec", whole.replace("RUN", BASE)], check=True)
    listed = json.loads(kino("list", "runs", "--json")[1])["runs"]
    assert [(row["method"], row["seed"]) for row in listed] == [("bmu_moco", 0), ("bmu_moco", 1)]


def test_what_earlier_versions_kept_with_a_run_is_left_alone(root: Path, kino: Callable) -> None:
    """Readable names, tags and notes stood in `about.json`."""
    (root / BMU / "about.json").write_text('{"name": "best", "tags": ["paper"], "notes": []}')
    assert kino("report", BMU)[0] == 0
    assert json.loads(kino("list", "runs", BMU, "--json")[1])["runs"][0]["name"] == "bmu_moco"
    with pytest.raises(UsageError, match="no run named 'best'"):
        select_run("best")
