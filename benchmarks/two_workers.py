"""Do two workers learn what one learns? Losses of the first steps, and the harmonic mean at the end.

    python benchmarks/two_workers.py [--json] [--method bmu_moco] [--seed 0] [--runs DIR]

Runs `moving-cvlm` with one and with two Ray workers (a run that is finished is returned). Both follow the same plan;
sums over ranks round differently, so the runs drift apart slowly. Bars: the first 20 losses equal to 1e-4 relative, HM
within 2 points at the end. About 4 minutes on two cores.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import kinoray
from kinoray.runs.result import Result

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--method", default="bmu_moco")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=None)
    options = parser.parse_args()
    root = options.runs or Path(tempfile.mkdtemp(prefix="kinoray-two-workers-"))
    one_worker, two_workers = (
        kinoray.run(options.method, seed=options.seed, num_workers=workers, runs=root / f"workers-{workers}")
        for workers in (1, 2)
    )
    assert isinstance(one_worker, Result) and isinstance(two_workers, Result)
    first = [result.losses.dropna(subset="loss")["loss"].to_numpy()[:STEPS] for result in (one_worker, two_workers)]
    numbers = {
        "first_losses_relative_difference": float(np.max(np.abs(first[1] - first[0]) / np.abs(first[0]))),
        "HM_one_worker": one_worker.metrics["HM"] or 0.0,
        "HM_two_workers": two_workers.metrics["HM"] or 0.0,
        "wall_s_one_worker": one_worker.cost["wall_s"],
        "wall_s_two_workers": two_workers.cost["wall_s"],
    }
    numbers["HM_difference"] = abs(numbers["HM_one_worker"] - numbers["HM_two_workers"])
    for name, value in numbers.items():
        print(f"{name:36} {value:.3g}")
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
