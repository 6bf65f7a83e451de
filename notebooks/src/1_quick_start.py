# %% [markdown]
# # Quick start
#
# Train a method through a stream of five video-text tasks and see what it forgets. Nothing is downloaded: the videos
# are rendered on this machine, once, in about a minute.
#
# All notebooks here use settings that take a few minutes on two cores, so their numbers mean nothing; without
# `smoke=True` a run takes about two minutes and does learn.

# %%
import kinoray

options = dict(stream="moving-cvlm", smoke=True, num_workers=0, quiet=True)
result = kinoray.run("bmu_moco", seed=0, **options)
result

# %% [markdown]
# The result matrix: R@1 in percent, a row after each task, a column for each task that was tested.

# %%
result.matrix.round(1)

# %%
result.plot()

# %% [markdown]
# The same call again returns at once, and a run that was stopped at any moment goes on. Another method beside it:

# %%
baseline = kinoray.run("base_moco", seed=0, **options)
kinoray.compare([baseline, result])

# %% [markdown]
# Everything is in the run's folder: configuration, numbers, weights.

# %%
sorted(path.name for path in result.folder.iterdir())

# %% [markdown]
# A run on Ray trains in processes of its own; here it does so in the background, and this notebook looks at it. Its
# momentum actor gives the newest weights that cross tasks while the run is on: a version is the task, the phase in it
# and the step. Without `quiet` the first lines say where Ray's dashboard is, which shows the same actors.

# %%
import threading
import time
from pathlib import Path

on_ray = dict(stream="moving-cvlm", smoke=True, num_workers=1, seed=1, quiet=True)
folder = Path(kinoray.dry_run("bmu_moco", **on_ray)["folder"]) / "seed-1"
begun = folder / "run.json"
training = threading.Thread(target=kinoray.run, args=["bmu_moco"], kwargs=on_ray)
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
