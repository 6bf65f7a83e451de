"""Proofs of a kept table: where every query of every run stood, and one run that a stranger can repeat.

    python benchmarks/proofs.py NAME [--stream S] [--orders N] [--runs DIR]

For a table or figure of `kinoray reproduce --keep` whose runs are there: writes into `benchmarks/proofs/`
`STEM.parquet`, a row for each query of each test of each run (ids alone), `STEM.json`, each run's name and chain, and
`STEM.zip`, the bundle of one run. Nobody chooses which: the hash of the kept numbers does, among the runs that a bundle
takes (`docs/verifying.md`). `tests/proof/test_kept.py` works the kept numbers out of the first two again.
"""

import argparse
import hashlib
import json
from pathlib import Path

import pandas as pd

from kinoray.papers.entries import EQUAL
from kinoray.papers.reproduce import reproduce
from kinoray.papers.tables import TableReproduction
from kinoray.proof.bundle import bundle
from kinoray.runs.result import Result

HERE = Path(__file__).parent
PROOFS, RESULTS = HERE / "proofs", HERE / "results"
NUMBERS = {"after_task": "int8", "task": "int8", "sample": "int32", "rank": "float32", "ties": "int32"}
"""A rank is counted from 0, the middle one of equal scores."""
WORDS = ("settings", "method", "world", "order", "seed", "clip_id")


def runs_of(table: TableReproduction) -> list[tuple[str, str, Result]]:
    """Column, row and run of all lines."""
    return [
        (column, label, run)
        for column, by_label in table.runs.items()
        for label, runs in by_label.items()
        for run in runs
    ]


def ranks_of(column: str, label: str, run: Result) -> pd.DataFrame:
    """Where each query of each test of a run stood."""
    ranks = run.ranks[run.ranks["reading"] == ""]
    world = run.stream.partition(":")[2]
    facts: dict[str, str | int] = {
        "settings": column,
        "method": label,
        "world": world,
        "order": ", ".join(run.tasks),
        "seed": run.seed,
    }
    return ranks[[*NUMBERS, "clip_id"]].assign(**facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--stream")
    parser.add_argument("--orders", type=int)
    parser.add_argument("--runs", type=Path)
    asked = parser.parse_args()
    table = reproduce(asked.name, stream=asked.stream, orders=asked.orders, runs=asked.runs, quiet=True)
    runs = runs_of(table)
    frame = pd.concat([ranks_of(*line) for line in runs], ignore_index=True)
    frame = frame.astype(NUMBERS | dict.fromkeys(WORDS, "category"))
    PROOFS.mkdir(exist_ok=True)
    frame.to_parquet(PROOFS / f"{table.stem}.parquet", index=False, compression="zstd")
    chains = [
        {"settings": column, "method": label, "run": run.run["run"], "chain": run.outcome["chain"]}
        for column, label, run in runs
    ]
    (PROOFS / f"{table.stem}.json").write_text(json.dumps(chains, indent=1) + "\n", encoding="utf-8")
    numbers = json.loads((RESULTS / f"{table.stem}.json").read_text(encoding="utf-8"))["runs"]
    drawn = int(hashlib.sha256(json.dumps(numbers).encode()).hexdigest(), 16)
    taken = [run for column, _, run in runs if column != EQUAL and not (run.zero_shot or run.joint)]
    file = PROOFS / f"{table.stem}.zip"
    file.unlink(missing_ok=True)
    print(bundle(taken[drawn % len(taken)], file, quiet=True))


if __name__ == "__main__":
    main()
