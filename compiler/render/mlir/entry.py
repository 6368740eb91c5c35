"""Functions that make an MLIR function of tensors callable from C: one in MLIR on buffers, one in LLVM IR around it."""

from __future__ import annotations

from compiler.ir.expr import Const
from compiler.ir.tensor import Program, Tensor, row_major
from compiler.render.mlir.linalg import has_requirements, shaped_type
from compiler.render.mlir.scalar import INVALID, Scope, as_index
from compiler.render.mlir.text import Block, Value, Values, element

TENSORS, ENTRY = "mlc_tensors", "mlc_entry"
_DYNAMIC = -(2**63)  # MLIR's notation for a dynamic size


def entry(text: str, program: Program, suffix: str) -> str:
    """The program's own text, and a function that calls it on buffers (inputs, then outputs) and sizes. The names of
    both end in `suffix`, so that programs can share a module."""
    function_name = f"{program.name}_{suffix}"
    b = Block()
    inputs = [Value(f"%in{n}", f"memref<1x{element(t.dtype)}>") for n, t in enumerate(program.inputs)]
    outputs = [Value(f"%out{n}", f"memref<1x{element(t.dtype)}>") for n, t in enumerate(program.outputs)]
    sizes = [Value(f"%{s.name}", "index") for s in program.sizes]
    invalid = [INVALID] if has_requirements(program) else []
    scope = Scope({s.name: v for s, v in zip(program.sizes, sizes, strict=True)}, {}, {})
    arguments = [_load(_strided_view(v, t, b, scope), t, b, scope) for v, t in zip(inputs, program.inputs, strict=True)]
    kinds = [shaped_type(t.dtype, t.shape) for t in program.outputs]
    results = b.operation("func.call", (*arguments, *invalid), kinds, f"callee = @{function_name}")
    for x, place, t in zip(results, outputs, program.outputs, strict=True):
        _store(x, _strided_view(place, t, b, scope), t, (), b, scope)
    b.do("func.return", ())
    parameters = ", ".join(f"{v.name}: {v.type}" for v in (*inputs, *outputs, *sizes, *invalid))
    # The program's function is called from here only.
    text = text.replace(f"func.func @{program.name}(", f"func.func private @{function_name}(", 1)
    return "\n".join(
        [f"{text}func.func @{TENSORS}_{suffix}({parameters}) {{", *(f"  {line}" for line in b.lines), "}", ""]
    )


def _strided_view(buffer: Value, t: Tensor, b: Block, scope: Scope) -> Value:
    """A buffer, passed as its first element, with the shape and strides of a tensor."""
    dynamic = [[as_index(n, b, scope) for n in values if not isinstance(n, Const)] for values in (t.shape, t.strides)]
    static = [[int(n.value) if isinstance(n, Const) else _DYNAMIC for n in values] for values in (t.shape, t.strides)]
    arrays = [f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>" for values in static]
    strides = ", ".join("?" if n == _DYNAMIC else str(n) for n in static[1])
    kind = shaped_type(t.dtype, t.shape).replace("tensor", "memref").replace(">", f", strided<[{strides}]>>")
    attributes = (
        f"static_offsets = array<i64: 0>, static_sizes = {arrays[0]}, static_strides = {arrays[1]}, "
        f"operandSegmentSizes = array<i32: 1, 0, {len(dynamic[0])}, {len(dynamic[1])}>"
    )
    return b.op("memref.reinterpret_cast", (buffer, *dynamic[0], *dynamic[1]), kind, attributes)


def _load(buffer: Value, t: Tensor, b: Block, scope: Scope) -> Value:
    """The tensor in a buffer, copied element by element unless it is row-major: MLIR copies between layouts by a
    library function."""
    kind = shaped_type(t.dtype, t.shape)
    if t.strides == row_major(t.shape):
        return b.op("bufferization.to_tensor", (buffer,), kind, "restrict")

    def fill(inner: Block, tensor: Value, indices: Values) -> Value:
        if len(indices) == len(t.shape):
            return inner.op(
                "tensor.insert", (inner.op("memref.load", (buffer, *indices), element(t.dtype)), tensor, *indices), kind
            )
        extent = as_index(t.shape[len(indices)], inner, scope.inner())
        return inner.loop(extent, (tensor,), lambda block, i, carried: (fill(block, carried[0], (*indices, i)),))[0]

    dynamic_extents = [as_index(n, b, scope) for n in t.shape if not isinstance(n, Const)]
    return fill(b, b.op("tensor.empty", dynamic_extents, kind), ())


def _store(x: Value, buffer: Value, t: Tensor, indices: Values, b: Block, scope: Scope) -> None:
    """Store a tensor element by element, in any layout."""
    if len(indices) == len(t.shape):
        b.do("memref.store", (b.op("tensor.extract", (x, *indices), element(t.dtype)), buffer, *indices))
        return

    def step(inner: Block, i: Value, _: Values) -> Values:
        _store(x, buffer, t, (*indices, i), inner, scope.inner())
        return ()

    b.loop(as_index(t.shape[len(indices)], b, scope), (), step)


def c_entry(program: Program, suffix: str) -> str:
    """The entry `mlc_entry_<word>` for the launcher, in LLVM IR. It takes pointers to all buffers, and sizes, and
    returns 1 if the data is invalid, else 0."""
    count = len(program.inputs) + len(program.outputs)
    lines = ["  %flag = alloca i8", "  store i8 0, ptr %flag"]
    for prefix, kind, array, length in (("p", "ptr", "buffers", count), ("n", "i64", "sizes", len(program.sizes))):
        for n in range(length):
            lines += [
                f"  %at.{prefix}{n} = getelementptr {kind}, ptr %{array}, i64 {n}",
                f"  %{prefix}{n} = load {kind}, ptr %at.{prefix}{n}",
            ]
    arguments = [f"ptr %p{n}" for n in range(count)] + [f"i64 %n{n}" for n in range(len(program.sizes))]
    argument_list = ", ".join(arguments + (["ptr %flag"] if has_requirements(program) else []))
    lines += [
        f"  call void @{TENSORS}_{suffix}({argument_list})",
        "  %said = load i8, ptr %flag",
        "  %status = zext i8 %said to i32",
    ]
    head = f"define i32 @{ENTRY}_{suffix}(ptr %buffers, ptr %sizes, i32 %threads) {{"
    return "\n".join([head, *lines, "  ret i32 %status", "}", ""])
