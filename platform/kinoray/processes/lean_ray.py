"""A Ray of one machine without what only a dashboard, Prometheus or a growing cluster asks for.

Each process costs a start a part of a second, and some of them it waits for. `ray.init` has no arguments for them: the
names below are Ray's own.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._raylet import (  # type: ignore[attr-defined]
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    persist_port,
)

from kinoray.processes import no_agent

WITH_DASHBOARD = {"dashboard_agent_listen_port": 0}
"""A free port for the agent of jobs: Ray's default is one number, for which a second Ray of a machine waits three
seconds in vain."""
LABEL = "kinoray/lean"
"""Of the machine of such a Ray, for those who join it."""
WITHOUT_DASHBOARD = {"no_monitor": True, "include_log_monitor": False}
"""Nothing scales here, and no log is sent to the driver."""
COUNTS = "enable_metrics_collection", "event_stats"
"""What all Ray's processes count, for those who ask."""
AGENT = "--dashboard_agent_command="
AGENT_PORTS = METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME
NOT_IN_USE = -1
"""What Ray's agent itself tells a raylet of a port that it does not serve."""


@contextmanager
def lean(dashboard: bool) -> Iterator[None]:
    """Let `ray.init` start Ray so meanwhile; with a dashboard all its processes are there, but for the port."""
    private: Any = ray._private
    services = private.services
    settings = WITH_DASHBOARD if dashboard else WITHOUT_DASHBOARD
    with (
        replaced(private.parameter, "RayParams", functools.partial(private.parameter.RayParams, **settings)),
        # A SIGTERM to the driver's whole group, as `timeout` sends it, asks the driver to stop; Ray has to last until
        # it has.
        replaced(services, "ConsolePopen", functools.partial(services.ConsolePopen, process_group=0)),
    ):
        if dashboard:
            yield
            return
        with (
            replaced(services, "start_api_server", lambda *args, **kwargs: ("", None)),
            # It imports what a dashboard needs, for half a second, to learn which arguments an agent would get.
            replaced(private.utils, "get_dashboard_dependency_error", lambda: None),
            replaced(services, "start_ray_process", functools.partial(_start, services.start_ray_process)),
        ):
            yield


def _start(of_ray: Any, command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
    """Start one of Ray's processes, a raylet with nothing in place of the dashboard's agent."""
    if process_type == ray._private.ray_constants.PROCESS_TYPE_RAYLET:
        told = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
        for port in AGENT_PORTS:  # the raylet waits for the files that its agent would write
            persist_port(told["--session_dir"], told["--node_id"], port, NOT_IN_USE)
        nothing = AGENT + subprocess.list2cmdline([sys.executable, "-I", "-S", no_agent.__file__])
        command = [nothing if part.startswith(AGENT) else part for part in command]
    return of_ray(command, process_type, *args, **options)


def lean_options() -> dict[str, Any]:
    """For `ray.init` of such a Ray, without a dashboard. Nobody will ask for counts, unless a variable of the user's
    says so."""
    uncounted = {name: False for name in COUNTS if f"RAY_{name}" not in os.environ}
    return {"labels": {LABEL: "true"}, "_system_config": uncounted}


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
