"""Steps that change no loop: how caches are used, which blocks share a copy, when data are checked, what is hoisted."""

from __future__ import annotations

from compiler.schedule.step import Step


class CacheHints(Step):
    """Hint that the caches need not keep what vectors load from the buffers `loads` or store to the buffers `stores`.

    Each element of `loads` is read only once, and no element of `stores` is read soon.
    """

    loads: tuple[str, ...]
    stores: tuple[str, ...] = ()


class Checks(Step):
    """Check what data must be, such as indices within their range, for many iterations at once, ahead of them.

    Loop-invariant checks are hoisted out of a loop with at least `ahead` iterations. Others are made by vector
    comparisons, for `scalars` iterations of a scalar loop whose inner loops have at most `within` iterations, and for
    `vectors` vectors of a vector loop. 0 leaves such checks where they are.
    """

    worded = ("ahead", "scalars", "within", "vectors")
    ahead: int = 0
    scalars: int = 0
    within: int = 0
    vectors: int = 0


class Multicast(Step):
    """Copy what `tile` holds once for the blocks of a cluster, the loop `loop`, which all need the same.

    Each block copies a part of the tile's rows into the shared memory of all.
    """

    tile: str
    loop: str


class Hoist(Step):
    """Compute the loop-invariant values of `loop` before it; those read from memory, or checked, only with `reads`."""

    worded = ("reads",)
    loop: str
    reads: int = 0
