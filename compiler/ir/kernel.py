"""Kernel IR: C-like statements over flat buffers, scalars and vectors; everything that a target does is explicit.

Buffers are one-dimensional: a load or store has one index, in elements. A value of a vector type (`f32x8`) is loaded
from consecutive elements. Calls name device functions, which have a body for each target.

```
def rows(x: f32[6400], y: f32[6400]):
    for i in range(0, 64, 1, parallel):
        m = f32x8(-inf)
        for j in range(0, 96, 8):
            m = max(m, x[i * 100 + j: f32x8])
```
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, i64
from compiler.ir.expr import Expr, Load, Op, Select, Size, Var, const, type_error
from compiler.ir.node import Node
from compiler.ir.statement import Stmt as Stmt
from compiler.ir.tensor import Tensor, verify_params

# How to emit a loop; does not affect its result. `rolled` asks the compiler not to unroll it, `past` lets its stores
# bypass the caches, `owned` lets them prefetch, for writing, the cache line as far ahead as the loads do.
MARKS = ("", "parallel", "unroll", "rolled", "past", "owned")
SPACES = ("local", "shared")


class Broadcast(Expr):
    """One scalar in every lane."""

    arg: Expr
    lanes: int

    @property
    def dtype(self) -> DType:
        return dt.vector(self.arg.dtype, self.lanes)


class Ramp(Expr):
    """`start`, `start` + `step`, ... of an integer type, one per lane."""

    start: Expr
    step: int
    lanes: int

    @property
    def dtype(self) -> DType:
        return dt.vector(self.start.dtype, self.lanes)


class Gather(Expr):
    """One element per lane, from the indices in a vector of i64."""

    buffer: str
    index: Expr
    type: DType


class Across(Expr):
    """The lanes of a vector, reduced to a scalar by `op` (`expr.COMBINE`)."""

    op: str
    arg: Expr

    @property
    def dtype(self) -> DType:
        return dt.vector(self.arg.dtype, 1)


class Together(Expr):
    """The values of `threads` threads that execute this together, combined by a reduction; all of them get the result.

    More threads than a warp exchange partial results through `scratch`, a shared array with one element per warp.
    Threads whose numbers are more than one `apart` use an array with one element per thread of the block.
    """

    op: str
    arg: Expr
    threads: int
    scratch: str = ""
    apart: int = 1

    @property
    def dtype(self) -> DType:
        return self.arg.dtype


class Ones(Expr):
    """The number of set bits of an i32 (population count)."""

    arg: Expr

    @property
    def dtype(self) -> DType:
        return self.arg.dtype


class Peer(Expr):
    """An element of the shared array at the address of `buffer` in block `rank` of the cluster."""

    buffer: str
    index: Expr
    rank: Expr
    type: DType


class Builtin(Expr):
    """A number that the hardware supplies, such as `thread.x` or `block.y`."""

    name: str

    @property
    def dtype(self) -> DType:
        return i64


class Address(Node):
    """A pointer to an element of a buffer, as an argument of a call."""

    buffer: str
    index: Expr


class Map(Node):
    """A tensor map of the function, as an argument of a call."""

    name: str


class TensorMap(Node):
    """A parameter that describes boxes of a tensor in `buffer` to the copy engine (TMA).

    `box` is in elements, innermost axis first. `swizzle` is in bytes, 0 for none or the length of a box's rows in
    shared memory. Elements of a box are `steps` apart in the tensor, by default 1. Axes are in the order of memory.
    """

    name: str
    buffer: str
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()


class Declare(Stmt):
    """A mutable variable with its initial value."""

    name: str
    value: Expr


class Assign(Stmt):
    name: str
    value: Expr


class Store(Stmt):
    """`buffer[index] = value`, a vector to consecutive elements; combined with the old value by `op` unless that is
    "set"."""

    buffer: str
    index: Expr
    value: Expr
    op: str = "set"


class For(Stmt):
    """`for (var = start; var < stop; var += step)`; `mark` is one of MARKS.

    Each of its loads also prefetches what lies `ahead` bytes further, unless that is 0.
    """

    var: str
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]
    mark: str = ""
    ahead: int = 0


def unrolled(var: Var, extent: int, *body: Stmt) -> For:
    """A loop that is unrolled."""
    return For(var.name, const(0), const(extent), 1, body, "unroll")


class If(Stmt):
    cond: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


class Array(Stmt):
    """`size` elements in `space`, undefined until written; `align` is in bytes."""

    name: str
    dtype: DType
    size: int
    space: str
    align: int = 64


class Call(Stmt):
    """A device function; `template`: compile-time integers and type names, `writes`: the buffers that it changes."""

    function: str
    template: tuple[int | str, ...]
    args: tuple[Expr | Address | Map, ...]
    writes: tuple[str, ...] = ()


class Barrier(Stmt):
    """All threads of `scope` ("block", "warp", "cluster") arrive before any continues."""

    scope: str


class Comment(Stmt):
    text: str


class Function(Node):
    """One launch. `grid` and `block` are empty on a CPU, where loops marked parallel take their place.

    Its arguments are the tensors of `params`, the program's sizes, and the `maps`, in this order. `cluster` is the
    number of adjacent blocks along the first axis of the grid that form a cluster. Blocks of one launch exchange values
    through the parameters `exchanged`. `checks` are the arguments of the schedule step of that name.
    """

    name: str
    params: tuple[Tensor, ...]
    writes: tuple[str, ...]
    body: tuple[Stmt, ...]
    grid: tuple[Expr, ...] = ()
    block: tuple[int, ...] = ()
    origin: tuple[str, ...] = ()
    schedule: str = ""
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1
    exchanged: tuple[str, ...] = ()
    checks: tuple[int, ...] = ()


class Program(Node):
    """Functions run in order. Tensors keep their shapes for callers; functions see flat buffers.

    `zeros` names the last temporaries, which hold zeros before the program runs and must do so after it.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temps: tuple[Tensor, ...]
    functions: tuple[Function, ...]
    sizes: tuple[Size, ...] = ()
    zeros: tuple[str, ...] = ()


# Bytes of shared memory that a function may declare statically; larger amounts are dynamic.
STATIC_SHARED = 48 * 1024


def shared_arrays(function: Function) -> list[Array]:
    """The arrays in shared memory, in the order of their declarations."""
    return [n for s in function.body for n in s.walk() if isinstance(n, Array) and n.space == "shared"]


def dynamic_shared(function: Function) -> tuple[dict[str, int], int]:
    """Offsets of shared arrays in dynamic shared memory, and its size in bytes.

    Empty and 0 if all arrays together fit into static shared memory.
    """
    offsets: dict[str, int] = {}
    total = 0
    for a in sorted(shared_arrays(function), key=lambda a: -a.align):
        total = -(-total // a.align) * a.align
        offsets[a.name] = total
        total += a.size * a.dtype.bytes
    return (offsets, total) if total > STATIC_SHARED else ({}, 0)


def verify(program: Program) -> None:
    """Check bindings before use, types and lanes, and that stores go to writable buffers; raises ValueError."""
    if program.zeros != tuple(t.name for t in program.temps[len(program.temps) - len(program.zeros) :]):
        raise ValueError(
            f"program {program.name}: {program.zeros} are not its last temporaries, which alone may be zero"
        )
    there = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)}
    for f in program.functions:
        verify_params(f"function {f.name}", f.params, there)
        if _verified.get(f) != program.sizes:
            _verify_function(f, program.sizes)
            _verified[f] = program.sizes


# Verified functions with the sizes they were verified for: most passes change few functions of a program.
_verified: WeakKeyDictionary[Function, tuple[Size, ...]] = WeakKeyDictionary()


def _verify_function(f: Function, sizes: tuple[Size, ...]) -> None:
    buffers = {p.name: p.dtype for p in f.params}
    unknown = (set(f.writes) | set(f.exchanged)) - set(buffers)
    if unknown:
        raise ValueError(f"function {f.name}: writes {sorted(unknown)}, which are not parameters")
    unknown = {m.buffer for m in f.maps} - set(buffers)
    unknown |= {n.name for s in f.body for n in s.walk() if isinstance(n, Map)} - {m.name for m in f.maps}
    if unknown:
        raise ValueError(f"function {f.name}: tensor maps of {sorted(unknown)}, which are not there")
    short = [m for m in f.maps if m.swizzle and m.box[0] * buffers[m.buffer].bytes != m.swizzle]
    if short:
        raise ValueError(f"function {f.name}: rows of {short[0].name} are not as long as the swizzle they lie in")
    readonly = set(buffers) - set(f.writes)
    names = {s.name for s in sizes}
    own = {n.name if isinstance(n, Declare | Array) else n.var for s in f.body for n in s.walk()
           if isinstance(n, Declare | Array | For)}  # fmt: skip
    if names & {*own, *buffers}:
        raise ValueError(f"function {f.name}: {sorted(names & {*own, *buffers})} are sizes, and bound otherwise")
    _verify_body(f.name, f.body, set(sizes), buffers, readonly)


def _verify_body(
    where: str, body: tuple[Stmt, ...], scope: set[Var], buffers: dict[str, DType], readonly: set[str]
) -> None:
    scope, buffers = set(scope), dict(buffers)
    for s in body:
        for e in s.below:
            if isinstance(e, Expr | Address):
                _verify_expression(where, e.index if isinstance(e, Address) else e, scope, buffers)
        match s:
            case Declare(name, value):
                scope.add(Var(name, value.dtype))
            case Assign(name, value):
                if Var(name, value.dtype) not in scope:
                    raise ValueError(
                        f"function {where}: {name} is assigned a {value.dtype}, but declared otherwise or not at all"
                    )
            case Store(buffer, index, value, _):
                if buffer in readonly or buffers.get(buffer) is not dt.vector(value.dtype, 1) or index.dtype is not i64:
                    held = buffers.get(buffer, "unknown")
                    raise ValueError(f"function {where}: {value.dtype} stored to {buffer}: it is {held} or read-only")
            case For(var, _, _, step, inner, mark, ahead):
                if step < 1 or mark not in MARKS or ahead < 0 or (mark == "owned" and not ahead):
                    raise ValueError(f"function {where}: loop {var} has step {step}, mark {mark!r}, ahead={ahead}")
                _verify_body(where, inner, scope | {Var(var, i64)}, buffers, readonly)
            case If(_, then, orelse):
                _verify_body(where, then, scope, buffers, readonly)
                _verify_body(where, orelse, scope, buffers, readonly)
            case Array(name, dtype, _, space, _):
                if space not in SPACES or name in buffers:
                    raise ValueError(f"function {where}: array {name} in {space!r}, or bound twice")
                buffers[name] = dtype
            case Call(writes=writes):
                if set(writes) & readonly or set(writes) - set(buffers):
                    raise ValueError(f"function {where}: a call writes {writes}")


def _verify_expression(where: str, e: Expr, scope: set[Var], buffers: dict[str, DType]) -> None:
    for n in e.walk():
        problem = ""
        match n:
            case Var() if n not in scope:
                problem = f"{n.name} used out of scope or at another type"
            case Op(name, args):
                problem = type_error(name, args)
            case Load(buffer, index, dtype):
                if buffers.get(buffer) is not dt.vector(dtype, 1) or len(index) != 1 or index[0].dtype is not i64:
                    problem = f"load of {dtype} from {buffer}: {buffers.get(buffer)}"
            case Peer(buffer, index, rank, dtype):
                if buffers.get(buffer) is not dtype or index.dtype is not i64 or rank.dtype is not i64:
                    problem = f"load of {dtype} from {buffer} of another block: {buffers.get(buffer)}"
            case Gather(buffer, index, dtype):
                if buffers.get(buffer) is not dt.vector(dtype, 1) or index.dtype is not dt.vector(i64, dtype.lanes):
                    problem = f"gather of {dtype} from {buffer}: {buffers.get(buffer)} by {index.dtype}"
            case Select(cond, then, _) if cond.dtype.lanes != 1 and not (
                isinstance(then, Load) and then.dtype.lanes == cond.dtype.lanes
            ):
                problem = "a lazy select needs a scalar condition, but for a load of as many lanes"
        if problem:
            raise ValueError(f"function {where}: {problem}")
