"""Does a run survive a kill inside a file operation? SIGKILL at every fifth of them, by strace, then the same command.

    python tests/soak/file_operations.py [--every 5] [--json]

A small run in one process is traced once: its fsync, rename, unlink, truncate, mkdir and link calls below its folder.
Then for every fifth of them a fresh run is killed as it enters that call (`strace --inject=...:signal=SIGKILL`), and
the same command is given again. It must end with the `state_digest` of the run that nothing disturbed. Needs strace.
About 20 s for each kill.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

CALLS = "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,truncate,ftruncate,mkdir,mkdirat,link,linkat"
COMMAND = [sys.executable, "-P", "-m", "kinoray", "run", "moco", "--stream", "digits-5", "--num-workers", "0"]
COMMAND += ["--set", "max_steps=2", "--set", "queue_size=64", "--set", "validations=1", "--quiet"]
LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")


def start(runs: Path, *strace: str) -> int:
    """Exit code of the command, under strace where it has words."""
    words = [*COMMAND, "--runs", str(runs)]
    if strace:
        words = ["strace", "-f", "-y", *strace, *words]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, -signal.SIGKILL, 128 + signal.SIGKILL):
        print(done.stderr[-2000:])
    return done.returncode


def digest(runs: Path) -> str:
    """How a run ended."""
    (file,) = runs.glob("*/seed-0/result.json")
    return json.loads(file.read_text()).get("state_digest", "unfinished")


def operations(trace: Path, runs: Path) -> list[tuple[str, int, str]]:
    """Calls of the command's own process below its folder, in order: name, number among its namesakes, arguments."""
    found, counts, own = [], Counter[tuple[str, str]](), ""
    for line in trace.read_text().splitlines():
        if not (match := LINE.match(line)):
            continue
        process, call, arguments = match.groups()
        counts[process, call] += 1
        if str(runs) in arguments:
            own = own or process
            if process == own:
                found.append((call, counts[process, call], arguments[:160]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not on this machine.")
    folder = Path(tempfile.mkdtemp(prefix="operations-"))
    start(folder / "whole", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(folder / "trace"))
    expected = digest(folder / "whole")
    chosen = operations(folder / "trace", folder / "whole")
    numbers = {"operations": len(chosen), "kills": 0, "missed": 0, "mismatches": 0}
    for call, number, arguments in chosen[given.every - 1 :: given.every]:
        runs = folder / "killed"
        shutil.rmtree(runs, ignore_errors=True)
        code = start(runs, "-e", f"trace={call}", "-o", "/dev/null", f"--inject={call}:signal=SIGKILL:when={number}")
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        again = start(runs) if killed else code
        same = again == 0 and digest(runs) == expected
        numbers["kills" if killed else "missed"] += 1
        numbers["mismatches"] += not same
        print(f"{call} {number}: {'killed' if killed else 'ended'}, {'same' if same else 'DIFFERENT'}  {arguments}")
    print(json.dumps(numbers) if given.json else ", ".join(f"{name} {count}" for name, count in numbers.items()))
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if numbers["mismatches"] else 0)


if __name__ == "__main__":
    main()
