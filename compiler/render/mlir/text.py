"""Write MLIR operations in generic form, whose syntax is the same for every dialect and version.

The custom form of many operations changes between versions of LLVM; `mlir-opt` prints it for reading.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compiler.errors import Unsupported
from compiler.ir.dtype import EIGHTHS, DType

# MLIR's integers are signless; a bool is one bit, and a byte in memory.
_TYPES = {"u8": "i8", "bool": "i1"}


@dataclass(frozen=True)
class Value:
    """An SSA value: its name and type."""

    name: str
    type: str


Values = Sequence[Value]
Body = Callable[["Block", tuple[Value, ...]], Values]


def element(dtype: DType) -> str:
    """The type of an element. Raises Unsupported for 8-bit floats, which MLIR's own passes do not lower."""
    if dtype in EIGHTHS:
        raise Unsupported(str(dtype), (), "target mlir has no conversions of it")
    return _TYPES.get(dtype.name, dtype.name)


def function(name: str, arguments: Values, results: Values, b: Block, *declared: str) -> str:
    """The text of a function with the block as its body, followed by declarations."""
    head = ", ".join(f"{v.name}: {v.type}" for v in arguments)
    text = f"func.func @{name}({head}) -> ({', '.join(v.type for v in results)}) {{"
    return "\n".join([text, *(f"  {line}" for line in b.lines), "}", *declared, ""])


def tensor_type(dtype: DType, shape: Iterable[int | str]) -> str:
    """
    >>> from compiler.ir.dtype import boolean
    >>> tensor_type(boolean, (2, 3))
    'tensor<2x3xi1>'
    """
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element(dtype)}>"


def literal(value: bool | int | float, dtype: DType) -> str:
    """An attribute; for floats without decimal notation, their bits.

    >>> from compiler.ir.dtype import f32, i64
    >>> literal(1e-05, f32), literal(math.inf, f32), literal(3, i64)
    ('1.0e-05 : f32', '0x7F800000 : f32', '3 : i64')
    """
    if dtype.kind == "bool":
        return "true" if value else "false"
    kind = element(dtype)
    if not dtype.is_float:
        return f"{value} : {kind}"
    if math.isfinite(value):
        digits, mark, power = repr(float(value)).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{mark}{power} : {kind}"
    bits = {"f32": (0x7F800000, 0x7FC00000, 31), "f64": (0x7FF0000000000000, 0x7FF8000000000000, 63)}
    infinity, nan, sign = bits[dtype.name]
    bits_value = nan if math.isnan(value) else infinity | (1 << sign if value < 0 else 0)
    return f"0x{bits_value:X} : {kind}"


@dataclass
class Block:
    """A sequence of operations; `counter` numbers the values of the whole function."""

    lines: list[str] = field(default_factory=list)
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def operation(
        self, name: str, arguments: Values, results: Sequence[str], attributes: str = "",
        regions: Sequence[Block] = (), result_name: str = "",
    ) -> tuple[Value, ...]:  # fmt: skip
        """An operation with results of these types; the last one has the name `result_name`, if given."""
        names = [f"%{next(self.counter)}" for _ in results[bool(result_name) :]] + (
            [f"%{result_name}"] if result_name else []
        )
        values = tuple(map(Value, names, results))
        kinds = ", ".join(a.type for a in arguments)
        result_types = results[0] if len(results) == 1 else f"({', '.join(results)})"
        head = f"{', '.join(v.name for v in values)} = " if values else ""
        head += f'"{name}"({", ".join(a.name for a in arguments)})' + (f" <{{{attributes}}}>" if attributes else "")
        tail = f" : ({kinds}) -> {result_types}"
        if not regions:
            self.lines.append(head + tail)
            return values
        self.lines.append(f"{head} ({{")
        for n, region in enumerate(regions):
            self.lines += ["}, {"] * bool(n) + region.lines
        self.lines.append(f"}}){tail}")
        return values

    def op(
        self, name: str, arguments: Values, result: str = "", attributes: str = "", regions: Sequence[Block] = (),
        result_name: str = "",
    ) -> Value:  # fmt: skip
        """An operation with one result, by default of the type of its last argument."""
        return self.operation(name, arguments, (result or arguments[-1].type,), attributes, regions, result_name)[0]

    def do(self, name: str, arguments: Values) -> None:
        """An operation without a result."""
        self.operation(name, arguments, ())

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        return self.op("arith.constant", (), element(dtype), f"value = {literal(value, dtype)}")

    def index(self, value: int) -> Value:
        return self.op("arith.constant", (), "index", f"value = {value} : index")

    def region(self, body: Body, arguments: Sequence[str] = (), end: str = "scf.yield") -> Block:
        """A region of one block with arguments of these types, which ends by yielding what `body` returns."""
        inner = Block(counter=self.counter)
        parameters = tuple(Value(f"%{next(self.counter)}", kind) for kind in arguments)
        inner.do(end, body(inner, parameters))
        label = [f"^bb0({', '.join(f'{v.name}: {v.type}' for v in parameters)}):"] if parameters else []
        inner.lines = [*label, *(f"  {line}" for line in inner.lines)]
        return inner

    def if_else(self, cond: Value, then: Body, other: Body, result: str) -> Value:
        """The value that one of two regions yields; the other is not executed."""
        return self.op("scf.if", (cond,), result, regions=(self.region(then), self.region(other)))

    def loop(
        self,
        extent: Value,
        carried: Values,
        body: Callable[[Block, Value, tuple[Value, ...]], Values],
        result_name: str = "",
    ) -> tuple[Value, ...]:
        """Loop over `body(block, index, carried)` from 0 on; its results are carried to the next iteration."""
        kinds = [v.type for v in carried]
        bounds = (self.index(0), extent, self.index(1))
        region = self.region(
            lambda b, region_arguments: body(b, region_arguments[0], region_arguments[1:]), ("index", *kinds)
        )
        return self.operation("scf.for", (*bounds, *carried), kinds, regions=(region,), result_name=result_name)
