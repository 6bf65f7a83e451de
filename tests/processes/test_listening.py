"""What a default start listens on, against the table of `cluster/README.md`."""

import contextlib
import ipaddress
import os
import pickle
import re
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.places import REPOSITORY
from support.sockets import family, listening

from kinoray.streams import Stream

DRIVER = """
import pickle, sys
from pathlib import Path
import kinoray
kinoray.run("base_moco", **pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


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


@pytest.mark.ray
@pytest.mark.slow
def test_a_default_start_listens_as_the_table_says(micro: Stream, tmp_path: Path) -> None:
    longer = replace(micro, recipe=replace(micro.recipe, epochs=400))
    options = {
        "stream": longer,
        "runs": tmp_path / "runs",
        "settings": {"queue_size": 16, "max_steps": 0},
        "quiet": True,
    }
    (tmp_path / "job").write_bytes(pickle.dumps(options))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path / "job")], env=environment)
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
