"""Correct kernels of every kind: right values and not one report, in every order of threads; the same on a GPU."""

import numpy as np
import pytest

from compiler.runtime import arrays, cubin, device
from compiler.tests import emulator_programs as programs

FORWARD, BACKWARD = 0, 1


def random_program(name: str) -> tuple[programs.Program, np.random.Generator]:
    """The program on fresh data, whose seed is printed."""
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    return programs.PROGRAMS[name](random), random


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_right_and_clean(name: str) -> None:
    program, random = random_program(name)
    orders = [FORWARD, BACKWARD, *(int(s) for s in random.integers(2, 1 << 60, 4))]
    print(f"orders {orders}")
    for order in orders:
        outcome, right = programs.run(programs.text(name), program, check=True, seed=order)
        assert [str(r) for r in outcome.reports] == [], f"order {order}"
        assert right, f"order {order}"
    for order in orders[:3]:
        outcome, right = programs.run(programs.text(name), program, check=False, seed=order)
        assert (outcome.reports, outcome.complete) == ((), True), f"order {order}"
        assert right, f"order {order}"


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_right_on_a_gpu(name: str) -> None:
    if why := device.unavailable_reason():
        pytest.skip(why)
    if arrays.current().capability[0] != 9:
        pytest.skip("the kernels are for sm_90a")
    program, _ = random_program(name)
    image = cubin.build_cubin(programs.text(name), "sm_90a", include=(programs.HEADERS,))
    blank = [np.full_like(x, 77) for x in program.expected]
    scratch = [np.full(n, 77, np.uint8) for n in program.temporaries]
    left = arrays.run(image, program.plan(), [*program.inputs, *blank, *scratch])
    for found, expected in zip(left[len(program.inputs) :], program.expected, strict=False):
        np.testing.assert_array_equal(found, expected)
