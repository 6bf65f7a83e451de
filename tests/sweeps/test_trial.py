"""A trial and the runs that it shares with others."""

import pytest

from kinoray.errors import Busy, UsageError
from kinoray.runs.run_folder import hold_run
from kinoray.sweeps import trial
from kinoray.sweeps.seed_run import Halt
from kinoray.testing.engine import resolved


def test_a_trial_waits_for_a_held_run_whatever_the_message_says_and_for_nothing_else(
    micro, tmp_path, monkeypatch
) -> None:
    run = resolved("base_moco", micro, tmp_path)
    stop_file = tmp_path / "stop"

    def refused(problem: Exception):
        def refuse(_):
            raise problem

        return refuse

    stop_file.touch()
    monkeypatch.setattr(trial, "hold_run", refused(Busy("held by somebody else")))
    with pytest.raises(Halt), trial.patient_lock(run, stop_file):
        pass
    monkeypatch.setattr(trial, "hold_run", refused(UsageError("Cannot write: another process removed the folder")))
    with pytest.raises(UsageError, match="Cannot write"), trial.patient_lock(run, stop_file):
        pass


def test_a_held_run_is_busy(micro, tmp_path) -> None:
    run = resolved("base_moco", micro, tmp_path)
    with hold_run(run), pytest.raises(Busy, match="another process"), hold_run(run):
        pass
