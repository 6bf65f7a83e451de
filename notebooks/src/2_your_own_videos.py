# %% [markdown]
# # Your own videos and captions
#
# A folder of videos and a table of captions is all that kinoray needs.

# %% [markdown]
# Some videos to begin with: squares that slide, in two tasks of one colour each. Yours are files in a folder, with a
# `captions.csv` beside them.

# %%
from itertools import product
from pathlib import Path

import av
import numpy as np

FOLDER = Path("videos")
TASKS = {"red": (220, 40, 40), "blue": (50, 80, 230)}
PLACES = {"top": 4, "middle": 24, "bottom": 44}
STEPS = {"slowly to the left": -1, "fast to the left": -3, "slowly to the right": 1, "fast to the right": 3}
CLIPS = {"train": 4, "validation": 2, "test": 2}


def write_clip(path: Path, colour: tuple[int, int, int], top: int, step: int) -> None:
    """Twelve frames of 64 x 64 pixels: a square that moves by so many pixels a frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(12):
            frame = np.full((64, 64, 3), 32, dtype=np.uint8)
            left = 24 + step * (number - 6)
            frame[top : top + 16, left : left + 16] = colour
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode(None))


FOLDER.mkdir(exist_ok=True)
draws = np.random.default_rng(0)
lines = ["video,caption,task,split"]
for task, place, motion, split in product(TASKS, PLACES, STEPS, CLIPS):
    for number in range(CLIPS[split]):
        name = f"{task}-{place}-{STEPS[motion]}-{split}-{number}.mp4"
        write_clip(FOLDER / name, TASKS[task], PLACES[place] + int(draws.integers(-4, 5)), STEPS[motion])
        lines.append(f"{name},a {task} square slides {motion} at the {place},{task},{split}")
(FOLDER / "captions.csv").write_text("\n".join(lines) + "\n")
lines[:3]

# %% [markdown]
# What a run would do, before it does anything:

# %%
import kinoray

settings = {"batch_size": 12, "queue_size": 48, "max_steps": 120}
options = dict(stream="./videos", settings=settings, quiet=True)
plan = kinoray.dry_run("bmu_moco", **options)
plan["tasks"], plan["steps"]

# %% [markdown]
# Twelve captions a task, two test videos each: R@1 by chance is 4 %, and the other video of a caption is as right and
# counts as wrong, so that 50 % is the most that can be hoped for.

# %%
result = kinoray.run("bmu_moco", **options)
result

# %%
kinoray.compare([kinoray.run("bmu_moco", zero_shot=True, **options), result])

# %% [markdown]
# A file that cannot be read is no reason to stop: it is listed with its reason.

# %%
result.outcome["bad_samples"], (result.folder / "bad_samples.jsonl").read_text()
