"""The ways that a run may take, in words: its first line, run.json and its report say which one it took."""

from dataclasses import dataclass

OWN = "clips from the frame cache, the rest decoded by processes of its own"
ACTORS = "actors: monitor, momentum weights, video features"


@dataclass(frozen=True)
class Way:
    """How a run is carried out. The numbers are the same by every way, but for the last bits of sums over ranks."""

    name: str
    """For the first line of a run."""
    means: str
    """What of Ray it uses."""
    why: str
    """Why it is taken."""

    def __str__(self) -> str:
        return f"{self.name}, {self.why} ({self.means})"


IN_PROCESS = Way("in this process", f"no Ray; {OWN}", "as --num-workers 0 asks")
SIDE_BY_SIDE = Way(
    "side by side on Ray",
    f"a plain task each, no trainer; {OWN}; {ACTORS}",
    "as several small runs without a GPU, for which a trainer's start would cost more than it gains",
)
TRIAL = Way("in a trial's process", f"no trainer, no actors; {OWN}", "as a sweep over small towers")


def of_trial(workers: int) -> Way:
    """A sweep's trial, which trains in its own process (0) or on so many Ray workers."""
    return on_workers(workers, "as a sweep over large towers") if workers else TRIAL


def on_workers(workers: int, why: str) -> Way:
    """A TorchTrainer of so many ranks."""
    name = "on 1 Ray worker" if workers == 1 else f"on {workers} Ray workers"
    means = f"TorchTrainer; clips from the frame cache, the rest decoded by Ray Data; {ACTORS}"
    return Way(name, means, why)


def why_workers(runs: int, asked: int | None, resources: bool) -> str:
    """Why so many runs go on workers.

    asked: how many workers the user named, if any. resources: whether each is to have some of its own.
    """
    if asked:
        return f"as --num-workers {asked} asks"
    if runs == 1:
        return "the default of a single run"
    return "as workers with resources of their own are asked for" if resources else "the default where there are GPUs"
