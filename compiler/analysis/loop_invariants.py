"""Loop-invariant values of a body of statements."""

from __future__ import annotations

from collections.abc import Collection

from compiler.ir.expr import Load, Op, names
from compiler.ir.statement import Init, Let, Stmt, Store, within


def fixed(body: tuple[Stmt, ...], loops: Collection[str], reads: bool = False) -> tuple[Let, ...]:
    """The named values that can be computed before `loops`: those that read no buffer and check nothing.

    With `reads`, also values that are checked or read from buffers that the body does not write.
    """
    written = {s.buffer for s in within(body, Store)} if reads else None
    changing = {*loops} | {s.name for s in body if isinstance(s, Let | Init)}
    out: list[Let] = []
    for s in body:
        if (
            isinstance(s, Let)
            and not names(s.value) & changing
            and not any(_must_not_move(n, written) for n in s.value.walk())
        ):
            out.append(s)
            changing.remove(s.name)
    return tuple(out)


def _must_not_move(n: object, written: Collection[str] | None) -> bool:
    if written is None:
        return isinstance(n, Load) or (isinstance(n, Op) and n.name == "require")
    return isinstance(n, Load) and n.buffer in written
