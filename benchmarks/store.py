"""Is exact search over the video feature store as fast as the machine's matrix product, and than faiss?

    python benchmarks/store.py [--json] [--videos 1000000] [--rounds 5] [--threads 2] [--no-actor]

Unit vectors of 512 float32 in a feature file as a run commits it, memory-mapped and in the page cache; faiss holds the
same vectors in memory (`IndexFlatIP`; install faiss-cpu, else its columns are left out). Sides take turns with equal
threads; ratios are medians over rounds. Bars:

    vs_matmul      time of the product of 1,000 queries with all videos, strip by strip, over the search's, >= 0.7
    vs_faiss       faiss's time for the top 10 of 1,000 queries over ours, >= 1.0
    vs_faiss_100   the same for 100 queries, >= 2
    extra_mb       growth of this process's own memory (not the file's pages) in a search, <= 200
    ranks_mb       the same in ranking 10,000 queries (among a tenth of the videos)
    linear         time for all videos over ten times that for a tenth of them, about 1
    vs_actor       time of the actor's answer to 100 queries over the in-process call's, <= 1.1

About four minutes on two quiet cores; the file has 2 GB.
"""

import argparse
import json
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from shared.turns import in_turns, ratio, seconds
from torch import Tensor

from kinoray.evaluation.exact_search import STRIP, exact_ranks, nearest
from kinoray.evaluation.feature_files import write_features
from kinoray.evaluation.gallery import FeatureStore

DIM = 512
ANSWERS = 10
QUERIES, FEW, MANY = 1000, 100, 10_000


def unit_rows(count: int, seed: int) -> Tensor:
    """Random unit vectors (count, DIM)."""
    rows = torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))
    return rows.div_(rows.norm(dim=1, keepdim=True))


def stored(folder: Path, videos: int) -> dict[str, Any]:
    """Write the videos as a run's only block; returns what its checkpoint would name."""
    ids = [f"clip{number:07d}" for number in range(videos)]
    return {"test/0": write_features(folder / "features", "test", 0, 0, ids, unit_rows(videos, 0))}


def own_mb() -> float:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e6


def growth_mb(work: Callable[[], Any]) -> float:
    """By how much this process's own memory grows at most while some work is done."""
    before, most, done = own_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], own_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(most[0], own_mb()) - before


def product(queries: Tensor, videos: Tensor) -> None:
    """The scores of all pairs, strip by strip into one buffer, and nothing else."""
    buffer = torch.empty(len(queries), STRIP)
    for strip in videos.split(STRIP):
        torch.mm(queries, strip.T, out=buffer[:, : len(strip)])


def faiss_index(videos: Tensor, threads: int) -> Any:
    """faiss's exact index over the same vectors, None where it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(DIM)
    index.add(videos.numpy())
    return index


def against_actor(folder: Path, facts: dict[str, Any], few: Tensor, rounds: int) -> float:
    """Time of the actor's answer over that of the in-process call."""
    import ray

    from kinoray.execution.feature_store import FeatureActor, LiveFeatureStore, committed_features
    from kinoray.system.actors import call, start_actor

    record = {"method": "m", "stream": "s", "protocol": "ctvr", "seed": 0, "tasks": ["all"]}
    (folder / "run.json").write_text(json.dumps(record | {"joint": False, "zero_shot": False}))
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        actor = start_actor(FeatureActor, "store:benchmark", str(folder))
        call(actor, "publish", (1, 0, 0), facts)
        live, here = LiveFeatureStore(actor, folder), committed_features(folder, facts)
        sides = {"actor": lambda: live.search(few, ANSWERS), "here": lambda: here.search(few, ANSWERS)}
        return ratio(in_turns(sides, rounds), "actor", "here")
    finally:
        ray.shutdown()


def measure(folder: Path, videos: int, rounds: int, threads: int, actor: bool) -> dict[str, float]:
    """All bars."""
    torch.set_num_threads(threads)
    facts = stored(folder, videos)
    store = FeatureStore(folder / "features", ["all"], facts)
    block = store.block(0).features
    queries = unit_rows(QUERIES, 1)
    few = queries[:FEW]
    norms = [store.block(0).largest_norm]
    sides: dict[str, Callable[[], Any]] = {
        "search": lambda: nearest([queries], [block], ANSWERS, norms),
        "few": lambda: nearest([few], [block], ANSWERS, norms),
        "product": lambda: product(queries, block),
        "tenth": lambda: nearest([queries], [block[: videos // 10]], ANSWERS, norms),
    }
    sides["search"]()
    bars = {"extra_mb": growth_mb(sides["search"])}
    index = faiss_index(block, threads)
    if index is not None:
        sides["faiss"] = partial(index.search, queries.numpy(), ANSWERS)
        sides["faiss_few"] = partial(index.search, few.numpy(), ANSWERS)
        _, theirs = index.search(few.numpy(), ANSWERS)
        ours = nearest([few], [block], ANSWERS, norms).positions.numpy()
        assert np.mean(theirs == ours) > 0.99, "faiss finds others"
    taken = in_turns(sides, rounds)
    bars |= {"search_s": median(taken["search"]), "search_100_s": median(taken["few"])}
    bars["vs_matmul"] = ratio(taken, "product", "search")
    bars["linear"] = ratio(taken, "search", "tenth") / 10
    if index is not None:
        bars["vs_faiss"] = ratio(taken, "faiss", "search")
        bars["vs_faiss_100"] = ratio(taken, "faiss_few", "few")
    sides.clear()
    del index
    many, tenth = unit_rows(MANY, 2), block[: videos // 10]
    truth = np.arange(MANY) % len(tenth)
    bars["ranks_mb"] = growth_mb(lambda: exact_ranks([many], [tenth], truth, norms))
    bars["ranks_s"] = seconds(lambda: exact_ranks([many], [tenth], truth, norms))
    if actor:
        bars["vs_actor"] = against_actor(folder, facts, few, rounds)
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object of numbers as the last line")
    parser.add_argument("--videos", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-actor", dest="actor", action="store_false")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
        bars = measure(Path(folder), arguments.videos, arguments.rounds, arguments.threads, arguments.actor)
    for name, value in bars.items():
        print(f"{name:14} {value:10.3f}")
    if arguments.json:
        print(json.dumps({name: round(value, 4) for name, value in bars.items()}))


if __name__ == "__main__":
    main()
