"""Runs in orders of the tasks that share their beginnings equal straight runs, bit for bit.

    python tests/soak/orders.py RUNS [--orders 24] [--leaves 20] [--seed 0]

RUNS is where `kinoray reproduce orders` has its runs. Draws some at random and makes each again by itself, in this
process: the same state, chain, scores, ranks, features and log.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

import kinoray
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import TableEntry
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import load_stream
from kinoray.streams.orders import in_order

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.growth import learned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--orders", type=int, default=24)
    parser.add_argument("--leaves", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    entry = REPRODUCTIONS["orders"]
    assert isinstance(entry, TableEntry)
    leaves = [(row, order) for row in entry.rows for order in range(1, asked.orders)]
    equal = 0
    for row, order in random.Random(asked.seed).sample(leaves, asked.leaves):
        with tempfile.TemporaryDirectory() as folder:
            request = RunRequest(
                row.method,
                stream=in_order(load_stream(entry.stream), order),
                seed=entry.seed,
                settings={**entry.settings, **row.settings},
                control=row.control,
                num_workers=0,
                runs=folder,
                quiet=True,
            )
            straight = kinoray.run(request)
            assert isinstance(straight, Result)
            shared = asked.runs / straight.folder.relative_to(folder)
            same = learned(straight.folder) == learned(shared)
        equal += same
        print(f"{row.label}, order {order}: {'equal' if same else 'DIFFERS'}", flush=True)
    print(f"{equal} of {asked.leaves} equal")
    raise SystemExit(int(equal != asked.leaves))


if __name__ == "__main__":
    main()
