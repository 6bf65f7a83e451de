"""A cluster that grows: one machine of two CPUs, and a run whose two ranks ask for two each. The autoscaler must start
another machine, and both must work.

    python tests/soak/grows.py [--json] [--steps 20]

The autoscaler is Ray's own, its machines are processes here (its provider for tests, which wants port 6379). A run that
names nothing fits into the two CPUs and asks for no machine. Takes about three minutes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from measured import show_lines

HEAD, JOINING = "ray.head.default", "small"
LIMIT_S, LOOK_S, START_S = 600, 0.5, 60.0
CONFIG: dict[str, Any] = {
    "cluster_name": "grows",
    "max_workers": 1,
    "upscaling_speed": 20.0,
    "idle_timeout_minutes": 1.0,
    "provider": {"type": "fake_multinode", "disable_node_updaters": True, "disable_launch_config_check": True},
    "auth": {"ssh_user": "nobody"},
    "available_node_types": {
        HEAD: {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        JOINING: {"resources": {"CPU": 3}, "node_config": {}, "min_workers": 0, "max_workers": 1},
    },
    "head_node_type": HEAD,
    **{name: {} for name in ("docker", "file_mounts", "head_node", "worker_nodes")},
    **{
        name: []
        for name in (
            "initialization_commands",
            "setup_commands",
            "head_setup_commands",
            "worker_setup_commands",
            "head_start_ray_commands",
            "worker_start_ray_commands",
            "cluster_synced_files",
            "rsync_exclude",
            "rsync_filter",
        )
    },
    "file_mounts_sync_continuously": False,
}


@contextmanager
def growing_cluster(folder: Path) -> Iterator[psutil.Process]:
    """The head, ended with all that it started. Raises: RuntimeError where it does not start."""
    (folder / "cluster.json").write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--autoscaling-config={folder}/cluster.json", f"--temp-dir={folder}/ray", "--disable-usage-stats"]
    command += ["--include-dashboard=false", "--dashboard-agent-listen-port=0", "--object-store-memory=200000000"]
    fast = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    with (folder / "head.log").open("w") as log:
        head = psutil.Popen(command, env=os.environ | fast, stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_S
        while "Ray runtime started" not in (folder / "head.log").read_text():
            if head.poll() is not None or time.monotonic() > end:
                raise RuntimeError((folder / "head.log").read_text())
            time.sleep(LOOK_S)
        yield head
    finally:
        family = [*head.children(recursive=True), head]
        head.terminate()
        for process in psutil.wait_procs(family, timeout=15)[1]:
            process.kill()


def machines() -> int:
    """How many the cluster has."""
    import ray

    return sum(node["Alive"] for node in ray.nodes())


def with_ranks() -> int:
    """On how many machines ranks work."""
    ranks = [p for p in psutil.process_iter(["cmdline"]) if "RayTrainWorker" in "".join(p.info["cmdline"] or ())]
    return len({rank.parent().pid for rank in ranks})  # of one raylet each


def run(folder: Path, *words: str, steps: int) -> tuple[int, int, int, str]:
    """Exit code, the most machines there were, the most that had ranks, and what the run said."""
    command = [sys.executable, "-m", "kinoray", "run", "bmu_moco_views", "--stream", "digits-5", "--num-workers", "2"]
    command += ["--runs", str(folder / "-".join(["runs", *words])), "--set", f"max_steps={steps}", *words]
    with (folder / "run.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + LIMIT_S
        most = ranks = 0
        while process.poll() is None and time.monotonic() < end:
            most, ranks = max(most, machines()), max(ranks, with_ranks())
            time.sleep(LOOK_S)
        process.kill()
        log.seek(0)
        return process.wait(), most, ranks, log.read()


def measure(steps: int) -> dict[str, Any]:
    import ray

    folder = Path(tempfile.mkdtemp(prefix="kr", dir="/tmp"))  # sockets need a short path
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "127.0.0.1:6379"}
    with growing_cluster(folder):
        ray.init(log_to_driver=False)
        fits, alone, _, output = run(folder, steps=steps)
        code, most, ranks, asked = run(folder, "--per-worker", "CPU=2", steps=steps)
        ray.shutdown()
    if code or fits:
        sys.stderr.write(f"{output}{asked}Ray's logs: {folder}/ray/session_latest/logs\n")
    else:
        shutil.rmtree(folder)
    return {
        "exit_codes": [fits, code],
        "machines_unnamed": alone,
        "machines": most,
        "machines_with_ranks": ranks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    measured = measure(asked.steps)
    show_lines(measured, asked.json)
    wanted = {"exit_codes": [0, 0], "machines_unnamed": 1, "machines": 2, "machines_with_ranks": 2}
    sys.exit(measured != wanted)


if __name__ == "__main__":
    main()
