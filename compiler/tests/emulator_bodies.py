"""Bodies of kernels, run on the emulator."""

import numpy as np
import numpy.typing as npt
import pytest

from compiler.runtime.emulator import emulator
from compiler.runtime.emulator.emulator import Outcome
from compiler.runtime.launches import Buffer, Extent, Launch, LaunchPlan, Size
from compiler.tests import emulator_programs as programs

INCLUDE = (programs.HEADERS,)
PRELUDE = '#include "mlc/prelude.cuh"\n'
MODES = pytest.mark.parametrize("check", [False, True], ids=["fast", "check"])

Ints = npt.NDArray[np.int64]


def run(
    body: str,
    out: int,
    grid: Extent = (1, 1, 1),
    block: Extent = (32, 1, 1),
    check: bool = False,
    sizes: tuple[int, ...] = (),
    shared: int = 0,
    synchronizes: bool = True,
    seed: int = 0,
    timeout: float = 30.0,
    parameters: str = "",
    threads: int = 2,
) -> tuple[Outcome, Ints]:
    """Run `body` with an array y of `out` 64-bit integers and what `parameters` adds."""
    source = f'{PRELUDE}extern "C" __global__ void kernel(long* y{parameters}) {{\n{body}\n}}\n'
    path = emulator.build(source, INCLUDE, check)
    y = np.full(out, -7, np.int64)
    launch = Launch("kernel", grid, block, (0, *map(Size, sizes)), shared, synchronizes=synchronizes)
    plan = LaunchPlan((), (Buffer("y", y.nbytes),), (launch,))
    return emulator.run(path, plan, [y], check, seed, timeout, threads), y


def clean(result: tuple[Outcome, Ints]) -> Ints:
    """The values of a run without findings."""
    outcome, values = result
    assert outcome.complete and not outcome.reports, [str(r) for r in outcome.reports]
    return values
