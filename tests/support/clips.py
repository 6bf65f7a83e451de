"""Tiny real videos for tests, archives of files, and a read that no process survives."""

import io
import os
import signal
import tarfile
from pathlib import Path

import av
import numpy as np


def write_clip(path: Path, frames: np.ndarray, fps: int = 10, codec: str = "libx264") -> Path:
    """Write uint8 frames (T, H, W, 3) as a video; the ending names the container."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def grey_ramp(num_frames: int, size_px: int = 32, step: int = 10) -> np.ndarray:
    """Frames (T, size, size, 3) of one grey value each: frame i has the value 20 + step * i."""
    values = (20 + step * np.arange(num_frames)).astype(np.uint8)
    return np.broadcast_to(values[:, None, None, None], (num_frames, size_px, size_px, 3)).copy()


def tar_of(path: Path, members: dict[str, bytes | str], **kinds: bytes) -> None:
    """A tar with these files; `kinds`: type and target of others by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data.encode() if isinstance(data, str) else data))
        for name, kind in kinds.items():
            member = tarfile.TarInfo(f"{name}.mp4")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)


def ends_its_process(marks: str) -> None:
    """Leave a file, then die as of a fault in a decoder. Here, where another process finds it by name."""
    (Path(marks) / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGSEGV)
