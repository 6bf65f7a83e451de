"""What shared prefixes save, measured against what a sweep says that they saved.

    python benchmarks/prefixes.py [--json] [--trials 4] [--tasks 2] [--rounds 2]
                                    [--workers-per-trial 0] [--set max_steps=60 ...]

Sweeps of `distilled.py` over `distill`, which matters from the second task on, on the first tasks of `moving-cvlm`: one
trial at a time, nothing pruned, with and without shared prefixes, in turns. `saving_ratio` is the saving that the
sweeps print over the measured one: the training time of all trials without sharing minus that with it, by the runs' own
clocks (starts and evaluations included). Steps are counted from the logs. Take it on a quiet machine: a drift of 1 % of
the training time is 2-3 % of the saving.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

METHOD = Path(__file__).parent / "shared" / "distilled.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers-per-trial", type=int, default=0)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, as for a run")
    options = parser.parse_args()
    from kinoray.decoding.frame_cache import frame_cache
    from kinoray.runs.experiment_file import parse_settings
    from kinoray.streams import load_stream

    whole = load_stream("moving-cvlm")
    stream = replace(whole, tasks=whole.tasks[: options.tasks])
    settings = parse_settings(options.set)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        # Prefixes of their own, the user's frames: every round learns its first task.
        os.environ |= {"KINORAY_CACHE": str(frame_cache().folder), "XDG_CACHE_HOME": name}
        for number in range(options.rounds):
            for share in (False, True) if number % 2 == 0 else (True, False):
                runs = Path(name) / f"{number}-{share}"
                rows.append(
                    {"share": share, "seed": number}
                    | swept(stream, settings, options.trials, options.workers_per_trial, number, share, runs)
                )
                print(rows[-1], flush=True)
    alone, shared = ([row for row in rows if row["share"] is share] for share in (False, True))
    assert all(a["digests"] == s["digests"] for a, s in zip(alone, by_seed(shared, alone), strict=True)), "not the same"
    measured = total(alone, "spent_s") - total(shared, "spent_s")
    printed = total(shared, "prefix_saved_s")
    numbers = {
        "saving_ratio": printed / measured,
        "printed_s": printed,
        "measured_s": measured,
        "unshared_s": total(alone, "spent_s"),
        "steps_unshared": total(alone, "steps"),
        "steps_shared": total(shared, "steps"),
        "steps_adopted": total(shared, "adopted_steps"),
    }
    for label, value in numbers.items():
        print(f"{label:<15} {value:10.3f}")
    if options.json:
        print(json.dumps({label: round(value, 3) for label, value in numbers.items()}))


def swept(
    stream: Any, settings: dict[str, Any], trials: int, workers: int, seed: int, share: bool, runs: Path
) -> dict[str, Any]:
    """One sweep: seconds of its trials, steps that were trained, and the digests of what came out."""
    import kinoray

    values = [round(i / max(1, trials - 1), 6) for i in range(trials)]
    sweep = kinoray.sweep(
        str(METHOD),
        stream=stream,
        space={"distill": {"choices": values}},
        sampler="grid",
        seed=seed,
        concurrent=1,
        workers_per_trial=workers,
        prune=False,
        settings=settings,
        share_prefixes=share,
        runs=runs,
        name="sweep",
    )
    assert sweep.states["complete"] == trials, sweep.states
    results = [run for trial in sweep.trials for run in sweep.trial(trial.number).runs]
    adopted = sum(run.cost.get("adopted_steps", 0.0) for run in results)
    logged = sum(int(run.losses["loss"].notna().sum()) for run in results)
    return {
        "spent_s": sweep.spent_s,
        "prefix_saved_s": sweep.prefix_saved_s,
        "steps": logged - adopted,
        "adopted_steps": adopted,
        "digests": [run.outcome["state_digest"] for run in results],
    }


def by_seed(rows: list[dict[str, Any]], like: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of others with the same seeds."""
    known = {row["seed"]: row for row in rows}
    return [known[row["seed"]] for row in like]


def total(rows: Iterable[dict[str, Any]], name: str) -> float:
    """Sum of a number over rows."""
    return float(sum(row[name] for row in rows))


if __name__ == "__main__":
    main()
