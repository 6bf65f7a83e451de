"""Continual video-language learning on Ray: from videos to the paper's table in one command.

    import kinoray
    result = kinoray.run("bmu_moco", stream="moving-cvlm", seed=0)
    result.matrix, result.metrics, result.plot()
    kinoray.compare(["runs/base_moco-...", "runs/bmu_moco-..."])

Importing this package is cheap: torch, ray and pandas load with the first function that needs them.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinoray import hooks

if TYPE_CHECKING:
    from kinoray.cluster.submit import list_jobs, submit
    from kinoray.execution.extend import extend
    from kinoray.execution.feature_store import feature_store
    from kinoray.execution.momentum_store import momentum_weights
    from kinoray.execution.open_method import export_weights, open_method
    from kinoray.execution.run import dry_run, run
    from kinoray.papers.reproduce import reproduce
    from kinoray.papers.reproduction import Reproduction
    from kinoray.proof.bundle import bundle
    from kinoray.proof.verify import Verdict, verify
    from kinoray.report.describe import describe, list_backbones, list_methods, list_streams
    from kinoray.report.doctor import examine
    from kinoray.report.page import write_report
    from kinoray.report.run_list import list_runs
    from kinoray.report.search import Found, search
    from kinoray.report.tables import Comparison, compare
    from kinoray.runs.finding import load
    from kinoray.runs.request import RunRequest
    from kinoray.runs.result import Result, Results
    from kinoray.sweeps.request import SweepRequest
    from kinoray.sweeps.result import SweepResult
    from kinoray.sweeps.sweep import sweep
    from kinoray.system.ray_session import shutdown
    from kinoray.testing.suite import check

__version__: str

# torch refuses every matrix product of a run on a GPU without it, and looks once in a process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# matplotlib's folder lies in the home, which the user of a container may not have; then beside our own.
if os.environ.get("XDG_CACHE_HOME") and not os.access(os.path.expanduser("~"), os.W_OK):
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(os.environ["XDG_CACHE_HOME"], "kinoray", "matplotlib"))

_WHERE = {
    "run": "execution.run",
    "dry_run": "execution.run",
    "RunRequest": "runs.request",
    "extend": "execution.extend",
    "sweep": "sweeps.sweep",
    "SweepRequest": "sweeps.request",
    "SweepResult": "sweeps.result",
    "reproduce": "papers.reproduce",
    "Reproduction": "papers.reproduction",
    "bundle": "proof.bundle",
    "verify": "proof.verify",
    "Verdict": "proof.verify",
    "submit": "cluster.submit",
    "list_jobs": "cluster.submit",
    "load": "runs.finding",
    "Result": "runs.result",
    "Results": "runs.result",
    "compare": "report.tables",
    "search": "report.search",
    "Found": "report.search",
    "feature_store": "execution.feature_store",
    "open_method": "execution.open_method",
    "export_weights": "execution.open_method",
    "Comparison": "report.tables",
    "write_report": "report.page",
    "check": "testing.suite",
    "shutdown": "system.ray_session",
    "momentum_weights": "execution.momentum_store",
    "examine": "report.doctor",
    "describe": "report.describe",
    "list_methods": "report.describe",
    "list_streams": "report.describe",
    "list_backbones": "report.describe",
    "list_runs": "report.run_list",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Import a public function on first use (PEP 562), or read the version of what is installed."""
    if name == "__version__":
        from importlib.metadata import version  # as slow as the rest

        return version("kinoray")
    if name not in _WHERE:
        raise AttributeError(f"module 'kinoray' has no attribute {name!r}")
    return getattr(import_module(f"kinoray.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _late(name: str) -> Callable[..., Any]:
    """A public function that is imported when it is first called."""
    return lambda *args, **options: __getattr__(name)(*args, **options)


hooks.open_method, hooks.search = _late("open_method"), _late("search")
