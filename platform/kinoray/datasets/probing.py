"""Every file of a data set read once, side by side: in Ray tasks, or in processes of this one's own.

What was found is kept in a journal, a JSON line per file and span, appended and never changed. A line counts for the
version of the file that it names by size and time of change. A process may die at any byte: a line without its end is
dropped, and cut off before the next is written.
"""

import errno
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kinoray.data.manifest import PROBED
from kinoray.decoding.clip import Clip
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.video import Limits
from kinoray.errors import RunFailed, VideoError
from kinoray.system import pool
from kinoray.system.durable import append_whole
from kinoray.system.pool import BrokenProcessPool, done_of, ends_without_memory, in_pool, one_process, usable_cores
from kinoray.system.signals import noted_signals
from kinoray.system.stand_ins import fetched

BATCH_FILES, BATCH_BYTES = 32, 16 << 20
"""Of one Ray task at most: starting a task costs about as much as probing a picture."""
AHEAD = 2
"""Tasks that wait in line behind those that run."""
ATTEMPTS = 2
"""How often a file is tried alone after its task died; the second death is taken for its fault."""
POLL_S = 0.5
STUCK_S = 1800.0
"""Without any answer for so long, Ray has no free CPU or a file hangs."""
LONGER = 4
"""Times the wait for decoding: all of a file is read here, and of a large one from slow storage that takes hours."""
LIMITS = Limits(cpu_s=900.0)
"""As in training but for the time: probing decodes all of a clip, training a part."""
LOOKS, LOOKS_IN_LINE = 16, 1000
"""Files looked at side by side, for on a network each answer takes a while; and in one go, for a pool keeps a kilobyte
for each."""
SIDEWAYS = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""

CHANGED = "the file changed while it was read"
KILLED = "reading it ended its process"
CLOSED = {
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
    errno.ELOOP: "its links lead in a circle",
}
"""What is wrong with one file where opening it fails so, and nothing with the storage."""

FILE = "probed-3.jsonl"
"""The number changes with what probing finds, so that old findings are not taken for new ones."""

Finding = dict[str, Any]
"""The columns `PROBED` of a manifest, or {"stage", "error"} where the clip cannot be read."""


class Part(NamedTuple):
    """One version of a file, or of a span of it (seconds): what is probed once."""

    uri: str
    start: float | None
    end: float | None
    size: int
    mtime_ns: int


class Journal:
    """The findings in `folder`; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.findings: dict[Part, Finding] = {}
        self._whole_bytes = 0
        if self.path.exists():
            with open(self.path, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        self._whole_bytes += len(line)
                        self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            *key, finding = json.loads(line)
            self.findings[Part(*key)] = dict(finding)
        except (ValueError, TypeError):  # damaged by something else than a death; the file is probed again
            return

    def append(self, findings: Mapping[Part, Finding]) -> None:
        """Keep findings: on return they outlive this process. What could not be written whole leaves no trace."""
        lines = [
            json.dumps([*part, finding], separators=(",", ":")).encode() + b"\n" for part, finding in findings.items()
        ]
        data = b"".join(lines)
        with open(self.path, "ab", buffering=0) as file:
            os.ftruncate(file.fileno(), self._whole_bytes)
            append_whole(file, data)
        self._whole_bytes += len(data)
        for line in lines:  # what a later process would read
            self._take(line)


Task = Callable[[Sequence[Part], str], list[Finding]]
Seen = TypeVar("Seen")


def looked_at(look: Callable[[str], Seen], uris: Sequence[str]) -> Iterator[tuple[str, Seen]]:
    """Each of some files with what a look at it gives, in their order."""
    with ThreadPoolExecutor(LOOKS) as threads:
        for first in range(0, len(uris), LOOKS_IN_LINE):
            lot = uris[first : first + LOOKS_IN_LINE]
            yield from zip(lot, threads.map(look, lot), strict=True)


def version_of(path: str) -> tuple[int, int]:
    """Bytes and time of change; zeros for a file that cannot be looked up."""
    try:
        state = os.stat(path)
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def lasts(finding: Finding) -> bool:
    """Whether a finding depends on the file alone, not on the machine's load or on what else happened to it."""
    return finding.get("stage") != "limits" and finding.get("error") not in (CHANGED, KILLED, *CLOSED.values())


def probe_parts(
    parts: Sequence[Part], root: str, workers: int | None = None
) -> Generator[list[tuple[Part, Finding]], None, None]:
    """Probe all parts; a few findings at a time, in no order.

    workers: tasks at once on Ray (None: one for each of its CPUs), 0: processes of this one's own, without Ray.
    Raises: UnreadableStorage where reading failed and the file is not at fault; RunFailed where Ray does not answer.
    """
    if workers == 0:
        yield from _in_processes(parts, root, probe_batch)
    elif parts:
        yield from _on_ray(parts, root, workers)


def check_parts(parts: Sequence[Part], root: str) -> Iterator[list[tuple[Part, Finding]]]:
    """As `probe_parts` in processes of this one's own, in half the time: no key frames are looked for."""
    yield from _in_processes(parts, root, partial(probe_batch, proves=False))


def probe_part(part: Part, root: str, proves: bool = True) -> Finding:
    """What one file or span holds; an error record where it cannot be read. proves: as of `probe_clip`."""
    try:
        path = _inside(root, part.uri)
        _check_open(path)
        probed = probe_clip_or_picture(Clip(part.uri, path, part.start, part.end), proves)
    except VideoError as error:
        return {"stage": error.stage, "error": str(error)}
    except FileNotFoundError:
        return {"stage": "open", "error": CHANGED}
    if version_of(path) != (part.size, part.mtime_ns):
        return {"stage": "open", "error": CHANGED}
    return {name: probed.get(name) for name in PROBED.names}


def _check_open(path: str) -> None:
    """Raises: VideoError for a file that nobody may open. A run stops there, for the file was readable before."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno in CLOSED:
            raise VideoError("open", CLOSED[error.errno]) from error


def probe_clip_or_picture(clip: Clip, proves: bool = True) -> dict[str, Any]:
    """Columns of `PROBED` by name. Raises: VideoError, UnreadableStorage."""
    from kinoray.decoding.pictures import media_of
    from kinoray.decoding.probe import probe_clip

    match media_of(clip):
        case "picture":
            return _probe_picture(clip)
        case "vectors":
            return _probe_vectors(clip)
    return probe_clip(clip, LIMITS, proves=proves)


@ends_without_memory
def probe_batch(parts: Sequence[Part], root: str, proves: bool = True) -> list[Finding]:
    """What a Ray task does."""
    return [probe_part(part, root, proves) for part in parts]


def _inside(root: str, uri: str) -> str:
    """The real path of a file. Raises: VideoError where it is not under the root."""
    real_root = os.path.realpath(root).rstrip(os.sep) + os.sep
    path = os.path.realpath(real_root + uri)
    if not path.startswith(real_root):
        raise VideoError("open", "the path leaves the data folder through a symbolic link")
    return path


def _probe_picture(clip: Clip) -> dict[str, Any]:
    """A picture is read as training reads it, so that both find the same pictures unreadable."""
    from PIL import Image

    from kinoray.decoding.pictures import FORMATS, decode_picture, orientation
    from kinoray.decoding.probe import file_digest

    decode_picture(clip, FrameForm(32))
    with fetched(clip.path) as path, Image.open(path, formats=FORMATS) as image:
        codec = str(image.format).lower()
        width, height = image.size[::-1] if orientation(image) in SIDEWAYS else image.size
    size = {"width_px": width, "height_px": height}
    return {"digest": file_digest(clip.path), "num_frames": 1, "key_frames": [], "key_ticks": [], "codec": codec} | size


def _probe_vectors(clip: Clip) -> dict[str, Any]:
    """A file of vectors is read as training reads it; its codec is said to be "vectors"."""
    from kinoray.decoding.pictures import read_vectors
    from kinoray.decoding.probe import file_digest

    count = len(read_vectors(clip))
    facts = {"digest": file_digest(clip.path), "num_frames": count, "duration_s": float(count), "codec": "vectors"}
    return facts | {"key_frames": [], "key_ticks": []}


def _in_processes(parts: Sequence[Part], root: str, task: Task) -> Iterator[list[tuple[Part, Finding]]]:
    """A process that dies takes the others along, so what was in flight then is read one by one."""
    processes = usable_cores()
    waiting, running = deque(_batches(parts, processes)), dict[Future[list[Finding]], list[Part]]()
    try:
        while waiting or running:
            while waiting and len(running) < processes + AHEAD:
                batch = waiting.popleft()
                running[in_pool(processes, task, batch, root)] = batch
            died: list[Part] = []
            for future in _done_of(running):
                batch = running.pop(future)
                try:
                    yield list(zip(batch, future.result(), strict=True))
                except BrokenProcessPool:
                    died += batch
            for part in died:
                yield [(part, _probe_alone(part, root, task))]
    finally:
        for future in running:
            future.cancel()


def _probe_alone(part: Part, root: str, task: Task) -> Finding:
    """What a file holds, read where its process's death is its own."""
    for _ in range(ATTEMPTS):
        process = one_process(task)
        try:
            (future,) = _done_of({process.submit(task, [part], root): [part]})
            return future.result()[0]
        except BrokenProcessPool:
            continue
        finally:
            process.shutdown(kill_workers=True)
    return {"stage": "decode", "error": KILLED}


def _done_of(running: dict[Future[list[Finding]], list[Part]]) -> set[Future[list[Finding]]]:
    """Reads that are done. Raises: RunFailed where all are held up for good."""
    if not (done := done_of(running, LONGER)):
        raise RunFailed(
            f"Reading {next(iter(running.values()))[0].uri} or a file near it has taken over "
            f"{LONGER * pool.GIVES_UP_S / 60:g} minutes. Check that the storage is reachable, then run the same "
            "command again."
        )
    return done


def _batches(parts: Sequence[Part], slots: int) -> Iterator[list[Part]]:
    """Parts in order, in lots that are small enough to keep all slots busy to the end."""
    max_files = min(BATCH_FILES, 1 + len(parts) // (8 * slots))
    batch: list[Part] = []
    for part in parts:
        if batch and (len(batch) == max_files or sum(other.size for other in batch) + part.size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _on_ray(parts: Sequence[Part], root: str, workers: int | None) -> Iterator[list[tuple[Part, Finding]]]:
    """Bounded in flight. A task whose process dies is split, so that the file at fault is found."""
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

    from kinoray.system.ray_session import num_cpus, ray_session

    with noted_signals() as noted, ray_session("data prepare"):
        slots = workers or max(1, int(num_cpus()))
        task = ray.remote(probe_batch).options(num_cpus=1, max_retries=0)
        waiting, running = deque(_batches(parts, slots)), dict[Any, list[Part]]()
        deaths: Counter[Part] = Counter()
        answered_at = time.monotonic()
        try:
            while (waiting or running) and not noted:
                while waiting and len(running) < slots + AHEAD:
                    batch = waiting.popleft()
                    running[task.remote(batch, root)] = batch
                done, _ = ray.wait(list(running), timeout=POLL_S)
                if not done and time.monotonic() - answered_at < STUCK_S:
                    continue
                if not done:
                    first = next(iter(running.values()))[0].uri
                    raise RunFailed(
                        f"No answer from Ray for {STUCK_S:g} s while {first} was being read. Free CPUs of the cluster, "
                        "or use --workers 0; what was checked is kept."
                    )
                batch, answered_at = running.pop(done[0]), time.monotonic()
                try:
                    findings = ray.get(done[0])
                except RayTaskError as error:
                    raise error.cause from None
                except (WorkerCrashedError, OutOfMemoryError, NodeDiedError):
                    deaths.update(batch if len(batch) == 1 else ())
                    if deaths[batch[0]] < ATTEMPTS:
                        waiting.extend([part] for part in batch)
                        continue
                    findings = [{"stage": "decode", "error": KILLED}]
                _check_seen(batch, findings, root)
                yield list(zip(batch, findings, strict=True))
        finally:
            for ref in running:
                ray.cancel(ref, force=True)


def _check_seen(batch: Sequence[Part], findings: Sequence[Finding], root: str) -> None:
    """Stop where another machine of the cluster does not see the files that this one sees."""
    for part, finding in zip(batch, findings, strict=True):
        unseen = finding.get("error") in (CHANGED, "the file is missing")
        path = os.path.join(root, part.uri)
        if unseen and os.path.exists(path) and version_of(path) == (part.size, part.mtime_ns):
            raise RunFailed(
                f"{part.uri} is in {root} here but not where Ray read it. Put the data on a folder that all machines "
                "share, or use --workers 0; what was checked is kept."
            )
