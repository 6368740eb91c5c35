"""Steps that change no loop: how the caches are used, when data are checked, and what is computed ahead of a loop."""

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


class Hoist(Step):
    """Compute the loop-invariant values of `loop` before it."""

    loop: str
