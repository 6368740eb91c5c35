"""Reference interpreter of Loop IR: translation to plain scalar C++ loops, which are compiled and run.

It shares nothing with the renderers of the product. Every access is checked against every extent; arithmetic is in the
program's own types, rounded at each operation; unwritten elements stay poisoned.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from compiler.errors import InvalidData
from compiler.interpret import scalar
from compiler.interpret.grid import InterpretError
from compiler.interpret.scalar import Array
from compiler.interpret.tensor import bind_sizes, extent
from compiler.ir.dtype import DType, boolean
from compiler.ir.expr import COMBINE, Cast, Const, Expr, Load, Op, Select, Var
from compiler.ir.functions import FUNCTIONS
from compiler.ir.loop import For
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.runtime import build
from compiler.runtime.memory import element_span

_FUNCTIONS = (f"{('UNARY', 'BINARY')[f.arity - 1]}({f.name})" for f in FUNCTIONS.values() if f.library)
PRELUDE = f"#define FUNCTIONS {' '.join(_FUNCTIONS)}\n" + (Path(__file__).parent / "loop_prelude.h").read_text(
    encoding="utf-8"
)
FLAGS = (
    "-O1", "-std=c++17", "-fwrapv", "-ffp-contract=off", "-fno-exceptions", "-shared", "-fPIC", *build.SOUNDNESS_FLAGS,
    *build.LIBRARIES,
)  # fmt: skip


def run(program: Program, arrays: Sequence[Array], cache: Path | None = None) -> tuple[Array, ...]:
    """The outputs of `program` on `arrays`, in the order of its inputs; raises InterpretError for a wrong access."""
    sizes = bind_sizes(program, [np.shape(a) for a in arrays])
    tensors = _tensors(program)
    memory = {t.name: laid_out(poison(t, [extent(e, sizes) for e in t.shape]), t, sizes) for t in tensors}
    for t, a in zip(program.inputs, arrays, strict=True):
        memory[t.name] = laid_out(scalar.to_memory(np.asarray(a), t.dtype), t, sizes)
    violation = np.zeros(7, np.int64)
    entry = _entry(build.build(source(program), FLAGS, cache=cache))
    buffers = [memory[t.name] for t in tensors] + [violation]
    pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
    entry(pointers, (ctypes.c_longlong * (len(sizes) + 1))(*(sizes[s.name] for s in program.sizes)), 1)
    if violation[5]:
        raise InterpretError(_explain(program, violation.tolist(), sizes))
    if violation[6]:
        raise InvalidData
    return tuple(_result(program, t, memory[t.name]) for t in program.outputs)


def _tensors(program: Program) -> list[Tensor]:
    return list({t.name: t for t in (*program.inputs, *program.outputs, *program.temps)}.values())


def poison(t: Tensor, shape: list[int]) -> Array:
    """An array whose elements are recognisably unwritten: NaN, or bytes of 0x7f."""
    out = np.empty(shape, scalar.memory(t.dtype))
    if t.dtype.is_float:
        out[...] = scalar.to_memory(np.asarray(np.nan, np.float32), t.dtype)
    else:
        out.reshape(-1).view(np.uint8)[...] = 0x7F
    return out


def laid_out(a: Array, t: Tensor, sizes: Mapping[str, int]) -> Array:
    """A copy of an array, with the memory layout of its tensor, so that views see the right elements."""
    steps = [extent(e, sizes) for e in t.strides]
    out = as_strided(np.empty(element_span(a.shape, steps), a.dtype), a.shape, [n * a.itemsize for n in steps])
    out[...] = a
    return out


def _result(program: Program, t: Tensor, a: Array) -> Array:
    a = np.array(a, order="C")
    if t.dtype is boolean and (a.view(np.uint8) > 1).any():
        raise InterpretError(f"{program.name}: an element of output {t.name} was never written")
    return scalar.from_memory(a, t.dtype)


def _explain(program: Program, violation: list[int], sizes: dict[str, int]) -> str:
    kernel, buffer, dimension, index, store, *_ = violation
    t = program.kernels[kernel].params[buffer]
    where = f"{program.name}: kernel {program.kernels[kernel].name}"
    done = f"{'stores to' if store else 'loads'} element {index} of {t.name}"
    has = extent(t.shape[dimension], sizes)
    return f"{where}: index out of bounds: {done} along dimension {dimension}, which has {has}"


@functools.cache
def _entry(path: Path) -> Any:  # ctypes gives function pointers a private class
    function = ctypes.CDLL(str(path)).mlc_entry
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    function.restype = None
    return function


# ---- C++ text


def source(program: Program) -> str:
    """The program as C++: one function per kernel, and the entry that runs them in order."""
    where = {t.name: k for k, t in enumerate(_tensors(program))}
    text = [PRELUDE]
    for k, kernel in enumerate(program.kernels):
        text.append(_Writer(k, kernel, tuple(s.name for s in program.sizes)).function())
    text.append(
        'extern "C" __attribute__((visibility("default"))) void mlc_entry(void **buffers, const i64 *sizes, int) {'
    )
    text.append(f"    violation = (i64 *)buffers[{len(where)}];")
    for k, kernel in enumerate(program.kernels):
        pointers = [f"({_pointee(p.dtype)} *)buffers[{where[p.name]}]" for p in kernel.params]
        text.append(f"    kernel_{k}({', '.join([*pointers, 'sizes'])});")
    return "\n".join([*text, "}\n"])


def _pointee(dtype: DType) -> str:
    return "u8" if dtype is boolean else dtype.name


class _Writer:
    """Writes one kernel; buffers are b_NAME and variables v_NAME, so that no name has a meaning in C++."""

    def __init__(self, number: int, kernel: Kernel, sizes: tuple[str, ...]) -> None:
        self.number, self.kernel, self.sizes = number, kernel, sizes
        self.params = {p.name: (k, p) for k, p in enumerate(kernel.params)}

    def function(self) -> str:
        arguments = [f"{_pointee(p.dtype)} *b_{p.name}" for p in self.kernel.params] + ["const i64 *sizes"]
        lines = [f"static void kernel_{self.number}({', '.join(arguments)}) {{"]
        lines += [f"    const i64 v_{s} = sizes[{k}];" for k, s in enumerate(self.sizes)]
        return "\n".join([*lines, *self.body(self.kernel.body), "}"])

    def body(self, body: tuple[Stmt, ...]) -> list[str]:
        return ["    " + line for s in body for line in self.statement(s)]

    def statement(self, s: Stmt) -> list[str]:
        match s:
            case For(var, count, _, body):
                head = f"for (i64 v_{var} = 0, n_{var} = {self.expr(count)}; v_{var} < n_{var}; ++v_{var}) {{"
                return [head, *self.body(body), "}"]
            case If(cond, body):
                return [f"if ({self.expr(cond)}) {{", *self.body(body), "}"]
            case InOrder():
                return self.in_order(s)
            case Let(name, value):
                return [f"const {value.dtype.name} v_{name} = {self.expr(value)};"]
            case Init(name, value):
                return [f"{value.dtype.name} v_{name} = {self.expr(value)};"]
            case Accum(name, op, value):
                return [f"v_{name} = op_{COMBINE[op]}(v_{name}, {self.expr(value)});"]
            case Store(buffer, index, value, op):
                return self.store(buffer, index, value, op)
        raise TypeError(f"{type(s).__name__} is not a Loop IR statement")

    def in_order(self, s: InOrder) -> list[str]:
        kind, turn, var = s.key.dtype, f"v_{s.turn}", f"v_{s.var}"
        wide = _F32 if kind.bits == 16 and kind.is_float else kind
        key = conversion(self.expr(s.key), kind, wide)
        return [
            f"{{ in_order<{_pointee(wide)}> o_{s.var}({self.expr(s.count)});",
            f"for (i64 {var} = 0; {var} < o_{s.var}.n; ++{var}) o_{s.var}.keys[{var}] = {key};",
            f"o_{s.var}.sort({str(s.how == 'descending').lower()});",
            f"for (i64 {turn} = 0, n_{s.turn} = {self.expr(s.extent)}; {turn} < n_{s.turn}; ++{turn}) {{",
            f"    const i64 {var} = o_{s.var}.places[{turn}];",
            *self.body(s.body),
            "} }",
        ]

    def store(self, buffer: str, index: tuple[Expr, ...], value: Expr, op: str) -> list[str]:
        dtype = value.dtype
        there = f"b_{buffer}[{self.place(buffer, index, 1)}]"
        if op == "set":
            return [f"{there} = {self.expr(value)};"]
        old = "old != 0" if dtype is boolean else "old"
        kind = _pointee(dtype)
        combined = f"op_{COMBINE[op]}<{dtype.name}>({old}, {self.expr(value)})"
        return [f"{{ {kind} &slot = {there}; const {kind} old = slot; slot = {combined}; }}"]

    def place(self, buffer: str, index: tuple[Expr, ...], store: int) -> str:
        """Offset of an element; every index is checked."""
        number, tensor = self.params[buffer]
        offset = "0"
        for d, (i, n, step) in enumerate(zip(index, tensor.shape, tensor.strides, strict=True)):
            size = self.expr(n)
            checked = f"within({self.expr(i)}, {size}, {self.number}, {number}, {d}, {store})"
            offset = f"{offset} + {checked} * {self.expr(step)}"
        return offset

    def expr(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                return literal(value, dtype)
            case Var(name):
                return f"v_{name}"
            case Load(buffer, index, dtype):
                text = f"b_{buffer}[{self.place(buffer, index, 0)}]"
                return f"({text} != 0)" if dtype is boolean else text
            case Select(cond, then, other):
                return f"({self.expr(cond)} ? {self.expr(then)} : {self.expr(other)})"
            case Cast(arg, dtype):
                return conversion(self.expr(arg), arg.dtype, dtype)
            case Op("where", (cond, then, other)):
                return f"op_where<{e.dtype.name}>({self.expr(cond)}, {self.expr(then)}, {self.expr(other)})"
            case Op("require", (cond, value)):
                return f"op_require<{e.dtype.name}>({self.expr(cond)}, {self.expr(value)})"
            case Op(name, args):
                return f"op_{name}({', '.join(f'({args[0].dtype.name}){self.expr(a)}' for a in args)})"
        raise TypeError(f"{type(e).__name__} is not an expression")


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant in C++, exact to the bit."""
    if dtype is boolean:
        return "true" if value else "false"
    if dtype.is_float:
        if dtype.bits == 16:
            return conversion(literal(float(value), _F32), _F32, dtype)
        number = float(value)
        if number != number:
            text = '__builtin_nan("")'
        elif number in (float("inf"), float("-inf")):
            text = "__builtin_inf()" if number > 0 else "-__builtin_inf()"
        else:
            text = number.hex()
        return f"({dtype.name})({text})"
    if value == -(2**63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"({dtype.name})({int(value)}LL)"


_F32 = DType("f32", "float", 32)


def conversion(text: str, source_type: DType, target: DType) -> str:
    """A `Cast`; conversions from and to short floats go through f32."""
    if source_type is target:
        return text
    if source_type.is_float and source_type.bits <= 16:
        return conversion(f"from_{source_type.name}({text})", _F32, target)
    if target is boolean:
        return f"to_bool({text})"
    if target.is_float and target.bits <= 16:
        return f"to_{target.name}({conversion(text, source_type, _F32)})"
    return f"convert<{target.name}, {source_type.name}>({text})"
