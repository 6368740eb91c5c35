"""Guarded runs: a kernel that behaves gives its outputs; one that does not is found out, and found out how."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compiler.runtime import build, guarded
from compiler.runtime.guarded import Outcome
from compiler.runtime.launcher import DTYPES, Buffer, Plan

HEAD = """
static void body(void** buffers);
extern "C" __attribute__((visibility("default")))
int mlc_entry(void** buffers, const long long*, int) {
  body(buffers);
  return 0;
}
void body(void** buffers) {
  float* x = (float*)buffers[0];
  float* y = (float*)buffers[1];
  float* t = (float*)buffers[2];
"""
# One of the statements runs for i from `first` up to `last`; x, y and t have elements of TYPE.
LOOPS = """
#include <math.h>
#include <cstdint>
#include <cstring>
struct bf16 {
  uint16_t bits;
  bf16() = default;
  bf16(float x) { uint32_t word; std::memcpy(&word, &x, 4); bits = word >> 16; }
  operator float() const { uint32_t word = (uint32_t)bits << 16; float x; std::memcpy(&x, &word, 4); return x; }
};
extern "C" __attribute__((visibility("default")))
int mlc_entry(void** buffers, const long long* sizes, int) {
  typedef TYPE T;
  T *x = (T*)buffers[0], *y = (T*)buffers[1], *t = (T*)buffers[2];
  const long long first = sizes[0], last = sizes[1];
  for (long long i = first; i < last; i++) switch (sizes[2]) { CASES }
  return 0;
}
"""
C_TYPES = {
    "f64": "double", "f32": "float", "bf16": "bf16", "f16": "_Float16", "i64": "int64_t", "i32": "int32_t",
    "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "bool": "uint8_t", "f8e4m3": "uint8_t", "f8e5m2": "uint8_t",
}  # fmt: skip
READS = ("y[i] = x[i + last]", "y[i] = x[i - last]")
COPIES = ("y[i] = x[i]", "y[i] = x[last - 1 - i + first]", "t[i] = x[i]", "y[i] = t[i]", "y[i] = x[-1]")
SIMPLE = ("y[i] = 0", "y[i] = 1", "y[i] = -1", "y[i] = x[i] + (T)1.0f", "y[i] = -x[i]", "y[i] = y[i] + y[i]")
ARITHMETIC = (
    "y[i] = x[i] + (T)1.5f", "y[i] = x[i] * x[i]", "y[i] = x[i] - x[i]", "y[i] = -x[i]", "y[i] = tanhf((float)x[i])",
    "y[i] = y[i] + x[i]", "y[i] = y[i] + (T)1.0f", "y[i] = y[i] * (T)3.0f", "y[i] = x[i] > (T)0.0f ? x[i] : (T)0.0f",
    "y[i] = x[i] != x[i] ? x[i] : (T)1.0f", 'y[i] = (T)__builtin_nanf("")', 'y[i] = (T)-__builtin_nanf("")',
)  # fmt: skip
STATEMENTS = (*READS, *COPIES, *SIMPLE, *ARITHMETIC)
Kernel = Callable[..., Outcome]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """Runs `body`, in which x and y are 5 floats and t is a temporary of 5."""

    def run(body: str, x: torch.Tensor, dtype: str = "f32", patience: float = 0.0) -> Outcome:
        path = build.build(HEAD + body + "}\n", build.kernel_flags(optimise="-O0"), cache=tmp_path)
        plan = Plan((Buffer("x", "f32", (5,), x.stride()),), (Buffer("y", dtype, (5,), (1,)),), (0,), 64)
        return guarded.run(guarded.entry(path), plan, [x], [Buffer("t", "f32", (5,), (1,))], patience=patience)

    return run


@pytest.mark.parametrize("patience", [0.0, 20.0])
def test_sound_kernels_give_their_outputs(kernel: Kernel, patience: float) -> None:
    x = torch.randn(20)[2::3][:5]  # with an offset, and gaps in which nothing is read
    copies = "for (int i = 0; i < 5; i++) t[i] = 2 * x[3 * i]; for (int i = 0; i < 5; i++) y[i] = t[i];"
    made = kernel(copies, x, patience=patience)
    assert made.complaints == () and made.same
    assert torch.equal(made.outputs[0], 2 * x)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("y[5] = 1;", "0 bytes behind y"),
        ("y[-1] = 1;", "4 bytes before y"),
        ("t[7] = 1;", "8 bytes behind t"),
        ("((int*)x)[1] ^= -1;", "input x was changed, 4 bytes into it"),  # every byte, and not back in three runs
    ],
)
def test_forbidden_writes_are_found(kernel: Kernel, body: str, complaint: str) -> None:
    made = kernel("for (int i = 0; i < 5; i++) y[i] = x[i]; " + body, torch.randn(5))
    assert len(made.complaints) == 1 and complaint in made.complaints[0]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


def run_loop(statement: str, dtype: str, first: int, last: int, count: int, rng: random.Random, cache: Path) -> Outcome:
    """Run a statement for i from `first` up to `last` on buffers of `count` elements; those of x are random."""
    cases = " ".join(f"case {n}: {each}; break;" for n, each in enumerate(STATEMENTS))
    text = LOOPS.replace("TYPE", C_TYPES[dtype]).replace("CASES", cases)
    path = build.build(text, build.kernel_flags(optimise="-O1"), cache=cache)
    buffers = [Buffer(name, dtype, (count,), (1,)) for name in "xyt"]
    x = torch.tensor([rng.randrange(100) for _ in range(count)], dtype=torch.float32).to(DTYPES[dtype])
    call = guarded.entry(path, (first, last, STATEMENTS.index(statement)))
    return guarded.run(call, Plan((buffers[0],), (buffers[1],), (0,), 64 * count), [x], [buffers[2]])


@pytest.mark.parametrize("dtype", C_TYPES)
def test_copies_and_simple_values_outside_of_a_buffer_are_found(dtype: str, seed: int, cache: Path) -> None:
    """Also a copy from the zone of another buffer, by one element or many, behind the end or before the beginning."""
    rng = random.Random(seed)
    count, far = rng.randrange(1, 70), rng.randrange(2, 65)
    for statement in (*COPIES, *SIMPLE):
        for first, last, side in ((0, 1, "behind"), (0, far, "behind"), (-1, 0, "before"), (-far, 0, "before")):
            made = run_loop(statement, dtype, first, count + last, count, rng, cache)
            complaint = made.complaints[0] if made.complaints else ""
            assert "memory was written" in complaint and side in complaint, (seed, statement, first, last, complaint)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_arithmetic_with_what_lies_outside_of_a_buffer_is_found(dtype: str, seed: int, cache: Path) -> None:
    """A NaN that a kernel reads stays a NaN, and is still not what lay where it is written, even in place."""
    rng = random.Random(seed)
    count, far = rng.randrange(1, 70), rng.randrange(1, 65)
    for statement in ARITHMETIC:
        for first, last in ((0, far), (-far, 0)):
            made = run_loop(statement, dtype, first, count + last, count, rng, cache)
            assert "memory was written" in "".join(made.complaints), (seed, statement, first, last)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_read_outside_of_a_buffer_spoils_results(dtype: str, seed: int, cache: Path) -> None:
    """It is NaN in types that have it, a large negative integer in others, and no bool."""
    rng = random.Random(seed)
    count = rng.randrange(4, 70)
    for statement in READS:
        made = run_loop(statement, dtype, 0, count, count, rng, cache)
        values = made.outputs[0].float()
        assert made.complaints[:1] == (("an element of y was never written",) if dtype == "bool" else ()), seed
        if dtype.startswith("f8"):
            assert values.isnan().any() and not (values.abs() < 2).any(), (seed, values)
        elif DTYPES[dtype].is_floating_point:
            assert values.isnan().all(), (seed, values)
        elif dtype not in ("bool", "u8"):
            assert (values < -0.5 * torch.iinfo(DTYPES[dtype]).max).all(), (seed, values)


def test_marks_make_no_plausible_number_and_no_quiet_nan() -> None:
    assert len({*guarded.MARKS}) == len(guarded.MARKS)
    assert not {*guarded.MARKS} & {0, 1, 0x7F, 0x80, 0xFF}
    for dtype, quiet in (("f64", 1 << 51), ("f32", 1 << 22), ("bf16", 1 << 6), ("f16", 1 << 9)):
        for number in range(len(guarded.MARKS)):
            bits = int.from_bytes(guarded._zone_element(dtype, number), "little")
            infinity = (quiet - 1) ^ ((1 << 8 * DTYPES[dtype].itemsize) - 1) ^ quiet
            assert bits & infinity == infinity and bits & (quiet - 1) and not bits & quiet, (dtype, hex(bits))


def test_what_is_not_written_shows(kernel: Kernel) -> None:
    floats = kernel("for (int i = 0; i < 4; i++) y[i] = x[i];", torch.randn(5))
    assert floats.outputs[0][4].isnan()
    bools = kernel("for (int i = 0; i < 4; i++) ((bool*)y)[i] = x[i] > 0;", torch.randn(5), "bool")
    assert bools.complaints == ("an element of y was never written",)


@pytest.mark.parametrize("body", ["y[i] += x[i];", "y[i] = t[i]; t[i] = x[i];"])
def test_leftovers_of_an_earlier_run_show(kernel: Kernel, body: str) -> None:
    start = "for (int i = 0; i < 5; i++) if (y[i] != y[i]) y[i] = 0;"
    assert not kernel(start + "for (int i = 0; i < 5; i++) {" + body + "}", torch.randn(5).abs() + 1).same


@pytest.mark.parametrize(
    ("body", "complaint", "patience"),
    [("__builtin_trap();", "it died of SIG", 20.0), ("for (;;) *(volatile float*)y = 1;", "it did not end", 0.2)],
)
def test_a_process_of_its_own_survives_anything(kernel: Kernel, body: str, complaint: str, patience: float) -> None:
    made = kernel(body, torch.randn(5), patience=patience)
    assert made.outputs == () and complaint in made.complaints[0]


def test_an_error_in_a_process_of_its_own_is_told() -> None:
    def fail(problem: BaseException) -> tuple[str, ...]:
        def call(*_: object) -> list[str]:
            raise problem

        return guarded.run(call, Plan((), (Buffer("y", "f32", (5,), (1,)),), (), 0), [], [], patience=20).complaints

    assert fail(ValueError("no such launch")) == ("it raised an error: ValueError: no such launch",)
    assert fail(SystemExit(0)) == ("it raised an error",)


def test_an_interrupt_ends_the_process_of_a_kernel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, kill, killed = time.sleep, os.kill, []

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    def noted_kill(pid: int, number: int) -> None:
        killed.append(pid)
        kill(pid, number)

    def work() -> list[str]:
        sleep(60)
        return []

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(time, "sleep", interrupt)
        patched.setattr(os, "kill", noted_kill)
        guarded._run_forked(work, 60)
    with pytest.raises(ProcessLookupError):
        kill(killed[0], 0)


def test_a_temporary_whose_rows_are_apart_has_whole_pieces_of_an_access() -> None:
    assert guarded.temporary_size((4, 65), (68, 1), 4) == 3 * 68 * 4 + 65 * 4 + 12
    assert guarded.temporary_size((4, 65), (65, 1), 4) == 4 * 65 * 4
    assert guarded.temporary_size((0, 65), (68, 1), 4) == 0
