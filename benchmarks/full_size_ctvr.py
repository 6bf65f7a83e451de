"""FrameFusionMoE at the size of the paper, on `ctvr-msrvtt-10` as its authors published it: two tasks, two steps each.

    python benchmarks/full_size_ctvr.py --annotations FOLDER [--json] [--keep]

FOLDER holds the authors' `MSRVTT_10_dataset.pkl` and `MSRVTT_CL_validation.csv`. Small made-up videos stand in for all
320 training videos and some test videos of each task, made-up sentences for MSR-VTT's captions of the first; queries
are the published ones. `kinoray data prepare`'s own code reads them. ViT-B/32 with random weights, the stream's own
recipe (12 frames, batches of 8, 10 Frame Fusion layers, 10 experts). A few minutes on two cores.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.memory import peak_bytes
from shared.numbers_page import show_numbers

FILES = ("MSRVTT_10_dataset.pkl", "MSRVTT_CL_validation.csv")
TESTED = 8
"""Test videos of each task that have a file; the others are missing, as the report says."""
TASKS = 2
SETTINGS: dict[str, Any] = {"max_steps": 2, "validations": 1}
RESULTS = Path(__file__).parent / "results"


def write_set(published: Path, root: Path) -> None:
    """The published files, and what stands in for the rest of MSR-VTT."""
    from kinoray.datasets.readers.ctvr import read_split
    from kinoray.streams.rendering import write_video

    for file in FILES:
        shutil.copyfile(published / file, root / file)
    split = read_split(root / FILES[0])
    rng = np.random.default_rng(0)
    (root / "videos").mkdir()
    entries: dict[str, list[dict[str, Any]]] = {"videos": [], "sentences": []}
    for use, classes in [(part, classes) for part in split for classes in split[part].values()]:
        videos = [(name, video) for name, of_class in classes.items() for video in of_class]
        for category, video in videos if use == "train" else videos[:: max(1, len(videos) // TESTED)][:TESTED]:
            frames = rng.integers(0, 255, (24, 96, 128, 3)).astype(np.uint8)
            write_video(frames, root / "videos" / f"{video}.mp4", 8)
            entries["videos"].append({"video_id": video, "category": category})
            if use == "train":
                told = [f"somebody does thing {n} of {category}" for n in range(20)]
                entries["sentences"] += [{"video_id": video, "caption": caption} for caption in told]
    (root / "MSRVTT_data.json").write_text(json.dumps(entries), encoding="utf-8")


def measure(root: Path) -> dict[str, float]:
    """Prepare the set, run two tasks of the stream and check what came out."""
    import kinoray
    from kinoray.datasets.prepare import prepare
    from kinoray.streams import load_stream

    report = prepare("ctvr-msrvtt-10", root, progress=False)
    for split, counts in report.splits.items():
        print(f"{split:10} {counts['published']} published, {counts['annotated']} annotated, {counts['ready']} ready")
    whole = load_stream("ctvr-msrvtt-10")
    stream = replace(whole, name="ctvr-msrvtt-10-two", tasks=whole.tasks[:TASKS])
    begun = time.perf_counter()
    result = kinoray.run(
        "frame_fusion_moe",
        stream=stream,
        backbone="clip:ViT-B-32/random",
        num_workers=0,
        settings=SETTINGS,
        runs=root / "runs",
        quiet=True,
    )
    assert isinstance(result, kinoray.Result)
    assert result.state == "finished" and result.matrix.iloc[-1].notna().all()
    print(f"{(time.perf_counter() - begun) / 60:.1f} minutes")
    print(f"R@1 by task, of {TASKS * TESTED} videos: {result.matrix.iloc[-1].round(1).tolist()}")
    return {
        "train videos": float(report.splits["train"]["ready"] or 0),
        "steps": float(result.cost["steps"]),
        "trained parameters": float(result.cost["trainable"]),
        "peak_gb": peak_bytes() / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--annotations", type=Path, help="the folder of the authors' files; without it nothing runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.annotations is None or not all((options.annotations / file).is_file() for file in FILES):
        print(f"Skipped: give the folder that holds {' and '.join(FILES)} with --annotations.")
        return
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        os.environ |= {"XDG_CACHE_HOME": str(Path(name) / "cache")}
        (Path(name) / "set").mkdir()
        write_set(options.annotations, Path(name) / "set")
        numbers = measure(Path(name) / "set")
    show_numbers(
        "FrameFusionMoE on ctvr-msrvtt-10, two tasks",
        numbers,
        RESULTS / "full-size-ctvr.md" if options.keep else None,
        options.json,
    )


if __name__ == "__main__":
    main()
