"""Which errors are tried again, and how often deaths are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kinoray.execution import workers
from kinoray.execution.run_monitor import RunMonitor
from kinoray.execution.workers import MAX_RESTARTS, _machines, one_process


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("[gloo] Timed out"), True),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error"), True),
        (RuntimeError("Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc] timed out"), True),
        (ValueError("the backbone has no layer named gloo/3"), False),
        (RuntimeError("the backbone has no layer named gloo"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_machines_fault_is_no_methods(error: Exception, again: bool) -> None:
    assert _machines(error) == again


def test_deaths_of_a_run_count_from_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, spec, ended = RunMonitor(str(tmp_path)), Any, {"finished": True}
    monkeypatch.setattr(workers, "run_rank_safely", lambda *given: ended)
    monkeypatch.setattr(workers.ray, "nodes", lambda: [{"NodeID": "a machine", "Alive": True}])

    def tries(count: int) -> list[dict[str, Any]]:
        return [one_process(spec, monitor, None) for _ in range(count)]

    assert tries(1 + MAX_RESTARTS) == [ended] * (1 + MAX_RESTARTS)
    monitor.rewind(0, 8)  # it goes on from a new commit
    assert tries(MAX_RESTARTS) == [ended] * MAX_RESTARTS
    (given_up,) = tries(1)
    assert given_up["kind"] == "RunFailed" and "died 4 times in a row without a new commit" in given_up["error"]


def test_a_run_beside_others_asks_for_no_more_cpus_than_a_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are of the driver's machine, here one of sixteen cores outside a cluster of four and two."""
    asked: dict[str, Any] = {}
    task = SimpleNamespace(options=lambda **options: asked.update(options) or task, remote=lambda *given: None)
    nodes = [{"Alive": True, "Resources": {"CPU": count}} for count in (4.0, 2.0)]
    monkeypatch.setattr("ray.nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 16.0}}])
    monkeypatch.setattr(workers.ray, "remote", lambda function: task)
    monkeypatch.setattr(workers.ray, "get", lambda reference: {"finished": True})
    for threads, cpus in ((15, 4.0), (1, 1)):
        workers.run_alone(SimpleNamespace(threads=threads), None, None)  # type: ignore[arg-type]
        assert asked["num_cpus"] == cpus
