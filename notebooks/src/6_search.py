# %% [markdown]
# # Search your videos
#
# A run keeps the features of every task's test videos; a text finds the nearest ones.

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
# A few epochs, so that there is something to find.

# %%
import kinoray

settings = {"batch_size": 8, "queue_size": 32, "epochs": 10}
result = kinoray.run("base_moco", stream="./videos", settings=settings, num_workers=0, quiet=True)
result

# %%
result.search("a red square slides to the left", k=3)

# %% [markdown]
# By example, over all tasks:

# %%
result.search(like="videos/blue-1.mp4", k=3)

# %% [markdown]
# `kinoray search RUN "TEXT" --out hits.html` writes the same as a page.
