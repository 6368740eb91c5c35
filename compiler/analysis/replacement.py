"""Stores that replace the elements that a body loads."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.expr import Load
from compiler.ir.statement import Stmt, Store


def replacing_store(body: Sequence[Stmt], stored: str, loaded: str) -> Store | None:
    """The only store to the buffer `stored`, if it is a statement of the body and sets an element of which that of
    `loaded` is the only one loaded, and not behind it; else None.

    If both lie in the same memory, each iteration then replaces an element that only it reads.
    """
    found = [(n, s) for n, t in enumerate(body) for s in t.walk() if isinstance(s, Store) and s.buffer == stored]
    if len(found) != 1 or found[0][1] is not body[found[0][0]]:
        return None
    ((last, store),) = found
    loads = {(n, x.index) for n, s in enumerate(body) for x in s.walk() if isinstance(x, Load) and x.buffer == loaded}
    is_replaced = store.op == "set" and all(n <= last and index == store.index for n, index in loads)
    return store if is_replaced else None
