"""TPE against random search, simulated on a table of measured runs.

    python benchmarks/tpe.py [--json] [--trials 30] [--seeds 50]
    python benchmarks/tpe.py --measure                # makes the table anew, about 8 minutes on two quiet cores

The table, `results/bmu-grid.json`, holds what `bmu_moco` reached on `moving-conflict` at every point of a grid over m
and m_hat, with the command, versions and seeds that made it; its steps are cut, so its scores are not its best, and the
stream was that of commit d391813, with shorter tasks and another recipe.
The simulation draws and tells as a sweep with one trial at a time does, with the sweep's own samplers and its knobs on
the grid's points; a trial's value is looked up. Reported, after n trials: the mean over the sweep's seeds of the best
validation HM so far and of that trial's test HM, the share of the table's range that it reached, and how often TPE's
best is above random's (a tie is half a win). TPE draws its first ten trials at random.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).parent / "results" / "bmu-grid.json"
SPACE = {
    "m": {"low": 0.9, "high": 1.0, "step": 0.025},
    "m_hat": {"low": 0.9, "high": 1.0, "step": 0.02},
}
SETTINGS = {"max_steps": 40}
"""Of each task: 30 runs are to fit into about 8 minutes."""
CHECKPOINTS = (5, 10, 15, 20, 25, 30)
TESTED = ("HM", "R@1", "FR")

Table = dict[tuple[float, ...], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--measure", action="store_true", help="run the grid and write the table")
    parser.add_argument("--runs", type=Path, default=None, help="where --measure keeps its runs, to go on if stopped")
    parser.add_argument("--trials", type=int, default=CHECKPOINTS[-1])
    parser.add_argument("--seeds", type=int, default=50)
    options = parser.parse_args()
    if options.measure:
        TABLE.write_text(json.dumps(measure(options.runs), indent=1) + "\n", encoding="utf-8")
        print(f"{TABLE} written.")
        return
    if not TABLE.exists():
        print(f"{TABLE.name} is not there; --measure makes it.")
        return
    record = json.loads(TABLE.read_text(encoding="utf-8"))
    numbers = compare(table_of(record), record["space"], options.trials, options.seeds)
    for label, value in numbers.items():
        print(f"{label:<28} {value:8.3f}")
    if options.json:
        print(json.dumps({label: round(value, 4) for label, value in numbers.items()}))


def measure(runs: Path | None) -> dict[str, Any]:
    """Sweep the grid and read what each run reached."""
    import importlib.metadata
    import platform

    import kinoray

    began = time.monotonic()
    sweep = kinoray.sweep(
        "bmu_moco", space=SPACE, sampler="grid", settings=SETTINGS, prune=False, keep_best=0, runs=runs, name="bmu-grid"
    )
    points = []
    for trial in sweep.trials:
        (run,) = sweep.trial(trial.number).runs
        points.append(
            trial.params
            | {"seed": run.seed, "validation_HM": round(run.validation_metrics["HM"], 3)}
            | {f"test_{name}": round(run.metrics[name], 3) for name in TESTED}
        )
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "command": "python benchmarks/tpe.py --measure",
        "what": "bmu_moco on moving-conflict, one run per point, in percent; selection looks at validation_HM alone",
        "settings": SETTINGS,
        "space": SPACE,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("kinoray", "torch", "ray", "optuna", "numpy")},
        "threads": sweep.record["threads"],
        "cpu": models[0].partition(":")[2].strip(),
        "sweep_s": round(time.monotonic() - began),
        "training_s": round(sweep.spent_s),
        "points": sorted(points, key=lambda point: [point[name] for name in SPACE]),
    }


def table_of(record: dict[str, Any]) -> Table:
    """The points by their settings."""
    return {key_of(point, record["space"]): point for point in record["points"]}


def key_of(params: dict[str, Any], space: dict[str, Any]) -> tuple[float, ...]:
    """A point of the grid; steps of a range come with rounding errors."""
    return tuple(round(params[name], 9) for name in space)


def simulate(table: Table, space: dict[str, Any], sampler: str, seed: int, trials: int) -> list[dict[str, Any]]:
    """The points that a sweep would try, in order."""
    import optuna

    from kinoray.sweeps.space import distributions
    from kinoray.sweeps.study import make_sampler, quiet_optuna

    quiet_optuna()
    knobs = distributions(space)
    study = optuna.create_study(direction="maximize")
    tried = []
    for number in range(trials):
        study.sampler = make_sampler(sampler, seed, number, knobs)
        trial = study.ask(fixed_distributions=knobs)
        tried.append(table[key_of(trial.params, space)])
        study.tell(trial, tried[-1]["validation_HM"])
    return tried


def scores_of_the_best(tried: Any, validation: np.ndarray) -> list[float]:
    """Test score, after each trial, of the trial that is best by validation so far."""
    return [tried[int(validation[: n + 1].argmax())]["test_HM"] for n in range(len(validation))]


def compare(table: Table, space: dict[str, Any], trials: int, seeds: int) -> dict[str, float]:
    """Both samplers over many sweep seeds."""
    values = np.array([point["validation_HM"] for point in table.values()])
    low, high = values.min(), values.max()
    numbers: dict[str, float] = {"points": len(table), "lowest_HM": float(low), "highest_HM": float(high)}
    best: dict[str, np.ndarray] = {}
    for sampler in ("tpe", "random"):
        swept = [simulate(table, space, sampler, seed, trials) for seed in range(seeds)]
        scores = np.array([[point["validation_HM"] for point in tried] for tried in swept])
        best[sampler] = np.maximum.accumulate(scores, axis=1)
        chosen = [scores_of_the_best(tried, row) for tried, row in zip(swept, scores, strict=True)]
        tests = np.array(chosen).mean(axis=0)
        for n in (n for n in CHECKPOINTS if n <= trials):
            numbers[f"{sampler}_HM_after_{n}"] = float(best[sampler][:, n - 1].mean())
            numbers[f"{sampler}_share_after_{n}"] = float((best[sampler][:, n - 1].mean() - low) / (high - low))
            numbers[f"{sampler}_test_HM_after_{n}"] = float(tests[n - 1])
    for n in (n for n in CHECKPOINTS if n <= trials):
        ours, theirs = best["tpe"][:, n - 1], best["random"][:, n - 1]
        numbers[f"tpe_wins_after_{n}"] = float(((ours > theirs) + 0.5 * (ours == theirs)).mean())
    return numbers


if __name__ == "__main__":
    main()
