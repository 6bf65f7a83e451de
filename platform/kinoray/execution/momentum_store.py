"""The cross-task momentum weights, published by a run as an actor."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.errors import KinorayError
from kinoray.processes.actors import call, find_actors

if TYPE_CHECKING:  # its actor begins beside the ranks
    import numpy as np


class MomentumStore:
    """The last two published versions of the cross-task weights, as NumPy arrays behind object refs.

    A version is a position (stage, phase, step). A restarted actor publishes the newest committed checkpoint again.
    """

    def __init__(self, checkpoints: str) -> None:
        self.versions: dict[tuple[int, ...], Any] = {}
        if not any(Path(checkpoints).glob("*")):  # a run that begins: its start does without torch here
            return
        from kinoray.training.checkpoint import newest

        checkpoint = newest(Path(checkpoints), say=lambda text: None)
        if checkpoint and checkpoint.state["published"]:
            tensors = checkpoint.tensors("method")
            weights = {name: tensors[name].numpy() for name in checkpoint.state["published"]}
            self.publish(checkpoint.position.numbers, weights)

    def publish(self, version: tuple[int, ...], arrays: "dict[str, np.ndarray]") -> bool:
        """Add a version; False if the newest is as new (a repeated call)."""
        if self.versions and version <= max(self.versions):
            return False
        import ray

        self.versions[version] = ray.put(arrays)
        for old in sorted(self.versions)[:-2]:
            del self.versions[old]
        return True

    def fetch(self, newer_than: tuple[int, ...] = ()) -> dict[str, Any] | None:
        """{"version", "ref": [ref]} of the newest weights, or None when nothing newer is there."""
        if not self.versions or max(self.versions) <= tuple(newer_than):
            return None
        version = max(self.versions)
        return {"version": version, "ref": [self.versions[version]]}


def momentum_weights(run: str, newer_than: tuple[int, ...] = ()) -> tuple[tuple[int, ...], Any] | None:
    """Newest published cross-task weights of a run in progress: (version, {name: read-only array}), or None.

    `run` is "<run folder>/seed-<n>". Raises: KinorayError if no such run, or several in other folders, are alive in
    this Ray.
    """
    actors = find_actors("momentum", run)
    if len(actors) != 1:
        many = f"{len(actors)} runs {run!r} are" if actors else f"No run {run!r} is"
        raise KinorayError(f"{many} alive in this Ray; read its checkpoints instead.")
    (actor,) = actors
    newer = call(actor, "fetch", newer_than)
    import ray

    return None if newer is None else (newer["version"], ray.get(newer["ref"][0]))
