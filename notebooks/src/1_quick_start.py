# %% [markdown]
# # Quick start
#
# Train a method through a stream of five video-text tasks and see what it forgets. Nothing is downloaded: the videos
# are drawn on this machine, once, in about a minute. Tasks of `moving-conflict` contradict each other: two of them
# exchange the words of four colours, so that what one teaches another takes back.
#
# A run has 132 to 225 steps a task; this notebook takes 80, so that each run lasts a minute or two on two cores.

# %%
import kinoray

options = dict(stream="moving-conflict", settings={"max_steps": 80}, quiet=True)
result = kinoray.run("bmu_moco", seed=0, **options)
result

# %% [markdown]
# The result matrix: R@1 in percent, a row after each task, a column for each task that was tested. Down a column stands
# what becomes of a task while later ones are learned: each is learned to about three quarters, and the first four fall to
# half of that or less.

# %%
result.matrix.round(1)

# %%
result.plot()

# %% [markdown]
# The same call again returns at once, and a run that was stopped at any moment goes on. What to hold it against: plain
# fine-tuning by the same loss, and the towers as they came, without any step: they find the video of a caption first in
# 26 of 100 questions. One run a row says little; `seeds=5` and `kinoray.compare` give intervals over seeds.

# %%
baseline = kinoray.run("base_moco", seed=0, **options)
untrained = kinoray.run("base_moco", seed=0, zero_shot=True, **options)
kinoray.compare([untrained, baseline, result])

# %% [markdown]
# Everything is in the run's folder: configuration, numbers, weights.

# %%
sorted(path.name for path in result.folder.iterdir())

# %% [markdown]
# These runs were on Ray: `TorchTrainer` started a worker, Ray Data decoded clips beside it, and named actors held what
# crosses tasks. In the background, a run can be looked at: its momentum actor gives the newest weights while it learns.
# A version is the task, the phase in it and the step. Without `quiet` the first lines say where Ray's dashboard is.

# %%
import threading
import time
from pathlib import Path

short = options | dict(smoke=True, seed=1)
folder = Path(kinoray.dry_run("bmu_moco", **short)["folder"]) / "seed-1"
begun = folder / "run.json"
training = threading.Thread(target=kinoray.run, args=["bmu_moco"], kwargs=short)
training.start()
versions = []
while training.is_alive():
    time.sleep(0.2)
    newest = kinoray.momentum_weights(folder, versions[-1] if versions else ()) if begun.exists() else None
    if newest is not None:
        versions.append(newest[0])
        weights = newest[1]
versions, len(weights)

# %% [markdown]
# Afterwards the same call reads the newest commit, and Ray goes with the notebook's kernel or by `kinoray.shutdown()`.

# %%
kinoray.shutdown()
kinoray.momentum_weights(kinoray.load(folder))[0]
