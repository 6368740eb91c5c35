"""C++ text of Kernel IR: how it looks, and, compiled and run, that all operations, types and widths mean the right."""

import shutil

import numpy as np
import pytest

from compiler.interpret import kernel as interpreter
from compiler.interpret import scalar
from compiler.ir import dtype as dt
from compiler.ir import kernel, kernel_text
from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import OPS
from compiler.ir.functions import FUNCTIONS
from compiler.ir.kernel import Program
from compiler.render import c, cpp, cpp_expression
from compiler.tests.kernel_samples import SAMPLES
from compiler.tests.run_kernel import draw, run, same, spelled

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
COUNT = 64


GOLDEN = """\
// softmax, for cpu:avx2
// def softmax(x: f32[7, 21], *, y: f32[7, 21]):
//     t: f32[7, 21]
// Compile with -std=c++17 -fopenmp -fwrapv.
#include "parallel.h"
#include "vector.h"
#include "exponential.h"
#include "memory.h"

using f32x8 = mlc_vec<float, 8>;

static __attribute__((noinline, noclone)) void rows_i(const float* __restrict x, float* __restrict t,
    float* __restrict y, long from, long to) {
  for (long i = from; i < to; i++) {
    float m = -__builtin_inff();
    f32x8 lanes = mlc_broadcast<float, 8>(-__builtin_inff());
    for (long j = 0; j < 16; j += 8) {
      lanes = mlc_max(lanes, mlc_load<float, 8>(&x[i * 21 + j]));
    }
    m = mlc_max(m, mlc_reduce_max(lanes));
    for (long j = 16; j < 21; j++) {
      m = mlc_max(m, x[i * 21 + j]);
    }
    float s = 0.0f;
    for (long k = 0; k < 21; k++) {
      const float e = mlc_exp(x[i * 21 + k] - m);
      t[i * 21 + k] = e;
      s = mlc_in_order(s + e);
    }
    #pragma GCC unroll 21
    for (long l = 0; l < 21; l++) {
      y[i * 21 + l] = t[i * 21 + l] / s;
    }
  }
}

// rows scheduled by
// bind("i", blocks)
static void rows(const float* __restrict x, float* __restrict t, float* __restrict y, int threads) {
  mlc_parallel(threads, 7, [=](long from, long to) { rows_i(x, t, y, from, to); });
}

// buffers: x, y, t
extern "C" __attribute__((visibility("default")))
int mlc_entry(void** buffers, const long long* /* sizes */, int threads) {
  float* x = (float*)buffers[0];
  float* y = (float*)buffers[1];
  float* t = (float*)buffers[2];
  rows(x, t, y, threads);
  return 0;
}
"""


def test_the_text_is_readable_and_fixed() -> None:
    program = kernel_text.parse(SAMPLES["softmax"])
    assert cpp.render(program, target="cpu:avx2") == GOLDEN


# ---- every operation at every type, one element and several at a time


def rows(names: list[str], dtype: DType, lanes: int) -> Program:
    """One function for each operation: `y0[i] = op(a[i], b[i], c[i])` over vectors of `lanes`."""
    inputs = ["a", "b", "c"] if lanes else []
    kind = f"{dtype}x{lanes}" if lanes > 1 else str(dtype)
    lines = [f"def f({', '.join(f'{x}: {dtype}[{COUNT}]' for x in inputs)}, p: bool[{COUNT}], *, "]
    lines[0] += ", ".join(f"y{n}: {result(name, dtype)}[{COUNT}]" for n, name in enumerate(names)) + "):"
    for n, name in enumerate(names):
        suffix = f", {kind}" if lanes > 1 else ""
        condition = f"p[i, boolx{lanes}]" if lanes > 1 else "p[i]"
        args = [f"{x}[i{suffix}]" for x in inputs[: OPS[name].arity]]
        args = [condition, *args[:2]] if name == "where" else args
        used = ", ".join(["p", *inputs[:2]] if name == "where" else inputs[: OPS[name].arity])
        lines += [f"    with function('{name}_', [{used}, y{n}], writes=[y{n}]):"]
        lines += [f"        for i in range(0, {COUNT}, {lanes}):", f"            y{n}[i] = {spelled(name, args)}"]
    program = kernel_text.parse("\n".join(lines) + "\n")
    kernel.verify(program)
    return program


def result(name: str, dtype: DType) -> DType:
    return dt.boolean if OPS[name].result == "bool" else dtype


# Functions with an argument on both sides of every limit are compared in their domain; the others everywhere.
EXACT = set(OPS) - {"fma", *FUNCTIONS}
COMPUTE = [d for d in DTYPES.values() if d not in dt.STORAGE_ONLY]
WIDTHS = {8: 16, 16: 8, 32: 8, 64: 4}


@needs_compiler
@pytest.mark.parametrize("lanes", ["one", "many"])
@pytest.mark.parametrize("dtype", COMPUTE, ids=str)
def test_every_operation_at_every_type(dtype: DType, lanes: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [name for name, row in OPS.items() if dtype.kind in row.kinds and name != "require"]
    program = rows(names, dtype, WIDTHS[dtype.bits] if lanes == "many" else 1)
    arrays = [draw(rng, dtype, COUNT) for _ in "abc"]
    condition = draw(rng, dt.boolean, COUNT)
    got = dict(zip(names, run(program, [*arrays, condition]), strict=True))
    tame = [scalar.cast(rng.uniform(0.05, 0.95, COUNT), dt.f64, dtype) for _ in "abc"] if dtype.is_float else arrays
    domain = dict(zip(names, run(program, [*tame, condition]), strict=True)) if dtype.is_float else got
    for name in names:
        given = arrays if name in EXACT or not dtype.is_float else tame
        values = got if name in EXACT or not dtype.is_float else domain
        args = tuple(given[: OPS[name].arity])
        want = scalar.apply(name, (condition, *args[:2]) if name == "where" else args)
        allowed = 0.0 if name in EXACT else 4e-7 if dtype is dt.f32 else 1e-14
        if dtype.is_float and name == "floordiv":
            continue  # its rounding near whole numbers is a matter of the device functions' own test
        assert same(values[name], want, allowed), f"{name} of {dtype}, {lanes} at a time, seed {seed}"


def casts(lanes: int) -> Program:
    """`y[i] = target(x[i])` for every pair of types."""
    width = f"x{lanes}" if lanes > 1 else ""
    lines = [f"def f({', '.join(f'x_{s}: {s}[{COUNT}]' for s in DTYPES)}, *, "]
    lines[0] += ", ".join(f"y_{s}_{t}: {t}[{COUNT}]" for s in DTYPES for t in DTYPES) + "):"
    for s in DTYPES:
        lines.append(f"    with function('from_{s}', [x_{s}, {', '.join(f'y_{s}_{t}' for t in DTYPES)}], ")
        lines[-1] += f"writes=[{', '.join(f'y_{s}_{t}' for t in DTYPES)}]):"
        lines.append(f"        for i in range(0, {COUNT}, {lanes}):")
        load = f"x_{s}[i, {s}{width}]" if width else f"x_{s}[i]"
        lines.append(f"            v: {s}{width} = {load}")
        for t in DTYPES:  # of a value from memory, and of one in a variable
            target = f"{t}{width}({load if ord(t[0]) % 2 else 'v'})" if s != t else load
            lines.append(f"            y_{s}_{t}[i] = {target}")
    program = kernel_text.parse("\n".join(lines) + "\n")
    kernel.verify(program)
    return program


@needs_compiler
@pytest.mark.parametrize("lanes", [1, 8, 32])
def test_every_conversion(lanes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = casts(lanes)
    arrays = {s: draw(rng, d, COUNT) for s, d in DTYPES.items()}
    got = iter(run(program, list(arrays.values())))
    meant = iter(interpreter.run(program, list(arrays.values())))
    for s, source in DTYPES.items():
        for t, target in DTYPES.items():
            want = scalar.cast(arrays[s], source, target)
            assert same(next(got), want), f"{s} to {t}, {lanes} lanes, seed {seed}"
            assert same(next(meant), want), f"interpreted: {s} to {t}, {lanes} lanes, seed {seed}"


# ---- samples: C++ and the interpreter agree, on this machine's instructions and on AVX2's


def sample_inputs(program: Program, rng: np.random.Generator) -> list[np.ndarray]:
    made = []
    for t in program.inputs:
        count = int(np.prod([n.value for n in t.shape]))  # type: ignore[attr-defined]
        values = draw(rng, t.dtype, count) if t.dtype.name != "f64" else rng.standard_normal(count)
        if t.name == "at":
            values = rng.integers(0, COUNT, count, dtype=np.int32)
        if program.name in ("softmax", "pointwise", "names"):
            values = rng.standard_normal(count).astype(values.dtype)
        made.append(values.reshape([n.value for n in t.shape]))  # type: ignore[attr-defined]
    return made


@needs_compiler
@pytest.mark.parametrize("machine", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_mean_the_same_compiled_and_interpreted(name: str, machine: str, seed: int) -> None:
    program = kernel_text.parse(SAMPLES[name])
    arrays = sample_inputs(program, np.random.default_rng(seed))
    got = run(program, arrays, machine, threads=2)
    want = interpreter.run(program, arrays)
    for g, w, t in zip(got, want, program.outputs, strict=True):
        allowed = {"f32": 1e-5, "f64": 1e-12, "bf16": 2**-7, "f16": 2**-10}.get(t.dtype.name, 0.0)
        assert same(g, w, allowed), f"{t.name} of {name}, seed {seed}"


@needs_compiler
def test_a_bool_in_memory_is_true_unless_it_is_zero() -> None:
    text = """
def f(p: bool[16], *, y: i32[16], z: i32[16]):
    with function("f", [p, y, z], writes=[y, z]):
        for i in range(0, 16, 8):
            y[i] = i32x8(p[i, boolx8])
        for i in range(0, 16, 1):
            z[i] = i32(p[i])
"""
    raw = np.arange(16, dtype=np.uint8)
    y, z = run(kernel_text.parse(text), [raw.view(np.bool_)])
    assert y.tolist() == z.tolist() == [0] + [1] * 15


# ---- spelling


def test_literals_are_exact() -> None:
    rng = np.random.default_rng(7)
    for value in (rng.standard_normal(200) * 10.0 ** rng.integers(-40, 38, 200)).astype(np.float32):
        text = c.literal(float(value), dt.f32).text
        assert np.float32(text.removesuffix("f")) == value and text.endswith("f")
    assert c.literal(0.1, dt.f64).text == "0.1"
    assert c.literal(float(np.float32(0.1)), dt.f32).text == "0.1f"
    assert c.literal(3.0, dt.f32).text == "3.0f"
    assert c.literal(float("-inf"), dt.f64).text == "-__builtin_inf()"
    assert c.literal(-(2**63), dt.i64).text == "-9223372036854775807l - 1"


def test_half_literals_round_to_even() -> None:
    values = np.array(
        [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 65504.0, 1e30, 3.4e38, float("inf"), float("-inf")], np.float32
    )
    want = scalar.to_memory(values, dt.bf16)
    assert [cpp_expression.short_bits(float(v), dt.bf16) for v in values] == want.tolist()
    with np.errstate(over="ignore"):
        assert [cpp_expression.short_bits(float(v), dt.f16) for v in values] == values.astype(np.float16).view(
            np.uint16
        ).tolist()
    assert cpp_expression.short_bits(float("nan"), dt.bf16) == 0x7FC0


def test_names_never_clash() -> None:
    spelled_ = c.spell_names(["int", "int_", "mlc_exp", "x", "_y", "vmlc_exp", "f32x8"], cpp.RESERVED)
    assert len(set(spelled_.values())) == 7
    assert not set(spelled_.values()) & cpp.RESERVED
    assert not any(name.startswith(("mlc_", "_")) for name in spelled_.values())
    assert spelled_["x"] == "x" and spelled_["int_"] == "int_"


def test_what_a_cpu_cannot_do_is_refused() -> None:
    for line, message in (
        ("barrier('block')", "Barrier has no meaning"),
        ("y[thread.x] = 1.0", "Builtin has no meaning"),
        ("s = array(shared, f32, 8)", "shared memory, which a CPU has not"),
        ("call('mlc_nothing', [], writes=[])", "no header has the device function mlc_nothing"),
    ):
        text = f"def f(*, y: f32[8]):\n    with function('f', [y], writes=[y]):\n        {line}\n"
        with pytest.raises(ValueError, match=message):
            cpp.render(kernel_text.parse(text), target="cpu")


@pytest.mark.parametrize(
    ("dtype", "lanes", "by_reference"), [("i64", 16, True), ("i64", 4, True), ("i64", 2, False), ("i32", 4, False)]
)
def test_large_vectors_are_passed_by_reference(dtype: str, lanes: int, by_reference: bool) -> None:
    """GCC 12 passes them by value at another place than the callee expects."""
    vector = f"{dtype}x{lanes}"
    text = f"""
def f(x: {dtype}[{lanes}], *, y: {dtype}[8, {lanes}]):
    with function("f", [x, y], writes=[y]):
        v: {vector} = x[0, {vector}]
        for i in range(0, 8, 1, parallel):
            y[i * {lanes}] = v
"""
    made = cpp.render(kernel_text.parse(text), target="cpu")
    assert f"const {vector}{'&' * by_reference} v," in made
