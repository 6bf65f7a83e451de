"""`kinoray sweep` as typed: its help is cheap, its errors are one line."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kinoray.cli.main import app
from kinoray.cli.sweep import winners_command
from kinoray.errors import UsageError
from kinoray.sweeps.request import SweepRequest


def test_help_imports_neither_torch_nor_ray_nor_optuna() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from kinoray.cli.main import app; "
        "r = CliRunner().invoke(app, ['sweep', '--help']); assert '--trials' in r.output, r.output; "
        "print([m for m in ('torch', 'ray', 'optuna', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bmu_moco", "--trials", "0"], "`trials` is 0: it should be greater"),
        (["bmu_moco", "--objective", "HM,HN"], "no objective named 'HN'"),
        (["bmu_mocko"], "no method named 'bmu_mocko'"),
        (["bmu_moco", "--space", "bmu-fig5"], "no space of bmu_moco named 'bmu-fig5'"),
        (["bmu_moco", "--retry", "all"], "only failed trials"),
        (["bmu_moco", "--space", "m_hat=0.9"], "give a range"),
        (["bmu_moco", "--set", "m_hat=0.9,1.5"], "m_hat=1.5"),
        (["bmu_moco", "--sampler", "tp"], "`sampler` is 'tp': it should be 'tpe'"),
    ],
)
def test_a_wrong_command_is_one_line(words: list[str], message: str, micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.sweeps.plan.load_stream", lambda name: micro)  # the default one would be rendered
    done = CliRunner().invoke(app, ["sweep", *words, "--runs", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_knobs_are_typed_and_lists_alone_are_a_grid(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.sweeps.plan.load_stream", lambda name: micro)

    def outlined(*words: str) -> str:
        base = ["sweep", "bmu_moco", "--set", "queue_size=16", "--dry-run", "--runs", str(tmp_path)]
        done = CliRunner().invoke(app, [*base, *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "sampler: grid" in (out := outlined("--set", "m_hat=0.9,0.99,1.0")) and "trials: 3" in out
    assert "sampler: tpe" in (out := outlined("--space", "m_hat=0.9:1", "--space", "learning_rate=1e-4:1e-2:log"))
    assert "log: true" in out


def test_the_winners_command_runs_its_settings_on_seeds_that_chose_nothing() -> None:
    request = SweepRequest("./my method.py", stream="digits-5", seeds=2, smoke=True)
    record: dict[str, Any] = {"settings": {"both_ways": True, "epochs": 2}, "seeds": [0, 1]}
    made: Any = SimpleNamespace(best=SimpleNamespace(params={"m": 0.9}), record=record)
    assert winners_command(request, made) == (
        "kinoray run './my method.py' --stream digits-5 --set both_ways=true --set epochs=2 --set m=0.9 "
        "--seed 2 --seeds 3 --smoke"
    )
    made.best = None
    assert winners_command(request, made) == ""
