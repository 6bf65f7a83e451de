"""Clips that a program draws, as H.264 or PNG files."""

from pathlib import Path

import numpy as np

ENCODER = {"preset": "ultrafast", "tune": "fastdecode", "crf": "20", "g": "30", "threads": "1"}
"""x264 on one thread and without look-ahead: the same frames give the same bytes.

The slower presets' macroblock tree reads memory that it never wrote, so their bytes differ now and then.
"""


def write_picture(frame: np.ndarray, path: Path) -> None:
    """Write a uint8 picture (H, W, 3) as PNG."""
    from PIL import Image

    Image.fromarray(frame).save(path, format="PNG")


def write_video(frames: np.ndarray, path: Path, rate_fps: int) -> None:
    """Encode uint8 frames (T, H, W, 3), even sides, as H.264 in MP4."""
    import av  # a stream that is opened to look at a finished run renders nothing

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate_fps, options=ENCODER)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
