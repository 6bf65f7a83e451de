"""A Ray of one machine without what only a dashboard, Prometheus or a growing cluster asks for.

Each process costs a start a part of a second, and some of them it waits for. `ray.init` has no arguments for them: the
names below are Ray's own.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

OF_ANY = {"dashboard_agent_listen_port": 0}
"""A free port for the agent of jobs: Ray's default is one number, for which a second Ray of a machine waits three
seconds in vain."""
LABEL = "kinoray/lean"
"""Of the machine of such a Ray, for those who join it."""
OF_LEAN = OF_ANY | {"no_monitor": True, "include_log_monitor": False}
"""Nothing scales here, and no log is sent to the driver."""


@contextmanager
def lean(dashboard: bool) -> Iterator[None]:
    """Let `ray.init` start Ray so meanwhile; with a dashboard all its processes are there, but for the port."""
    private: Any = ray._private
    settings = OF_ANY if dashboard else OF_LEAN
    with replaced(private.parameter, "RayParams", functools.partial(private.parameter.RayParams, **settings)):
        if dashboard:
            yield
            return
        with (
            replaced(private.services, "start_api_server", lambda *args, **kwargs: ("", None)),
            replaced(private.utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted")),
        ):
            yield


def is_lean() -> bool:
    """Whether the connected Ray was started so, without a dashboard."""
    return LABEL in ray.get_runtime_context().get_node_labels()


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value under a name of one of Ray's modules meanwhile."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
