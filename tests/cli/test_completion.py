"""What the shell is offered behind a half-typed word."""

import os
import subprocess
import sys
from pathlib import Path

import typer
from support.run_folders import make_run

from kinoray.cli import completion
from kinoray.cli.main import app


def test_methods_and_learners_behind_a_rule_and_streams_are_offered() -> None:
    assert "bmu_moco" in completion.methods("bmu")
    assert "lwf:bmu_moco" in completion.methods("lwf:bmu")
    assert "moving-cvlm" in completion.streams("moving-c")


def test_runs_are_offered_by_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path).parent
    context = typer.Context(typer.main.get_command(app))
    context.params["root"] = str(tmp_path)
    assert completion.runs(context, "base") == [run.name]
    assert completion.runs(context, "bmu") == []


def test_the_shell_is_answered_without_torch(tmp_path: Path) -> None:
    make_run(tmp_path)
    code = "import sys\ntry:\n    import kinoray.cli.main as cli; cli.app()\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'ray', 'pandas') if name in sys.modules])"
    words = {"_KINORAY_COMPLETE": "complete_bash", "COMP_WORDS": "kinoray report base", "COMP_CWORD": "2"}
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'kinoray'\n{code}"],
        env=os.environ | words | {"KINORAY_RUNS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == ["base_moco-moving-cvlm-0a1b2c3d", "[]"], answer.stderr
