"""Requests: what the command line, experiment files and Python ask for, checked once."""

import inspect
from dataclasses import fields

import pytest

import kinoray
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import Options
from kinoray.runs.request import RunOptions, RunRequest, request_of
from kinoray.sweeps.request import MeasureOptions, SweepOptions, SweepRequest


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)} - {"method"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint": True, "zero_shot": True}, "give one of them"),
        ({"seed": -1}, "`seed` must be 0 or more, but got -1"),
        ({"seeds": 0}, "`seeds` must be 1 or more"),
        ({"seeds": 1.5}, "`seeds` must be a whole number, but got 1.5"),
        ({"num_workers": -2}, "`num_workers` must be 0 or more"),
    ],
)
def test_a_request_is_checked_when_it_is_made(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        RunRequest("base_moco", **options)


def test_what_python_type_checkers_and_experiment_files_may_ask_is_what_a_request_holds() -> None:
    assert set(RunOptions.__annotations__) == names(RunRequest)
    assert set(SweepOptions.__annotations__) == names(SweepRequest)
    assert set(MeasureOptions.__annotations__) < names(SweepRequest)
    assert names(Options) < names(RunRequest)


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
    with pytest.raises(UsageError, match=r"no option named 'sede'\. Did you mean 'seed'"):
        kinoray.run("base_moco", sede=3)


def test_a_request_is_passed_on_whole_and_options_replace_its_fields() -> None:
    request = RunRequest("base_moco", seed=4, seeds=2, settings={"m": 0.5})
    assert request_of(RunRequest, request, {}) == request
    assert request_of(RunRequest, request, {"seeds": None}).all_seeds == [4]
    assert request.all_seeds == [4, 5] and request_of(RunRequest, request, {"seeds": 1}).settings == {"m": 0.5}
