"""What calls a function of tensors from C: MLIR, with buffers as they lie in memory, and LLVM IR around that."""

from __future__ import annotations

from compiler.ir.expr import static
from compiler.ir.tensor import Program, Tensor, row_major
from compiler.render.mlir.linalg import fails, shape
from compiler.render.mlir.scalar import INVALID
from compiler.render.mlir.text import Block, Value, Values, element, tensor_type

TENSORS = "mlc_tensors"


def entry(text: str, program: Program) -> str:
    """The program's own text, and a function of its buffers, inputs then outputs, that calls it."""
    b = Block()
    inputs = [Value(f"%in{n}", _memref(t)) for n, t in enumerate(program.inputs)]
    outputs = [Value(f"%out{n}", _memref(t)) for n, t in enumerate(program.outputs)]
    invalid = [INVALID] if fails(program) else []
    given = [_load(v, t, b) for v, t in zip(inputs, program.inputs, strict=True)]
    kinds = [tensor_type(t.dtype, shape(t)) for t in program.outputs]
    made = b.many("func.call", (*given, *invalid), kinds, f"callee = @{program.name}")
    for x, place, t in zip(made, outputs, program.outputs, strict=True):
        _store(x, place, t, (), b)
    b.do("func.return", ())
    head = ", ".join(f"{v.name}: {v.type}" for v in (*inputs, *outputs, *invalid))
    own = text.replace("func.func @", "func.func private @", 1)  # that nobody else calls
    return "\n".join([f"{own}func.func @{TENSORS}({head}) {{", *(f"  {line}" for line in b.lines), "}", ""])


def _memref(t: Tensor) -> str:
    strides = ", ".join(str(static(n)) for n in t.strides)
    layout = f", strided<[{strides}]>" if t.strides else ""
    return tensor_type(t.dtype, shape(t)).replace("tensor", "memref").replace(">", f"{layout}>")


def _load(place: Value, t: Tensor, b: Block) -> Value:
    """The tensor in a buffer, element by element unless it lies row by row: between layouts MLIR copies by a function
    of a library."""
    kind = tensor_type(t.dtype, shape(t))
    if t.strides == row_major(t.shape):
        return b.op("bufferization.to_tensor", (place,), kind, "restrict")

    def fill(inner: Block, held: Value, at: Values) -> Value:
        if len(at) == len(t.shape):
            return inner.op("tensor.insert", (inner.op("memref.load", (place, *at), element(t.dtype)), held, *at), kind)
        return inner.loop(shape(t)[len(at)], (held,), lambda block, i, now: (fill(block, now[0], (*at, i)),))[0]

    return fill(b, b.op("tensor.empty", (), kind), ())


def _store(x: Value, place: Value, t: Tensor, at: Values, b: Block) -> None:
    """Element by element, wherever these are."""
    if len(at) == len(t.shape):
        b.do("memref.store", (b.op("tensor.extract", (x, *at), element(t.dtype)), place, *at))
        return

    def step(inner: Block, i: Value, _: Values) -> Values:
        _store(x, place, t, (*at, i), inner)
        return ()

    b.loop(shape(t)[len(at)], (), step)


def around(program: Program) -> str:
    """The entry that the launcher calls, in LLVM IR: pointers to all buffers in; whether the data may not be out."""
    count = len(program.inputs) + len(program.outputs)
    lines = ["  %flag = alloca i8", "  store i8 0, ptr %flag"]
    for n in range(count):
        lines += [f"  %at{n} = getelementptr ptr, ptr %buffers, i64 {n}", f"  %p{n} = load ptr, ptr %at{n}"]
    given = ", ".join([f"ptr %p{n}" for n in range(count)] + (["ptr %flag"] if fails(program) else []))
    lines += [f"  call void @{TENSORS}({given})", "  %said = load i8, ptr %flag", "  %status = zext i8 %said to i32"]
    head = "define i32 @mlc_entry(ptr %buffers, ptr %sizes, i32 %threads) {"
    return "\n".join([head, *lines, "  ret i32 %status", "}", ""])
