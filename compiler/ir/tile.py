"""Tile IR: Loop IR with loops bound to levels of the machine, tiles in named memories, copies and tensor instructions.

```
for i in blocks(64):
    row = registers(f32[2048])
    for j in lanes(2048, threads=256):
        row[j] = x[i, j]
```
Meaning never depends on a binding: loops run as in Loop IR, copies and tensor instructions happen where they stand. A
binding says where the iterations go, and `pipeline` that the copies in its body may run ahead by `depth` iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir import roles, statement
from compiler.ir.expr import Const, Expr, Load
from compiler.ir.layout import Fragment, ThreadMap, problem
from compiler.ir.node import Node
from compiler.ir.statement import Kernel, Known, Program, Stmt, Store, within
from compiler.ir.tensor import Tensor

# The levels that a loop may be bound to, with their integer arguments.
LEVELS: dict[str, tuple[str, ...]] = {
    "serial": (),
    "blocks": (),  # one after the other on a CPU thread, or one thread block each
    # A block of a cluster each. The blocks of the grid's first axis are those of the cluster.
    "cluster": (),
    "warps": (),
    # One iteration per lane of a warp (32); loops over lanes inside are spread over the `warps` of the block.
    "columns": ("warps",),
    # Spread over the threads of a block, `vector` adjacent iterations per thread, `rounds` unrolled at a time (all if
    # not given). Wide loads are issued before any of their values is used, if these take at most `ahead` 32-bit words.
    # Over the registers of a tensor instruction, `vector` elements are loaded at once.
    "lanes": ("threads", "vector", "rounds", "ahead"),
    # Lanes of a vector instruction, `unroll` vectors at a time. Each load prefetches what lies `ahead` bytes further.
    # `past` stores past the caches, `rolled` asks the C++ compiler not to unroll the loop, which compiles faster, and
    # with `owned` each store prefetches, for writing, what lies `ahead` bytes further. With `again`, iterations left
    # over by whole vectors run in an overlapping last vector, some of them twice; `unroll` may include it. With
    # `masked`, a load guarded per lane is a masked load.
    "vector": ("width", "unroll", "ahead", "past", "rolled", "owned", "again", "masked"),
    # Unrolled; with `ahead`, an iteration's operands for tensor instructions are loaded to registers before the matmuls
    # of the previous iteration. With `jam`, iterations share the loops inside.
    "unroll": ("ahead", "jam"),
    # Updates with a condition each. Each lane of a warp tests one update, `tests` of them at once; all lanes then apply
    # the updates that passed, in order. The values of `ahead` updates are loaded before the first of these is applied.
    "votes": ("tests", "ahead"),
    # Copies run up to `depth` iterations ahead, issued by the first of `producers` producer warps; loops over lanes of
    # the other producer warps prepare what was copied. With `overlap`, the last matmul of an iteration overlaps with
    # the start of the next iteration. Registers are reallocated: `producer_registers` per producer thread,
    # `consumer_registers` per other.
    "pipeline": ("depth", "producers", "overlap", "producer_registers", "consumer_registers"),
}
# Memories of tiles: private to a thread; distributed over the threads of a block; shared by a block; divided over the
# blocks of a cluster along the tile's first axis; or global. For the last two, each iteration of a loop over blocks
# writes its part of the tile, and statements after that loop see all parts.
SPACES = ("local", "registers", "shared", "cluster", "device")
ROLES = ("copy", "prepare")
COPIES = ("plain", "cp.async", "tma", "dsmem")
# Synchronisation of threads' accesses to memory that they share; it means nothing to a program of one thread.
SYNCS = (
    "barrier",  # all threads of the same role wait for each other
    "fence_async",  # makes stores of threads visible to the copy engine and asynchronous matmuls
    "commit_copies",  # groups this thread's cp.async copies since the last commit
    "wait_copies",  # waits until at most the latest `pending` groups of this thread are in flight
    "wait_stored",  # waits until the copy engine has read what it stores
    "wait_matmuls",  # waits until at most the latest `pending` asynchronous matmuls are in flight
    "warp_barrier",  # the threads of each warp wait for each other
)
COUNTED = ("wait_copies", "wait_matmuls")


class Bind(Node):
    """A level with its arguments, by name."""

    level: str
    args: tuple[tuple[str, int], ...] = ()


class For(Stmt):
    """Run `body` for `var` = 0 .. extent - 1; `kind` as in Loop IR."""

    var: str
    extent: Expr
    kind: str
    bind: Bind
    body: tuple[Stmt, ...]


class Alloc(Stmt):
    """A tile in `space`, undefined until written, visible to the statements after it.

    `swizzle` is in bytes, 0 for none; longer rows are divided into panels of that width, which follow each other.
    `layout` says how the threads of a block share a tile in registers. A tile in shared memory has `slots` copies for a
    pipeline.
    """

    tensor: Tensor
    space: str
    swizzle: int = 0
    layout: Fragment | ThreadMap | None = None
    slots: int = 1


class Stage(Stmt):
    """The part of a pipeline's iteration with this `role`, one of ROLES; it means what `body` means.

    Copies run ahead. In a pipeline with producer warps, one of these issues the copies and the others prepare what was
    copied.
    """

    role: str
    body: tuple[Stmt, ...]


class Sync(Stmt):
    """Synchronisation among threads; `what` is one of SYNCS."""

    what: str
    pending: int = 0


class Slice(Node):
    """`lengths` elements from `starts` along the axes of a buffer; a length of 0 is one element, and drops the axis.

    Elements are `steps` apart, by default 1, and taken in the `order` of the axes, by default the buffer's. Along the
    axes `within`, elements may be out of bounds, so that each is checked.
    """

    buffer: str
    starts: tuple[Expr, ...]
    lengths: tuple[int, ...]
    steps: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    within: tuple[int, ...] = ()


class Copy(Stmt):
    """`target` = `source`; elements outside the source read as zero, elements outside the target are dropped.

    `how` is one of COPIES. Both slices have the same number of elements, matched in order: a tile's rows may be a box
    of several axes of a buffer. The bytes are counted by the mbarrier `full`, if given. Threads move `width` adjacent
    elements at once (0: as many as possible), in rounds, of which `rounds` are unrolled (0: all). Each piece also
    prefetches `prefetch` bytes to the second-level cache. A copy that is the same for all iterations of a loop over a
    cluster, whose variable is `multicast`, is made once for all its blocks: each copies a part to the others.
    """

    target: Slice
    source: Slice
    how: str
    full: roles.Mbarrier | None = None
    width: int = 0
    rounds: int = 0
    prefetch: int = 0
    multicast: Expr | None = None


class Mma(Stmt):
    """`acc += a . b` by a tensor instruction, repeated over the tiles: acc[m, n] += sum over k of a[m, k] * b[k, n].

    `layout` gives the order of operand axes: a is "mk", "km" or, if the accumulator is one row [n], "k"; b is "kn" or
    "nk". `sizes` (m, n, k), if given, limit the part of the slices that is used, from their starts. `grid` is the
    number of thread groups along m and n that share the accumulator, each with as many threads as the instruction
    needs. Along the axes `neighbours` of "mn", registers of a thread hold adjacent elements. With `again`, columns left
    over by whole blocks are computed in an overlapping last block, some of them twice. With `store`, the sums are not
    added: they are summed in f32, rounded to the type of `acc`, and stored there.
    """

    instruction: str
    acc: Slice
    a: Slice
    b: Slice
    layout: tuple[str, str] = ("mk", "kn")
    sizes: tuple[Expr, ...] = ()
    grid: tuple[int, ...] = ()
    neighbours: str = ""
    again: bool = False
    store: bool = False


def moved(s: Slice) -> list[int]:
    """The axes along which a slice extends, in the order in which its elements are taken."""
    return [d for d in s.order or range(len(s.lengths)) if s.lengths[d]]


def extents(s: Slice) -> list[int]:
    """The lengths of a slice along the axes that it extends along, in order."""
    return [s.lengths[d] for d in moved(s)]


def steps(s: Slice) -> tuple[int, ...]:
    """The distance between elements of a slice along each axis."""
    return s.steps or (1,) * len(s.lengths)


def element(s: Slice, places: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index of an element of a slice, from its position along each of the axes that the slice extends along."""
    by = steps(s)
    at = {d: place * by[d] for d, place in zip(moved(s), places, strict=True)}
    return tuple(start + at[d] if d in at else start for d, start in enumerate(s.starts))


def letters(mma: Mma) -> tuple[str, str, str]:
    """The axes of an instruction's accumulator and operands, in order."""
    return ("mn" if "m" in mma.layout[0] else "n"), *mma.layout


def lengths(mma: Mma) -> dict[str, int]:
    """The lengths of the slices along m, n and k."""
    out = {"m": 1}
    for axes, s in zip(letters(mma), (mma.acc, mma.a, mma.b), strict=True):
        out |= dict(zip(axes, (n for n in s.lengths if n), strict=True))
    return out


def verify(program: Program) -> None:
    """Check names, types, ranks, bindings and memories; raises ValueError naming kernel and statement."""
    statement.verify(program, _verify)


def _verify(s: Stmt, known: Known) -> None:
    where, kernel = known.where, known.kernel
    match s:
        case For(var, extent, kind, binding, body):
            inner = known.loop(var, extent, kind)
            if problem := binding_error(var, kind, binding):
                raise ValueError(f"{where}: {problem}")
            statement.verify_body(body, inner, _verify)
        case Alloc(tensor):
            known.check(*tensor.shape)
            known.bind(tensor.name)
            _verify_layout(where, s)
            known.buffers[tensor.name] = (tensor.dtype, len(tensor.shape))
        case Sync(what, pending):
            if what not in SYNCS or pending < 0 or (pending and what not in COUNTED):
                raise ValueError(f"{where}: {what}({pending}) orders nothing")
        case Copy(target, source):
            _verify_slice(target, known)
            _verify_slice(source, known)
            known.check(*(() if s.multicast is None else (s.multicast,)))
            _verify_copy(kernel, s, known)
        case Mma(_, acc, a, b, _, sizes):
            for x in (acc, a, b):
                _verify_slice(x, known)
            known.check(*sizes)
            _verify_mma(where, s)
        case roles.RingStmt():
            known.scope.update(roles.verify(s, known.mbarriers, known.check, known.bind, where))
        case Stage(role, body):
            if role not in ROLES or not all(isinstance(x, Copy if role == "copy" else For | Sync) for x in body):
                raise ValueError(f"{where}: {role!r} is not the role of all that is in its stage")
            statement.verify_body(body, known, _verify)
        case roles.Role(kind, first, threads, _, body):
            if kind not in roles.KINDS or first < 0 or threads < 1:
                raise ValueError(f"{where}: {threads} threads from {first} on have the role {kind!r}")
            inner = known.inner()
            inner.bound = set(known.bound)  # names are local to each role
            statement.verify_body(body, inner, _verify)
        case roles.One(body):
            statement.verify_body(body, known, _verify)
        case _:
            raise ValueError(f"{where}: {type(s).__name__} is not a Tile IR statement")


def binding_error(var: str, kind: str, binding: Bind) -> str:
    """Why a loop of that kind cannot have this binding; empty if it can."""
    level = binding.level
    if kind not in ("parallel", "reduce", "scan"):
        return f"loop {var} has the unknown kind {kind!r}"
    if level not in LEVELS:
        return f"loop {var} is bound to {level}; the levels are {', '.join(LEVELS)}"
    unknown = [n for n, _ in binding.args if n not in LEVELS[level]]
    if unknown:
        return f"loop {var}: {level} takes {', '.join(LEVELS[level]) or 'nothing'}, not {', '.join(unknown)}"
    if level in ("blocks", "cluster", "warps", "columns") and kind != "parallel":
        return f"the {kind} loop {var} cannot be spread over {level}"
    if kind == "scan" and level not in ("serial", "unroll", "lanes", "pipeline", "votes"):
        return f"the scan loop {var} cannot be bound to {level}"
    return ""


def _verify_copy(kernel: Kernel, s: Copy, known: Known) -> None:
    where, target, source = f"kernel {kernel.name}", s.target, s.source
    _verify_target(kernel, target.buffer)
    if s.how not in COPIES or math.prod(extents(target)) != math.prod(extents(source)):
        raise ValueError(f"{where}: copy of {source.lengths} to {target.lengths} by {s.how!r}")
    if known.buffers[target.buffer][0] is not known.buffers[source.buffer][0]:
        raise ValueError(f"{where}: copy from {source.buffer} to {target.buffer} changes the type")
    if min(s.width, s.rounds) < 0 or any(d not in range(len(x.lengths)) for x in (target, source) for d in x.within):
        raise ValueError(
            f"{where}: copy to {target.buffer} of {s.width} at once, within {target.within, source.within}"
        )


def _verify_target(kernel: Kernel, buffer: str) -> None:
    if buffer in {p.name for p in kernel.params} - set(kernel.writes):
        raise ValueError(f"kernel {kernel.name}: stores to {buffer}, which is not among its writes")


def _verify_layout(where: str, s: Alloc) -> None:
    if s.space not in SPACES:
        raise ValueError(f"{where}: {s.tensor.name} is in the unknown memory {s.space!r}")
    name, space = s.tensor.name, "registers" if s.layout else "shared"
    if s.slots < 1 or ((s.layout or s.slots > 1) and s.space != space):
        raise ValueError(f"{where}: {name} in {s.space} memory has {s.slots} slots and the layout {s.layout}")
    if isinstance(s.layout, Fragment):
        shape = tuple(int(n.value) if isinstance(n, Const) else 0 for n in s.tensor.shape)
        if s.layout.shape not in (shape, (*shape, 1), (1, *shape)):
            raise ValueError(f"{where}: {name} of {shape} is laid out as a tile of {s.layout.shape}")
        if wrong := problem(s.layout):
            raise ValueError(f"{where}: nobody can hold {name}: {wrong}")


def _verify_slice(s: Slice, known: Known) -> None:
    if s.buffer not in known.buffers or not known.buffers[s.buffer][1] == len(s.starts) == len(s.lengths):
        raise ValueError(f"{known.where}: slice of {s.buffer} with {len(s.starts)} starts, {len(s.lengths)} lengths")
    axes = list(range(len(s.lengths)))
    if len(s.steps) not in (0, len(axes)) or any(n < 1 for n in s.steps) or sorted(s.order or axes) != axes:
        raise ValueError(f"{known.where}: slice of {s.buffer} with steps {s.steps} along its axes in order {s.order}")
    known.check(*s.starts)


def _verify_mma(where: str, s: Mma) -> None:
    if s.layout[0] not in ("mk", "km", "k") or s.layout[1] not in ("kn", "nk") or len(s.sizes) not in (0, 3):
        raise ValueError(f"{where}: operand layout {s.layout}, {len(s.sizes)} sizes")
    if s.grid and (len(s.grid) != 2 or any(lengths(s)[x] % max(n, 1) for x, n in zip("mn", s.grid, strict=True))):
        raise ValueError(f"{where}: groups of threads in a grid of {s.grid} do not divide {s.acc.buffer}")
    if s.neighbours not in ("", "m", "n", "mn"):
        raise ValueError(f"{where}: registers have neighbours along m, n or both, not {s.neighbours!r}")
    sizes: dict[str, int] = {}
    for axes, x in zip(letters(s), (s.acc, s.a, s.b), strict=True):
        found = [n for n in x.lengths if n]
        if x.steps or x.order:
            raise ValueError(f"{where}: tensor instruction on elements of {x.buffer} that do not lie together")
        if len(found) != len(axes) or any(sizes.setdefault(a, n) != n for a, n in zip(axes, found, strict=True)):
            raise ValueError(
                f"{where}: tensor instruction on {x.buffer} with lengths {found}, expected {axes} with {sizes}"
            )


def tensors(kernel: Kernel) -> dict[str, Tensor]:
    """The parameters of a kernel and its tiles, by name."""
    return {t.name: t for t in (*kernel.params, *(a.tensor for a in within(kernel.body, Alloc)))}


def buffers(body: tuple[Stmt, ...]) -> set[str]:
    """Names of all buffers that the statements access."""
    out: set[str] = set()
    for s in body:
        for n in s.walk():
            if isinstance(n, Load | Store | Slice):
                out.add(n.buffer)
    return out
