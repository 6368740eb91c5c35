"""Scalar statements shared by Loop IR and Tile IR, and the program that holds kernels in both."""

from __future__ import annotations

from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, Size
from compiler.ir.node import Node
from compiler.ir.tensor import Tensor


class Stmt(Node):
    """Something that is done."""


class Let(Stmt):
    """`name = value`, bound once, visible to the statements after it in the same body."""

    name: str
    value: Expr


class Init(Stmt):
    """`name: type = value`: a mutable scalar that `Accum` updates."""

    name: str
    value: Expr


class Accum(Stmt):
    """`name = op(name, value)`, where `op` is a reduction (`expr.COMBINE`): the only way a loop carries a value."""

    name: str
    op: str
    value: Expr


class Store(Stmt):
    """`buffer[index] = value`, or combined with what is there by the reduction `op` unless that is "set"."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr
    op: str = "set"


class If(Stmt):
    """Run `body` where `cond` holds."""

    cond: Expr
    body: tuple[Stmt, ...]


class InOrder(Stmt):
    """Run `body` with `var` = each of 0 .. count - 1, as `key` orders them, for the first `extent` of them.

    `turn` counts them. Equal keys stay in order, and NaN is larger than all else; `how` is one of `tensor.ORDERS`.
    """

    turn: str
    extent: Expr
    var: str
    count: Expr
    key: Expr
    how: str
    body: tuple[Stmt, ...]


class Kernel(Node):
    """One launch: `params` are the buffers that it uses, in order; `writes` names those that it changes.

    It may be a part of a `whole` kernel that became several. Caches need not keep what is loaded of the buffers in
    `once`, of which no element is read twice, nor what is stored to those `past` them, which nobody reads soon.
    """

    name: str
    params: tuple[Tensor, ...]
    writes: tuple[str, ...]
    body: tuple[Stmt, ...]
    origin: tuple[str, ...] = ()
    whole: str = ""
    once: tuple[str, ...] = ()
    past: tuple[str, ...] = ()


class Program(Node):
    """Kernels run in order over `inputs`, `outputs` and temporaries `temps`; all shapes are in elements."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temps: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    sizes: tuple[Size, ...] = ()


def dtypes(kernel: Kernel) -> dict[str, DType]:
    """Element type of every parameter."""
    return {p.name: p.dtype for p in kernel.params}
