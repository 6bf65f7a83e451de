"""Do two sweeps over one study run a trial twice? One is suspended until the other one has taken the study.

    python tests/soak/two_drivers.py [--json] [--trials 6]

A sweep over a SQLite file begins; a copy of its folder, as another machine would have it, gives the same command. The
first one's process is stopped (SIGSTOP) in the midst of a trial, and goes on (SIGCONT) once the second one has trials
of its own, after 15 s at least. The first must then commit what it ran, leave the study alone and say so in one line;
the second must end with every trial told once, and with what an undisturbed sweep draws and finds.

Bars: the first ends with exit code 1 and names the other; as many trials as were asked for, each told once; the same
parameters and values as undisturbed. Else the script exits with 1. About three minutes.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

LIMIT_S, SUSPENDED_S = 600.0, 15.0
SWEEP = ["moco", "--stream", "digits-5", "--set", "epochs=2", "--space", "temperature=0.05:0.5", "--sampler", "random",
         "--no-prune", "--concurrent", "1", "--name", "s", "--quiet"]  # fmt: skip


def start(runs: Path, data_base: Path, trials: int) -> subprocess.Popen[str]:
    """The sweep's command in a process group of its own."""
    words = [*SWEEP, "--trials", str(trials), "--runs", str(runs), "--storage", f"sqlite:///{data_base}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kinoray", "sweep", *words],
        env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def trials_of(data_base: Path) -> list[Any]:
    """All trials of the only study in the file, or none where it is not there yet."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{data_base}")
    names = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=names[0], storage=storage).trials if names else []


def wait_for(what: str, holds: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"No {what} within {LIMIT_S:.0f} s.")
        time.sleep(0.2)


def in_state(data_base: Path, state: TrialState) -> int:
    """How many trials are in a state, read beside Optuna, which writes tables into a file where it finds none."""
    try:
        with closing(sqlite3.connect(f"file:{data_base}?mode=ro", uri=True)) as read:
            return int(read.execute("SELECT COUNT(*) FROM trials WHERE state = ?", (state.name,)).fetchone()[0])
    except sqlite3.OperationalError:  # it is being made
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--trials", type=int, default=6)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    home = Path(tempfile.mkdtemp(prefix="kinoray-two-drivers-"))
    whole = start(home / "whole", home / "whole.db", options.trials)
    whole.communicate(timeout=LIMIT_S)
    wanted = [(t.number, t.params, t.values) for t in trials_of(home / "whole.db")]

    base = home / "shared.db"
    first = start(home / "first", base, options.trials)
    wait_for("second trial", lambda: in_state(base, TrialState.COMPLETE) >= 1 and in_state(base, TrialState.RUNNING))
    os.kill(first.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    shutil.copytree(home / "first" / "s", home / "second" / "s", symlinks=True)
    before = in_state(base, TrialState.COMPLETE)
    second = start(home / "second", base, options.trials)
    wait_for("trial of the second", lambda: in_state(base, TrialState.COMPLETE) > before)
    time.sleep(max(0.0, stopped + SUSPENDED_S - time.monotonic()))
    os.kill(first.pid, signal.SIGCONT)
    said = [process.communicate(timeout=LIMIT_S)[0] for process in (first, second)]
    trials = trials_of(base)
    found = [(t.number, t.params, t.values) for t in trials]
    numbers = {
        "two_drivers.trials": len(trials),
        "two_drivers.told_once": sum(len(t.intermediate_values) == 5 for t in trials),
        "two_drivers.first_exit_code": first.returncode,
        "two_drivers.second_exit_code": second.returncode,
        "two_drivers.other_draws_or_values": sum(a != b for a, b in zip(found, wanted, strict=False)),
    }
    print(said[0].strip().splitlines()[-1] if said[0].strip() else "(the first said nothing)")
    fine = (
        whole.returncode == second.returncode == 0 and first.returncode == 1 and "second" in said[0]
        and len(trials) == numbers["two_drivers.told_once"] == options.trials and found == wanted
    )  # fmt: skip
    for name, value in numbers.items():
        print(f"{name:<40}{value}")
    shutil.rmtree(home, ignore_errors=True)
    if options.json:
        print(json.dumps(numbers))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
