"""Named actors: started and called.

A run without Ray calls plain objects by the same functions, and never imports it (0.3 s).
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

NAMESPACE = "kinoray"


def call(target: Any, verb: str, *args: Any) -> Any:
    """Call a method of a plain object or of an actor, and wait."""
    method, ray = getattr(target, verb), sys.modules.get("ray")  # who has an actor has imported it
    if ray is not None and isinstance(target, ray.actor.ActorHandle):
        return ray.get(method.remote(*args))
    return method(*args)


def actor_name(kind: str, label: str, folder: str | Path) -> str:
    """`KIND:RUN/seed-N@HASH`: runs of one name in two folders, two users' say, have actors of their own."""
    return f"{kind}:{label}@{hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:8]}"


def connected_ray() -> Any:
    """Ray's module where this program is connected to one, else None: what is asked of none would start one."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def find_actors(kind: str, label: str) -> list[Any]:
    """The living actors of a run by its name alone, in whatever folder it is; none where no Ray is connected."""
    if (ray := connected_ray()) is None:
        return []
    known = ray.util.list_named_actors(all_namespaces=True)
    names = [a["name"] for a in known if a["namespace"] == NAMESPACE and a["name"].startswith(f"{kind}:{label}@")]
    return [ray.get_actor(name, namespace=NAMESPACE) for name in sorted(names)]


def start_actor(cls: type, name: str, *args: Any, gpus: float = 0.0) -> Any:
    """A named actor of zero CPUs that restarts by itself; dies with the driver."""
    import ray

    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 3}
    return ray.remote(cls).options(num_gpus=gpus, **options).remote(*args)
