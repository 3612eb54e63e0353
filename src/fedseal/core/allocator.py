"""Freed memory is kept for the next step, where the C library can be asked to.

A step of an attack takes and frees the same arrays as the one before, thousands of times. From glibc those above 32 MiB
come fresh from the kernel, which clears every page of them each time: a third of the processor time of FedLeak's tuning
on a LeNet. Kept, they are there already. On other C libraries nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""What mallopt(3) calls them."""
_KEPT = 1 << 30
"""Bytes that are kept at most, at the end of what was taken."""
_AFTERWARDS = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
"""Where glibc's own adaptation ends, which stops once anything is set."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory inside, and give it back afterwards."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    try:
        yield
    finally:
        for name, value in _AFTERWARDS.items():
            library.mallopt(name, value)
        library.malloc_trim(0)
