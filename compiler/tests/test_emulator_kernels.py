"""Correct kernels of every kind: right values and not one report, in every order of threads."""

import numpy as np
import pytest

from compiler.tests import emulator_programs as programs

FORWARD, BACKWARD = 0, 1


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_right_and_clean(name: str) -> None:
    seed = np.random.SeedSequence().entropy
    random = np.random.default_rng(seed)
    orders = [FORWARD, BACKWARD, *(int(s) for s in random.integers(2, 1 << 60, 4))]
    print(f"data {seed}, orders {orders}")
    program = programs.PROGRAMS[name](random)
    for order in orders:
        outcome, right = programs.run(programs.text(name), program, check=True, seed=order)
        assert [str(r) for r in outcome.reports] == [], f"order {order}"
        assert right, f"order {order}"
    for order in orders[:3]:
        outcome, right = programs.run(programs.text(name), program, check=False, seed=order)
        assert (outcome.reports, outcome.complete) == ((), True), f"order {order}"
        assert right, f"order {order}"
