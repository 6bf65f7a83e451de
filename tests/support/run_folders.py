"""Run folders with made-up numbers, in the engine's formats: for tests that need results and no engine."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kinoray.evaluation.protocol import load_protocol
from kinoray.metrics import Ranks
from kinoray.runs.write_result import Columns, write_matrix, write_ranks, write_results
from kinoray.system.durable import write_json

TASKS = ["plain", "night", "zoom", "crowd", "story"]


def square(gain: float, seed: int, tasks: int = 5, last_row_only: bool = False) -> list[list[float | None]]:
    """A result matrix: 60 + gain when learned, 6 - gain / 2 points lost with each later task, plus seeded noise."""
    rng = np.random.default_rng([seed, round(abs(gain) * 10)])
    rows: list[list[float | None]] = [[None] * tasks for _ in range(tasks)]
    for i in range(tasks - 1 if last_row_only else 0, tasks):
        for t in range(i + 1):
            rows[i][t] = round(60 + gain - (6 - gain / 2) * (i - t) + rng.normal(0, 0.5), 2)
    return rows


def make_run(
    root: Path,
    method: str = "base_moco",
    seed: int = 0,
    gain: float = 0.0,
    state: str = "finished",
    tasks: list[str] | None = None,
    overrides: dict[str, Any] | None = None,
    joint: bool = False,
    zero_shot: bool = False,
    tested_ids: str = "aaaa",
    error: str | None = None,
    stream: str = "moving-cvlm",
    protocol: str = "cvlm",
    digests: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> Path:
    """Write one seed folder and return it. digests, facts: more of run.json."""
    tasks, tests = tasks or TASKS, load_protocol(protocol)
    kind = "-".join([method, *(str(v) for v in (overrides or {}).values()), *["joint"] * joint, *["zero"] * zero_shot])
    folder = root / f"{kind}-{stream.replace(':', '-')}-0a1b2c3d" / f"seed-{seed}"
    folder.mkdir(parents=True)
    record = _run(method, seed, tasks, overrides or {}, joint, zero_shot)
    known = record["digests"] | (digests or {})
    record |= {"stream": stream, "protocol": protocol, "digests": known, **(facts or {})}
    write_json(folder / "run.json", record)
    matrices = {
        name: square(gain + more, seed, len(tasks), last_row_only=joint or zero_shot)
        for more, name in enumerate(tests.matrix_names)
    }
    if state == "running":
        matrices = {name: [rows[0], *[[None] * len(tasks)] * (len(tasks) - 1)] for name, rows in matrices.items()}
    if tests.looks_ahead and not joint:
        matrices = {
            name: [[30 + gain if value is None else value for value in row] for row in rows]
            for name, rows in matrices.items()
        }
    write_matrix(folder, tasks, matrices)
    of_tasks = [np.arange(7) % (t + 2) for t in range(len(tasks))]
    ranks = [Ranks(r.astype(float), np.zeros(7, dtype=int), np.full(7, 7)) for r in of_tasks]
    write_ranks(folder, _rank_rows(ranks))
    _write_lines(folder / "metrics.jsonl", _steps(len(tasks)))
    bad = {"task": "night", "id": "clip<7>", "uri": "a\x1b]0;x.mp4", "stage": "open", "error": "VideoError"}
    _write_lines(folder / "bad_samples.jsonl", [bad | {"message": "no video <script>alert(1)</script> stream"}])
    if state != "running":
        cost = {
            "wall_s": 90.0,
            "start_s": 8.0,
            "train_s": 60.0,
            "eval_s": 12.0,
            "data_wait_s": 6.0,
            "checkpoint_s": 2.0,
        }
        write_json(
            folder / "result.json",
            {
                "format": 1,
                "state": state,
                "metrics": tests.summarise(matrices, queries=[7] * len(tasks), final=ranks),
                "matrix": matrices,
                "queries": [7] * len(tasks),
                "tested_ids": tested_ids,
                "cost": cost | {"steps": 100, "clips": 4800, "flops": 1.2e12},
                "bad_samples": 1,
                "state_digest": "d" * 64,
                "error": error,
            },
        )
    return folder


def _run(method: str, seed: int, tasks: list[str], overrides: dict, joint: bool, zero_shot: bool) -> dict[str, Any]:
    return {
        "format": 1,
        "method": method,
        "backbone": "tiny",
        "seed": seed,
        "joint": joint,
        "zero_shot": zero_shot,
        "tasks": tasks,
        "config": {"overrides": overrides, "seed": seed, "method": {"temperature": 0.07}, "recipe": {"epochs": 2}},
        "digests": {"data": {task: "e" * 64 for task in tasks}, "code": "c" * 64, "method": "m" * 64},
        "versions": {"torch": "2.13.0", "ray": "2.60.0"},
        "threads": 1,
        "num_workers": 0,
        "created_by": "kinoray 0.1.0",
    }


def _rank_rows(ranks: list[Ranks]) -> list[dict[str, Any]]:
    last = len(ranks) - 1
    return [
        {
            "reading": "",
            "after_task": last,
            "task": t,
            "sample": i,
            "clip_id": f"clip{i}",
            "rank": float(rank),
            "ties": 0,
            "gallery": 7,
        }
        for t, of_task in enumerate(ranks)
        for i, rank in enumerate(of_task.middle)
    ]


def _steps(tasks: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for task in range(tasks):
        for step in range(20):
            loss = 4.0 / (1 + step) + 0.3 * task
            clock = {"time_s": (task * 20 + step) * 0.1}
            rows.append({"task": task, "step": step, "epoch": step // 10, "loss": loss, "learning_rate": 1e-3, **clock})
        rows.append({"task": task, "step": 19, "validation": 50.0 + task})
    return rows


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_ranked_run(root: Path, method: str = "base_moco", seed: int = 0, hit: float = 0.5, **options: Any) -> Path:
    """A seed folder whose matrices follow from its ranks: 60 clips of 2 captions a task, found with that chance.

    Clips of each task are as hard for every method and seed; zero-shot runs are the same for every seed.
    """
    folder = make_run(root, method, seed, **options)
    protocol, tasks = load_protocol(options.get("protocol", "cvlm")), options.get("tasks") or TASKS
    still = options.get("zero_shot") or options.get("joint")
    own = np.random.default_rng([len(method), 0 if options.get("zero_shot") else seed])
    cells: dict[tuple[str, int, int], Ranks] = {}
    for row in range(len(tasks) - 1 if still else 0, len(tasks)):
        for task in range(len(tasks) if still else row + 1):
            hard = np.repeat(np.random.default_rng(task).normal(0, 0.2, 60), 2)
            middle = np.where(own.random(120) < hit + hard - 0.03 * (row - task), 0.0, own.integers(1, 60, 120))
            for reading in protocol.readings:
                cells[reading, row, task] = Ranks(middle, np.zeros(120, dtype=int), np.full(120, 60))
    queries = {task: [(n, f"{name}-{n // 2}") for n in range(120)] for task, name in enumerate(tasks)}
    write_results(
        folder,
        protocol=protocol,
        state="finished",
        names=Columns(tuple(tasks)),
        ranks=cells,
        validation={},
        queries=queries,
        cost={"wall_s": 90.0},
        num_bad=0,
        digest="d" * 64,
    )
    return folder
