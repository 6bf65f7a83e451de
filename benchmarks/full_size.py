"""Every method at the size of the paper: two steps a task over two sets in their published layouts, and its memory.

    python benchmarks/full_size.py [--json] [--methods NAME...] [--keep]

MSR-VTT (the official split) and MSVD as their downloads leave them, with a few small videos each, prepared by `kinoray
data prepare`'s own code and learned as two tasks of `cvlm`: ViT-Base/16 at 384 px and BERT-Base with random weights,
batches of 2, the paper's optimizer and queues. Each method in a process of its own. About 6 minutes a method on two
cores; `--keep` writes the table into `benchmarks/results/`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.memory import peak_bytes

METHODS = (
    "base_moco",
    "bmu_moco",
    "lwf:base_moco",
    "er_ring:base_moco",
    "der:base_moco",
    "co2l:base_moco",
    "lump:base_moco",
    "si:base_moco",
)
SETTINGS: dict[str, Any] = {"max_steps": 2, "batch_size": 2, "validations": 1}
RESULTS = Path(__file__).parent / "results"
SPLITS = {"train": 4, "validation": 2, "test": 2}
FIRST = {"train": 0, "validation": 6513, "test": 7010}
"""Number of the first video in each of MSR-VTT's official splits."""


def write_sets(root: Path, splits: dict[str, int] = SPLITS) -> None:
    """Both data sets as their downloads leave them, so many videos to a split."""
    from kinoray.decoding.write_video import write_video

    rng = np.random.default_rng(0)

    def video(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(rng.integers(0, 255, (24, 240, 320, 3)).astype(np.uint8), path, 8)

    entries: dict[str, list[dict[str, Any]]] = {"videos": [], "sentences": []}
    files = {"train_val_videodatainfo.json": ("train", "validation"), "test_videodatainfo.json": ("test",)}
    msrvtt = root / "msrvtt"
    for file, splits_of_file in files.items():
        entries = {"videos": [], "sentences": []}
        for split in splits_of_file:
            for number in range(FIRST[split], FIRST[split] + splits[split]):
                official = "validate" if split == "validation" else split
                entries["videos"].append({"video_id": f"video{number}", "split": official, "category": 1, "id": number})
                told = {"caption": f"a person does thing {number}", "video_id": f"video{number}", "sen_id": number}
                entries["sentences"].append(told)
                video(msrvtt / ("TestVideo" if split == "test" else "TrainValVideo") / f"video{number}.mp4")
        (msrvtt / file).write_text(json.dumps(entries))
    msvd, captions = root / "msvd", {}
    for split, count in splits.items():
        names = [f"{split}clip{n}_1_4" for n in range(count)]
        for name in names:
            video(msvd / "YouTubeClips" / f"{name}.mp4")
            captions[name] = [f"somebody plays {name[-5]}", "a video of something"]
        lists = {"validation": "val"}.get(split, split)
        (msvd / f"{lists}_list.txt").write_text("\n".join(names) + "\n")
    (msvd / "captions_msvd.json").write_text(json.dumps(captions))


def measure(method: str, root: Path) -> dict[str, float]:
    """In a process of its own: the run, its seconds, its largest memory."""
    import kinoray
    from kinoray.datasets.prepare import prepare
    from kinoray.datasets.prepared import manifest_of
    from kinoray.streams import Stream, TaskData
    from kinoray.streams.cvlm import RECIPE

    for name, folder in (("msrvtt-full", "msrvtt"), ("msvd", "msvd")):
        prepare(name, root / folder, progress=False)
    tasks = tuple(TaskData(name, manifest_of(name)) for name in ("msrvtt-full", "msvd"))
    stream = Stream("cvlm-two", "cvlm", tasks, replace(RECIPE, max_bad_fraction=0.0), "vit-bert:random")
    result = kinoray.run(method, stream=stream, num_workers=0, settings=SETTINGS, runs=root / "runs", quiet=True)
    assert isinstance(result, kinoray.Result)
    assert result.state == "finished" and result.matrix.iloc[-1].notna().all()
    return {
        "peak_gb": peak_bytes() / 1e9,
        "state_gb": result.cost["state_bytes"] / 1e9,
        "steps": float(result.cost["steps"]),
    }


def measured(method: str) -> dict[str, float]:
    """The same, by a process with folders of its own."""
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        write_sets(Path(name))
        own = {"XDG_CACHE_HOME": str(Path(name) / "cache"), "KINORAY_DATA": name}
        command = [sys.executable, __file__, "--one", json.dumps([method, name])]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | own)
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        method, root = json.loads(options.one)
        print(json.dumps(measure(method, Path(root))))
        return
    numbers = {}
    lines = ["| method | peak memory | of it the method's state |", "| --- | ---: | ---: |"]
    for method in options.methods:
        numbers[method] = measured(method)
        row = numbers[method]
        lines.append(f"| {method} | {row['peak_gb']:.1f} GB | {row['state_gb']:.1f} GB |")
        print(lines[-1], flush=True)
    page = "\n".join([*lines, "", (__doc__ or "").split("\n")[0], ""])
    print(page)
    if options.keep:
        (RESULTS / "full-size.md").write_text(page, encoding="utf-8")
        (RESULTS / "full-size.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    if options.json:
        flat = {f"{method} {name}": value for method, row in numbers.items() for name, value in row.items()}
        print(json.dumps({name: round(value, 3) for name, value in flat.items()}))


if __name__ == "__main__":
    main()
