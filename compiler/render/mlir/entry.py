"""Functions that make an MLIR function of tensors callable from C: one in MLIR on buffers, one in LLVM IR around it."""

from __future__ import annotations

from compiler.ir.expr import Const
from compiler.ir.tensor import Program, Tensor, row_major
from compiler.render.mlir.linalg import fails, typed
from compiler.render.mlir.scalar import INVALID, Scope, as_index
from compiler.render.mlir.text import Block, Value, Values, element

TENSORS, ENTRY = "mlc_tensors", "mlc_entry"
_OPEN = -(2**63)  # MLIR's notation for a dynamic size


def entry(text: str, program: Program, word: str) -> str:
    """The program's own text, and a function that calls it on buffers (inputs, then outputs) and sizes. The names of
    both end in `word`, so that programs can share a module."""
    own = f"{program.name}_{word}"
    b = Block()
    inputs = [Value(f"%in{n}", f"memref<1x{element(t.dtype)}>") for n, t in enumerate(program.inputs)]
    outputs = [Value(f"%out{n}", f"memref<1x{element(t.dtype)}>") for n, t in enumerate(program.outputs)]
    sizes = [Value(f"%{s.name}", "index") for s in program.sizes]
    invalid = [INVALID] if fails(program) else []
    scope = Scope({s.name: v for s, v in zip(program.sizes, sizes, strict=True)}, {}, {})
    given = [_load(_laid_out(v, t, b, scope), t, b, scope) for v, t in zip(inputs, program.inputs, strict=True)]
    kinds = [typed(t.dtype, t.shape) for t in program.outputs]
    made = b.many("func.call", (*given, *invalid), kinds, f"callee = @{own}")
    for x, place, t in zip(made, outputs, program.outputs, strict=True):
        _store(x, _laid_out(place, t, b, scope), t, (), b, scope)
    b.do("func.return", ())
    head = ", ".join(f"{v.name}: {v.type}" for v in (*inputs, *outputs, *sizes, *invalid))
    text = text.replace(f"func.func @{program.name}(", f"func.func private @{own}(", 1)  # called from here only
    return "\n".join([f"{text}func.func @{TENSORS}_{word}({head}) {{", *(f"  {line}" for line in b.lines), "}", ""])


def _laid_out(place: Value, t: Tensor, b: Block, scope: Scope) -> Value:
    """A buffer, passed as its first element, with the shape and strides of a tensor."""
    free = [[as_index(n, b, scope) for n in some if not isinstance(n, Const)] for some in (t.shape, t.strides)]
    fixed = [[int(n.value) if isinstance(n, Const) else _OPEN for n in some] for some in (t.shape, t.strides)]
    arrays = [f"array<i64{': ' if some else ''}{', '.join(map(str, some))}>" for some in fixed]
    strides = ", ".join("?" if n == _OPEN else str(n) for n in fixed[1])
    kind = typed(t.dtype, t.shape).replace("tensor", "memref").replace(">", f", strided<[{strides}]>>")
    attributes = (
        f"static_offsets = array<i64: 0>, static_sizes = {arrays[0]}, static_strides = {arrays[1]}, "
        f"operandSegmentSizes = array<i32: 1, 0, {len(free[0])}, {len(free[1])}>"
    )
    return b.op("memref.reinterpret_cast", (place, *free[0], *free[1]), kind, attributes)


def _load(place: Value, t: Tensor, b: Block, scope: Scope) -> Value:
    """The tensor in a buffer, copied element by element unless it is row-major: MLIR copies between layouts by a
    library function."""
    kind = typed(t.dtype, t.shape)
    if t.strides == row_major(t.shape):
        return b.op("bufferization.to_tensor", (place,), kind, "restrict")

    def fill(inner: Block, held: Value, at: Values) -> Value:
        if len(at) == len(t.shape):
            return inner.op("tensor.insert", (inner.op("memref.load", (place, *at), element(t.dtype)), held, *at), kind)
        extent = as_index(t.shape[len(at)], inner, scope.inner())
        return inner.loop(extent, (held,), lambda block, i, now: (fill(block, now[0], (*at, i)),))[0]

    free = [as_index(n, b, scope) for n in t.shape if not isinstance(n, Const)]
    return fill(b, b.op("tensor.empty", free, kind), ())


def _store(x: Value, place: Value, t: Tensor, at: Values, b: Block, scope: Scope) -> None:
    """Store a tensor element by element, in any layout."""
    if len(at) == len(t.shape):
        b.do("memref.store", (b.op("tensor.extract", (x, *at), element(t.dtype)), place, *at))
        return

    def step(inner: Block, i: Value, _: Values) -> Values:
        _store(x, place, t, (*at, i), inner, scope.inner())
        return ()

    b.loop(as_index(t.shape[len(at)], b, scope), (), step)


def around(program: Program, word: str) -> str:
    """The entry `mlc_entry_<word>` for the launcher, in LLVM IR. It takes pointers to all buffers, and sizes, and
    returns 1 if the data is invalid, else 0."""
    count = len(program.inputs) + len(program.outputs)
    lines = ["  %flag = alloca i8", "  store i8 0, ptr %flag"]
    for what, kind, array, many in (("p", "ptr", "buffers", count), ("n", "i64", "sizes", len(program.sizes))):
        for n in range(many):
            lines += [
                f"  %at.{what}{n} = getelementptr {kind}, ptr %{array}, i64 {n}",
                f"  %{what}{n} = load {kind}, ptr %at.{what}{n}",
            ]
    passed = [f"ptr %p{n}" for n in range(count)] + [f"i64 %n{n}" for n in range(len(program.sizes))]
    given = ", ".join(passed + (["ptr %flag"] if fails(program) else []))
    lines += [
        f"  call void @{TENSORS}_{word}({given})",
        "  %said = load i8, ptr %flag",
        "  %status = zext i8 %said to i32",
    ]
    head = f"define i32 @{ENTRY}_{word}(ptr %buffers, ptr %sizes, i32 %threads) {{"
    return "\n".join([head, *lines, "  ret i32 %status", "}", ""])
