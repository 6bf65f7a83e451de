"""The cross-task momentum weights of a run: an actor while the run is on, its newest commit at any time.

The actor also feeds what watches the run: with `--watch` it holds the method's other weights of the same moment, too.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinoray.errors import KinorayError
from kinoray.system.actors import call, find_actors

if TYPE_CHECKING:  # its actor begins beside the ranks
    import numpy as np

    from kinoray.runs.result import Result

    Arrays = dict[str, np.ndarray]
Version = tuple[int, ...]


class MomentumStore:
    """The last two published versions of the cross-task weights, as NumPy arrays behind object refs.

    A version is a position (stage, phase, step). A restarted actor publishes the newest committed checkpoint again.
    """

    def __init__(self, checkpoints: str) -> None:
        self.versions: dict[Version, tuple[Any, ...]] = {}
        if any(Path(checkpoints).glob("*")) and (committed := committed_weights(Path(checkpoints))):
            self.publish(*committed)

    def publish(self, version: Version, arrays: "Arrays", others: "Arrays | None" = None) -> bool:
        """Add a version; False if the newest is as new (a repeated call).

        Args:
            version: Position in the run.
            arrays: The weights that cross tasks.
            others: What else the method holds then, for who watches the run.
        """
        if self.versions and version <= max(self.versions):
            return False
        import ray

        self.versions[version] = tuple(ray.put(part) for part in (arrays, others) if part is not None)
        for old in sorted(self.versions)[:-2]:
            del self.versions[old]
        return True

    def rewind(self, version: Version) -> None:
        """Drop versions behind a checkpoint, from which the ranks go on: those steps will be made again."""
        self.versions = {known: refs for known, refs in self.versions.items() if known <= version}

    def fetch(self, newer_than: Version = (), whole: bool = False) -> dict[str, Any] | None:
        """{"version", "ref": [refs]} of the newest weights, or None when nothing newer is there.

        whole: of a version with all of the method, in two parts; else of any, in one.
        """
        there = [known for known, refs in self.versions.items() if len(refs) > whole]
        if not there or max(there) <= tuple(newer_than):
            return None
        version = max(there)
        return {"version": version, "ref": list(self.versions[version][: 1 + whole])}


def committed_weights(checkpoints: Path) -> "tuple[Version, Arrays] | None":
    """The cross-task weights of the newest commit and its position, None where there is none."""
    from kinoray.training.checkpoint import newest

    checkpoint = newest(checkpoints, say=logging.getLogger(__name__).warning)
    if not checkpoint or not checkpoint.state["published"]:
        return None
    tensors = checkpoint.tensors("method")
    return checkpoint.position.numbers, {name: tensors[name].numpy() for name in checkpoint.state["published"]}


def momentum_weights(run: "str | Path | Result", newer_than: Version = ()) -> "tuple[Version, Arrays] | None":
    """Newest cross-task weights of a run.

    A run in progress in the Ray that this program is connected to is asked through its actor; else its newest commit is
    read.

    Args:
        run: Folder, name, `kinoray.load` of it, or "RUN/seed-N" of one in progress.
        newer_than: The version that is known already.

    Returns:
        The version and {name: read-only array}, or None where nothing is newer.

    Raises:
        UsageError: There is no such run, or it has several seeds.
        KinorayError: Runs of this name in several folders are in progress.
    """
    from kinoray.execution.feature_store import live_actor, one_seed

    actors = find_actors("momentum", run) if isinstance(run, str) else []
    if len(actors) > 1:
        raise KinorayError(f"{len(actors)} runs named {run!r} are active in this Ray cluster; name the folder of one.")
    actor = actors[0] if actors else live_actor("momentum", one_seed(run))
    if actor is not None:
        import ray

        try:
            newer = call(actor, "fetch", newer_than)
            return None if newer is None else (newer["version"], ray.get(newer["ref"][0]))
        except ray.exceptions.RayActorError:
            pass  # the run has just ended
        except SystemExit as end:  # so has it where the actor was killed within the call, and Ray exits with 0
            if end.code:
                raise
    committed = committed_weights(one_seed(run).folder / "checkpoints")
    return committed if committed and committed[0] > tuple(newer_than) else None
