"""Named actors: started and called."""

import hashlib
import os
from pathlib import Path
from typing import Any

import ray

NAMESPACE = "kinoray"


def call(target: Any, verb: str, *args: Any) -> Any:
    """Call a method of a plain object or of an actor, and wait."""
    method = getattr(target, verb)
    return ray.get(method.remote(*args)) if isinstance(target, ray.actor.ActorHandle) else method(*args)


def unrepeated(method: Any) -> Any:
    """A method of an actor that Ray does not call again where the actor dies, of which it would tell on the terminal.

    For what is asked again and again anyway.
    """
    return method.options(max_task_retries=0)


def actor_name(kind: str, label: str, folder: str | Path) -> str:
    """`KIND:RUN/seed-N@HASH`: runs of one name in two folders, two users' say, have actors of their own."""
    return f"{kind}:{label}@{hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:8]}"


def find_actors(kind: str, label: str) -> list[Any]:
    """The living actors of a run by its name alone, in whatever folder it is."""
    known = ray.util.list_named_actors(all_namespaces=True)
    names = [a["name"] for a in known if a["namespace"] == NAMESPACE and a["name"].startswith(f"{kind}:{label}@")]
    return [ray.get_actor(name, namespace=NAMESPACE) for name in sorted(names)]


def start_actor(cls: type, name: str, *args: Any) -> Any:
    """A named actor of zero CPUs that restarts by itself; dies with the driver."""
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 3}
    return ray.remote(cls).options(**options).remote(*args)
