"""Shared prefixes: the state at the end of a task, stored once for all runs that agree so far (`lineage.prefix_key`).

A run publishes what it has committed; a later run that would learn the same tasks in the same way adopts it and goes on
from there, bitwise equal to having learned them itself. A prefix is a folder with one checkpoint, the features it
names, the log up to there and the digests of all these; it is there whole or not at all, and never changes. Files are
hard-linked where the file system can, as nothing that links them writes into them.

    keys = [prefix_key(run, threads, stages) for stages in (1, 2, 3)]
    stages = best_prefix(keys)                              # the longest that is there
    if stages: adopt(run.folder, keys[stages - 1])          # before the run starts; the run resumes from it
    with producing(keys[stages]) as is_producer: ...        # one process learns a task, others wait (`wait_for`)
    publish(run.folder, stages, keys[stages - 1])           # after each stage

KINORAY_PREFIX_BYTES bounds their size (20 GB, or a tenth of the free disk where that is less); the longest unused go.
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from kinoray.config import digest_of
from kinoray.disk.durable import sha256, sync, whole_file, write_text
from kinoray.disk.folders import cache_folder, own_file
from kinoray.disk.lease import is_leased, lease
from kinoray.disk.locks import wait_for_lock
from kinoray.errors import CheckpointCorrupt, UsageError
from kinoray.lineage.prefix_key import made_under, prefix_key
from kinoray.training.checkpoint import FORMAT as CHECKPOINT_FORMAT
from kinoray.training.checkpoint import Position

__all__ = ["adopt", "best_prefix", "prefix_key", "producing", "publish", "wait_for"]

FORMAT = 1
MOST_BYTES, FREE_SHARE = 20_000_000_000, 0.1
DRAFT_S = 3600.0
"""A draft so old has lost its writer."""
LOGS = ("metrics.jsonl", "bad_samples.jsonl")
ADOPTED = ("adopted_s", "adopted_train_s", "adopted_steps")
EXTENDED = "extended.json"
"""In the folder of a run that `kinoray extend` began: its first tasks may be older than the code."""

log = logging.getLogger(__name__)


def prefixes_folder() -> Path:
    """Where prefixes lie, one folder each, named by their keys."""
    return cache_folder() / "prefixes"


def best_prefix(keys: Sequence[str]) -> int:
    """How many first tasks the longest prefix covers that is there; keys: of 1, 2, ... tasks (`prefix_key`)."""
    return next((stages for stages in range(len(keys), 0, -1) if is_there(keys[stages - 1])), 0)


def is_there(key: str) -> bool:
    """Whether a prefix is published."""
    return (prefixes_folder() / key).is_dir()


def producing(key: str) -> AbstractContextManager[bool]:
    """Hold the lease on a prefix while learning it; enters with False where another process has it."""
    return lease(prefixes_folder() / "leases" / key)


def wait_for(key: str, timeout_s: float) -> bool:
    """Wait while another process learns a prefix; whether it is there. At most `timeout_s` seconds."""
    end = time.monotonic() + timeout_s
    while not is_there(key) and is_leased(prefixes_folder() / "leases" / key) and time.monotonic() < end:
        time.sleep(0.1)
    return is_there(key)


# Publish and adopt


def publish(run_folder: str | Path, stages: int, key: str) -> bool:
    """Store a run's state after `stages` tasks under its key, while the run still has that checkpoint.

    Returns: whether the prefix is there now. False where the run has been started under other code, versions or
    threads than the key says, where its files do not match their digests, and where there is no room.
    """
    run_folder, home = Path(run_folder), prefixes_folder() / key
    if home.is_dir():
        return True
    record = json.loads((run_folder / "run.json").read_text())
    if (run_folder / EXTENDED).exists() or not made_under(record, key):
        log.warning("Prefix not shared: %s has tasks that other code, versions or threads learned.", run_folder)
        return False
    draft = prefixes_folder() / f"draft-{uuid.uuid4().hex}"
    try:
        size = collect(run_folder, stages, draft)
        with wait_for_lock(prefixes_folder()):
            if not _make_room(size):
                log.warning("A prefix of %d bytes exceeds KINORAY_PREFIX_BYTES; it is not shared.", size)
                return False
            if not home.exists():
                draft.rename(home)
                sync(prefixes_folder())
    except (OSError, CheckpointCorrupt) as error:
        log.warning("Prefix not shared: %s", error)
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def adopt(run_folder: str | Path, key: str) -> bool:
    """Put a prefix into a run folder that has no state of its own; the run then resumes from there.

    What the adopted tasks cost those who learned them stands in the result, apart from the run's own: `adopted_s`
    seconds without their starts, of which `adopted_train_s` are the `adopted_steps` optimizer steps. A damaged prefix
    is refused and removed. Returns: whether it was adopted; the caller holds the run's lock.
    """
    home = prefixes_folder() / key
    if has_state(run_folder) or not home.is_dir():
        return False
    try:
        check(home)
        os.utime(home)
        unpack(home, Path(run_folder))
    except CheckpointCorrupt as error:
        log.warning("Prefix removed: %s", error)
        with wait_for_lock(prefixes_folder()):
            _remove(home)
        return False
    except OSError as error:  # somebody removed it meanwhile, or the disk is full, which the run will say better
        log.warning("Prefix not adopted: %s", error)
        return False
    return True


def has_state(run_folder: str | Path) -> bool:
    """Whether a run folder has a committed checkpoint, sound or not."""
    return any(".tmp-" not in path.name for path in Path(run_folder).glob("checkpoints/stage-*"))


def stages_begun(run_folder: str | Path) -> int:
    """How many tasks were learned when a run made its newest checkpoint; 0 where it has none."""
    names = (path.name.split("-") for path in Path(run_folder).glob("checkpoints/stage-*") if ".tmp-" not in path.name)
    return max((int(parts[1]) for parts in names), default=0)


def has_stage(run_folder: str | Path, stages: int) -> bool:
    """Whether a run still has its checkpoint right after so many tasks."""
    return (Path(run_folder) / "checkpoints" / Position(stages).name).is_dir()


def collect(run_folder: Path, stages: int, draft: Path) -> int:
    """Make a prefix of a run's committed checkpoint after `stages` tasks; returns its bytes.

    Raises: OSError where the run no longer has it; CheckpointCorrupt where a file is not what was committed.
    """
    source = run_folder / "checkpoints" / Position(stages).name
    try:
        manifest = json.loads((source / "manifest.json").read_text())
        expected = {f"checkpoint/{name}": fact["sha256"] for name, fact in manifest["files"].items()}
        for name in ("manifest.json", *manifest["files"]):
            _link(own_file(source, name), draft / "checkpoint" / name)
        state = json.loads((draft / "checkpoint" / "state.json").read_text())
        for fact in state["tested"]["features"].values():
            expected[f"features/{fact['file']}"] = fact["sha256"]
            _link(own_file(run_folder / "features", fact["file"]), draft / "features" / fact["file"])
        names = json.loads((run_folder / "run.json").read_text())["tasks"][:stages]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{source}: {type(error).__name__}: {error}.") from None
    for name, known in zip(LOGS, (range(stages), names), strict=True):
        write_text(draft / name, "".join(line for line, record in _lines(run_folder / name) if record["task"] in known))
    files = _facts(draft)
    for name, digest in expected.items():
        if files[name]["sha256"] != digest:
            raise CheckpointCorrupt(f"{source.name}: {name} is not what was committed.")
    body = {"format": FORMAT, "stages": stages, "files": files}
    write_text(draft / "prefix.json", json.dumps(body | {"digest": digest_of(body)}))
    for folder in (draft, *(path for path in draft.iterdir() if path.is_dir())):
        sync(folder)
    return sum(fact["bytes"] for fact in files.values())


def check(home: Path) -> None:
    """Compare every file of a prefix with its digest. Raises: CheckpointCorrupt."""
    try:
        body = json.loads((home / "prefix.json").read_text())
        digest = body.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointCorrupt(f"{home.name}: {type(error).__name__}: {error}.") from None
    if digest != digest_of(body) or body["format"] != FORMAT:
        raise CheckpointCorrupt(f"{home.name}: prefix.json is damaged or of another version.")
    if _facts(home) != body["files"]:
        raise CheckpointCorrupt(f"{home.name}: its files do not match their digests.")


def unpack(home: Path, run_folder: Path) -> None:
    """Put a checked prefix into a run folder; the checkpoint comes last, and without it the rest means nothing."""
    stages = json.loads((home / "prefix.json").read_text())["stages"]
    for feature in sorted(home.glob("features/*")):
        _link(feature, run_folder / "features" / feature.name)
    for name in LOGS:
        if (home / name).stat().st_size:
            write_text(run_folder / name, (home / name).read_text())
    final = run_folder / "checkpoints" / Position(stages).name
    draft = final.with_name(f"{final.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        for path in home.glob("checkpoint/*.safetensors"):
            _link(path, draft / path.name)
        state = json.loads((home / "checkpoint" / "state.json").read_text())
        steps = sum("loss" in record for _, record in _lines(home / LOGS[0]))
        cost = {name: state["cost"].get(name, 0.0) for name in ("wall_s", "start_s", "train_s", *ADOPTED)}
        spent = cost["adopted_s"] + cost["wall_s"] - cost["start_s"]
        trained = cost["adopted_train_s"] + cost["train_s"]
        state["cost"] = dict(zip(ADOPTED, (spent, trained, steps), strict=True))
        write_text(draft / "state.json", json.dumps(state))
        place = {"format": CHECKPOINT_FORMAT, "stage": stages, "phase": 0, "step": 0}
        write_text(draft / "manifest.json", json.dumps(place | {"files": _facts(draft)}))
        sync(draft)
        draft.rename(final)
        sync(final.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# Room


def bytes_asked_for() -> int | None:
    """KINORAY_PREFIX_BYTES, None where it is not set. Raises: UsageError where it is no whole number."""
    text = os.environ.get("KINORAY_PREFIX_BYTES", "")
    if text and not text.isdecimal():
        raise UsageError(f"KINORAY_PREFIX_BYTES={text}: give the bound of shared prefixes as a whole number of bytes.")
    return int(text) if text else None


def _bound() -> int:
    """Bytes that all prefixes may take."""
    asked = bytes_asked_for()
    return min(MOST_BYTES, int(FREE_SHARE * shutil.disk_usage(prefixes_folder()).free)) if asked is None else asked


def _make_room(size: int) -> bool:
    """Remove what was not used for longest until `size` more bytes fit; the caller is alone here."""
    bound, now = _bound(), time.time()
    if size > bound:
        return False
    prefixes = []
    for path in prefixes_folder().iterdir():
        with suppress(FileNotFoundError):
            if path.name.startswith(("draft-", "gone-")):
                if now - path.stat().st_mtime > DRAFT_S:
                    shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir() and path.name != "leases":
                num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                prefixes.append((path.stat().st_mtime_ns, num_bytes, path))
    total = sum(num_bytes for _, num_bytes, _ in prefixes)
    for _, num_bytes, path in sorted(prefixes):
        if total + size <= bound:
            break
        _remove(path)
        total -= num_bytes
    return True


def _remove(home: Path) -> None:
    """Gone at once for those who look for it, then from the disk."""
    gone = home.with_name(f"gone-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        home.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# Files


def _facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file below a folder but prefix.json, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "prefix.json")
    return {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in files}


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The whole lines of a JSONL file as records; none where there is no file."""
    if not path.exists():
        return []
    return [(line, json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _link(source: Path, target: Path) -> None:
    """The same file at a second place: a hard link, or a copy where links cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as draft:
        try:
            os.link(source, draft)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, draft)
