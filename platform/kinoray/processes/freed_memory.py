"""Memory that a process gave back and needs again at its next step."""

import ctypes
import os
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Names of the settings in malloc.h."""
OWN_BLOCK_BYTES = 32 << 20
"""Blocks so large are got from the system one by one, and given back: the most that the C library would come to by
itself."""
KEPT_BYTES = 256 << 20
"""How much freed memory stays with the process."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""By which users set the same themselves, which then holds."""


def keep_freed_memory() -> None:
    """Let glibc keep some of what is freed, so that the next step's tensors find their pages there.

    As it starts, glibc gives the end of its heap back whenever twice the largest block that it has freed lies idle; a
    step of training on a CPU frees more at its end, and has the system zero thousands of pages at the next one, which
    takes 7 % of a small model's step (`benchmarks/kept_memory.py`). It stays so for the life of the process.
    """
    if sys.platform != "linux" or any(name in os.environ for name in VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, OWN_BLOCK_BYTES)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
