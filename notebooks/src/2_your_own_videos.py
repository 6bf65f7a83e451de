# %% [markdown]
# # Your own videos and captions
#
# A folder of videos and a table of captions is all that kinoray needs.

# %% [markdown]
# Some videos to begin with: squares that slide to the left or to the right, in two tasks of one colour each. Yours
# are files in a folder, with a `captions.csv` beside them.

# %%
from pathlib import Path

import av
import numpy as np

FOLDER = Path("videos")


def write_clip(path: Path, colour: tuple[int, int, int], step: int) -> None:
    """Twelve frames of 64 x 64 pixels: a square that moves by so many pixels a frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(12):
            frame = np.full((64, 64, 3), 32, dtype=np.uint8)
            left = 24 + step * (number - 6)
            frame[24:40, max(left, 0) : left + 16] = colour
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode(None))


FOLDER.mkdir(exist_ok=True)
lines = ["video,caption,task,split"]
for task, colour in (("red", (220, 40, 40)), ("blue", (50, 80, 230))):
    for number in range(24):
        step = (number % 4 + 1) * (1 if number % 2 else -1)
        write_clip(FOLDER / f"{task}-{number}.mp4", colour, step)
        split = "train" if number < 16 else "validation" if number < 20 else "test"
        where = "right" if step > 0 else "left"
        lines.append(f"{task}-{number}.mp4,a {task} square slides to the {where},{task},{split}")
(FOLDER / "captions.csv").write_text("\n".join(lines) + "\n")
lines[:3]

# %% [markdown]
# What a run would do, before it does anything:

# %%
import kinoray

options = dict(stream="./videos", settings={"batch_size": 8, "queue_size": 32}, smoke=True, num_workers=0, quiet=True)
plan = kinoray.dry_run("bmu_moco", **options)
plan["tasks"], plan["steps"]

# %%
result = kinoray.run("bmu_moco", **options)
result

# %% [markdown]
# A file that cannot be read is no reason to stop: it is listed with its reason.

# %%
result.outcome["bad_samples"], (result.folder / "bad_samples.jsonl").read_text()
