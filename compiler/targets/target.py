"""A target as data: its features and limits, and its instructions as rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from compiler.ir.node import Node
from compiler.targets.layout import Layout


class Instruction(Node):
    """A tensor instruction: acc[m, n] += sum over k of a[m, k] * b[k, n], on tiles of these sizes.

    `needs` is the required feature of the target. A k of 0 means any number. `a_type`, `b_type` and `acc_type` are
    element types, `a_space`, `b_space` and `acc_space` the memories of the operands, `layouts` their possible axis
    orders ("mk" or "km", "kn" or "nk"). `function` is the device function, with a body for each kind of target;
    `contiguous` lists axes along which an operand must be contiguous ("b.n"). `threads` execute it together;
    `acc_layout` (m, n), `a_layout` (m, k) and `b_layout` (k, n) are the layouts of operands in registers.

    Only the leading `fraction` bits of the fractions of `a` and `b` count, others are cut off; 0: all count. `opcode`
    is the machine instruction, or several of which one, that must appear after assembly. With `coarse`, sums keep fewer
    bits than `acc_type` has, so that long sums must be promoted in parts. An instruction that `flushes` may treat
    denormal factors and sums as zero. Sums of up to `stores` products can be stored rounded, instead of added; 0: none.
    """

    name: str
    needs: str
    m: int
    n: int
    k: int
    a_type: str
    b_type: str
    acc_type: str
    a_space: str
    b_space: str
    acc_space: str
    layouts: tuple[tuple[str, str], ...]
    function: str
    contiguous: tuple[str, ...] = ()
    threads: int = 1
    acc_layout: Layout | None = None
    a_layout: Layout | None = None
    b_layout: Layout | None = None
    fraction: int = 0
    opcode: str = ""
    coarse: bool = False
    flushes: bool = False
    stores: int = 0

    @property
    def semantics(self) -> str:
        """Its meaning as Tile IR text over buffers acc, a and b in its first layout."""
        a, b = self.layouts[0]
        k = self.k or 4
        element = {"mk": "a[i, l]", "km": "a[l, i]", "kn": "b[l, j]", "nk": "b[j, l]"}
        acc_type = self.acc_type
        left, right = (
            x if t == acc_type else f"{acc_type}({x})"
            for x, t in ((element[a], self.a_type), (element[b], self.b_type))
        )
        return (
            f"for i in serial({self.m}):\n    for j in serial({self.n}):\n"
            f"        for l in serial({k}, scan):\n            acc[i, j] += {left} * {right}\n"
        )


class Transfer(Node):
    """An asynchronous copy of a slice from one memory to another.

    The innermost axis is moved in `pieces` of so many bytes. A tensor has at most `rank` axes, a slice at most
    `longest` elements along each; 0 means any number. `swizzles` are the possible swizzles of the tile in bytes: a row
    must fit in one, and fill it if there is a `rank` (the copy engine).
    """

    name: str
    needs: str
    source: str
    target: str
    pieces: tuple[int, ...]
    rank: int
    longest: int
    swizzles: tuple[int, ...]
    function: str
    opcode: str = ""


class Fragments(Node):
    """Moves 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp.

    The matrices are stacked: thread t passes the address of row t of 8 elements, 16 bytes. `layout` is that of the
    registers, in rows of 8.
    """

    name: str
    needs: str
    source: str
    target: str
    layout: Layout
    function: str
    opcode: str


class Target(Node):
    """A machine; sizes are in bytes.

    `vector` is the width of a vector register, 0 if `warp` threads in lockstep replace it. `l1` is per core; `shared`
    is how much of it a block may use as shared memory. A core of a GPU (a multiprocessor) holds at most so many
    `threads`, `blocks` and 32-bit `registers` at once; `rates` are its multiply-adds per clock by kind. `clusters`
    gives how many clusters of each size run at once if each block fills a core. `costs` are measured costs by name, for
    cost models. Code that is not `checked` assumes that indices, targets and divisors are valid. `memory` limits a
    program's temporaries; 0: no limit.
    """

    name: str
    kind: str
    features: tuple[str, ...]
    vector: int
    cores: int
    l1: int
    l2: int
    l3: int
    instructions: tuple[Instruction, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    warp: int = 0
    shared: int = 0
    fragments: tuple[Fragments, ...] = ()
    threads: int = 0
    blocks: int = 0
    registers: int = 0
    rates: tuple[tuple[str, int], ...] = ()
    clusters: tuple[tuple[int, int], ...] = ()
    costs: tuple[tuple[str, float], ...] = ()
    checked: bool = True
    memory: int = 0

    def lanes(self, element_bytes: int) -> int:
        """Elements of that size in a vector register."""
        return max(1, self.vector // element_bytes)


@functools.cache
def costs(target: Target) -> Mapping[str, float]:
    """The costs of a target by name."""
    return dict(target.costs)


def instruction(target: Target, name: str) -> Instruction:
    """The row of that name; raises KeyError naming the rows that exist."""
    for row in target.instructions:
        if row.name == name:
            return row
    names = ", ".join(r.name for r in target.instructions) or "none"
    raise KeyError(f"{target.name} has no tensor instruction {name}; it has {names}")
