"""What every method costs beside its learner: time and FLOPs per step, state, peak memory, each in its own process.

    python benchmarks/method_costs.py [--json] [--rounds 3] [--steps 60] [--keep]

Two tasks of `moving-cvlm`, of which the second counts: teachers, memories and penalties begin there. Methods take turns
with their learner, Base-MoCo: ratios are medians over the rounds, each to the mean of the learner's runs before and
after. FLOPs: those of the run's counted step (`training/flops.py`), and how far they agree with the seconds over
methods. State: bytes of all tensors that a checkpoint holds, less the learner's; what replay keeps beside it are row
numbers, as videos stay in their files. Peak memory: the process's largest resident size, less the learner's. `--keep`
writes the table into `benchmarks/results/`. About 6 minutes on two quiet cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import correlation, median

from shared.memory import peak_bytes

from kinoray.system.text import markdown_table, operations

LEARNER = "base_moco"
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "LwF": ("lwf:base_moco", {}),
    "ER-ring": ("er_ring:base_moco", {}),
    "DER": ("der:base_moco", {}),
    "Co2L": ("co2l:base_moco", {}),
    "LUMP": ("lump:base_moco", {}),
    "SI": ("si:base_moco", {}),
    "BMU-MoCo (local)": ("bmu_moco", {"variant": "local"}),
    "BMU-MoCo": ("bmu_moco", {}),
}
RESULTS = Path(__file__).parent / "results"


def measure(method: str, settings: dict[str, str | int], steps: int) -> dict[str, float]:
    """In a process of its own: two tasks on one thread; what the second took, and what the state holds."""
    from kinoray.streams import load_stream
    from kinoray.testing.engine import resumed, spec_of, stages_of, state_of

    stream = load_stream("moving-cvlm")
    last = stream.tasks[1].name
    stream = replace(stream, tasks=stream.tasks[:2])
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
        spec = replace(spec_of(method, stream, Path(folder), settings=settings | {"max_steps": steps}), threads=1)
        costs = []
        for _ in stages_of(spec):
            costs.append(json.loads((Path(spec.folder) / "result.json").read_text())["cost"])
        state = state_of(resumed(spec))
    return {
        "step_ms": 1000 * (costs[1]["train_s"] - costs[0]["train_s"]) / steps,
        "step_flops": costs[1][f"step_flops/{last}"],
        "state_bytes": float(sum(value.nbytes for value in state.values())),
        "peak_mb": peak_bytes() / 1e6,
    }


def measured(method: str, settings: dict[str, str], steps: int) -> dict[str, float]:
    """The same, by a process started for it."""
    argument = json.dumps([method, settings, steps])
    command = [sys.executable, __file__, "--one", argument]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def compared(rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Label -> what it costs beside the learner."""
    taken: dict[str, list[dict[str, float]]] = {label: [] for label in METHODS}
    before = measured(LEARNER, {}, steps)
    learner = [before]
    for _ in range(rounds):
        for label, (method, settings) in METHODS.items():
            own, after = measured(method, settings, steps), measured(LEARNER, {}, steps)
            learner.append(after)
            taken[label].append(
                {
                    "step_time_ratio": 2 * own["step_ms"] / (before["step_ms"] + after["step_ms"]),
                    "step_flops_ratio": own["step_flops"] / after["step_flops"],
                    "extra_state_bytes": own["state_bytes"] - after["state_bytes"],
                    "extra_peak_mb": own["peak_mb"] - (before["peak_mb"] + after["peak_mb"]) / 2,
                }
            )
            before = after
    costs = {label: {name: median(r[name] for r in rows) for name in rows[0]} for label, rows in taken.items()}
    base = {name: median(row[name] for row in learner) for name in learner[0]}
    return {"Base-MoCo": {name: base[name] for name in ("step_ms", "step_flops", "state_bytes")}} | costs


def agreement(costs: dict[str, dict[str, float]]) -> float:
    """Pearson's correlation of time and FLOPs per step over methods, the learner among them."""
    pairs = [(row.get("step_time_ratio", 1.0), row.get("step_flops_ratio", 1.0)) for row in costs.values()]
    return correlation(*zip(*pairs, strict=True))


def markdown(costs: dict[str, dict[str, float]], steps: int, rounds: int) -> str:
    """The table."""
    base = costs["Base-MoCo"]
    lines = [
        ["method", "time per step", "FLOPs per step", "extra state", "extra peak memory"],
        [
            "Base-MoCo",
            f"1 ({base['step_ms']:.0f} ms)",
            f"1 ({operations(base['step_flops'])})",
            f"0 (of {base['state_bytes'] / 1e6:.1f} MB)",
            "0",
        ],
    ]
    for label, row in costs.items():
        if label != "Base-MoCo":
            extra_mb = row["extra_state_bytes"] / 1e6, row["extra_peak_mb"]
            ratios = f"{row['step_time_ratio']:.2f}", f"{row['step_flops_ratio']:.2f}"
            lines.append([label, *ratios, f"{extra_mb[0]:.1f} MB", f"{extra_mb[1]:.0f} MB"])
    note = (
        f"Second task of `moving-cvlm`, {steps} steps on one thread, a process each, medians of {rounds} rounds in "
        "turns with the learner (`benchmarks/method_costs.py`). Videos of replayed rows stay in their files. Time "
        f"and FLOPs correlate by {agreement(costs):.2f} over methods."
    )
    return f"{markdown_table(lines)}\n\n{note}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    costs = compared(options.rounds, options.steps)
    page = markdown(costs, options.steps, options.rounds)
    print(page)
    if options.keep:
        stem = RESULTS / "method-costs"
        stem.with_suffix(".md").write_text(page, encoding="utf-8")
        stem.with_suffix(".json").write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")
    if options.json:
        names = {f"{label} {name}": value for label, row in costs.items() for name, value in row.items()}
        print(json.dumps({name: round(value, 3) for name, value in names.items()} | {"r": round(agreement(costs), 3)}))


if __name__ == "__main__":
    main()
