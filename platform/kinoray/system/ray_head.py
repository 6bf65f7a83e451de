"""The Ray of one driver, which starts it as a child:  python -P -m kinoray.system.ray_head [--dashboard]

It has a session of its own, so that a SIGTERM to the driver's process group (`timeout`, `scancel`, systemd) does not
end Ray before the ranks have committed. Its servers listen on loopback alone by a variable that Ray reads as it is
imported, which the driver may have done long before. It ends with its standard input, however the driver ends.
"""

import json
import logging
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import psutil

NEEDED = {"gcs_server", "raylet"}
"""Of Ray's processes those without which it does nothing; its dashboard's may end."""
LOOK_S = 0.5


def main() -> None:
    """Start Ray, print where it is, and end it with the standard input."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    dashboard = "--dashboard" in sys.argv
    if dashboard:  # what runs here notes for it what its trainers do
        os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    started, over = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(started, over), daemon=True).start()
    import ray

    context: Any = ray.init(
        address="local",
        include_dashboard=dashboard,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    started.set()
    port = int(context.address_info["gcs_address"].rpartition(":")[2])
    print(json.dumps({"port": port, "dashboard": context.dashboard_url}), flush=True)
    sys.stdin.read()
    over.set()
    ray.shutdown()


def _watch(started: threading.Event, over: threading.Event) -> None:
    """End all at once where a part of Ray has ended, or the driver while Ray starts, which would not notice."""
    seen: set[str] = set()
    while not over.wait(LOOK_S):
        alive = _children()
        if ended := sorted(seen - alive):
            why = "it was killed, memory ran out (see `dmesg`), or the machine was too busy to start it in time"
            print(f"its process {ended[0]} ended: {why}", file=sys.stderr)
        if ended or (not started.is_set() and select.select([sys.stdin], [], [], 0)[0]):
            sys.stderr.flush()
            os.killpg(0, signal.SIGKILL)
        seen |= alive & NEEDED


def _children() -> set[str]:
    """Names of the children that live."""
    names = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ended just now
            names |= {child.name()} if child.status() != psutil.STATUS_ZOMBIE else set()
    return names


if __name__ == "__main__":
    main()
