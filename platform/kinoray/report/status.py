"""What goes on in a runs folder: the runs and sweeps that a process holds, read from their files. Disturbs none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinoray.runs.finding import find_runs, select_runs
from kinoray.runs.result import SWEEP_RECORD, Result
from kinoray.sweeps.result import SweepResult
from kinoray.system.durable import read_jsonl
from kinoray.system.folders import runs_root
from kinoray.system.locks import is_held
from kinoray.system.progress import WINDOW


def status(runs: str | Path | None = None, which: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """The runs and the sweeps of a runs folder that are on: {"runs": [...], "sweeps": [...]}, plain values.

    runs: the folder; None: KINORAY_RUNS, else ./runs. which: some of them, as `runs.finding` reads it; (): all.
    """
    root = runs_root(runs)
    live = [run_status(result, root) for result in find_runs(root) if is_held(result.folder)]
    folders = [record.parent for record in sorted(root.glob(f"*/{SWEEP_RECORD}"))]
    if which:
        meant = {folder.resolve() for folder in select_runs(which, root)}
        live = [run for run in live if meant & {(folder := (root / run["name"]).resolve()), *folder.parents[:2]}]
        folders = [folder for folder in folders if folder.resolve() in meant]
    sweeps = [sweep_status(SweepResult(folder)) for folder in folders if is_held(folder)]
    return {"runs": live, "sweeps": sweeps}


def run_status(result: Result, root: Path) -> dict[str, Any]:
    """Where a run stands, from its metrics.jsonl and result.json.

    Its name is its folder in the runs folder. The task is the one that is learned, or was learned last; before the
    first step it is None and its number 0. Steps are those of all tasks; of the whole run there are None while that is
    not known. Scores are the protocol's headline metrics after the newest task that was tested.
    """
    steps = [record for record in read_jsonl(result.folder / "metrics.jsonl", "task", "step") if "loss" in record]
    newest = steps[-1] if steps else None
    total = result.cost.get("steps")
    return {
        "name": str(result.folder.relative_to(root)),
        "method": result.label,
        "task": None if newest is None else "joint" if result.joint else result.tasks[newest["task"]],
        "num_tasks": 1 if result.joint else len(result.tasks),
        "task_number": 0 if newest is None else newest["task"] + 1,
        "steps": len(steps),
        "total_steps": None if total is None else int(total),
        "loss": None if newest is None else newest["loss"],
        "scores": {name: result.metrics.get(name) for name in result.protocol.brief},
        "eta_s": _eta_s(steps, total),
    }


def _eta_s(steps: list[dict[str, Any]], total: float | None) -> float | None:
    """Seconds that the steps left will take at the speed of the last ones, tests not counted; None where that is not
    known: a resumed run's clock began anew."""
    window = steps[-WINDOW:]
    took_s = window[-1]["time_s"] - window[0]["time_s"] if window else 0.0
    if total is None or took_s <= 0:
        return None
    return (total - len(steps)) * took_s / (len(window) - 1)


def sweep_status(sweep: SweepResult) -> dict[str, Any]:
    """Where a sweep stands, from its study: how many trials of each state, and the best of the complete ones by the
    first objective, on the validation splits."""
    objective = sweep.objectives[0]
    pick = max if sweep.better[objective] == "max" else min
    best = pick([trial.values[0] for trial in sweep.complete], default=None)
    facts = {"name": sweep.folder.name, "method": sweep.method, "trials": sweep.states}
    return facts | {"objective": objective, "best": best}
