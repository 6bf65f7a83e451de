"""A command that is handed to the spare process of `kinoray up` behaves as if it ran in its own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.places import REPOSITORY
from support.waiting import await_end, wait_until

from kinoray.processes import ray_settings
from kinoray.processes.spares import MOST_FAILURES, Spares
from kinoray.processes.warm_ray import WarmRay, limits, note, spare_socket, start_of, surroundings

MAIN = """
import json, os, signal, sys

def main():
    try:
        answer()
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(130)

def answer():
    umask = os.umask(0)
    os.umask(umask)
    print("an error", file=sys.stderr, flush=True)
    print(json.dumps({
        "pid": os.getpid(), "words": sys.argv[1:], "folder": os.getcwd(), "variable": os.environ.get("A_VARIABLE"),
        "umask": umask, "loaded": "colorsys" in sys.modules, "tty": sys.stdout.isatty(),
        "hup": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
    }), flush=True)
    asked = input()
    if asked == "exit":
        os._exit(9)
    sys.exit(int(asked))
"""
"""A program in kinoray's place: where a command's own modules are found is part of what it hands over."""
CLIENT = """
import sys
from kinoray.processes.hand_over import hand_over
sys.path.insert(0, sys.argv.pop(1))
code = hand_over()
sys.exit("here" if code is None else code)
"""


@dataclass
class Spare:
    """One that waits, and how to start commands for it."""

    process: "subprocess.Popen[bytes]"
    client: Callable[..., "subprocess.Popen[str]"]
    spares: Spares


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    """A spare process, and a way to start commands for it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are too long for the name of a socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        ray_settings.apply_settings()
        note(WarmRay("127.0.0.1:1", os.getpid(), start_of(os.getpid()), False, 30.0, 0, surroundings(), limits()))
        package = Path(name) / "modules" / "kinoray"
        for file, text in {"cli/main.py": MAIN, "processes/hand_over.py": ""}.items():
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            (package / file).write_text(text)
            (package / file).with_name("__init__.py").touch()
        (package / "__init__.py").touch()

        def client(*before: str, **options: Any) -> "subprocess.Popen[str]":
            words = [*before, sys.executable, "-c", CLIENT, str(package.parent), "run", "a b"]
            piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            # A group of its own, as a shell's jobs have: one whose parents are all gone could not be stopped.
            return subprocess.Popen(words, text=True, cwd=name, process_group=0, **(piped | options))

        spares = Spares("colorsys,no_module", dict(os.environ))
        wait_until(lambda: spare_socket().exists())
        # The suite itself may have been told to ignore these, by nohup or as a job in the background.
        before = [signal.signal(number, signal.default_int_handler) for number in (signal.SIGHUP, signal.SIGINT)]
        yield Spare(spares.process, client, spares)
        for number, handler in zip((signal.SIGHUP, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
        spares.process.kill()
        spares.process.wait()


def told(client: "subprocess.Popen[str]") -> dict[str, Any]:
    assert client.stdout is not None and client.stderr is not None
    line = client.stdout.readline()
    assert line, client.stderr.read()
    return dict(json.loads(line))


def test_a_command_is_there_as_it_is_here(spare: Spare) -> None:
    client = spare.client(env=os.environ | {"A_VARIABLE": "its own"}, umask=0o027)
    seen = told(client)
    assert seen.pop("folder") == os.environ["XDG_RUNTIME_DIR"]
    assert seen == {
        "pid": spare.process.pid, "words": ["run", "a b"], "variable": "its own", "umask": 0o027, "loaded": True,
        "tty": False, "hup": False,
    }  # fmt: skip
    _, errors = client.communicate("7\n")
    assert (client.returncode, errors) == (7, "an error\n")
    assert spare.process.wait(60) == 7 and not spare_socket().exists()


def test_another_waits_once_it_serves_and_those_that_end_by_themselves_are_few(spare: Spare, monkeypatch) -> None:
    spare.spares.renew()
    assert spare.spares.process is spare.process, "it waits"
    client = spare.client()
    told(client)
    spare.spares.renew()
    assert spare.spares.process is not spare.process
    client.communicate("0\n")
    started = [spare.process]
    for _ in range(10):
        started += [spare.spares.process] if spare.spares.process not in started else []
        spare.spares.process.kill()
        spare.spares.process.wait()
        spare.spares.renew()
    assert len(started) == 1 + MOST_FAILURES


def test_ctrl_c_reaches_it_once_and_ends_both(spare: Spare) -> None:
    client = spare.client()
    told(client)
    client.send_signal(signal.SIGINT)
    client.wait(60)  # before its input ends
    output, errors = client.communicate()
    assert (client.returncode, output, errors) == (130, "interrupted\n", "an error\n")
    assert spare.process.wait(60) == 130


def test_a_signal_that_a_command_ignores_is_ignored(spare: Spare) -> None:
    client = spare.client("nohup")
    assert told(client)["hup"]
    client.send_signal(signal.SIGHUP)
    client.communicate("0\n")
    assert client.returncode == 0


def test_it_is_stopped_and_goes_on_with_its_command(spare: Spare) -> None:
    client = spare.client()
    pair = [psutil.Process(client.pid), psutil.Process(told(client)["pid"])]
    client.send_signal(signal.SIGTSTP)
    wait_until(lambda: {process.status() for process in pair} == {psutil.STATUS_STOPPED})
    client.send_signal(signal.SIGCONT)
    wait_until(lambda: psutil.STATUS_STOPPED not in {process.status() for process in pair})
    client.communicate("0\n")
    assert client.returncode == 0


def test_a_killed_command_takes_it_along(spare: Spare) -> None:
    client = spare.client()
    told(client)
    client.kill()
    assert spare.process.wait(60) == -signal.SIGKILL
    client.communicate()


@pytest.mark.parametrize(("asked", "code"), [("exit", 1), ("not a number", 1), ("300", 300 % 256)])
def test_the_command_ends_as_it_does(spare: Spare, asked: str, code: int) -> None:
    client = spare.client()
    told(client)
    client.communicate(f"{asked}\n")
    assert client.returncode == code


def test_one_that_ends_at_once_by_a_signal_gives_the_signals_code(spare: Spare) -> None:
    client = spare.client()
    told(client)
    client.send_signal(signal.SIGTERM)
    client.wait(60)
    _, errors = client.communicate()
    assert (client.returncode, errors) == (128 + signal.SIGTERM, "an error\n")


def test_a_terminal_stays_a_terminal(spare: Spare) -> None:
    master, slave = os.openpty()
    client = spare.client(stdout=slave)
    assert json.loads(os.read(master, 4096))["tty"]
    client.communicate("0\n")
    for file in (master, slave):
        os.close(file)


@pytest.mark.parametrize(
    ("before", "variables"),
    [
        (["nice", "-n", "3"], {}),
        ([], {"RAY_ADDRESS": "10.0.0.1:1"}),
        ([], {"KINORAY_CACHE": "off"}),
        ([], {"TAKEN": ""}),
    ],
)
def test_a_command_goes_on_itself_where_it_cannot_be_the_same_there(
    spare: Spare, before: list[str], variables: dict[str, str]
) -> None:
    first = None
    if "TAKEN" in variables:
        told(first := spare.client())
    client = spare.client(*before, env=os.environ | variables)
    _, errors = client.communicate()
    assert errors == "here\n"
    if first is not None:
        first.communicate("0\n")
        assert first.returncode == 0
    else:
        assert spare.process.poll() is None and spare_socket().exists(), "the next command may be another"


def test_it_ends_with_its_keeper(spare: Spare) -> None:
    spare.process.kill()
    spare_socket().unlink()
    code = (
        "import os, time; from kinoray.processes.spares import Spares; "
        "print(Spares('colorsys', dict(os.environ)).process.pid, flush=True); time.sleep(600)"
    )
    keeper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert keeper.stdout is not None
    waiting = psutil.Process(int(keeper.stdout.readline()))
    wait_until(lambda: spare_socket().exists())
    keeper.kill()
    keeper.wait()
    await_end(waiting)
