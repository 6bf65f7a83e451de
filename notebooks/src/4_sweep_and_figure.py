# %% [markdown]
# # A sweep, and the paper's figure
#
# Optuna chooses settings, Ray Tune runs them, the validation splits judge. Trials that fall behind are given up at
# the ends of tasks; the test splits are looked at once, for the winner.

# %%
import kinoray

space = {"m_hat": {"choices": [0.9, 0.99, 1.0]}}
sweep = kinoray.sweep("bmu_moco", space=space, sampler="grid", smoke=True, quiet=True)
sweep

# %%
sweep.frame[["trial", "state", "m_hat", "HM"]].round(2)

# %%
sweep.best

# %% [markdown]
# A figure of the paper by its name (`kinoray reproduce` lists them), with two steps a task and one seed: it shows
# that the command works and nothing else. What it needs is run, what is there is used again.

# %%
figure = kinoray.reproduce("bmu-fig1", stream="moving-cvlm", seeds=1, smoke=True, quiet=True)
figure.plot()

# %%
print(figure.verdict)
