"""Continual video-language learning on Ray: from videos to the paper's table in one command.

    import kinoray
    result = kinoray.run("bmu_moco", stream="moving-cvlm", seed=0)
    result.matrix, result.metrics, result.plot()
    kinoray.compare(["runs/base_moco-...", "runs/bmu_moco-..."])

Importing this package is cheap: torch, ray and pandas load with the first function that needs them.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinoray.actors import momentum_weights
    from kinoray.catalogue import list_backbones, list_methods, list_runs, list_streams
    from kinoray.cluster.submit import list_jobs, submit
    from kinoray.doctor import examine
    from kinoray.extending import extend
    from kinoray.launch import dry_run, run
    from kinoray.report.page import write_report
    from kinoray.report.tables import Comparison, compare
    from kinoray.reproducing import Reproduction, reproduce
    from kinoray.result import Result, Results, load
    from kinoray.sweep_result import SweepResult
    from kinoray.sweeping import sweep

__version__ = version("kinoray")

_WHERE = {
    "run": ("launch", "run"),
    "dry_run": ("launch", "dry_run"),
    "extend": ("extending", "extend"),
    "sweep": ("sweeping", "sweep"),
    "SweepResult": ("sweep_result", "SweepResult"),
    "reproduce": ("reproducing", "reproduce"),
    "Reproduction": ("reproducing", "Reproduction"),
    "submit": ("cluster.submit", "submit"),
    "list_jobs": ("cluster.submit", "list_jobs"),
    "load": ("result", "load"),
    "Result": ("result", "Result"),
    "Results": ("result", "Results"),
    "compare": ("report.tables", "compare"),
    "Comparison": ("report.tables", "Comparison"),
    "write_report": ("report.page", "write_report"),
    "momentum_weights": ("actors", "momentum_weights"),
    "examine": ("doctor", "examine"),
    "list_methods": ("catalogue", "list_methods"),
    "list_streams": ("catalogue", "list_streams"),
    "list_backbones": ("catalogue", "list_backbones"),
    "list_runs": ("catalogue", "list_runs"),
}
__all__ = [  # noqa: RUF022 (in the order a reader meets them)
    "run", "dry_run", "sweep", "extend", "reproduce", "load", "compare", "write_report", "Result", "Results",
    "Comparison", "SweepResult", "Reproduction", "submit", "list_jobs", "momentum_weights", "list_methods",
    "list_streams", "list_backbones", "list_runs", "examine",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public function on first use (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'kinoray' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(f"kinoray.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
