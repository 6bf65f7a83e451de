"""Committed checkpoints: the one truth a run resumes from.

A checkpoint is a folder with safetensors, `state.json` and a manifest of sizes and SHA-256 digests. It is written
beside under a temporary name, synced, and renamed; without a valid manifest it does not exist. The last two are kept,
of a finished run the last. A writer holds the run's fence: whoever took it last may commit, an orphan of an earlier
attempt may not.

Only the first rank's weights are committed, and each rank evaluates with its own: `check_agreement` compares them.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kinoray.errors import CheckpointCorrupt, RunFailed
from kinoray.system.durable import sha256, storage_error, sync, write_text
from kinoray.system.folders import own_file, seed_label
from kinoray.training.distributed import World, gather_objects

FORMAT = 1


class Phase(IntEnum):
    """Where in a stage a run stands."""

    TRAIN = 0
    """Before or inside the task's steps."""
    END_TASK = 1
    """Before `end_task`."""
    EVALUATE = 2
    """After it, before the evaluation."""


@dataclass(frozen=True, order=True)
class Position:
    """Where a run stands: `step` steps of `stage` are done."""

    stage: int = 0
    phase: Phase = Phase.TRAIN
    step: int = 0

    @property
    def name(self) -> str:
        """Folder name; sorts in the order of time."""
        return f"stage-{self.stage:03d}-{self.phase}-step-{self.step:08d}"

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Plain ones, for processes that are to do without this file's imports."""
        return self.stage, int(self.phase), self.step


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint whose files matched their digests."""

    folder: Path
    position: Position
    state: dict[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one file, on the CPU; empty if the checkpoint has no such file."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return {}
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)


def take_fence(folder: Path) -> str:
    """Become the run's only writer; returns the token that `commit` asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    write_text(folder / "fence", token)
    for leftover in folder.glob("*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return token


def commit(
    folder: Path,
    position: Position,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    fence: str,
    log: Path | None = None,
) -> Path:
    """Write one checkpoint: there whole or not at all.

    Args:
        folder: The checkpoints of a run.
        position: Where the run stands.
        tensors: File name -> {key: tensor}.
        state: Plain data beside them.
        fence: The token of `take_fence`.
        log: A file that the checkpoint counts on; it is on the disk before the checkpoint is.

    Raises:
        StorageFull: With the needed and free bytes.
        RunFailed: Another attempt has taken the fence.
    """
    final = folder / position.name
    beside = folder / f"{position.name}.tmp-{fence[:8]}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name, values in tensors.items():
            save_file(_own_memory(values), beside / f"{name}.safetensors")
        (beside / "state.json").write_text(json.dumps(state))
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(beside.iterdir())}
        for file in (*(beside / name for name in files), *([log] if log else [])):
            sync(file)
        manifest = {
            "format": FORMAT,
            "run": seed_label(folder.parent),
            "stage": position.stage,
            "phase": position.phase,
            "step": position.step,
            "files": files,
        }
        write_text(beside / "manifest.json", json.dumps(manifest))
        if (folder / "fence").read_text() != fence:
            raise RunFailed(f"{folder}: another attempt of this run has started; this one stops.")
        shutil.rmtree(final, ignore_errors=True)
        beside.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        needed = sum(v.nbytes for f in tensors.values() for v in f.values())
        raise storage_error(error, folder, f"need about {needed:,} bytes, ") from None
    prune(folder, final, keep=2)
    return final


def has_state(folder: Path) -> bool:
    """Whether a folder of checkpoints holds a committed one, whole or damaged."""
    return bool(committed(folder))


def newest(
    folder: Path, say: Callable[[str], None], check: Callable[[Checkpoint], None] = lambda checkpoint: None
) -> Checkpoint | None:
    """The newest checkpoint whose files all match; damaged ones, and those of other runs, are named and passed over.

    Args:
        folder: The checkpoints of a run.
        say: Takes a line about what was passed over.
        check: What else it has to be: raises CheckpointCorrupt where it is not.

    Raises:
        CheckpointCorrupt: Checkpoints exist and none is whole: nothing is loaded and nothing is overwritten.
    """
    problems = []
    for path in reversed(committed(folder)):
        try:
            checkpoint = verified(path)
            check(checkpoint)
        except CheckpointCorrupt as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(f"CheckpointCorrupt: {problem} Using {path.name} instead.")
        return checkpoint
    if problems:
        raise CheckpointCorrupt(f"{problems[0]} No intact checkpoint is left in {folder}; start over with --fresh.")
    return None


def prune(folder: Path, newest: Path, keep: int) -> None:
    """Remove all but so many checkpoints up to the one just committed, and all behind it: whoever commits there went on
    from an earlier one because those are damaged, and they must not take the place of good ones."""
    there = committed(folder)
    place = there.index(newest) + 1
    for old in (*there[: max(0, place - keep)], *there[place:]):
        shutil.rmtree(old, ignore_errors=True)


def committed(folder: Path) -> list[Path]:
    """Checkpoints that were committed, oldest first."""
    return sorted(path for path in folder.glob("stage-*") if ".tmp-" not in path.name)


def verified(path: Path) -> Checkpoint:
    """A checkpoint of the run that its folder is of, every file checked against the manifest before anything is loaded.

    Raises: CheckpointCorrupt.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        run = _run_of(path.parent)
        if run and (owner := manifest.get("run", run)) != run:  # manifests of before 0.2 name none
            raise CheckpointCorrupt(f"{path.name} belongs to another run, {owner}.")
        position = Position(manifest["stage"], Phase(manifest["phase"]), manifest["step"])
        if position.name != path.name:
            raise CheckpointCorrupt(f"{path.name} holds the manifest of {position.name}: it was renamed.")
        for name, fact in manifest["files"].items():
            file = own_file(path, name)
            size = file.stat().st_size
            if size != fact["bytes"]:
                raise CheckpointCorrupt(f"{path.name}: {name} is {size:,} bytes, manifest says {fact['bytes']:,}.")
            if sha256(file) != fact["sha256"]:
                raise CheckpointCorrupt(f"{path.name}: {name} does not match its SHA-256.")
        if manifest["format"] != FORMAT:
            raise CheckpointCorrupt(f"{path.name} has format {manifest['format']}, but this kinoray reads {FORMAT}.")
        return Checkpoint(path, position, json.loads((path / "state.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointCorrupt(f"{path.name}: {type(error).__name__}: {error}.") from None


def _run_of(folder: Path) -> str:
    """The run that checkpoints are of, by the record beside them, whatever the folders are called by now; "" where that
    is not said."""
    try:
        return json.loads((folder.parent / "run.json").read_text()).get("run", "")
    except (OSError, ValueError, AttributeError):
        return ""


def _own_memory(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, each with memory of its own: one that is in a method twice is written twice."""
    seen: set[int] = set()
    result = {}
    for name, value in values.items():
        value = value.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        result[name] = value.clone() if address in seen else value
        seen.add(address)
    return result


class GivenWeights:
    """Watches which of a new method's weights stay as they were given, those of a frozen CLIP say.

    Made right after the method. A checkpoint does not hold them again.

    They are the parameters that asked for no gradient then and have not been written to since. Whoever builds the
    method again has them again: from the backbone's files, or drawn by the run's seed.
    """

    def __init__(self, method: nn.Module) -> None:
        # The version counts writes in place; the sum sees those that go around it, through `.data`.
        self.before = {
            name: (parameter, parameter._version, bit_sum(parameter))
            for name, parameter in method.named_parameters()
            if not parameter.requires_grad
        }

    def untouched(self) -> set[str]:
        """Names of those that were not written to, as far as their versions tell: quick, and good enough to look at."""
        return {name for name, (given, version, _) in self.before.items() if given._version == version}

    def unchanged(self, method: nn.Module) -> dict[str, int]:
        """Name -> sum of bits of those that are still as they were given."""
        now = dict(method.named_parameters())
        return {
            name: total
            for name, (given, version, total) in self.before.items()
            if now.get(name) is given
            and not given.requires_grad
            and given._version == version
            and bit_sum(given) == total
        }


def load_weights(method: nn.Module, checkpoint: Checkpoint) -> None:
    """Load what a checkpoint holds into a method that was built anew; all else must be what it was given.

    Raises: RuntimeError, as `load_state_dict`, for other names or shapes; CheckpointCorrupt where the method was given
    other weights than then.
    """
    given: dict[str, int] = checkpoint.state.get("given", {})  # as `unchanged` had it
    own: dict[str, Tensor] = method.state_dict()
    missing = [name for name in given if name not in own]
    if missing:
        raise RuntimeError(f"Unexpected key(s):\n\t{missing[0]}, of {len(missing)} weights that the backbone lacks")
    for name, total in given.items():
        if bit_sum(own[name]) != total:
            raise CheckpointCorrupt(
                f"{name} is not the weight that the run began with: its backbone's files have changed. Put them back."
            )
    keys = method.load_state_dict(checkpoint.tensors("method"), strict=False)
    lost = sorted(set(keys.missing_keys) - set(given))
    if lost or keys.unexpected_keys:
        name = (lost or keys.unexpected_keys)[0]
        what = "is in the method and not in the checkpoint" if lost else "is in the checkpoint and not in the method"
        advice = "Make modules and buffers in `__init__` or `grow`, which a resumed run calls, and fill them later."
        raise RuntimeError(f"Weights differ:\n\t{name} {what}. {advice}")


def bit_sum(tensor: Tensor) -> int:
    """The sum of a tensor's 64-bit words, modulo 2^64, and of the bytes behind the last whole word."""
    octets = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(octets) // 8 * 8
    return int(octets[:whole].view(torch.int64).sum()) + int(octets[whole:].sum())


def state_digest(method: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """SHA-256 over all tensors (names, types, shapes, bytes, in name order) and plain facts, clocks excluded."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(method):
        value = method[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digests_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of each tensor by its name."""
    return {name: state_digest({name: value}, {}) for name, value in tensors.items()}


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of those that hold a NaN or an infinity.

    Looks at the smallest and the largest number of each, and a NaN is both: a twelfth of the time that
    `isfinite().all()` takes for large weights on a CPU.
    """
    numbers = {name: value.detach() for name, value in tensors.items() if value.is_floating_point() and value.numel()}
    return [name for name, value in numbers.items() if not torch.stack(torch.aminmax(value)).isfinite().all()]


def check_agreement(state: Mapping[str, Tensor], world: World) -> None:
    """Compare the state over the ranks, by digests; every rank must call it. One process compares nothing.

    Raises: RunFailed naming the first tensor that differs, on every rank.
    """
    if world.size == 1:
        return
    peers = gather_objects(digests_of(state), world)
    names = dict.fromkeys(name for peer in peers for name in peer)
    differ = [name for name in names if len({peer.get(name) for peer in peers}) > 1]
    if not differ:
        return
    rank = next(rank for rank, peer in enumerate(peers) if peer.get(differ[0]) != peers[0].get(differ[0]))
    raise RunFailed(
        f"The workers' weights differ: {differ[0]} is another on rank {rank} than on rank 0 ({len(differ)} of "
        f"{len(names)} tensors differ). This state was not committed. In the method, change state only by values that "
        "are equal on all ranks: those of `batch.gather` or `carry`."
    )
