"""What a start of Ray listens on, against the table of `cluster/README.md`."""

import contextlib
import ipaddress
import os
import pickle
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.places import REPOSITORY
from support.ray_head import free_ports
from support.sockets import family, listening
from support.waiting import wait_until

from kinoray.streams import Stream

RUN = """
import pickle, sys
from pathlib import Path
import kinoray
options = pickle.loads(Path(sys.argv[1]).read_bytes())
kinoray.run("base_moco", num_workers=1, **options)
"""
PROGRAMS = {
    "kinoray first": RUN,
    "ray first, with a dashboard": "import ray\n" + RUN.replace("**options", "dashboard=True, **options"),
    "in a notebook": "import sys\nsys.ps1 = 'In : '\nimport ray\n" + RUN,
    "a sweep": RUN.replace('run("base_moco", num_workers=1', 'sweep("base_moco", trials=1, workers_per_trial=1'),
}
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")


def listed() -> set[str]:
    """The processes that the table names."""
    text = (REPOSITORY / "cluster" / "README.md").read_text(encoding="utf-8")
    table = text.split("## What listens where")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def open_to_others(parent: psutil.Process) -> dict[int, str]:
    """Title by process id, of a process and its children, where it listens on more than loopback.

    Ray appends the method to an actor's title while a call runs: `ray::Actor.method`; that part is cut.
    """
    titles = {}
    for process in family(parent):
        if any(not _is_loopback(address) for address, _ in listening(process)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                titles[process.pid] = process.name().split(".")[0]
    return titles


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def options_of(micro: Stream, tmp_path: Path) -> dict[str, Any]:
    """A run that trains for as long as it is looked at."""
    longer = replace(micro, recipe=replace(micro.recipe, epochs=400))
    return {"stream": longer, "runs": tmp_path / "runs", "settings": {"queue_size": 16, "max_steps": 0}, "quiet": True}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_start_listens_as_the_table_says(micro: Stream, tmp_path: Path, program: str) -> None:
    options = options_of(micro, tmp_path)
    if program == "a sweep":
        options |= {"space": {"temperature": {"low": 0.05, "high": 0.1}}, "name": "s"}
    (tmp_path / "job").write_bytes(pickle.dumps(options))
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    driver = subprocess.Popen([sys.executable, "-c", PROGRAMS[program], str(tmp_path / "job")], env=environment)
    titles: dict[int, set[str]] = defaultdict(set)  # a call with a name of its own hides the actor's for a moment
    looks_in_training = 0
    try:
        deadline = time.monotonic() + 180
        while driver.poll() is None and looks_in_training < 6 and time.monotonic() < deadline:
            for pid, title in open_to_others(psutil.Process(driver.pid)).items():
                titles[pid].add(title)
            looks_in_training += any((tmp_path / "runs").glob("*/seed-0/metrics.jsonl"))
            time.sleep(0.5)
    finally:
        driver.terminate()
        driver.wait(120)
    assert looks_in_training and titles and listed() == {"ray::RayTrainWorker"}
    assert all(seen & listed() for seen in titles.values()), dict(titles)


@pytest.mark.ray
@pytest.mark.slow
def test_the_line_that_starts_a_ray_keeps_to_loopback_and_the_next_joins_it(micro: Stream, tmp_path: Path) -> None:
    start, run = re.search(r"## A Ray of your own.*?```bash\n(.*?)\n(.*?)\n```", OPERATIONS, re.DOTALL).groups()  # type: ignore[union-attr]
    gcs, dashboard, client, agent, metrics = free_ports(5)
    words = f"{start} --block --port={gcs} --dashboard-port={dashboard} --ray-client-server-port={client}"
    words += f" --dashboard-agent-listen-port={agent} --metrics-export-port={metrics} --num-cpus=2"
    words += f" --temp-dir={tempfile.mkdtemp(prefix='krl', dir='/tmp')}"  # sockets need a short path
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | programs
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(["env", *shlex.split(words)], env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), log=tmp_path / "head.log")
        joins = shlex.split(run.replace("6379", str(gcs)).replace("bmu_moco", "bmu_moco_views"))  # it trains on digits
        joins = [*joins, "--stream", "digits-5", "--smoke", "--runs", str(tmp_path / "runs")]
        done = subprocess.run(
            ["env", *joins], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"Joining the Ray cluster at RAY_ADDRESS, 127.0.0.1:{gcs} ..." in done.stderr
        assert f"Ray's dashboard: http://127.0.0.1:{dashboard} (its token: `ray get-auth-token`)" in done.stderr
        assert not open_to_others(psutil.Process(head.pid))
    finally:
        mine = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        psutil.wait_procs(mine, timeout=10)
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
