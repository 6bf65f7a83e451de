# %% [markdown]
# # On a cluster: submit, watch, fetch
#
# The same command, sent to a Ray cluster. Here the cluster is one machine, this one, and goes at the end; yours comes
# from `kinoray cluster init`, and then only the address differs.

# %%
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Whoever reaches a cluster can run code there: it wants a token, and so does whoever submits.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}

os.environ.pop("FORCE_COLOR", None)  # a notebook's; the job's log is plain text


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


names = ("port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
names += ("ray-client-server-port",)
ports = dict(zip(names, free_ports(len(names))))
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
head = subprocess.Popen(
    [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    + ["--node-ip-address=127.0.0.1", "--include-dashboard=true", "--object-store-memory=200000000"]
    + [f"--temp-dir={tempfile.mkdtemp(prefix='kr', dir='/tmp')}"]
    + [f"--{name}={port}" for name, port in ports.items()],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
address = f"http://127.0.0.1:{ports['dashboard-port']}"

# %% [markdown]
# Wait for it, then submit. What travels is the package and the files that the command names; the results' folder is
# one that the cluster sees.

# %%
import kinoray
from kinoray.errors import UsageError

for _ in range(120):
    try:
        kinoray.list_jobs(address)
        break
    except UsageError:
        time.sleep(1)

job = kinoray.submit("run bmu_moco --stream moving-cvlm --smoke --num-workers 0 --runs ./cluster-runs", address=address)
job.status()

# %% [markdown]
# Watch: `job.follow()` prints its lines, `kinoray jobs logs ID --follow` does so elsewhere. The same submit finds the
# same job: this machine may be closed meanwhile.

# %%
again = kinoray.submit(
    "run bmu_moco --stream moving-cvlm --smoke --num-workers 0 --runs ./cluster-runs", address=address
)
again.id == job.id, job.wait(timeout_s=600)

# %%
print(job.logs().split("Report:")[0][-1500:])

# %% [markdown]
# Fetch: the result is a folder like any other.

# %%
job.result()

# %%
head.terminate()
_ = head.wait(60)
