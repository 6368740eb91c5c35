"""What the emulator reports of integers: divisions that a CPU refuses, and signed numbers that wrap around."""

import signal

import pytest

from compiler.tests.emulator_bodies import MODES, clean, run


@MODES
@pytest.mark.parametrize("synchronizes", [True, False])
@pytest.mark.parametrize("quotient", ["100 / *z", "100 % *z", "(LEAST + *z) / (*z - 1)"])
def test_a_division_by_zero_is_reported_at_its_line(check: bool, synchronizes: bool, quotient: str) -> None:
    """The process would die of it otherwise, and what handled the signal before does so again."""
    handled = signal.signal(signal.SIGFPE, signal.SIG_DFL)
    try:
        body = f"""constexpr long LEAST = -(1L << 62) * 2;
            volatile long* z = y + blockIdx.x * 32 + threadIdx.x;
            *z = 0;
            if (threadIdx.x == 5)
                *z = {quotient};"""
        for threads in (1, 2):
            outcome, _ = run(body, 96, (3, 1, 1), check=check, synchronizes=synchronizes, threads=threads)
            assert not outcome.complete and {r.kind for r in outcome.reports} == {"division by zero"}
            assert {(r.line, r.thread) for r in outcome.reports} == {(7 if check else 0, 5)}
        assert signal.getsignal(signal.SIGFPE) is signal.SIG_DFL
        assert list(clean(run("y[threadIdx.x] = 5 / (1 + threadIdx.x * 0);", 32, check=check))) == [5] * 32
    finally:
        signal.signal(signal.SIGFPE, handled)


@pytest.mark.parametrize("made", ["*z + 1", "-2 - *z", "*z * 2", "-(-*z - 1)"])
def test_a_signed_overflow_is_reported_at_its_line(made: str) -> None:
    """Unchecked, it wraps around."""
    body = f"""volatile long* z = y + threadIdx.x;
        *z = threadIdx.x == 5 ? (long)(~0ul >> 1) : 7;
        *z = {made};"""
    outcome, _ = run(body, 32, check=True)
    assert not outcome.complete
    assert {(r.kind, r.line, r.thread) for r in outcome.reports} == {("signed overflow", 5, 5)}
    assert run(body, 32)[0].complete
