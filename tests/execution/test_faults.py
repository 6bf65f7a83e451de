"""Which errors are tried again."""

import pytest
import torch

from kinoray.execution.workers import _machines


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("[gloo] Timed out"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_machines_fault_is_no_methods(error: Exception, again: bool) -> None:
    assert _machines(error) == again
