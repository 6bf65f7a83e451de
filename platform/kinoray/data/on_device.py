"""Decoded clips as the device takes them."""

import warnings

import numpy as np
import torch
from torch import Tensor

with warnings.catch_warnings(action="ignore", category=UserWarning):
    # torch warns once in a process of an array that cannot be written to, as frames in a block of Ray Data's cannot.
    torch.from_numpy(np.frombuffer(b"0", np.uint8))


def on_device(video: np.ndarray, device: torch.device) -> Tensor:
    """uint8 clips (B, T, H, W, 3), which are only read, as (B, T, 3, H, W)."""
    return torch.from_numpy(video).to(device, non_blocking=True).permute(0, 1, 4, 2, 3)
