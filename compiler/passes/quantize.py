"""Quantize weights (Torch IR to Torch IR): a product with a weight becomes a product with integers and scales.

Quantized weights are stored as [rows, depth] whatever their original orientation: one row per column of the product.
- "int8-weight-only": one scale per row; activations stay, and the product is scaled afterwards.
- "int4-weight-only": one scale per group of up to 128 along the depth; two numbers per byte.
- "int8-dynamic": as the first; each row of activations becomes int8 too, with its own scale.
- "fp8": as the last, with f8e4m3 instead of int8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.errors import CompilerError
from compiler.ir import dtype as dt
from compiler.ir.aten import Call, Input, Program, Ref, Type, reads, types
from compiler.ir.dtype import DType
from compiler.ir.expr import Const, Expr, dim, fresh, static
from compiler.ir.tensor import numel, row_major

MODES = ("int8-weight-only", "int4-weight-only", "int8-dynamic", "fp8")
GROUP = 128  # int4 elements along the depth per scale; or the largest power of two that divides the depth, if less
CHUNK = 32  # int4 elements in 16 bytes, consecutive along the depth: the first half in the low nibbles
MOST = {"i8": 127.0, "f8e4m3": 448.0}  # the largest value of a quantized row of activations
OF_ACTIVATIONS = {"int8-dynamic": "i8", "fp8": "f8e4m3"}  # the type of quantized activations, by mode
LEAST = 1e-30  # the least scale, so that a row of zeros has one


@dataclass(frozen=True)
class Quantized:
    """How a weight is quantized.

    `weight`, of [rows, depth] or, if `across`, of [depth, rows], is `values` times `scales`. A scale is for a `group`
    of elements along the depth. `bits` is 8, or 4 with two numbers per byte; 4-bit numbers are stored plus 8, and their
    scales are divided by 16. With `floats` the values are 8-bit floats instead of integers.
    """

    weight: str
    across: bool
    values: str
    scales: str
    bits: int
    group: int
    floats: bool = False


def check(mode: str) -> None:
    """Raise CompilerError for an unknown mode."""
    if mode not in MODES:
        raise CompilerError(f"quantize is one of {', '.join(MODES)}, not {mode!r}")


def grouping(mode: str, depth: int) -> tuple[int, int]:
    """Return the number of bits of a mode's integers and how many consecutive elements of a row share a scale."""
    return (4, math.gcd(GROUP, depth)) if mode == MODES[1] else (8, depth)


def quantize(program: Program, mode: str, weights: Iterable[str]) -> tuple[Program, tuple[Quantized, ...]]:
    """Quantize the products by any of `weights`. Returns the program and how to quantize each weight.

    A product is kept if its weight is unsuitable: not a matrix of a floating type, or for int4, groups too short.
    """
    check(mode)
    made = _Rewriter(program, mode, frozenset(weights))
    for call in program.calls:
        made.take(call)
    read = {n for c in made.calls for n in reads(c)} | set(program.outputs)
    used = {w.weight for w in made.done.values()}
    calls = tuple(c for c in made.calls if not (c.op in _TRANSPOSES and not read & set(c.outputs)))
    read = {n for c in calls for n in reads(c)} | set(program.outputs)
    kept = tuple(i for i in program.inputs if i.name in read or i.name not in used)
    out = program.replace(inputs=(*kept, *made.inputs), calls=calls)
    return out, tuple(made.done.values())


_TRANSPOSES = ("aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.numpy_T.default")


@dataclass
class _Rewriter:
    program: Program
    mode: str
    weights: frozenset[str]
    calls: list[Call] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    done: dict[tuple[str, bool], Quantized] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = types(self.program)
        self.taken = set(self.known)
        # Each name of a weight, with the weight and whether the name refers to its transpose.
        self.turned = {name: (name, False) for name in self.weights}

    def take(self, call: Call) -> None:
        if call.op in _TRANSPOSES and isinstance(call.args[0], Ref) and call.args[0].name in self.turned:
            weight, across = self.turned[call.args[0].name]
            if _is_transpose(call):
                self.turned[call.outputs[0]] = weight, not across
        found = self.product(call)
        if found is None:
            self.calls.append(call)
        else:
            self.scaled(call, *found)

    def product(self, call: Call) -> tuple[str, Quantized, str | None] | None:
        """The activations, the weight and the bias of a product that can be quantized; None for other calls."""
        named = dict(call.kwargs)
        match call.op, call.args:
            case "aten.linear.default", (Ref(x), Ref(w), *bias):
                turned = False
            case (("aten.mm.default" | "aten.matmul.default"), (Ref(x), Ref(w))):
                turned, bias = True, []
            case "aten.addmm.default", (Ref() as b, Ref(x), Ref(w)) if all(n == 1 for n in named.values()):
                turned, bias = True, [b]
            case _:
                return None
        bias = bias or [named.get("bias")]
        if w not in self.turned or not self.known[x].shape or call.types[0] is None:
            return None
        weight, across = self.turned[w]
        chosen = self.weight(weight, across != turned)
        return (x, chosen, bias[0].name if isinstance(bias[0], Ref) else None) if chosen else None

    def weight(self, name: str, across: bool) -> Quantized | None:
        """Quantize a weight, once per orientation; its integers and scales become inputs. None if it is unsuitable."""
        if (name, across) in self.done:
            return self.done[name, across]
        was = self.known[name]
        sizes = [int(n.value) for n in was.shape if isinstance(n, Const)]
        if len(was.shape) != 2 or len(sizes) != 2 or not was.dtype.is_float or not all(sizes):
            return None
        rows, depth = reversed(sizes) if across else sizes
        bits, group = grouping(self.mode, depth)
        if bits == 4 and group < CHUNK:
            return None
        floats = self.mode == "fp8"
        stem = f"{name}_{'fp' if floats else 'int'}{bits}"
        values = self.input(stem, dt.u8 if bits == 4 else dt.f8e4m3 if floats else dt.i8,
                            (rows, depth // CHUNK, CHUNK // 2) if bits == 4 else (rows, depth))  # fmt: skip
        small = bits == 4 and was.dtype is not dt.f64
        scales = self.input(f"{name}_scale", was.dtype if small else dt.compute(was.dtype),
                            (rows, depth // group) if bits == 4 else (rows,))  # fmt: skip
        self.done[name, across] = Quantized(name, across, values, scales, bits, group, floats)
        return self.done[name, across]

    def input(self, stem: str, dtype: DType, shape: tuple[int, ...]) -> str:
        name, made = fresh(stem, self.taken), _type(dtype, tuple(map(dim, shape)))
        self.inputs.append(Input(name, made, True))
        self.known[name] = made
        return name

    # ---- calls

    def call(self, op: str, args: tuple[object, ...], dtype: DType, shape: tuple[Expr, ...], stem: str = "") -> Ref:
        """Append a call with one result under a fresh name."""
        name = fresh(stem or op.split(".")[1].strip("_"), self.taken)
        self.known[name] = _type(dtype, shape)
        self.calls.append(Call((name,), (self.known[name],), op, args, ()))
        return Ref(name)

    def scaled(self, call: Call, x: str, w: Quantized, bias: str | None) -> None:
        """Append the calls that replace a product."""
        (kind,) = call.types
        assert kind is not None
        own, exact = self.known[x].dtype, dt.compute(kind.dtype)
        if w.bits == 4:
            args = (Ref(x), self.from_int4(w, own), *([Ref(bias)] if bias else []))
            self.calls.append(call.replace(op="aten.linear.default", args=args, kwargs=()))
            return
        if self.mode in OF_ACTIVATIONS:
            made = self.of_bytes(x, w, exact, kind.shape)
        else:
            wide = self.call("aten.to.dtype", (Ref(w.values), own), own, self.known[w.values].shape)
            made = self.call("aten.linear.default", (Ref(x), wide), kind.dtype, kind.shape)
        made = self.call("aten.mul.Tensor", (made, Ref(w.scales)), exact, kind.shape)
        if bias:
            made = self.call("aten.add.Tensor", (made, Ref(bias)), exact, kind.shape)
        self.calls.append(call.replace(op="aten.to.dtype", args=(made, kind.dtype), kwargs=()))

    def from_int4(self, w: Quantized, own: DType) -> Ref:
        """Return the weight as [rows, depth].

        Each nibble is moved to the high bits of its byte, where it counts 16 times as much, so that 128 is subtracted
        instead of 8 and the group's scale is a sixteenth.
        """
        rows, chunks, half = self.known[w.values].shape
        depth = dim(static(chunks) * CHUNK)
        whole, low = (rows, chunks, dim(2), half), (rows, chunks, dim(1), half)
        apart = self.call("aten.unsqueeze.default", (Ref(w.values), 2), dt.u8, low)
        lift = self.call("aten.arange.start_step", (16, 0, -15), dt.u8, (dim(2),), "lift")
        self.calls[-1] = self.calls[-1].replace(kwargs=(("dtype", dt.u8),))
        lift = self.call("aten.unsqueeze.default", (lift, 1), dt.u8, (dim(2), dim(1)))
        parts = self.call("aten.mul.Tensor", (apart, lift), dt.u8, whole)
        parts = self.call("aten.bitwise_and.Scalar", (parts, 0xF0), dt.u8, whole)
        wide = self.call("aten.to.dtype", (parts, own), own, whole)
        wide = self.call("aten.sub.Tensor", (wide, 128), own, whole)
        groups = (rows, self.known[w.scales].shape[1], dim(w.group))
        wide = self.call("aten.reshape.default", (wide, _sizes(groups)), own, groups)
        scale = self.call("aten.unsqueeze.default", (Ref(w.scales), 2), own, (*groups[:2], dim(1)))
        made = self.call("aten.mul.Tensor", (wide, scale), own, groups)
        return self.call("aten.reshape.default", (made, _sizes((rows, depth))), own, (rows, depth))

    def of_bytes(self, x: str, w: Quantized, exact: DType, shape: tuple[Expr, ...]) -> Ref:
        """Quantize activations to the type of the weight, one scale per row; return the product times that scale."""
        kind, short = self.known[x], self.known[w.values].dtype
        one = (*kind.shape[:-1], dim(1))
        wide = self.call("aten.to.dtype", (Ref(x), exact), exact, kind.shape) if kind.dtype is not exact else Ref(x)
        most = self.call("aten.abs.default", (wide,), exact, kind.shape)
        most = self.call("aten.amax.default", (most, (-1,), True), exact, one)
        scale = self.call("aten.div.Tensor", (most, MOST[short.name]), exact, one)
        scale = self.call("aten.clamp_min.default", (scale, LEAST), exact, one, "scale")
        made = self.call("aten.div.Tensor", (wide, scale), exact, kind.shape)
        if short is dt.i8:
            made = self.call("aten.round.default", (made,), exact, kind.shape)
        made = self.call("aten.to.dtype", (made, short), short, kind.shape)
        rows, depth = self.known[w.values].shape
        matrix = (numel(kind.shape[:-1]), depth)
        if matrix != kind.shape:
            made = self.call("aten.reshape.default", (made, _sizes(matrix)), short, matrix)
        made = self.product_of_bytes(made, w, exact, (matrix[0], rows))
        if matrix != kind.shape:
            made = self.call("aten.reshape.default", (made, _sizes(shape)), exact, shape)
        return self.call("aten.mul.Tensor", (made, scale), exact, shape)

    def product_of_bytes(self, x: Ref, w: Quantized, exact: DType, shape: tuple[Expr, Expr]) -> Ref:
        """Multiply two matrices of the same 8-bit type."""
        values = self.known[w.values]
        rows, depth = values.shape
        if w.floats:
            left = self.call("aten.to.dtype", (x, exact), exact, (shape[0], depth))
            right = self.call("aten.to.dtype", (Ref(w.values), exact), exact, values.shape)
            return self.call("aten.linear.default", (left, right), exact, shape)
        turned = self.call("aten.t.default", (Ref(w.values),), dt.i8, (depth, rows))
        self.calls[-1] = self.calls[-1].replace(types=(Type(dt.i8, (depth, rows), (dim(1), depth)),))
        made = self.call("aten._int_mm.default", (x, turned), dt.i32, shape)
        return self.call("aten.to.dtype", (made, exact), exact, shape)


def _is_transpose(call: Call) -> bool:
    """Whether a call transposes a matrix."""
    match call.args[1:]:
        case ():
            return True
        case (a, b) if isinstance(a, int) and isinstance(b, int):
            return (a - b) % 2 == 1
        case (tuple(order),):
            return [n % 2 for n in order if isinstance(n, int)] == [1, 0]
    return False


def _sizes(shape: tuple[Expr, ...]) -> tuple[Expr | int, ...]:
    """Sizes as an argument of a call: integers where they are constant."""
    return tuple(int(n.value) if isinstance(n, Const) else n for n in shape)


def _type(dtype: DType, shape: tuple[Expr, ...]) -> Type:
    return Type(dtype, shape, row_major(shape))
