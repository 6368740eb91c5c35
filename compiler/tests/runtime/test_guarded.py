"""Guarded runs: a kernel that behaves gives its outputs; one that does not is found out, and found out how."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compiler.runtime import build, guarded
from compiler.runtime.guarded import Outcome
from compiler.runtime.launcher import Buffer, Plan

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
        ("x[1] = 1;", "input x was changed, 4 bytes into it"),
    ],
)
def test_forbidden_writes_are_found(kernel: Kernel, body: str, complaint: str) -> None:
    made = kernel("for (int i = 0; i < 5; i++) y[i] = x[i]; " + body, torch.randn(5))
    assert len(made.complaints) == 1 and complaint in made.complaints[0]


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


def test_a_temporary_whose_rows_are_apart_has_whole_pieces_of_an_access() -> None:
    assert guarded.temporary_size((4, 65), (68, 1), 4) == 3 * 68 * 4 + 65 * 4 + 12
    assert guarded.temporary_size((4, 65), (65, 1), 4) == 4 * 65 * 4
    assert guarded.temporary_size((0, 65), (68, 1), 4) == 0
