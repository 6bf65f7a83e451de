"""The Ray of one driver, which starts it as a child:  python -P -m kinoray.processes.ray_head [--dashboard]

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

import psutil

NEEDED = {"gcs_server", "raylet"}
"""Of Ray's processes those without which it does nothing; its dashboard's may end."""
LOOK_S = 0.5


def main() -> None:
    """Start Ray, print where it is, and end it with the standard input, or at once where a part of it has ended."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    started = ray.init(
        address="local",
        include_dashboard="--dashboard" in sys.argv,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    port = int(started.address_info["gcs_address"].rpartition(":")[2])
    print(json.dumps({"port": port, "dashboard": started.dashboard_url}), flush=True)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        alive = {child.name() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
        if ended := sorted(NEEDED - alive):
            print(f"its process {ended[0]} ended: it was killed, or memory ran out (`dmesg` tells)", file=sys.stderr)
            os.killpg(0, signal.SIGKILL)
    ray.shutdown()


if __name__ == "__main__":
    main()
