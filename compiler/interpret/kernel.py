"""Reference interpreter of Kernel IR, on NumPy arrays.

Each function is translated to Python (kernel_python.py) and run sequentially, loops marked parallel backwards. It is an
error to access a buffer out of bounds, to read an element that was never written, or to leave an element of an output
unwritten. Device functions are interpreted by the rows of `CALLS`.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import InvalidData
from compiler.interpret import scalar
from compiler.interpret.grid import InterpretError
from compiler.interpret.kernel_python import translate
from compiler.interpret.loop import poison
from compiler.interpret.scalar import FUNCTIONS, Array
from compiler.interpret.tensor import bind_sizes, extent
from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, i64
from compiler.ir.expr import OPS, dim
from compiler.ir.functions import FUNCTIONS as ROWS
from compiler.ir.kernel import Call, Function, Program
from compiler.ir.tensor import Tensor
from compiler.runtime.memory import element_span


@dataclass(frozen=True)
class Pointer:
    """A pointer to an element of a buffer, as an argument of a device function."""

    name: str
    memory: Array
    offset: int
    written: bytearray | None
    where: str

    def read(self, at: Array) -> Array:
        """The elements at these distances."""
        places = np.asarray(at, np.int64) + self.offset
        _check_places(self.where, self.name, self.memory, self.written, places, "loads")
        return np.asarray(self.memory[places])

    def write(self, at: Array, values: Array, known: Array | int = 1) -> None:
        """Store elements, which count as written where `known`."""
        places = np.asarray(at, np.int64) + self.offset
        _check_places(self.where, self.name, self.memory, None, places, "stores")
        self.memory[places] = values
        if self.written is not None:
            np.frombuffer(self.written, np.uint8)[places] = known

    def move(self, at: Array, target: Pointer, to: Array) -> None:
        """Copy elements; those that were never written leave the target's unwritten, since a move does not use them."""
        places = np.asarray(at, np.int64) + self.offset
        _check_places(self.where, self.name, self.memory, None, places, "loads")
        known = 1 if self.written is None else np.frombuffer(self.written, np.uint8)[places]
        target.write(to, self.memory[places], known)


def _product(_: tuple[int | str, ...], args: tuple[Any, ...]) -> None:
    """acc[m, n] += a[m, k] . b[k, n]: sizes, then each operand with its row and column strides."""
    acc, here = _places_of_product(args)
    old = acc.read(here)
    acc.write(here, old + _multiplied(args, old.dtype))


def _stored_product(_: tuple[int | str, ...], args: tuple[Any, ...]) -> None:
    """to[m, n] = a[m, k] . b[k, n], summed in f32 and rounded to bf16: arguments as for `_product`."""
    to, here = _places_of_product(args)
    to.write(here, scalar.round_bf16(_multiplied(args, np.dtype(np.float32))))


def _places_of_product(args: tuple[Any, ...]) -> tuple[Any, Array]:
    """The result of a product, and the distances of its elements."""
    m, n, *_, result, row = args
    return result, np.arange(m)[:, None] * row + np.arange(n)


def _multiplied(args: tuple[Any, ...], dtype: np.dtype[Any]) -> Array:
    """The product of the operands of a product, in a type."""
    m, n, k, a, a_m, a_k, b, b_k, b_n, *_ = args
    i, j, step = np.arange(m)[:, None], np.arange(n), np.arange(k)
    left, right = a.read(i * a_m + step * a_k), b.read(step[:, None] * b_k + j * b_n)
    return np.asarray(left.astype(dtype) @ right.astype(dtype))


def _copy(_: tuple[int | str, ...], args: tuple[Any, ...]) -> None:
    """to[m, n] = from[m, n]: sizes, how much of them exists (the rest is zero), then both with their strides."""
    m, n, m_there, n_there, source, source_m, source_n, target, target_m, target_n = args
    i, j = np.arange(m)[:, None], np.arange(n)
    rows, columns = i[: max(m_there, 0)], j[: max(n_there, 0)]
    target.write(i * target_m + j * target_n, 0)
    source.move(rows * source_m + columns * source_n, target, rows * target_m + columns * target_n)


def _order(how: tuple[int | str, ...], args: tuple[Any, ...]) -> None:
    """places[k] = index of the k-th key in order: number of keys, number of places, then both with their strides."""
    count, place_count, keys, step, places, place_step = args
    found = scalar.order(str(how[0]).removeprefix("MLC_").lower(), keys.read(np.arange(count) * step), 0)
    places.write(np.arange(place_count) * place_step, found[:place_count])


# Device functions by name: their effect, given template arguments and arguments, pointers among these.
CALLS: dict[str, Callable[[tuple[int | str, ...], tuple[Any, ...]], None]] = {
    "mlc_fma_block": _product,
    "mlc_dot_block": _product,
    "mlc_interleaved_block": _product,
    "mlc_interleaved_block_store": _stored_product,
    "mlc_tile_block": _product,
    "mlc_tile_block_store": _stored_product,
    "mlc_copy_block": _copy,
    "mlc_order": _order,
}


def _check_places(where: str, name: str, memory: Array, written: bytearray | None, places: Array, verb: str) -> None:
    outside = places[(places < 0) | (places >= memory.size)]
    if outside.size:
        raise InterpretError(f"{where}: {verb} element {outside.flat[0]} of {name}, which has {memory.size}")
    if written is not None:
        unwritten = places[np.frombuffer(written, np.uint8)[places] == 0]
        if unwritten.size:
            raise InterpretError(f"{where}: {verb} element {unwritten.flat[0]} of {name}, which was never written")


@dataclass
class _Buffer:
    """The memory of a tensor; `written` is None for inputs."""

    memory: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bytearray | None = None

    def view(self, flat: Array) -> Array:
        """Flat memory as a view with the tensor's shape and strides."""
        steps = [n * flat.itemsize for n in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps)


def run(program: Program, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of `program` on `arrays`, in the order of its inputs; raises InterpretError for a wrong access."""
    sizes = bind_sizes(program, [np.shape(a) for a in arrays])  # type: ignore[arg-type]
    names = tuple(s.name for s in program.sizes)
    buffers: dict[str, _Buffer] = {}
    for t, a in zip(program.inputs, arrays, strict=True):
        buffer = buffers[t.name] = _allocate(t, sizes)
        buffer.view(buffer.memory)[...] = np.asarray(a)
    for t in (*program.outputs, *program.temps):
        if t.name not in buffers:
            buffers[t.name] = _allocate(t, sizes)
            buffers[t.name].written = bytearray(buffers[t.name].memory.size)
    with np.errstate(all="ignore"):
        for f in program.functions:
            undefined = frozenset(p.name for p in f.params if buffers[p.name].written is not None)
            parts = (_array_arguments(buffers[p.name]) for p in f.params)
            _compile(f, names, undefined)(*(sizes[n] for n in names), *(x for p in parts for x in p))
    return tuple(_result(program, t, buffers[t.name]) for t in program.outputs)


def _allocate(t: Tensor, sizes: dict[str, int]) -> _Buffer:
    shape, strides = (tuple(extent(e, sizes) for e in es) for es in (t.shape, t.strides))
    return _Buffer(_poisoned(t.dtype, element_span(shape, strides)), shape, strides)


def _poisoned(dtype: DType, count: int) -> Array:
    """`count` poisoned elements; types that are stored as f32 have its poison."""
    kind = dt.f32 if dtype in (dt.bf16, *dt.EIGHTHS) else dtype
    return poison(Tensor("", kind, (dim(count),), (dim(1),)), [count])


def _array_arguments(b: _Buffer) -> tuple[Array, memoryview, int, bytearray | None]:
    return b.memory, b.memory.data, b.memory.size, b.written


def _result(program: Program, t: Tensor, b: _Buffer) -> Array:
    if b.written is not None and b.memory.size:
        unwritten = np.argwhere(b.view(np.frombuffer(b.written, np.uint8)) == 0)
        if len(unwritten):
            raise InterpretError(
                f"{program.name}: element {unwritten[0].tolist()} of output {t.name} was never written"
            )
    return np.array(b.view(b.memory)) if b.memory.size else np.empty(b.shape, b.memory.dtype)


@functools.lru_cache(maxsize=256)
def _compile(f: Function, sizes: tuple[str, ...], undefined: frozenset[str]) -> Callable[..., None]:
    for s in f.body:
        for n in s.walk():
            if isinstance(n, Call) and n.function not in CALLS:
                raise InterpretError(f"function {f.name}: no row of CALLS says what {n.function} does")
    source, literals = translate(f, sizes, set(undefined))
    names: dict[str, Any] = {**_NAMES, **literals, **_accesses(f"function {f.name}")}
    exec(compile(source, f"<{f.name}>", "exec"), names)  # the source is generated by us
    function: Callable[..., None] = names["run"]
    return function


def _accesses(where: str) -> dict[str, Any]:
    """Helpers for accesses by a translated function, which need the function's name for their errors."""

    def outside(name: str, index: int, lanes: int, size: int, verb: str) -> None:
        what = f"element {index}" if lanes == 1 else f"elements {index} to {index + lanes - 1}"
        unwritten = "which was never written" if lanes == 1 else "not all of which were ever written"
        why = unwritten if 0 <= index <= size - lanes else f"which has {size}"
        raise InterpretError(f"{where}: {verb} {what} of {name}, {why}")

    def gather(name: str, memory: Array, written: bytearray | None, places: Array) -> Array:
        wanted = places.tolist()
        if min(wanted) < 0 or max(wanted) >= memory.size or not (written is None or all(written[i] for i in wanted)):
            _check_places(where, name, memory, written, places, "loads")
        return np.asarray(memory[places])

    def masked(name: str, memory: Array, written: bytearray | None, start: int, mask: Array, other: Array) -> Array:
        out = np.array(other)
        lanes = np.flatnonzero(mask)
        if lanes.size:
            out[lanes] = gather(name, memory, written, start + lanes)
        return out

    def pointer(name: str, memory: Array, offset: int, written: bytearray | None) -> Pointer:
        return Pointer(name, memory, offset, written, where)

    def call(name: str, template: tuple[int | str, ...], args: tuple[Any, ...]) -> None:
        CALLS[name](template, args)

    return {"outside": outside, "gather": gather, "masked": masked, "pointer": pointer, "call": call}


# ---- names used by translated functions


def _array(size: int, dtype: str) -> tuple[Array, memoryview, int, bytearray]:
    memory = _poisoned(dt.parse(dtype), size)
    return memory, memory.data, size, bytearray(size)


def _full(lanes: int, value: Any, dtype: str) -> Array:
    return np.full(lanes, value, scalar.storage(dt.DTYPES[dtype]))


def _convert(x: Array, source: str, target: str) -> Array:
    return scalar.cast(x, dt.DTYPES[source], dt.DTYPES[target])


def _round_bf16(x: Any) -> Any:
    if x != x:
        return x
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return np.float32(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])


def _round_eight(dtype: dt.DType, x: Any) -> Any:
    return scalar.rounded(np.asarray(x, np.float32), dtype)[()]


def _float_from_int(x: int, dtype: str) -> Any:
    kind = dt.DTYPES[dtype]
    made = np.int64(x).astype(scalar.storage(dt.f32 if kind in dt.STORAGE_ONLY else kind))  # rounds once
    return _round_bf16(made) if kind is dt.bf16 else scalar.rounded(made, kind).astype(scalar.storage(kind))[()]


def _int_from_float(x: Any, bits: int, signed: bool) -> int:
    """Conversion as on x86: values beyond 32 bits (64 for i64) give the least; narrower types take the low bits."""
    least = -(2 ** (max(bits, 32) - 1))
    whole = int(x) if math.isfinite(x) else least
    whole = whole if least <= whole < -least else least
    return _wrapped(whole, bits, signed)


def _wrapped(x: int, bits: int, signed: bool) -> int:
    half = 1 << (bits - 1) if signed else 0
    return ((x + half) & ((1 << bits) - 1)) - half


def _wrap(dtype: DType) -> Callable[[int], int]:
    low, high = dt.integer_range(dtype)
    signed = dtype.kind == "int"

    def wrap(x: int) -> int:
        return x if low <= x <= high else _wrapped(x, dtype.bits, signed)

    return wrap


def _through_f64(u: Callable[..., Any]) -> Callable[..., Any]:
    """A function of f32, computed in f64 and rounded once."""
    return lambda *args: type(args[0])(u(*map(float, args)))


def _truncdiv(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift_left(a: int, count: int, bits: int) -> int:
    return a << count if 0 <= count < bits else 0


def _shift_right(a: int, count: int, bits: int) -> int:
    return a >> (count if 0 <= count < bits else bits)


def _require(cond: Any, x: Any) -> Any:
    if not cond:
        raise InvalidData
    return x


# fmt: off
_INTEGERS: dict[str, Callable[..., Any]] = {
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,
    "truncdiv": _truncdiv, "rem": lambda a, b: a - b * _truncdiv(a, b) if b else 0, "gcd": math.gcd,
    "abs": abs, "sign": lambda a: (a > 0) - (a < 0), "min": min, "max": max,
    "shl": _shift_left, "shr": _shift_right, "where": lambda c, a, b: a if c else b, "require": _require,
}
_BOOLS: dict[str, Callable[..., Any]] = {
    "min": lambda a, b: a and b, "max": lambda a, b: a or b, "where": lambda c, a, b: a if c else b,
    "require": _require,
}
_FLOATS: dict[str, Callable[..., Any]] = {
    "min": lambda a, b: a if a <= b or a != a else b, "max": lambda a, b: a if a >= b or a != a else b,
    "where": lambda c, a, b: a if c else b, "isnan": lambda a: bool(a != a), "abs": abs,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "sqrt": np.sqrt,
    "pow": _through_f64(scalar.power),
}
# fmt: on


def _apply_to_scalar(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, applied to scalars."""
    return lambda *args: np.asarray(f(*args))[()]


def _float_functions() -> dict[str, Callable[..., Any]]:
    table = {name: _apply_to_scalar(FUNCTIONS[name]) for name in OPS}
    for name, row in ROWS.items():
        if row.library:
            table[name] = _through_f64(row.meaning or getattr(np, name))
    return table | _FLOATS


def _reductions() -> dict[str, Callable[[Array], Any]]:
    """Reductions of lanes to a scalar: NumPy scalars for floats, Python's own types for others."""

    def across(u: np.ufunc, logical: np.ufunc) -> Callable[[Array], Any]:
        def f(x: Array) -> Any:
            made = (logical if x.dtype.kind == "b" else u).reduce(x, dtype=x.dtype)
            return made if x.dtype.kind == "f" else made.item()

        return f

    both, either = np.logical_and, np.logical_or
    rows = {"sum": (np.add, either), "prod": (np.multiply, both),
            "max": (np.maximum, either), "min": (np.minimum, both),
            "and": (np.bitwise_and, both), "or": (np.bitwise_or, either)}  # fmt: skip
    return {f"across_{name}": across(*row) for name, row in rows.items()}


_NAMES: dict[str, Any] = {
    "array": _array,
    "full": _full,
    "convert": _convert,
    "round_bf16": _round_bf16,
    **{f"round_{t}": functools.partial(_round_eight, t) for t in dt.EIGHTHS},
    "float_from_int": _float_from_int,
    "int_from_float": _int_from_float,
    **{f"t_{name}": scalar.storage(d).type for name, d in dt.DTYPES.items()},
    **{f"wrap_{d}": _wrap(d) for d in (i64, dt.i32, dt.i16, dt.i8, dt.u8)},
    **{f"int_{name}": f for name, f in _INTEGERS.items()},
    **{f"bool_{name}": f for name, f in _BOOLS.items()},
    **{f"float_{name}": f for name, f in _float_functions().items()},
    **{f"vector_{name}": f for name, f in FUNCTIONS.items()},
    **_reductions(),
}
