"""Loads and stores of every type, width, stride and alignment, in kernels as small as they come, built as kernels are.

What the device functions mean by themselves is tested elsewhere; here each stands in a loop that GCC has to find
addresses for, beside another access to the same buffer, and what it computes is compared with the interpreter's result.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from compiler.interpret import kernel as interpreter
from compiler.ir import kernel_text
from compiler.ir.dtype import DTYPES, STORAGE_ONLY, DType
from compiler.ir.kernel import Program, verify
from compiler.tests.cpp_library import MACHINES, runs_here, seeded
from compiler.tests.run_kernel import draw, run, same

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ROWS = 5  # where their number is not that of the lanes
BYTES = {"native": 64, "x86-64-v3": 32, "x86-64": 16}  # of the widest vector


@dataclass(frozen=True)
class Access:
    """Rows of `lanes` elements `row` apart beside others `turn` apart whose lanes are `step` apart, `offset` from the
    start; there are `rows`, each of `vectors` vectors."""

    lanes: int
    rows: int
    vectors: int
    row: int
    turn: int
    step: int
    offset: int

    def size(self) -> int:
        """Elements that are read, and some more."""
        long = self.lanes * self.vectors
        return self.offset + (self.rows + 2) * max(self.row, self.turn) + long * max(abs(self.step), 1) + 2 * self.lanes

    def first(self) -> int:
        """Where lanes begin that go backwards, as far in as they go, else the offset."""
        return self.offset - min(self.step, 0) * (self.lanes * self.vectors - 1)


def accesses(lanes: int) -> Iterator[Access]:
    """Both sides of a matrix and its transpose, then strides that are and are not a vector's, each way."""
    yield Access(lanes, lanes, 1, lanes, 1, lanes, 0)
    yield Access(lanes, lanes + 1, 1, lanes + 1, 1, lanes + 1, 0)
    for n, step in enumerate((lanes, 1, 3, 0, -1, -lanes)):
        yield Access(lanes, ROWS, 1 + n % 2, lanes + n % 2, (1, lanes, 3)[n % 3], step, n % 3)


def widths(dtype: DType, widest: int) -> Iterator[int]:
    """From four lanes on, below which the compiler makes no vectors, to as many as the machine computes at once."""
    size, lanes = 4 if dtype in STORAGE_ONLY or dtype.kind == "bool" else dtype.bytes, 4
    while lanes * size <= max(widest, 32):
        yield lanes
        lanes *= 2


def program(dtype: DType, found: list[Access]) -> Program:
    """A function for each access: `y[i, j] = x[i * row + j] + x[i * turn + j * step]`."""
    computed = "f32" if dtype in STORAGE_ONLY else dtype.name
    symbol = "^" if dtype.kind == "bool" else "+"
    x = [f"x{n}: {dtype}[{a.size()}]" for n, a in enumerate(found)]
    y = [f"y{n}: {dtype}[{a.rows * a.lanes * a.vectors + 1}]" for n, a in enumerate(found)]
    lines = [f"def f({', '.join(x)}, *, {', '.join(y)}):"]
    for n, a in enumerate(found):
        w, long = a.lanes, a.lanes * a.vectors
        index = f"ramp(j, 1, {w}) * broadcast({a.step}, {w}) + broadcast(i * {a.turn} + {a.first()}, {w})"
        both = [f"x{n}[i * {a.row} + j + {a.offset}, {dtype}x{w}]", f"gather(x{n}, {index})"]
        both = both if computed == dtype.name else [f"{computed}x{w}({v})" for v in both]
        value = f" {symbol} ".join(both)
        lines += [
            f"    with function('access{n}', [x{n}, y{n}], writes=[y{n}]):",
            f"        for i in range(0, {a.rows}, 1, parallel):",
            f"            for j in range(0, {long}, {w}):",
            f"                y{n}[i * {long} + j + {n % 2}] = "
            + (value if computed == dtype.name else f"{dtype}x{w}({value})"),
        ]
        end = a.rows * long if not n % 2 else 0
        lines += [f"        y{n}[{end}] = x{n}[0]"]
    made = kernel_text.parse("\n".join(lines) + "\n")
    verify(made)
    return made


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_an_access_beside_another_reads_what_it_must(dtype: DType, machine: str) -> None:
    if not runs_here(machine):
        pytest.skip(f"this processor cannot run {machine}")
    found = [a for lanes in widths(dtype, BYTES[machine]) for a in accesses(lanes)]
    made = program(dtype, found)
    seed, rng = seeded()
    arrays = [draw(rng, dtype, a.size()) for a in found]
    expected = interpreter.run(made, arrays)
    for threads in (1, 2):
        for a, got, want in zip(found, run(made, arrays, machine, threads, optimise="-O3"), expected, strict=True):
            assert same(got, want), f"{dtype} on {machine}, {threads} threads, seed {seed}: {a}"
