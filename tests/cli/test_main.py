"""The command line: what it passes on, prints, and answers to mistakes. The engine is replaced by a recorder."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import make_run

import kinoray
from kinoray.errors import ConfigMismatch, RunFailed, UsageError, unknown
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result

Outcome = tuple[int, str, str]


def given_in(request: RunRequest) -> dict[str, Any]:
    """What a request asks for beside the defaults."""
    usual = RunRequest(request.method)
    values = {f.name: getattr(request, f.name) for f in fields(request)}
    return {name: v for name, v in values.items() if name == "method" or v != getattr(usual, name)}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """`kinoray.run` that records what it is asked and returns a made-up finished run."""
    asked: list[dict[str, Any]] = []

    def run(request: RunRequest) -> Any:
        asked.append(given_in(request))
        folder = tmp_path / str(len(asked))
        seeds = [Result(make_run(folder, Path(str(request.method)).stem, seed)) for seed in range(request.seeds or 1)]
        return seeds if request.seeds else seeds[0]

    def dry_run(request: RunRequest) -> dict[str, Any]:
        return {"method": request.method, "folder": str(tmp_path / f"planned-{request.method}"), "seeds": [0]}

    for name, fake in (("execution.run.run", run), ("execution.dry_run.dry_run", dry_run)):
        monkeypatch.setattr(f"kinoray.{name}", fake)
    return asked


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom kinoray.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'ray', 'sklearn', 'numpy', 'pandas', 'matplotlib', 'scipy',"
        " 'transformers')"
        " if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "compare" in done.stdout


def test_the_version_is_one_line(kino: Callable[..., Outcome]) -> None:
    assert kino("--version") == (0, f"kinoray {kinoray.__version__}\n", "")


def test_run_passes_on_what_was_given_and_nothing_else(kino: Callable[..., Outcome], engine: list) -> None:
    code, out, _ = kino("run", "bmu_moco", "--stream", "moving-cvlm:3", "--seeds", 2, "--set", "m_hat=0.95",
                        "--set", "variant=local", "--quiet", "--num-workers", 0)  # fmt: skip
    assert code == 0
    assert engine == [
        {
            "method": "bmu_moco",
            "stream": "moving-cvlm:3",
            "seeds": 2,
            "num_workers": 0,
            "settings": {"m_hat": 0.95, "variant": "local"},
            "quiet": True,
        }
    ]
    assert "Overall" in out and "report.html" in out


def test_several_methods_end_in_one_table(kino: Callable[..., Outcome], engine: list) -> None:
    code, out, _ = kino("run", "base_moco", "bmu_moco")
    assert code == 0 and [call["method"] for call in engine] == ["base_moco", "bmu_moco"]
    assert out.count("Report: ") == 2
    table = out.splitlines()
    assert any(line.startswith("base_moco ") for line in table) and any(line.startswith("bmu_moco ") for line in table)


def test_the_table_is_not_folded_where_there_is_no_terminal(kino: Callable[..., Outcome], engine: list) -> None:
    _, out, _ = kino("run", "base_moco")
    row = next(line for line in out.splitlines() if line.startswith("base_moco "))
    assert len(row.split()) == 13  # the method, 9 numbers of five tasks, 3 overall


def test_json_is_one_object_on_stdout(kino: Callable[..., Outcome], engine: list) -> None:
    _, out, _ = kino("run", "base_moco", "--json")
    answer = json.loads(out)
    assert answer["runs"][0]["state"] == "finished" and "HM" in answer["runs"][0]["metrics"]


def test_a_dry_run_prints_the_plan(kino: Callable[..., Outcome], engine: list) -> None:
    assert "method: bmu_moco" in kino("run", "bmu_moco", "--dry-run")[1]
    plans = json.loads(kino("run", "bmu_moco", "--dry-run", "--json")[1])["plans"]
    assert plans[0]["seeds"] == [0] and engine == []


def test_an_experiment_file_holds_methods_options_and_settings(
    kino: Callable[..., Outcome], engine: list, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text("method: [base_moco, bmu_moco]\nseeds: 2\nnum-workers: 1\nm: 0.9\nepochs: 3\n")
    assert kino("run", file, "--num-workers", 0, "--set", "m=0.5")[0] == 0
    assert [call["method"] for call in engine] == ["base_moco", "bmu_moco"]  # no Ray for runs in this process
    assert all(call["seeds"] == 2 and call["num_workers"] == 0 for call in engine)  # the command line wins
    assert all(call["settings"] == {"m": 0.5, "epochs": 3} for call in engine)


def test_a_config_file_gives_settings_to_the_method_named(
    kino: Callable[..., Outcome], engine: list, tmp_path: Path
) -> None:
    file = tmp_path / "shared.toml"
    file.write_text("joint = true\nlearning_rate = 1e-3\n")
    kino("run", "base_moco", "--config", file)
    assert engine[0]["joint"] is True and engine[0]["settings"] == {"learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "base_moco", "--set", "m_hat"], "must be name=value"),
        (["run", "base_moco", "--set", "m=[1"], "--set m=[1"),
        (["run", "missing.yaml"], "no such file"),
        (["compare", "no-such-run"], "There is no run no-such-run"),
        (["report", "."], "no run.json"),
        (["new", "method", "My-Method"], "lower case"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    kino: Callable[..., Outcome], engine: list, words: list[str], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = kino(*words)
    assert (code, out) == (2, "")
    assert message in err and len(err.splitlines()) == 1 and engine == []


@pytest.mark.parametrize("words", [["run"], ["rum"], ["run", "base_moco", "--sed", "1"], ["list", "things"]])
def test_a_wrong_command_exits_with_2(kino: Callable[..., Outcome], words: list[str]) -> None:
    assert kino(*words)[0] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("step 3 failed"), 1),
        (ConfigMismatch("another learning rate"), 2),
        (UsageError("caption \x1b]0;x\nsecond line"), 2),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug"), 1),
    ],
)
def test_every_error_ends_as_one_line_with_its_code(
    kino: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("kinoray.execution.run.run", run)
    exit_code, out, err = kino("run", "base_moco")
    assert (exit_code, out) == (code, "")
    assert len(err.strip().splitlines()) <= 1 and "\x1b" not in err and "Traceback" not in err


def test_debug_shows_the_traceback(kino: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise RunFailed("step 3 failed")

    monkeypatch.setattr("kinoray.execution.run.run", run)
    assert "Traceback" in kino("run", "base_moco", "--debug")[2]


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("stopped", 75), ("failed", 1)])
def test_the_state_of_the_run_is_the_exit_code(
    kino: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, code: int
) -> None:
    result = Result(make_run(tmp_path, state=state))
    monkeypatch.setattr("kinoray.execution.run.run", lambda *_, **__: result)
    assert kino("run", "base_moco")[0] == code


def test_compare_prints_the_table_and_its_notes(kino: Callable[..., Outcome], tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, "base_moco", seed)
        make_run(tmp_path, "bmu_moco", seed, gain=3.0, tested_ids="other")
    code, out, err = kino("compare", *sorted(tmp_path.iterdir()))
    assert code == 0 and "bmu_moco - base_moco: HM +" in out
    assert "tested on other samples" in err and "tested on" not in out
    assert json.loads(kino("compare", *tmp_path.iterdir(), "--json")[1])["rows"][0]["metrics"]["HM"]["seeds"] == 3
    assert kino("compare", *tmp_path.iterdir(), "--format", "latex")[1].startswith(r"\begin{tabular}")
    assert kino("compare", *tmp_path.iterdir(), "--format", "markdown")[1].startswith("| method |")


def test_runs_are_found_by_name(kino: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    code, out, _ = kino("report", folder.parent.name, "--runs", tmp_path)
    assert code == 0 and Path(out.strip()).is_file()
    assert f"Did you mean '{folder.parent.name}'?" in kino("report", folder.parent.name[:-1], "--runs", tmp_path)[2]


def test_lists(kino: Callable[..., Outcome], tmp_path: Path) -> None:
    assert "base_moco" in kino("list", "methods")[1]
    assert "moving-cvlm" in kino("list", "streams")[1]
    assert "vit-bert" in kino("list", "backbones")[1]
    make_run(tmp_path, seed=4)
    assert "finished" in (out := kino("list", "runs", "--runs", tmp_path)[1]) and "seed 4" in out
    assert json.loads(kino("list", "runs", "--runs", tmp_path, "--json")[1])["runs"][0]["seed"] == 4


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_one_line_and_no_bug(code: int, kino, monkeypatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code), "/read/only/foo.py")

    monkeypatch.setattr("kinoray.runs.finding.select_runs", refused)
    left, out, err = kino("compare", "run")
    assert (left, out) == (2, "") and err.startswith(f"/read/only/foo.py: {os.strerror(code)}. ")
    assert "traceback" not in err and len(err.splitlines()) == 1


def test_a_name_is_suggested_whatever_its_case() -> None:
    assert "Did you mean 'epochs'" in str(unknown("setting", "EPOCHS", ["epochs", "eps"]))
