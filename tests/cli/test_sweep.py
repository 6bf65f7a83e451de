"""`kinoray sweep` as typed: its help is cheap, its errors are one line."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kinoray.cli.main import app
from kinoray.errors import UsageError


def test_help_imports_neither_torch_nor_ray_nor_optuna() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from kinoray.cli.main import app; "
        "r = CliRunner().invoke(app, ['sweep', '--help']); assert '--trials' in r.output, r.output; "
        "print([m for m in ('torch', 'ray', 'optuna', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bmu_moco", "--trials", "0"], "`trials` must be 1 or more"),
        (["bmu_moco", "--objective", "HM,HN"], "no metric to aim at named 'HN'"),
        (["bmu_mocko"], "no method named 'bmu_mocko'"),
        (["bmu_moco", "--space", "bmu-fig5"], "no space of bmu_moco named 'bmu-fig5'"),
        (["bmu_moco", "--retry", "all"], "only failed trials"),
        (["bmu_moco", "--sampler", "tp"], "no sampler named 'tp'"),
    ],
)
def test_a_wrong_command_is_one_line(words: list[str], said: str, micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.sweeps.plan.load_stream", lambda name: micro)  # the default one would be rendered
    found = CliRunner().invoke(app, ["sweep", *words, "--runs", str(tmp_path)])
    assert isinstance(found.exception, UsageError)
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)
    assert not list(tmp_path.iterdir())
