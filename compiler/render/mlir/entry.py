"""What calls a function of tensors from C: MLIR, with buffers as they lie in memory, and LLVM IR around that."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.ir.expr import static
from compiler.ir.tensor import Program, Tensor, memory_order
from compiler.render.mlir.linalg import fails, shape
from compiler.render.mlir.scalar import INVALID
from compiler.render.mlir.text import Block, Value, element, tensor_type

TENSORS = "mlc_tensors"


def entry(text: str, program: Program) -> str:
    """The program's own text, and a function of its buffers, inputs then outputs, that calls it."""
    b = Block()
    inputs = [Value(f"%in{n}", _memref(t)) for n, t in enumerate(program.inputs)]
    outputs = [Value(f"%out{n}", _buffer(t, _stored(t))) for n, t in enumerate(program.outputs)]
    written = [v for v, t in zip(outputs, program.outputs, strict=True) if 0 not in shape(t)]
    invalid = [INVALID] if fails(program) else []
    given = [
        b.op("bufferization.to_tensor", (v,), tensor_type(t.dtype, shape(t)), "restrict")
        for v, t in zip(inputs, program.inputs, strict=True)
    ]
    kinds = [tensor_type(t.dtype, shape(t)) for t in program.outputs]
    made = b.many("func.call", (*given, *invalid), kinds, f"callee = @{program.name}")
    for x, place, t in zip(made, outputs, program.outputs, strict=True):
        if 0 in shape(t):
            continue  # a buffer without elements has no layout that is passed as a pointer
        b.do("bufferization.materialize_in_destination", (_arranged(x, t, b), place), attributes="restrict, writable")
    b.do("func.return", ())
    head = ", ".join(f"{v.name}: {v.type}" for v in (*inputs, *written, *invalid))
    own = text.replace("func.func @", "func.func private @", 1)  # that nobody else calls
    return "\n".join([f"{own}func.func @{TENSORS}({head}) {{", *(f"  {line}" for line in b.lines), "}", ""])


def _memref(t: Tensor) -> str:
    strides = ", ".join(str(static(n)) for n in t.strides)
    return _buffer(t, shape(t), f", strided<[{strides}]>" if t.strides else "")


def _buffer(t: Tensor, sizes: Iterable[int], layout: str = "") -> str:
    return f"memref<{''.join(f'{n}x' for n in sizes)}{element(t.dtype)}{layout}>"


def _stored(t: Tensor) -> tuple[int, ...]:
    return tuple(shape(t)[d] for d in memory_order(t))


def _arranged(x: Value, t: Tensor, b: Block) -> Value:
    """A tensor with its axes in the order in which they lie in memory."""
    order = memory_order(t)
    if order == tuple(range(len(order))):
        return x
    places = [f"d{n}" for n in range(len(order))]
    space = ", ".join(places)
    maps = ", ".join(f"affine_map<({space}) -> ({', '.join(at)})>" for at in (places, [places[d] for d in order]))
    kinds = ", ".join(["#linalg.iterator_type<parallel>"] * len(order))
    region = b.region(lambda _, given: given[:1], [element(t.dtype)] * 2, "linalg.yield")
    out = b.op("tensor.empty", (), tensor_type(t.dtype, _stored(t)))
    attributes = f"indexing_maps = [{maps}], iterator_types = [{kinds}], operandSegmentSizes = array<i32: 1, 1>"
    return b.op("linalg.generic", (x, out), out.type, attributes, (region,))


def around(program: Program) -> str:
    """The entry that the launcher calls, in LLVM IR: pointers to all buffers in; whether the data may not be out."""
    count = len(program.inputs) + len(program.outputs)
    passed = [n for n in range(count) if n < len(program.inputs) or 0 not in shape(program.outputs[n - count])]
    lines = ["  %flag = alloca i8", "  store i8 0, ptr %flag"]
    for n in range(count):
        lines += [f"  %at{n} = getelementptr ptr, ptr %buffers, i64 {n}", f"  %p{n} = load ptr, ptr %at{n}"]
    given = ", ".join([f"ptr %p{n}" for n in passed] + (["ptr %flag"] if fails(program) else []))
    lines += [f"  call void @{TENSORS}({given})", "  %said = load i8, ptr %flag", "  %status = zext i8 %said to i32"]
    head = "define i32 @mlc_entry(ptr %buffers, ptr %sizes, i32 %threads) {"
    return "\n".join([head, *lines, "  ret i32 %status", "}", ""])
