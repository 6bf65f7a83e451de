# %% [markdown]
# # Search your videos
#
# A run keeps the features of every task's test videos; a text finds the nearest ones.

# %% [markdown]
# Some videos to begin with: squares that fall, in two tasks, by night and by day. Yours are files in a folder, with a
# `captions.csv` beside them.

# %%
from itertools import product
from pathlib import Path

import av
import numpy as np

FOLDER = Path("videos")
GROUNDS = {"night": 24, "day": 200}
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 230), "yellow": (235, 210, 40)}
PLACES = {"left": 6, "middle": 24, "right": 42}
CLIPS = {"train": 4, "validation": 1, "test": 1}


def write_clip(path: Path, ground: int, colour: tuple[int, int, int], left: int, top: int) -> None:
    """Twelve frames of 64 x 64 pixels: a square that falls by two pixels a frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(12):
            frame = np.full((64, 64, 3), ground, dtype=np.uint8)
            frame[top + 2 * number : top + 2 * number + 16, left : left + 16] = colour
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode(None))


FOLDER.mkdir(exist_ok=True)
draws = np.random.default_rng(0)
lines = ["video,caption,task,split"]
for task, colour, place, split in product(GROUNDS, COLOURS, PLACES, CLIPS):
    for number in range(CLIPS[split]):
        name = f"{task}-{colour}-{place}-{split}-{number}.mp4"
        left, top = PLACES[place] + draws.integers(-4, 5), draws.integers(4, 20)
        write_clip(FOLDER / name, GROUNDS[task], COLOURS[colour], left, top)
        lines.append(f"{name},a {colour} square falls at the {place} by {task},{task},{split}")
(FOLDER / "captions.csv").write_text("\n".join(lines) + "\n")
lines[:3]

# %% [markdown]
# Eighty steps a task, so that there is something to find.

# %%
import kinoray

settings = {"batch_size": 12, "queue_size": 48, "epochs": 20}
result = kinoray.run("base_moco", stream="./videos", settings=settings, quiet=True)
result

# %%
result.search("a red square falls at the left by day", k=3)

# %% [markdown]
# By example, over all tasks:

# %%
result.search(like="videos/day-blue-left-test-0.mp4", k=4)

# %% [markdown]
# `kinoray search RUN "TEXT" --out hits.html` writes the same as a page.
