"""The fast linear probe against the papers': L-BFGS after every task, and SGD as a run of its own.

    python benchmarks/probe.py [--json] [--keep] [--stream shapes-5] [--seeds 3] [--runs FOLDER]

MoCo learns the stream's tasks one after the other; at the end `cssl` has fitted the fast probe to the whole stream's
classes (`evaluation.classification`). Then `classify` probes the same frozen encoder on all tasks at once, by MoCo's
linear classification (`train=head`: 100 epochs of SGD at its rate; for these small sets in batches of 64, and without
augmentation, as validation chose). Both see the same training pictures and are tested on the same test pictures.

Bar: the two accuracies differ by 0.5 points or less, as a mean over the seeds. Earlier seeds chose: the SGD probe's
rate and augmentation by the validation pictures of seed 0, the fast probe's penalty so that both agree on the test
pictures of seeds 0 to 2 and 10 to 14. So seeds 20, 21, ... are measured. With 800 test pictures a seed's difference has
a standard error of 1.6 points: the mean of three says little by itself, and one over more is worth its minutes.
`--keep` writes `results/probe.md`; with `--runs` the runs stay, and a second call goes on. Some minutes a seed.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from shared.numbers_page import show_numbers

import kinoray
from kinoray.runs.result import Result, Results

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 20
"""Some of those before chose."""


def measure(stream: str, seeds: int, runs: Path) -> dict[str, float]:
    """Accuracies of both probes, in percent: each seed's, and means over the seeds."""
    encoders = kinoray.run("moco", stream=stream, seed=FIRST_SEED, seeds=seeds, runs=runs)
    assert isinstance(encoders, Results)
    numbers: dict[str, float] = {}
    pairs = []
    for encoder in encoders:
        options: dict[str, Any] = {"stream": stream, "joint": True, "seed": encoder.seed, "runs": runs}
        probed = kinoray.run("classify", backbone=f"run:{encoder.folder}", num_workers=0, **options)
        assert isinstance(probed, Result) and probed.config["method"]["train"] == "head"
        fast, slow = float(encoder.metrics["accuracy"] or 0), float(probed.metrics["accuracy"] or 0)
        pairs.append((fast, slow))
        numbers |= {f"seed {encoder.seed}: fast probe": fast, f"seed {encoder.seed}: probe by SGD": slow}
    return numbers | {
        "fast probe": fmean(fast for fast, _ in pairs),
        "probe by SGD": fmean(slow for _, slow in pairs),
        "apart": abs(fmean(fast - slow for fast, slow in pairs)),
        "apart at most": max(abs(fast - slow) for fast, slow in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--stream", default="shapes-5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        runs = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinoray-bench-")))
        numbers = measure(options.stream, options.seeds, runs)
    title = f"Two linear probes on MoCo's encoders after {options.stream}, accuracy in %"
    show_numbers(title, numbers, RESULTS / "probe.md" if options.keep else None, options.json)


if __name__ == "__main__":
    main()
