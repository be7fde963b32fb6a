"""How the process holds on to memory while it handles tensors of a full-size model."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
"""Parameters of `mallopt`. Source: glibc, malloc/malloc.h."""
KEPT_BYTES = (1 << 31) - 1
"""As much free memory as `mallopt` can be told to keep at the end of the heap."""
GROWTH_BYTES = 1 << 26


def keep_freed_memory() -> bool:
    """Let freed tensors serve the next ones, where the C library is glibc.

    Left alone, glibc gives every large block back to the system and takes a fresh one for the next
    tensor; on a virtual machine its zeroed pages cost more than the arithmetic done in them. One
    arena serves all threads, since the others cannot hold large blocks.

    Returns:
        Whether the C library took the settings; results never depend on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    settings = (
        (ARENA_MAX, 1),
        (MMAP_MAX, 0),
        (TRIM_THRESHOLD, KEPT_BYTES),
        (TOP_PAD, GROWTH_BYTES),
    )
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
