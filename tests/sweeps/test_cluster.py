"""A sweep on a Ray of two nodes, both on this machine; one dies in the middle."""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState
from ray.cluster_utils import Cluster
from support.waiting import wait_until

from kinoray.errors import UsageError
from kinoray.runs.method_source import methods_folder
from kinoray.sweeps.result import SweepResult
from kinoray.testing.engine import digest_of_run, run_spec, spec_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

FIXED = {"queue_size": 16, "max_steps": 16}
SLOW = """
import os, time
class Method(Method):
    def after_step(self, carry, step):
        super().after_step(carry, step)
        if not os.path.exists({died!r}):
            time.sleep(0.15)
"""
"""Slow enough for a machine to die in the midst, and quick from then on."""
DRIVER = """
import pickle, sys
from pathlib import Path
import kinoray
method, stream, runs, settings = pickle.loads(Path(sys.argv[1]).read_bytes())
swept = kinoray.sweep(method, stream=stream, trials=4, space={"m_hat": {"low": 0.9, "high": 1.0}}, sampler="random",
                      prune=False, settings=settings, runs=runs, name="s")
assert swept.states["complete"] == 4, swept.states
"""
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head and another node of one CPU each. They are told of nobody: other Rays of the machine stay as they are."""
    import ray._private.utils as utils

    monkeypatch.setattr(utils, "write_ray_address", lambda address, temp_dir=None: None)
    folder = tempfile.mkdtemp(prefix="kr", dir="/tmp")  # sockets need a short path
    place = {"num_cpus": 1, "object_store_memory": 150_000_000}
    head = place | {"temp_dir": folder, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE}
    nodes = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    try:
        nodes.add_node(**place)
        yield nodes
    finally:
        nodes.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def test_trials_spread_over_the_nodes_and_the_death_of_one_costs_none(two_nodes: Cluster, micro, tmp_path) -> None:
    method = tmp_path / "slow.py"
    died = tmp_path / "died"
    method.write_text((methods_folder() / "bmu_moco.py").read_text() + SLOW.format(died=str(died)))
    (tmp_path / "job").write_bytes(pickle.dumps((str(method), micro, str(tmp_path / "runs"), FIXED)))
    environment = os.environ | {"RAY_ADDRESS": two_nodes.address}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "job")]
    (other,) = two_nodes.worker_nodes
    log = tmp_path / "output.txt"
    with log.open("w") as output:
        driver = subprocess.Popen(command, env=environment, stderr=output)
    try:
        hit = wait_until(lambda: [t for t in trials_of(tmp_path) if is_on(t, other.node_id)], driver, log=log)[0]
        two_nodes.remove_node(other, allow_graceful=False)
        died.touch()
        assert driver.wait(120) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()
    trials = trials_of(tmp_path)
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 4
    ended_on = {t.user_attrs["node"] for t in trials if t.number >= hit.number}
    assert ended_on == {two_nodes.head_node.node_id}, "the other node is gone"
    outcome = SweepResult(tmp_path / "runs" / "s").trial(hit.number).runs[0].outcome
    alone = replace(spec_of(str(method), micro, tmp_path / "alone", settings=FIXED | hit.params), threads=1)
    assert run_spec(alone)
    assert outcome["state_digest"] == digest_of_run(alone), "it went on elsewhere as if nothing had happened"


def trials_of(folder: Path) -> list[FrozenTrial]:
    """The sweep's trials so far; none before it has a study."""
    try:
        return SweepResult(folder / "runs" / "s").trials
    except UsageError:
        return []


def is_on(trial: FrozenTrial, node: str) -> bool:
    """Whether a trial is on a node, with a task behind it and another before it."""
    return trial.state is TrialState.RUNNING and trial.user_attrs.get("node") == node
