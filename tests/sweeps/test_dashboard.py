"""optuna-dashboard beside a sweep: what it shows, where it listens, and that nothing of it is left."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import optuna
import psutil
import pytest
from support.browser import rendered
from support.sockets import listening
from support.waiting import await_end, wait_until

from kinoray.disk.durable import write_json
from kinoray.errors import UsageError
from kinoray.report import sweep_page
from kinoray.report.page import write_report
from kinoray.sweeps import dashboard
from kinoray.sweeps.dashboard import serve, shown
from kinoray.sweeps.study import open_study
from kinoray.sweeps.sweep import sweep

pytest.importorskip("optuna_dashboard")


def make_sweep(root: Path, trials: int = 7) -> Path:
    """The folder of a sweep whose trials are made up: two of them pruned, the last one running."""
    folder = root / "made-up"
    folder.mkdir(parents=True)
    space = {"m": {"low": 0.9, "high": 1.0}, "variant": {"choices": ["local", "full"]}}
    record = {"name": "made-up", "method": "bmu_moco", "stream": "x", "protocol": "cvlm", "objectives": ["HM"],
              "num_tasks": 3, "space": space, "storage": None, "sampler": "tpe"}  # fmt: skip
    write_json(folder / "sweep.json", record)
    study, _ = open_study(folder, record, create=True)
    for number in range(trials):
        trial = study.ask()
        m, variant = trial.suggest_float("m", 0.9, 1.0), trial.suggest_categorical("variant", ["local", "full"])
        value = 100 * m - 70 + (variant == "full")
        for task in (1, 2, 3):
            trial.report(value - 3 + task, task)
            if task == 1 and number in (3, 4):
                break
        trial.set_user_attr("metrics", {"HM": value, "wall_s": 20.0 + number})
        if number in (3, 4):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif number < trials - 1:
            study.tell(trial, value)
    return folder


def ask(address: str, path: str = "") -> str:
    """What the server answers."""
    home = address.split("/dashboard/")[0] if path else address
    with urllib.request.urlopen(home + path, timeout=30) as answer:
        return answer.read().decode()


def refuses(port: int) -> bool:
    """Whether nobody listens on a port; a process may count as ended while its last threads still hold it."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


def listener(port: int) -> psutil.Process | None:
    """Our child, or a child's child, that listens on a port."""
    for child in psutil.Process().children(recursive=True):
        if any(heard == port for _, heard in listening(child)):
            return child
    return None


def port_of(address: str) -> int:
    port = urlsplit(address.removeprefix("Dashboard: ")).port
    assert port is not None
    return port


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A made-up sweep and the address that shows it."""
    folder = make_sweep(tmp_path_factory.mktemp("dashboard"))
    messages: list[str] = []
    with shown(folder, messages.append) as address:
        assert address is not None, (folder / "log.txt").read_text()
        assert messages == [f"Dashboard: {address}"]
        yield folder, address


@pytest.mark.slow
def test_the_dashboard_shows_the_study_as_it_grows_on_loopback_alone(served: tuple[Path, str]) -> None:
    folder, address = served
    assert "<title>Optuna Dashboard</title>" in ask(address)
    (study,) = json.loads(ask(address, "/api/studies"))["study_summaries"]
    assert study["study_name"] == "made-up"
    assert address.endswith(f"/dashboard/studies/{study['study_id']}")
    path = f"/api/studies/{study['study_id']}"
    assert len(json.loads(ask(address, path))["trials"]) == 7
    grown, _ = open_study(folder, json.loads((folder / "sweep.json").read_text()))
    grown.enqueue_trial({"m": 0.95})
    wait_until(lambda: len(json.loads(ask(address, path))["trials"]) == 8)  # it asks the study every few seconds
    server = listener(port_of(address))
    assert server is not None
    assert {address for address, _ in listening(server)} == {"127.0.0.1"}


@pytest.mark.slow
def test_a_taken_port_is_passed_over_or_one_line(served: tuple[Path, str]) -> None:
    folder, address = served
    with shown(folder, lambda text: None) as second:
        assert second is not None
        assert port_of(second) != port_of(address)
        process = listener(port_of(second))
        assert process is not None
        assert "study_summaries" in ask(second, "/api/studies")
    assert not process.is_running(), "it ended with the body"
    with pytest.raises(UsageError, match=f"Port {port_of(address)} is taken") as error:
        serve(folder, port_of(address), print)
    assert "\n" not in str(error.value)


PARENT = """
import signal, sys, time
from pathlib import Path
from kinoray.sweeps.dashboard import shown
signal.signal(signal.SIGINT, lambda *_: print("stopping", flush=True))
with shown(Path(sys.argv[1]), print) as address:
    sys.stdout.flush()
    time.sleep(60)
"""


@pytest.mark.slow
def test_it_outlives_ctrl_c_and_dies_with_a_killed_driver(tmp_path) -> None:
    """Ctrl-C in a terminal reaches the whole group; the trials then commit, and the study is shown until they have."""
    folder = make_sweep(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True,
                              start_new_session=True)  # fmt: skip
    assert parent.stdout is not None
    address = parent.stdout.readline().removeprefix("Dashboard: ").strip()
    server = listener(port_of(address))
    assert server is not None
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.stdout.readline() == "stopping\n"
    assert "study_summaries" in ask(address, "/api/studies")
    parent.kill()
    parent.wait()
    await_end(server)
    wait_until(lambda: refuses(port_of(address)))


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(tmp_path) -> None:
    folder = make_sweep(tmp_path)
    words = [sys.executable, "-m", "kinoray", "dashboard", folder.name, "--runs", str(tmp_path)]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    address = command.stdout.readline().split()[0]
    assert "Optuna Dashboard" in ask(address)
    command.send_signal(signal.SIGINT)
    assert command.communicate(timeout=20) == ("", "")
    assert command.returncode == 0


def test_what_cannot_be_shown_is_one_line(kino: Callable[..., Any], tmp_path, monkeypatch) -> None:
    code, out, err = kino("dashboard", "no-sweep", "--runs", tmp_path)
    assert (code, out) == (2, "")
    assert "is no sweep" in err and len(err.splitlines()) == 1
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    code, out, err = kino("sweep", "bmu_moco", "--dashboard", "--runs", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert "pip install 'kinoray[dashboard]'" in err and len(err.splitlines()) == 1
    assert not list((tmp_path / "runs").glob("*")), "nothing was begun"


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_shows_itself_and_leaves_tensorboard_files(cluster, micro, tmp_path, capsys) -> None:
    seen: list[str] = []
    others = set(psutil.Process().children())  # another test's server may be on

    def look() -> None:
        """As somebody at the address would, while the sweep goes on."""
        end = time.monotonic() + 60
        while not seen and time.monotonic() < end:
            time.sleep(0.2)
            for child in set(psutil.Process().children()) - others:
                with contextlib.suppress(psutil.Error, OSError):  # it ended, or is not up yet
                    if "kinoray.sweeps.dashboard" in child.cmdline():
                        seen.extend(ask(f"http://127.0.0.1:{port}/api/studies") for _, port in listening(child))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    swept = sweep("bmu_moco", stream=micro, trials=2, space="momenta", settings={"queue_size": 16}, runs=tmp_path,
                  name="s", sampler="random", prune=False, quiet=True, dashboard=True, tensorboard=True)  # fmt: skip
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Dashboard: ")]
    thread.join()
    assert json.loads(seen[0])["study_summaries"][0]["study_name"] == "s"
    assert listener(port_of(message)) is None, "it ended with the sweep"
    for trial in swept.trials:
        files = list((swept.folder / "tensorboard" / f"trial-{trial.number:04d}").glob("events.out.tfevents*"))
        assert files
        scalars = [scalar for file in files for scalar in scalars_of(file)]
        values = {step: value for name, step, value in scalars if name == "ray/tune/HM"}
        assert sorted(values.values()) == pytest.approx(sorted(trial.intermediate_values.values()), rel=1e-6)
        assert {value for name, _, value in scalars if name == "ray/tune/task"} == {1.0, 2.0}


def scalars_of(file: Path) -> Iterator[tuple[str, int, float]]:
    """(name, step, value) of a TensorBoard file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, place = file.read_bytes(), 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 8], "little")
        event = Event.FromString(data[place + 12 : place + 12 + length])
        place += 16 + length
        for value in event.summary.value:
            yield value.tag, event.step, value.simple_value


# In a browser


@pytest.mark.slow
def test_the_dashboards_page_shows_the_study_and_its_trials(tmp_path) -> None:
    folder = make_sweep(tmp_path)
    with shown(folder, print) as address:
        assert address is not None
        study, trials = (rendered(address + page, tmp_path / "profile") for page in ("", "/trials"))
    assert "made-up" in study
    assert "Best Trial (number=" in study
    assert ">HM<" in study, "the objective's name"
    assert "7 Trials" in trials
    assert len(re.findall(r">Trial \d+<", trials)) == 7


@pytest.mark.slow
def test_the_report_of_a_sweep_has_its_sections_in_a_browser(tmp_path) -> None:
    page = rendered(write_report(make_sweep(tmp_path)).as_uri(), tmp_path / "profile")
    titles = ("HM on the validation splits", "Optimisation history", "After each task", "Parallel coordinates",
              "Slices", "Importance", "Trials", "What was searched")  # fmt: skip
    for title in titles:
        assert f"<h2>{title}</h2>" in page, title
    assert page.count("<svg") == 5
    assert "Best: trial " in page


def test_the_report_does_not_tell_the_data_bases_password(tmp_path) -> None:
    folder = make_sweep(tmp_path)
    record = json.loads((folder / "sweep.json").read_text())
    shown_record = sweep_page.without_password(record | {"storage": "postgresql+psycopg://me:secret@host/db"})
    assert shown_record == record | {"storage": "postgresql+psycopg://me:***@host/db"}
    assert sweep_page.without_password(record) == record
