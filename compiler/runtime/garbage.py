"""Suppress full collections of Python's garbage collector, which walk over all objects of the process.

PyTorch alone keeps so many objects that a full collection takes 0.2 s, more than most kernels take to compile, and the
many small objects of a compilation trigger one. Younger generations are still collected.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30
_lock = threading.Lock()
_holders: list[tuple[int, int, int]] = []  # for each block in progress, the thresholds that the first one found


@contextmanager
def held_back() -> Iterator[None]:
    """Suppress full collections in the block and while others overlap it; then restore the thresholds."""
    with _lock:
        found = _holders[0] if _holders else gc.get_threshold()
        _holders.append(found)
        gc.set_threshold(*found[:2], NEVER)
    try:
        yield
    finally:
        with _lock:
            _holders.pop()
            if not _holders:
                gc.set_threshold(*found)
