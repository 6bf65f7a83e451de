"""A family of packages fetched and prepared from an empty cache, killed on its way, gone on with: the same digest?

    python tests/soak/family_kills.py {sprites,robots,glyphs} --from FOLDER --digest DIGEST [--kills 3] [--seconds 1500]

FOLDER holds the packages' files, so nothing is downloaded. SECONDS is about what it takes: each of as many parts as
there are kills gets one, drawn inside it (`kill -9` of all processes of the command). Ends with 1 where the digest of
the manifest is not DIGEST, which `docs/packages.md` has.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measured import show_lines


def measure(family: str, packages: Path, kills: int, seconds: float, seed: int) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix="kinoray-family-"))
    environment = os.environ | {"KINORAY_DATA": str(place / "data"), "XDG_CACHE_HOME": str(place / "cache")}
    draws = random.Random(seed)
    waits = [seconds / kills * draws.uniform(0.1, 1) for _ in range(kills)]
    steps = [["fetch", family, "--from", str(packages)], ["prepare", family, "--json"]]
    killed: list[str] = []
    worked_s, last = 0.0, ""
    while steps:
        began = time.monotonic()
        command = subprocess.Popen(
            [sys.executable, "-m", "kinoray", "data", *steps[0], "--quiet"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            last, _ = command.communicate(timeout=waits[0] if waits else None)
        except subprocess.TimeoutExpired:
            os.killpg(command.pid, signal.SIGKILL)
            command.communicate()
            waits.pop(0)
            killed.append(f"{steps[0][0]} after {time.monotonic() - began:.0f} s")
        else:
            if command.returncode:
                return {"killed": killed, "failed": steps[0][0], "code": command.returncode}
            steps.pop(0)
        worked_s += time.monotonic() - began
    report = json.loads(last)
    return {"killed": killed, "minutes": round(worked_s / 60, 1), "digest": report["manifest_digest"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=["sprites", "robots", "glyphs"])
    parser.add_argument("--from", dest="packages", type=Path, required=True)
    parser.add_argument("--digest", required=True)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    measured = measure(asked.family, asked.packages.resolve(), asked.kills, asked.seconds, asked.seed)
    show_lines(measured, asked.json)
    sys.exit(int(measured.get("digest") != asked.digest))


if __name__ == "__main__":
    main()
