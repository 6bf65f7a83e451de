"""Arrays as the device takes them."""

import warnings

import numpy as np
import torch
from torch import Tensor

with warnings.catch_warnings(action="ignore", category=UserWarning):
    # torch warns once in a process of an array that cannot be written to, as frames in a block of Ray Data's cannot.
    torch.from_numpy(np.frombuffer(b"0", np.uint8))


def clips_on_device(video: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """uint8 clips (B, T, H, W, 3), which are only read, as (B, T, 3, H, W); vectors of frames (B, T, D) as they are."""
    clips = on_device(video, device)
    return clips if clips.is_floating_point() else clips.permute(0, 1, 4, 2, 3)


def on_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Values of the host that are only read. A GPU's copy is on its way when this returns: nothing waits for it."""
    # From memory that may be paged out a copy would come after all that the GPU has been given.
    value = on_pinned(values) if device.type == "cuda" else _tensor(values)
    return value.to(device, non_blocking=True)


def on_pinned(values: np.ndarray | Tensor) -> Tensor:
    """Values of the host in memory that is not paged out; those that are there already are not copied."""
    return _tensor(values).pin_memory()


def _tensor(values: np.ndarray | Tensor) -> Tensor:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values
