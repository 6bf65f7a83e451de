"""Picture methods at the size of their papers on a CPU: CCSL on CIFAR-100, MoCo v2 on ImageNet-Sub.

    python benchmarks/full_size_images.py [--json] [--keep] [--case ccsl|moco] [--images N] [--batch N]

| case | what | steps |
| --- | --- | --- |
| ccsl | CCSL with MoCo, `cssl-cifar100-2`, `resnet18-cifar:8`, batches of 512 | an epoch of 2,000 pictures, two tasks |
| moco | MoCo v2, recipe of `cssl-imagenet-sub`, `resnet50` at 224 px, batches of 32, a queue of 65,536 | two |

Noise stands in for the pictures, in the sets' own layouts; `kinoray data prepare`'s own code reads them. ImageNet-Sub's
batches are 256; on a CPU that needs some 30 GB: --batch 256. Each case is a process of its own, so its largest resident
memory is its own. The steps of CCSL's second task replay exemplars with the teacher. Several minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shared.memory import peak_bytes

RESULTS = Path(__file__).parent / "results"
TESTED = 100
IMAGENET_SHAPE = 288, 352, 3
IMAGENET_STEPS, IMAGENET_TESTED = 2, 10


def ccsl(root: Path, images: int, batch: int) -> dict[str, float]:
    """Both tasks of `cssl-cifar100-2`, an epoch each."""
    from shared.cifar_files import write_cifar

    from kinoray.datasets.prepare import prepare
    from kinoray.streams import load_stream

    write_cifar("cifar100", root, images, TESTED)
    prepare("cifar100", root, workers=0, progress=False)
    return trained("ccsl:moco", load_stream("cssl-cifar100-2"), root, {"epochs": 1, "batch_size": batch})


def moco(root: Path, images: int, batch: int) -> dict[str, float]:
    """Two steps by the recipe of `cssl-imagenet-sub`."""
    from kinoray.datasets.prepare import prepare
    from kinoray.datasets.prepared import prepared
    from kinoray.streams import Stream
    from kinoray.streams.cssl import IMAGENET, SEED
    from kinoray.streams.task_manifests import class_order, dealt_tasks

    write_imagenet(root, images)
    prepare("imagenet-sub", root, workers=0, progress=False)
    # All classes in one task: of so few pictures not every task of the stream would have one for validation.
    tasks = dealt_tasks(prepared("imagenet-sub"), class_order(100, SEED), num_tasks=1, per_task=100)
    stream = Stream("cssl-imagenet-sub-one", "cssl", tasks, IMAGENET, "resnet50")
    settings: dict[str, Any] = {"max_steps": IMAGENET_STEPS, "batch_size": batch, "validations": 0}
    settings |= {"temperature": 0.2, "m": 0.999, "queue_size": 65_536, "head": "mlp"}  # MoCo v2's, as for the stream
    return trained("moco", stream, root, settings)


CASES: dict[str, tuple[Callable[[Path, int, int], dict[str, float]], int, int]] = {
    "ccsl": (ccsl, 2000, 512),
    "moco": (moco, 200, 32),
}
"""What measures a case; its pictures and its batch."""


def write_imagenet(root: Path, images: int) -> None:
    """A hundred classes of JPEG files in class folders; labels go round the classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", images), ("val", IMAGENET_TESTED)):
        for number in range(count):
            wnid = f"n{number % 100:08d}"
            folder = root / split / wnid
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, IMAGENET_SHAPE, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{wnid}_{split}_{number}.JPEG")


def trained(method: str, stream: Any, root: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Run the stream and check what came out."""
    import kinoray

    began = time.perf_counter()
    result = kinoray.run(method, stream=stream, num_workers=0, settings=settings, runs=root / "runs", quiet=True)
    wall_s = time.perf_counter() - began
    assert isinstance(result, kinoray.Result) and result.state == "finished"
    losses = result.losses["loss"].dropna()
    assert len(losses) == result.cost["steps"] and np.isfinite(losses).all()
    training_s = sum(result.cost[part] for part in ("data_wait_s", "prepare_s", "train_s"))
    return {
        "steps": float(result.cost["steps"]),
        "seconds per step": training_s / result.cost["steps"],
        "evaluation s": result.cost["eval_s"],
        "whole run s": wall_s,
        "trained parameters": float(result.cost["trainable"]),
        "peak_gb": peak_bytes() / 1e9,
    }


def measured(case: str, images: int, batch: int) -> dict[str, float]:
    """The numbers of a case, from a process of its own."""
    command = [sys.executable, __file__, "--one", "--case", case, "--images", str(images), "--batch", str(batch)]
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        own = {"XDG_CACHE_HOME": str(Path(name) / "cache")}
        done = subprocess.run([*command, "--root", name], stdout=subprocess.PIPE, text=True, env=os.environ | own)
    if done.returncode:
        raise SystemExit(f"{case} ended with code {done.returncode}")
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object of {case: {name: number}} last")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--case", choices=sorted(CASES), help="one of the two")
    parser.add_argument("--images", type=int, help="training pictures, at least 200, instead of the case's own number")
    parser.add_argument("--batch", type=int, help="pictures of a step, instead of the case's own number")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure, *_ = CASES[options.case]
        (options.root / "set").mkdir()
        print(json.dumps(measure(options.root / "set", options.images, options.batch)))
        return
    results = {}
    for case in [options.case] if options.case else list(CASES):
        _, images, batch = CASES[case]
        results[case] = measured(case, options.images or images, options.batch or batch)
        print(f"{case}: " + ", ".join(f"{label} {value:,.4g}" for label, value in results[case].items()), flush=True)
    if options.keep:
        (RESULTS / "full-size-images.md").write_text(page_of(results), encoding="utf-8")
    if options.json:
        print(json.dumps({c: {label: round(v, 3) for label, v in row.items()} for c, row in results.items()}))


def page_of(results: dict[str, dict[str, float]]) -> str:
    """A table with a column for each case."""
    labels = list(next(iter(results.values())))
    head = [f"| | {' | '.join(results)} |", "| --- |" + " ---: |" * len(results)]
    rows = [f"| {label} | {' | '.join(f'{row[label]:,.4g}' for row in results.values())} |" for label in labels]
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    main()
