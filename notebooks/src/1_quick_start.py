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
