"""Pictures of Ray's dashboard while a run, a sweep and a submitted job are on: those that the docs show.

    python benchmarks/dashboard_pictures.py [--out docs/_static]

The run starts its own Ray with `--dashboard`. The sweep, which prunes, and the job join one that outlives them: when
the sweep has ended, no placement group may be left there. Every name that kinoray gives has to be in what the dashboard
answers. Headless Chromium shows the pages, where it is installed; it has no token to give, so these Rays ask for none.
Without `--out` the pictures are taken and not kept. About six minutes.
"""

import argparse
import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

import kinoray

LIMIT_S = 400.0
SIZE = {"width": 1300, "height": 650, "deviceScaleFactor": 1, "mobile": False}
CHROMIUM = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-port=0"]  # fmt: skip
FIELD = "[...document.querySelectorAll('label')].find(label => label.innerText === {!r}).parentElement"
"""A page's field by its label."""
RUN = ["run", "bmu_moco", "--num-workers", "1", "--dashboard"]
SWEEP, RATES = "rates-of-classify", "0.05,0.04,0.03,0.02,0.000001"
TUNE = ["sweep", "classify", "--stream", "digits-5", "--workers-per-trial", "1", "--name", SWEEP,
        "--set", f"learning_rate={RATES}", "--set", "max_steps=20"]  # fmt: skip


def until(found: Callable[[], Any]) -> Any:
    """What is found, as soon as it is anything. Raises: TimeoutError."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        with suppress(OSError):  # parts of a dashboard wake up one by one
            if answer := found():
                return answer
        time.sleep(0.5)
    raise TimeoutError(f"nothing was found within {LIMIT_S:g} s")


def answered(address: str) -> str:
    """What a dashboard answers."""
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def find(address: str, *names: str) -> None:
    """Wait until an answer has all of the names."""
    until(lambda: all(name in answered(address) for name in names))
    print(f"{address} has {', '.join(names)}")


def actors_of(label: str) -> list[str]:
    """How the names of a run's actors begin."""
    return [f"{actor}:{label}" for actor in ("monitor", "momentum", "store")]


def find_run(address: str, label: str) -> None:
    """What the dashboard knows by the name of a run on workers: its actors and, which have no page, its trainers."""
    find(f"{address}/api/v0/actors", *actors_of(label))
    find(f"{address}/api/train/v2/runs/v1", label.replace("/", "-"))


@contextmanager
def command(words: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A command of kinoray's that is on; it is stopped behind the block unless it has ended."""
    called = ["python", "-m", "kinoray", *words]  # as the list of jobs shows it: without a folder of this machine
    with log.open("w") as output:
        process = subprocess.Popen(called, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def lasting_ray() -> Iterator[dict[str, Any]]:
    """A Ray on loopback that outlives commands: its `port`, and its `dashboard` as host and port."""
    words = [sys.executable, "-P", "-m", "kinoray.system.ray_head", "--dashboard"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, start_new_session=True, **pipes) as process:  # it ends with its input
        yield json.loads(process.stdout.readline())  # type: ignore[union-attr]


async def looked_at(page: str, profile: Path, shows: Sequence[str], label: str, typed: str) -> bytes:
    """A page as PNG, filtered by what is typed into the field of a label, once it shows all of some texts."""
    (profile / "DevToolsActivePort").unlink(missing_ok=True)
    browser = subprocess.Popen([*CHROMIUM, f"--user-data-dir={profile}", page], stderr=subprocess.DEVNULL)
    try:
        port = until(lambda: (profile / "DevToolsActivePort").read_text()).split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                (tab,) = [target for target in await answer.json() if target["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:

                async def ask(method: str, **parameters: Any) -> dict[str, Any]:
                    await socket.send_json({"id": 1, "method": method, "params": parameters})
                    return (await socket.receive_json())["result"]

                async def until_true(expression: str) -> None:
                    end = time.monotonic() + LIMIT_S
                    while not (await ask("Runtime.evaluate", expression=expression))["result"].get("value"):
                        assert time.monotonic() < end, f"{page}: {expression}"
                        await asyncio.sleep(0.5)

                await ask("Emulation.setDeviceMetricsOverride", **SIZE)
                field = FIELD.format(label) + ".querySelector('input')"
                await until_true(f"{field}.focus() || true")
                await ask("Input.insertText", text=typed)
                for text in shows:
                    await until_true(f"document.body.innerText.replace(/\\s/g, '').includes({text!r})")
                await asyncio.sleep(1)  # for colours that fade in
                return base64.b64decode((await ask("Page.captureScreenshot"))["data"])
    finally:
        browser.terminate()
        browser.wait()


class Pictures:
    """A folder of pictures, and one for all else."""

    def __init__(self, out: Path, folder: Path) -> None:
        self.out, self.folder = out, folder

    def take(self, name: str, page: str, *shows: str, label: str = "Name", typed: str = "") -> None:
        """A page as it is now, which shows some texts."""
        file = self.out / f"dashboard-{name}.png"
        file.write_bytes(asyncio.run(looked_at(page, self.folder / "profile", shows, label, typed)))
        print(f"{file}: {file.stat().st_size / 1000:.0f} kB, shows {', '.join(shows)}")

    def of_run(self) -> None:
        log = self.folder / "run.txt"
        with command(RUN, log):
            address = until(lambda: re.search(r"Ray's dashboard: (\S+)", log.read_text()))[1]
            label = until(lambda: re.search(r"(\S+/seed-0): task 1/\d+ \S+, step ", log.read_text()))[1]
            name = label.split("/")[0]
            find(f"{address}/api/jobs/", name)
            find_run(address, label)
            self.take("run-job", f"{address}/#/jobs", name, typed=name)
            self.take("run-actors", f"{address}/#/actors", *actors_of(label), typed=label)

    def of_sweep(self, address: str) -> None:
        with command(TUNE, self.folder / "sweep.txt") as process:
            find(f"{address}/api/jobs/", SWEEP)
            pattern = r"monitor:(classify-digits-5-\w+/seed-0)"
            label = until(lambda: re.search(pattern, answered(f"{address}/api/v0/actors")))[1]
            find_run(address, label)
            self.take("sweep-trials", f"{address}/#/actors", *actors_of(label), typed="classify-")
            process.wait(LIMIT_S)
        states = kinoray.SweepResult(self.folder / "runs" / SWEEP).states
        assert states["pruned"] and not states["fail"], states
        groups = json.loads(answered(f"{address}/api/v0/placement_groups"))["data"]["result"]["result"]
        left = [group for group in groups if group["state"] != "REMOVED"]
        assert groups and not left, left
        print(f"{SWEEP}: {states}; of {len(groups)} placement groups none is left")

    def of_job(self, address: str) -> None:
        job = kinoray.submit("run base_moco --num-workers 1", address=address)
        find(f"{address}/api/jobs/", job.id)
        label = until(lambda: re.search(r"(\S+/seed-0): task 1/\d+ \S+, step ", job.logs()))[1]
        find_run(address, label)
        self.take("submitted-job", f"{address}/#/jobs", job.id, label="Submission ID", typed=job.id)
        print(f"{job.id} was stopped: {job.stop()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of Ray's dashboard for the docs.")
    parser.add_argument("--out", type=Path, help="where the pictures stay")
    out = parser.parse_args().out
    if shutil.which("chromium") is None:
        print("Chromium is not installed: no pictures.")
        return
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where commands and jobs find `python`
    with tempfile.TemporaryDirectory(prefix="kinoray-pictures-") as folder:
        os.environ |= {"RAY_AUTH_MODE": "disabled", "KINORAY_CACHE": "off", "KINORAY_RUNS": f"{folder}/runs"}
        os.environ.pop("RAY_ADDRESS", None)
        pictures = Pictures(out or Path(folder), Path(folder))
        pictures.of_run()
        with lasting_ray() as ray:
            address = f"http://{ray['dashboard']}"
            os.environ["RAY_ADDRESS"] = f"127.0.0.1:{ray['port']}"
            pictures.of_sweep(address)
            pictures.of_job(address)


if __name__ == "__main__":
    main()
