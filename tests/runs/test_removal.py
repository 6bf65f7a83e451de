"""Removing runs: inside the runs folder alone, never through a link, never what is running; the bytes are told."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.run_folders import make_run

from kinoray.disk.locks import hold
from kinoray.disk.usage import bytes_in
from kinoray.display.text import size
from kinoray.errors import Busy, UsageError
from kinoray.runs.made_by import MADE_BY
from kinoray.runs.removal import find_removal, remove, set_aside_in, trials_of
from kinoray.sweeps import leftovers


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder, and the current folder beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KINORAY_RUNS", raising=False)
    return tmp_path / "runs"


def test_a_run_goes_whole_and_its_bytes_are_told(root: Path, kino: Callable) -> None:
    run = make_run(root).parent
    (run / "seed-0" / "checkpoints").mkdir()
    (run / "seed-0" / "checkpoints" / "weights").write_bytes(bytes(5000))
    other = make_run(root, "bmu_moco")
    expected = bytes_in(run)
    code, out, _ = kino("rm", run.name, "--yes", "--json")
    assert code == 0 and json.loads(out) == {"removed": [str(run)], "bytes": expected} and expected > 5000
    assert not run.exists() and other.is_dir()


def test_the_last_seed_takes_the_empty_run_along(root: Path) -> None:
    run = make_run(root, seed=0).parent
    make_run(root, seed=1)
    (run / "report.html").write_text("both")
    remove([find_removal(f"{run.name}/seed-1")])
    assert run.is_dir()
    remove([find_removal(str(run / "seed-0"))])
    assert not run.exists()


@pytest.mark.parametrize("name", ["..", ".", "/", "../outside", "runs", "no-such-run", "notes", "seed-0"])
def test_what_is_no_run_in_the_runs_folder_is_refused(root: Path, name: str) -> None:
    make_run(root)
    make_run(root.parent, "outside")
    (root / "notes").mkdir()
    with pytest.raises(UsageError):
        find_removal(name)


def test_links_are_refused_and_not_followed(root: Path) -> None:
    outside = make_run(root.parent / "elsewhere")
    root.mkdir()
    (root / "link").symlink_to(outside.parent)
    with pytest.raises(UsageError, match="link"):
        find_removal("link")
    with pytest.raises(UsageError, match="not in"):
        find_removal("link/seed-0")
    run = make_run(root)
    (run / "checkpoints").symlink_to(outside)
    remove([find_removal(run.parent.name)])
    assert not run.exists() and (outside / "run.json").is_file()


def test_a_running_one_is_refused_and_nothing_goes(root: Path, kino: Callable) -> None:
    runs = [make_run(root, name) for name in ("base_moco", "bmu_moco")]
    with hold(runs[1], ""):
        code, _, err = kino("rm", *(run.parent.name for run in runs), "--yes")
        assert code == 2 and "Busy" in err and "in use" in err
        with pytest.raises(Busy):
            remove([find_removal(str(runs[1]))])
    assert all((run / "run.json").is_file() for run in runs)


def test_without_yes_and_a_terminal_nothing_goes(root: Path, kino: Callable) -> None:
    run = make_run(root)
    code, _, err = kino("rm", run.parent.name)
    assert code == 2 and "--yes" in err and run.is_dir()


def trial(root: Path, sweep: str, m: float, state: str) -> Path:
    folder = make_run(root, "moco", overrides={"m": m}, state=state)
    (folder / MADE_BY).write_text(f"{sweep}\n")
    return folder


def test_a_sweep_goes_with_its_trials_only_where_asked(root: Path, kino: Callable) -> None:
    sweep = root / "sweep-a"
    sweep.mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    own, others = trial(root, "sweep-a", 0.9, "finished"), trial(root, "sweep-b", 0.8, "finished")
    assert [removal.folder for removal in trials_of(sweep)] == [own]
    assert kino("rm", "sweep-a", "--trials", "--yes")[0] == 0
    assert not sweep.exists() and not own.exists() and others.is_dir()


def test_prune_takes_what_fresh_set_aside(root: Path, kino: Callable) -> None:
    run = make_run(root)
    aside = run.with_name("seed-0.old-1")
    run.rename(aside)
    make_run(root.parent / "made").rename(run)
    assert [removal.folder for removal in set_aside_in()] == [aside]
    assert kino("prune", "--dry-run")[0] == 0 and aside.is_dir()
    outline = json.loads(kino("prune", "--dry-run", "--json")[1])
    assert len(outline["would_remove"]) == 1 and outline["bytes"] > 0 and aside.is_dir()
    freed = size(bytes_in(aside))
    assert f"Removed 1 folders, {freed} freed." in kino("prune", "--yes")[1]
    assert run.is_dir() and not aside.exists()


@pytest.mark.parametrize(("waiting", "gone"), [(0, True), (3, False)])
def test_prune_takes_unfinished_trials_of_sweeps_that_have_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, gone: bool
) -> None:
    (root / "sweep-a").mkdir(parents=True)
    (root / "sweep-a" / "sweep.json").write_text("{}")
    states = {"running": 0, "waiting": waiting}
    monkeypatch.setattr(leftovers, "SweepResult", lambda folder: SimpleNamespace(states=states))
    given_up = trial(root, "sweep-a", 0.8, "stopped")
    trial(root, "sweep-a", 0.9, "finished")
    assert [removal.folder for removal in leftovers.unfinished_trials()] == [given_up] * gone


def test_trials_of_a_sweep_that_is_gone_or_on(root: Path) -> None:
    orphan = trial(root, "sweep-gone", 0.8, "stopped")
    assert [removal.folder for removal in leftovers.unfinished_trials()] == [orphan]
    with hold(orphan, ""):
        assert leftovers.unfinished_trials() == []


def test_bytes_are_those_that_removing_frees(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    (folder / "a").write_bytes(bytes(100))
    (folder / "again").hardlink_to(folder / "a")
    other.write_bytes(bytes(1000))
    (folder / "shared").hardlink_to(other)
    (folder / "link").symlink_to(other)
    assert bytes_in(folder) == 100 + (folder / "link").lstat().st_size


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (3.4e9, "3.4 GB"), (2e12, "2.0 TB")]
)
def test_sizes_are_short(number: float, shown: str) -> None:
    assert size(number) == shown
