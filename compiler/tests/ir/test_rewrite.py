"""The driver of rewriting: a rule meets every node once, also where what is above it folds."""

from typing import Any

from compiler.ir.dtype import i64
from compiler.ir.expr import Load, Var, dim
from compiler.ir.rewrite import nodes


def test_what_an_operation_folds_to_is_not_rewritten_again() -> None:
    i, j, k = (Var(name, i64) for name in "ijk")
    read = Load("x", (i, j, k), i64)

    def without_first(node: Any) -> Any:
        if isinstance(node, Load):
            return node.replace(index=node.index[1:])
        return dim(0) if node is i else None

    wanted = Load("x", (j, k), i64)
    assert nodes(read, without_first) is wanted
    assert nodes(read + i, without_first) is wanted
    assert nodes((read + i) * (i + 1) - j, without_first) is wanted - j
