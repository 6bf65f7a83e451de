"""What ranks ask of Ray: a share of what is there, or what the user names."""

import os

import pytest

from kinoray.errors import UsageError
from kinoray.execution import run as run_file
from kinoray.execution.run import PATIENCE, RankShare, _awaited, patient, share_of_rank
from kinoray.runs.request import RunRequest
from kinoray.system import ray_session


def test_what_is_named_is_asked_for_whatever_is_there() -> None:
    share = share_of_rank(4, None, {"CPU": 8, "GPU": 1, "memory": 1e9})
    assert share == RankShare(8, True, 1.0, 8, {"GPU": 1, "memory": 1e9}, is_named=True)
    assert share.resources == {"CPU": 8, "GPU": 1, "memory": 1e9}
    assert share.of_all(4) == {"CPU": 32, "GPU": 4, "memory": 4e9}
    assert share_of_rank(2, None, {"GPU": 0.5}).resources == {"CPU": 1.0, "GPU": 0.5}
    assert not share_of_rank(2, None, {"CPU": 0.5}).gpu


@pytest.mark.parametrize(("workers", "cpus", "expected"), [(1, 4, 1.0), (4, 4, 0.75), (2, 1, 0.01)])
def test_ranks_share_what_is_there_and_leave_a_cpu_for_decoding(monkeypatch, workers, cpus, expected) -> None:
    monkeypatch.setattr(ray_session, "num_cpus", lambda: cpus)
    monkeypatch.setattr(ray_session, "num_gpus", lambda: 0)
    monkeypatch.setattr(run_file, "decode_slots", lambda workers, each: 1.0)
    share = share_of_rank(workers, None, {})
    assert share.cpus == expected and share.of_all(workers) == {}, "nothing that may be still to come"


def test_a_trainer_waits_longer_for_machines_that_are_still_to_come() -> None:
    (name,) = PATIENCE
    before = os.environ.get(name)
    with patient({"CPU": 2}):
        assert os.environ[name] == PATIENCE[name]
    with patient({}):
        assert os.environ.get(name) == before


def test_a_run_that_waits_for_machines_says_for_what(monkeypatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0})
    (line,) = _awaited("run/seed-0", {"CPU": 4, "GPU": 2})
    assert line.startswith("run/seed-0 asks for 2 GPU (there are 0): a cluster that grows starts machines now")
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.0})
    (line,) = _awaited("run/seed-0", {"CPU": 4})
    assert "waits for 1 CPU: 8 of the cluster's 8 are held" in line
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 7.0, "GPU": 0.5})
    (line,) = _awaited("run/seed-0", {}, gpus=2.0)
    assert "waits for 2 GPU: 1.5 of the cluster's 2 are held" in line
    assert _awaited("run/seed-0", {}, gpus=0.5) == _awaited("run/seed-0", {}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_worker": {"CPU": -1}}, "`per_worker.CPU` is -1: it should be greater"),
        ({"per_worker": {"GPU": "one"}}, "`per_worker.GPU` is 'one': it should be a valid number"),
        ({"per_worker": {"CPU": 1}, "num_workers": 0}, "but num_workers=0 does not use it"),
    ],
)
def test_demands_that_make_no_sense_are_refused(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        RunRequest("bmu_moco", **options)
