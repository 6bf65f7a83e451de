"""Named actors: started and called."""

from typing import Any

import ray

NAMESPACE = "kinoray"


def call(target: Any, verb: str, *args: Any) -> Any:
    """Call a method of a plain object or of an actor, and wait."""
    method = getattr(target, verb)
    return ray.get(method.remote(*args)) if isinstance(target, ray.actor.ActorHandle) else method(*args)


def start_actor(cls: type, name: str, *args: Any) -> Any:
    """A named actor of zero CPUs that restarts by itself; dies with the driver."""
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 3}
    return ray.remote(cls).options(**options).remote(*args)
