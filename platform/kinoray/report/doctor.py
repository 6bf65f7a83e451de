"""`kinoray doctor`: what this machine has, what is missing, and what to do about it. Starts nothing."""

import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from kinoray.errors import UsageError
from kinoray.system.folders import cache_folder
from kinoray.system.pool import usable_cores

TESTED = {
    "torch": "2.13",
    "ray": "2.60",
    "transformers": "5.23",
    "av": "18.1",
    "pyarrow": "26.0",
    "pandas": "3.1",
    "pydantic": "2.14",
}
"""Major and minor versions that the tests ran with."""
DECODERS = ("h264", "hevc", "vp9", "av1", "mpeg4")
GIB = 1024**3


class Finding(NamedTuple):
    """One line: `advice` says what to do and is empty where there is nothing to do."""

    what: str
    state: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def examine(runs: str | Path = "runs") -> list[Finding]:
    """Look at everything a run needs.

    Args:
        runs: Where the run folders will lie.
    """
    return [
        _cpu(),
        _memory(),
        _disk("disk, runs", Path(runs)),
        _cache(),
        *_earlier_frames(),
        _shared_memory(),
        *_versions(),
        _gpu(),
        _torchvision(),
        _codecs(),
        _ray_cluster(),
        _vit_bert_weights(),
    ]


def _cpu() -> Finding:
    cores = usable_cores()
    advice = "" if cores > 1 else "Use --num-workers 0: one process trains and decodes."
    return Finding("cpu", "ok" if cores > 1 else "warn", f"{cores} of {os.cpu_count()} cores usable", advice)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    few = memory.available < 3 * GIB
    advice = "Close other programs, or use --num-workers 0: Ray and a worker take about 3 GiB." if few else ""
    free = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    return Finding("memory", "warn" if few else "ok", free, advice)


def _disk(what: str, folder: Path) -> Finding:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    space = f"{free / GIB:.1f} GiB free in {folder}"
    if not os.access(existing, os.W_OK):
        return Finding(
            what, "fail", f"{folder} cannot be written", f"Make {existing} writable or choose another folder."
        )
    if free < GIB:
        return Finding(what, "fail" if free < GIB / 5 else "warn", space, "Free some: a run takes up to 1 GiB.")
    return Finding(what, "ok", space)


def _cache() -> Finding:
    try:
        return _disk("disk, cache", cache_folder().parent)
    except UsageError as error:
        return Finding("disk, cache", "fail", *str(error).split(". "))


def _earlier_frames() -> Iterator[Finding]:
    """Decoded clips of earlier versions, which this one does not read."""
    from kinoray.decoding.frame_cache import EARLIER, frame_cache

    try:
        folder = frame_cache().folder
        sizes = [path.stat().st_size for path in Path(folder).glob(f"??/{'?' * 32}.{EARLIER}")] if folder else []
    except (OSError, UsageError):  # a file that goes meanwhile; `_cache` tells of what is wrong with the folder
        return
    if sizes:
        found = f"{len(sizes)} clips of an earlier version, {sum(sizes) / GIB:.2f} GiB in {folder}"
        line = f"find {shlex.quote(folder)} -mindepth 2 -maxdepth 2 -regex '.*/[0-9a-f]*\\.{EARLIER}' -delete"
        advice = f"They go when room is needed, or at once: {line}"
        yield Finding("frame cache", "warn", found, advice)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("shared memory", "warn", "there is no /dev/shm", "Ray will use /tmp, which is slower.")
    size = shutil.disk_usage(place)
    few = size.free < GIB
    advice = "Ray's object store falls back to /tmp. In a container: --shm-size=2g." if few else ""
    return Finding("shared memory", "warn" if few else "ok", f"{size.free / GIB:.1f} GiB free in /dev/shm", advice)


def _versions() -> Iterator[Finding]:
    for package, tested in TESTED.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            yield Finding(package, "fail", "not installed", f"pip install '{package}=={tested}.*'")
            continue
        same = installed.split(".")[:2] == tested.split(".")
        advice = "" if same else f"Tested with {tested}; constraints.txt has the exact versions."
        yield Finding(package, "ok" if same else "warn", installed, advice)


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("gpu", "ok", "none; training runs on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("gpu", "ok", f"{', '.join(names)} (CUDA {torch.version.cuda})")


def _torchvision() -> Finding:
    try:
        from kinoray.backbones.vision import torchvision_state

        return Finding("torchvision", "ok", torchvision_state())
    except (ImportError, RuntimeError) as error:
        return Finding("torchvision", "fail", str(error), "Install the torchvision that belongs to this torch.")


def _codecs() -> Finding:
    import av

    missing = [name for name in DECODERS if name not in av.codecs_available]
    if "libx264" not in av.codecs_available:
        return Finding("ffmpeg", "fail", "PyAV without libx264", "pip install --force-reinstall av: wheels have it.")
    library = ".".join(map(str, av.library_versions["libavcodec"]))
    if missing:
        return Finding(
            "ffmpeg", "warn", f"libavcodec {library} without {', '.join(missing)}", "Such videos count as bad."
        )
    return Finding("ffmpeg", "ok", f"libavcodec {library}: {', '.join(DECODERS)}; writes h264")


def _ray_cluster() -> Finding:
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").removeprefix("http://").rpartition(":")
    if not address or not port.isdigit():
        return Finding("ray cluster", "ok", "RAY_ADDRESS is not set; a run starts a Ray of its own")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        advice = "Start the cluster or unset it."
        return Finding("ray cluster", "fail", f"RAY_ADDRESS={address} does not answer", advice)
    return Finding("ray cluster", "ok", f"{address} answers")


def _vit_bert_weights() -> Finding:
    from huggingface_hub import try_to_load_from_cache

    from kinoray.backbones.vit_bert import BERT_HUB_ID, VIT_HUB_ID

    missing = [
        name for name in (VIT_HUB_ID, BERT_HUB_ID) if not isinstance(try_to_load_from_cache(name, "config.json"), str)
    ]
    if not missing:
        return Finding("vit-bert", "ok", f"{VIT_HUB_ID} and {BERT_HUB_ID} are in the hub's cache")
    advice = "Only --backbone vit-bert needs it: set HF_HOME, or use vit-bert:FOLDER."
    return Finding("vit-bert", "ok", f"{' and '.join(missing)} not in the hub's cache", advice)
