"""run.json: what a run was started with, written once and compared at every start."""

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from kinoray.config import digest_of, plain
from kinoray.disk.durable import storage_error, write_text
from kinoray.errors import ConfigMismatch
from kinoray.runs.resolve import Resolved, identity

VERSIONS = ("kinoray", "torch", "torchvision", "transformers", "ray", "av", "numpy", "pyarrow")


BESIDE = ("methods", "search_spaces", "cluster")


def describe(run: Resolved, threads: int, num_workers: int) -> dict[str, Any]:
    """The run's record, run.json."""
    parts = identity(run)
    return {
        "format": 1,
        "method": run.method.name,
        "stream": run.stream.name,
        "backbone": run.backbone,
        "seed": run.seed,
        "joint": run.joint,
        "zero_shot": run.zero_shot,
        "as_released": run.as_released,
        "tasks": [task.name for task in run.stream.tasks],
        "config": {"method": run.settings, "recipe": plain(run.recipe), "overrides": run.overrides},
        "digests": {"data": dict(parts["data"]), "code": code_digest(), "method": run.method.digest},
        "versions": {"python": platform.python_version()} | {v: importlib.metadata.version(v) for v in VERSIONS},
        "threads": threads,
        "num_workers": num_workers,
        "created_by": f"kinoray {importlib.metadata.version('kinoray')}",
    }


def open_run(run: Resolved, threads: int, num_workers: int, say: Any) -> dict[str, Any]:
    """Write run.json, or check the one that is there; returns it with the threads of the first start.

    Raises: ConfigMismatch with what differs.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "run.json"
    now = describe(run, threads, num_workers)
    if not path.exists():
        try:
            write_text(path, json.dumps(now, indent=1))
        except OSError as error:
            raise storage_error(error, run.folder) from None
        return now
    then = json.loads(path.read_text())
    changed = changes(then["config"], now["config"]) + changes(then["digests"]["data"], now["digests"]["data"])
    if changed:
        raise ConfigMismatch(
            f"{run.folder} holds a run with other settings: {'; '.join(changed)}. Use other --runs, or --fresh to "
            "start over."
        )
    for kind in ("code", "method"):
        if then["digests"][kind] != now["digests"][kind]:
            say(f"Note: the {kind}'s source changed since {run.label} was started; --fresh starts over.")
    other = changes(then["versions"], now["versions"])
    if other:
        say(f"Note: versions changed since {run.label} was started: {'; '.join(other)}.")
    return now | {"threads": then["threads"]}


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for everything that differs in two nested records."""
    said = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            said += changes(a, b, f"{prefix}{key}.")
        elif a != b:
            said.append(f"{prefix}{key}: {a} -> {b}")
    return said


def code_digest() -> str:
    """SHA-256 over the engine's own source files; the other folders of the package, which a wheel puts inside, do not
    count."""
    folder = Path(__file__).parents[1]
    files = [p.relative_to(folder) for p in sorted(folder.rglob("*.py"))]
    return digest_of({str(p): (folder / p).read_text() for p in files if p.parts[0] not in BESIDE})
