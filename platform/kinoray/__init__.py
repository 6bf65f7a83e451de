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
    from kinoray.decoding.clip import Clip
    from kinoray.evaluation.gallery import FeatureStore
    from kinoray.execution.dry_run import dry_run
    from kinoray.execution.extend import extend
    from kinoray.execution.feature_store import feature_store
    from kinoray.execution.momentum_store import momentum_weights
    from kinoray.execution.open_method import OpenedMethod, open_method
    from kinoray.execution.own_loop import loop
    from kinoray.execution.run import run
    from kinoray.papers.reproduce import reproduce
    from kinoray.papers.reproduction import Reproduction
    from kinoray.proof.bundle import bundle
    from kinoray.proof.verify import Verdict, verify
    from kinoray.report.describe import describe, list_backbones, list_methods, list_streams
    from kinoray.report.doctor import examine
    from kinoray.report.export_weights import export_weights
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
    from kinoray.testing.check import check

__version__: str

# torch refuses every matrix product of a run on a GPU without it, and looks once in a process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# matplotlib's folder lies in the home, which the user of a container may not have; then beside our own.
if os.environ.get("XDG_CACHE_HOME") and not os.access(os.path.expanduser("~"), os.W_OK):
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(os.environ["XDG_CACHE_HOME"], "kinoray", "matplotlib"))

_HOMES = {
    "execution.run": ("run",),
    "execution.dry_run": ("dry_run",),
    "runs.request": ("RunRequest",),
    "execution.own_loop": ("loop",),
    "execution.extend": ("extend",),
    "sweeps.sweep": ("sweep",),
    "sweeps.request": ("SweepRequest",),
    "sweeps.result": ("SweepResult",),
    "papers.reproduce": ("reproduce",),
    "papers.reproduction": ("Reproduction",),
    "proof.bundle": ("bundle",),
    "proof.verify": ("verify", "Verdict"),
    "cluster.submit": ("submit", "list_jobs"),
    "runs.finding": ("load",),
    "runs.result": ("Result", "Results"),
    "report.tables": ("compare", "Comparison"),
    "report.search": ("search", "Found"),
    "execution.feature_store": ("feature_store",),
    "evaluation.gallery": ("FeatureStore",),
    "execution.open_method": ("open_method", "OpenedMethod"),
    "decoding.clip": ("Clip",),
    "report.export_weights": ("export_weights",),
    "report.page": ("write_report",),
    "testing.check": ("check",),
    "system.ray_session": ("shutdown",),
    "execution.momentum_store": ("momentum_weights",),
    "report.doctor": ("examine",),
    "report.describe": ("describe", "list_methods", "list_streams", "list_backbones"),
    "report.run_list": ("list_runs",),
}
"""Module -> what of it is public."""
_WHERE = {name: module for module, names in _HOMES.items() for name in names}
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


hooks.open_method, hooks.feature_store, hooks.search = map(_late, ("open_method", "feature_store", "search"))
