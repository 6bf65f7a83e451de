"""Which runs words mean, and what people say of runs: names, tags, notes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.run_folders import make_run

import kinoray
from kinoray.browse.run_list import list_runs, run_lines
from kinoray.disk.durable import write_json
from kinoray.errors import UsageError
from kinoray.runs.about import ABOUT, name_run, note_run, read_about, untag_run
from kinoray.runs.made_by import MADE_BY
from kinoray.runs.removal import find_removal, remove
from kinoray.runs.result import SWEEP_RECORD, Result
from kinoray.runs.selection import select_run, select_runs

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
    name_run(runs / BMU, "the best one", ["paper", "final"])
    return runs


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([BMU], [BMU]),
        ([f"runs/{BMU}"], [BMU]),
        ([f"{BMU}/seed-1"], [f"{BMU}/seed-1"]),
        (["the best one"], [BMU]),
        (["the*"], [BMU]),
        (["bmu_moco-*"], [BMU]),
        (["*_moco-*"], [BASE, BMU]),
        ([f"runs/{BMU}/seed-*"], [f"{BMU}/seed-0", f"{BMU}/seed-1"]),
        ([BMU, "bmu*"], [BMU]),
        (["s"], ["s"]),
        (["method=bmu_moco"], [BMU]),
        (["method=bmu*,base_moco", "stream=moving-cvlm"], [BASE, BMU]),
        (["method=bmu_moco", "seed=1"], [f"{BMU}/seed-1"]),
        (["seed=0,1", "tag=paper"], [BMU]),
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
        (["method=no-such"], "is meant by method=no-such"),
        (["metod=bmu_moco"], "Did you mean 'method'"),
        (["tag=paper", "method=base_moco"], "is meant by tag=paper method=base_moco"),
    ],
)
def test_words_that_mean_nothing_are_refused_in_one_line(root: Path, words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        select_runs(words)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_where_one_run_is_asked_for_several_are_refused(root: Path) -> None:
    assert select_run("tag=final") == Path("runs") / BMU
    with pytest.raises(UsageError, match="means 2 runs, and one is asked for: base_moco"):
        select_run("*_moco-*")


def test_commands_take_patterns_and_selectors(root: Path, kino: Callable) -> None:
    code, out, _ = kino("compare", "method=bmu*,base_moco", "--json")
    assert code == 0 and {row["label"] for row in json.loads(out)["rows"]} == {"the best one", "base_moco"}
    assert kino("report", "tag=paper")[1].strip() == f"runs/{BMU}/report.html"
    listed = json.loads(kino("list", "runs", "method=bmu_moco", "--json")[1])["runs"]
    assert [(row["name"], row["seed"], row["tags"]) for row in listed] == [
        ("the best one", 0, ["paper", "final"]),
        ("the best one", 1, ["paper", "final"]),
    ]
    assert json.loads(kino("status", "method=bmu_moco", "--json")[1]) == {"runs": [], "sweeps": []}
    code, out, _ = kino("rm", "method=bmu_moco", "seed=1", "--yes", "--json")
    assert json.loads(out)["removed"] == [str(root / BMU / "seed-1")]
    assert (root / TRIAL).is_dir(), "a trial is not meant by its method"


def test_lists_tables_and_pages_show_the_name(root: Path) -> None:
    lines = "\n".join(run_lines(list_runs(root)))
    assert "the best one" in lines and "#paper  #final" in lines
    assert "the best one" in kinoray.compare([root / BMU, root / BASE]).markdown()
    note_run(root / BMU, "odd <b>at</b> the end")
    page = kinoray.write_report(root / BMU).read_text()
    assert all(text in page for text in ("the best one", "#paper", "odd &lt;b&gt;at&lt;/b&gt; the end"))
    assert Result(root / BMU / "seed-0").run["method"] == "bmu_moco", "run.json knows nothing of it"


def test_a_name_is_one_runs_alone(root: Path) -> None:
    for taken in ("the best one", BMU, "s"):
        with pytest.raises(UsageError, match="is taken"):
            name_run(root / BASE, taken)
    name_run(root / BMU, "the best one")  # its own
    for bad in ("", " ", "a/b", "a*", "x=y", "\x1b]0;x", "x" * 81):
        with pytest.raises(UsageError, match="printable"):
            name_run(root / BASE, bad)
        with pytest.raises(UsageError):
            kinoray.RunRequest("base_moco", name=bad)
    assert not (root / BASE / ABOUT).exists()


def test_tags_and_notes_are_kept_beside_the_seeds(root: Path, kino: Callable) -> None:
    assert kino("tag", "*_moco-*", "paper", "old")[0] == 0
    assert read_about(root / BMU).tags == ("paper", "final", "old")
    untag_run(root / BMU, ["final"])
    assert json.loads(kino("tag", BASE, "--json")[1])["tags"] == {str(root / BASE): ["paper", "old"]}
    assert kino("tag", BASE, "old", "--remove")[1].endswith(": paper\n")
    kino("note", f"{BMU}/seed-0", "looks\nodd at the end")
    note_run(root / BMU, "no: the stream was another")
    code, out, _ = kino("note", "the best one")
    assert code == 0
    assert [line.partition("  ")[2] for line in out.splitlines()][:1] == ["looks odd at the end"]
    assert read_about(root / BMU).name == "the best one"


def test_what_is_said_goes_with_the_last_seed(root: Path) -> None:
    note_run(root / BASE, "no good")
    remove([find_removal(f"{BASE}/seed-0")])
    assert not (root / BASE).exists()
