"""Python's garbage collector, held back: while a block runs, no collection walks over all objects of the process.

PyTorch alone keeps so many that a full collection takes 0.2 s, more than most kernels take to compile, and the many
small objects of a compilation bring one about. What dies young is still collected.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30
_lock = threading.Lock()
_holders: list[tuple[int, int, int]] = []  # the thresholds that the first of them found, once for each


@contextmanager
def held_back() -> Iterator[None]:
    """No full collection inside the block, or inside any that runs meanwhile; afterwards all is as it was before."""
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
