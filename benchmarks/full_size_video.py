"""VideoMoCo at the size of the paper on a CPU: R(2+1)D-18, clips of 32 x 112 x 112, batches of 4, a queue of 65,536.

    python benchmarks/full_size_video.py [--json] [--keep] [--steps 2]

A few made-up videos as a folder of the user's own, with the recipe of `video-ssl`; frames are lost from the first step
on, so that the generator and the second forward of its objective count, too. Steps, seconds per step and the process's
largest resident memory. A few minutes on two cores.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.memory import peak_bytes
from shared.numbers_page import show_numbers

VIDEOS, FRAMES = 12, 40
BATCH = 4
RESULTS = Path(__file__).parent / "results"


def write_videos(folder: Path) -> Path:
    """Noise of 128 x 171 px, some of it shorter than the clips that are read of it."""
    from kinoray.decoding.write_video import write_video

    rng = np.random.default_rng(0)
    folder.mkdir()
    rows = ["video,caption"]
    for number in range(VIDEOS):
        frames = rng.integers(0, 255, (FRAMES - 2 * number, 128, 170, 3)).astype(np.uint8)
        write_video(frames, folder / f"{number}.mp4", 16)
        rows.append(f"{number}.mp4,a video")
    (folder / "captions.csv").write_text("\n".join([*rows, ""]), encoding="utf-8")
    return folder


def measure(root: Path, steps: int) -> dict[str, float]:
    """Pre-train for a few steps and check what came out."""
    import kinoray
    from kinoray.streams import load_stream
    from kinoray.streams.video_ssl import RECIPE

    stream = replace(load_stream(f"{write_videos(root / 'videos')}:video-ssl"), recipe=RECIPE, backbone="r2plus1d-18")
    settings: dict[str, Any] = {"batch_size": BATCH, "max_steps": steps, "dropout_from": 0.0}
    settings |= {"test_frames": 64, "test_clips": 2}  # two runs of a test clip are all that this protocol looks at
    result = kinoray.run("video_moco", stream=stream, num_workers=0, settings=settings, runs=root / "runs", quiet=True)
    assert isinstance(result, kinoray.Result) and result.state == "finished"
    losses = result.losses.dropna(subset="loss")
    assert len(losses) == steps and np.isfinite(losses["loss"]).all() and (losses["gap"] > 0).all()
    return {
        "steps": float(steps),
        "seconds per step": result.cost["train_s"] / steps,
        "trained parameters": float(result.cost["trainable"]),
        "peak_gb": peak_bytes() / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        numbers = measure(Path(name), options.steps)
    show_numbers(
        "VideoMoCo, R(2+1)D-18, 32 x 112 x 112, batches of 4",
        numbers,
        RESULTS / "full-size-video.md" if options.keep else None,
        options.json,
    )


if __name__ == "__main__":
    main()
