"""What runs in place of a dashboard's agent on a Ray without a dashboard: nothing, until its raylet ends.

A raylet does not start without an agent, and ends with it. Ray's own spends half a second importing while the run does
the same, and then wakes up dozens of times a second. Started as a file of its own, so it imports nothing of kinoray.
"""

import os
import time

RAYLET = "RAY_RAYLET_PID"
"""The variable by which a raylet tells its agent who it is: it may have ended before this process looks."""
LOOK_S = 1.0

if __name__ == "__main__":
    raylet = int(os.environ[RAYLET])
    while os.getppid() == raylet:
        time.sleep(LOOK_S)
