"""Requests: what the command line, experiment files and Python ask for, checked once."""

import inspect
from dataclasses import fields

import pytest

import kinoray
from kinoray.cli.run import run_command
from kinoray.cli.sweep import sweep
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import read_experiment
from kinoray.runs.request import RunRequest, request_of
from kinoray.sweeps.request import MEASURED, SweepRequest


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)} - {"method"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint": True, "zero_shot": True}, "give one of them"),
        ({"seed": -1}, "`seed` is -1: it should be greater than or equal to 0"),
        ({"seed": True}, "`seed` is True: it should be a valid integer"),
        ({"seeds": 0}, "`seeds` is 0: it should be greater than or equal to 1"),
        ({"seeds": 1.5}, "`seeds` is 1.5: it should be a valid integer"),
        ({"num_workers": -2}, "`num_workers` is -2: it should"),
        ({"per_worker": {"GPU": -1}}, "`per_worker.GPU` is -1: it should be greater"),
        ({"num_workers": 0, "watch": 2}, "`watch` needs Ray"),
    ],
)
def test_a_request_is_checked_when_it_is_made(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        RunRequest("base_moco", **options)


def test_command_lines_and_experiment_files_have_what_a_request_holds(tmp_path) -> None:
    (tmp_path / "e.yaml").write_text("method: base_moco\nnum-workers: 0\nlog: wandb\nseed: 2\nfresh: true\nm: 0.5\n")
    options, settings = read_experiment(tmp_path / "e.yaml")
    assert options == {"method": "base_moco", "num_workers": 0, "log": "wandb", "seed": 2}
    assert settings == {"fresh": True, "m": 0.5}  # of a single start, so no key
    for command, kind in ((run_command, RunRequest), (sweep, SweepRequest)):
        assert names(kind) <= set(inspect.signature(command).parameters)
    assert set(MEASURED) < names(SweepRequest)


def test_help_shows_every_option_by_its_name_and_a_wrong_one_is_named() -> None:
    for function, kind in ((kinoray.run, RunRequest), (kinoray.dry_run, RunRequest), (kinoray.sweep, SweepRequest)):
        shown = inspect.signature(function).parameters
        assert set(shown) == names(kind) | {"method"}
        assert all(
            shown[f.name].default == f.default
            for f in fields(kind)
            if f.name not in ("method", "settings", "per_worker")
        )
    assert inspect.signature(kinoray.reproduce).parameters["seeds"].default is None
    with pytest.raises(UsageError, match=r"no option named 'epochs'.* go into settings=\{'epochs': \.\.\.\}"):
        kinoray.run("base_moco", epochs=3)
    with pytest.raises(UsageError, match=r"no option named 'sede'\. Did you mean 'seed'"):
        kinoray.run("base_moco", sede=3)


@pytest.mark.parametrize("name", ["run", "dry_run", "loop", "sweep", "reproduce", "RunRequest", "SweepRequest"])
def test_docstrings_list_every_option(name) -> None:
    doc = inspect.getdoc(getattr(kinoray, name)) or ""
    for option in inspect.signature(getattr(kinoray, name)).parameters:
        assert doc.count(f"\n    {option}: ") == 1
    assert "**options" not in doc


def test_a_request_is_passed_on_whole_and_options_replace_its_fields() -> None:
    request = RunRequest("base_moco", seed=4, seeds=2, settings={"m": 0.5})
    assert request_of(RunRequest, request, {}) == request
    assert request_of(RunRequest, request, {"seeds": None}).all_seeds == [4]
    assert request.all_seeds == [4, 5] and request_of(RunRequest, request, {"seeds": 1}).settings == {"m": 0.5}
