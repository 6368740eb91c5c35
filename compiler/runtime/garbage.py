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
# For each block in progress, the thresholds that the first one found.
_original_thresholds: list[tuple[int, int, int]] = []


@contextmanager
def paused() -> Iterator[None]:
    """Suppress full collections in the block and while others overlap it; then restore the thresholds."""
    with _lock:
        thresholds = _original_thresholds[0] if _original_thresholds else gc.get_threshold()
        _original_thresholds.append(thresholds)
        gc.set_threshold(*thresholds[:2], NEVER)
    try:
        yield
    finally:
        with _lock:
            _original_thresholds.pop()
            if not _original_thresholds:
                gc.set_threshold(*thresholds)
