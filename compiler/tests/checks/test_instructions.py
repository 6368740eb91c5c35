"""Rows of instructions on the CPU: those of a warp, copies, and of the many wgmma a few; a row that lies is found out.

`pytest --mlcomp-instructions` has all rows, on a GPU and by their machine code as well.
"""

import numpy as np
import pytest

from compiler import instruction_checks
from compiler.checks.instructions import moves, tensor
from compiler.checks.instructions.checks import Check
from compiler.checks.instructions.trial import HEADERS, Trial, WrongResult, judge, plan, poisoned, source
from compiler.runtime.emulator import emulator
from compiler.targets import instructions
from compiler.targets.nvidia import SM_90A
from compiler.targets.target import Instruction, instruction
from compiler.tests.meaning import fresh_seed

KINDS = ("layout", "meaning", "emulated")
WIDTHS = ("m64n8k", "m64n24k", "m64n136k")
ROWS = {r.name for r in instructions.TENSOR}
ROWS |= {r.name for r in instructions.FRAGMENTS} | {r.name for r in instructions.TRANSFERS}


def _sampled(check: Check) -> bool:
    name = check.name.partition("::")[0].removesuffix(".store")
    return check.kind in KINDS and name in ROWS and ("wgmma" not in name or any(w in name for w in WIDTHS))


CHECKS = {c.name: c for c in instruction_checks() if _sampled(c)}


@pytest.mark.parametrize("name", CHECKS)
def test_row(name: str) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    CHECKS[name].run(seed)


def emulate(trials: list[Trial], check: bool = False) -> None:
    """Run and compare; raises Different, AssertionError for a report."""
    path = emulator.build(source(trials), (HEADERS,), check)
    for trial in trials:
        outputs = poisoned(trial)
        outcome = emulator.run(path, plan(trial), [*(a for _, a in trial.inputs), *outputs], check)
        assert outcome.complete and not outcome.reports, outcome.reports
        judge(trial, outputs)


MMA, WGMMA = instruction(SM_90A, "mma.m16n8k16.bf16"), instruction(SM_90A, "wgmma.m64n16k8.tf32.rs")
assert MMA.acc_layout and MMA.b_layout and WGMMA.a_layout
LIES = {
    "accumulator of other rows": MMA.replace(acc_layout=MMA.acc_layout.replace(registers=((2, 64), (2, 1)))),
    "pairs along the other axis": MMA.replace(b_layout=MMA.b_layout.replace(registers=((2, 64), (2, 8)))),
    "rows of another warp": WGMMA.replace(a_layout=WGMMA.a_layout.replace(threads=((4, 1), (4, 128), (8, 8)))),
    "fewer bits than it keeps": WGMMA.replace(fraction=9),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_row_that_lies_is_found_out(lie: str) -> None:
    row: Instruction = LIES[lie]
    with pytest.raises(WrongResult, match="elements of out are wrong"):
        emulate(tensor.trials(row, fresh_seed()))


def test_copies_and_moves_are_clean_under_check() -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rows = instructions.TRANSFERS
    trials = [t for row in rows for t in moves.transfers(row, seed)]
    trials += [t for row in instructions.FRAGMENTS for t in moves.fragments(row, seed)]
    trials += tensor.trials(MMA, seed) + tensor.trials(WGMMA, seed)
    trials += tensor.trials(instruction(SM_90A, "wgmma.m64n40k16.bf16"), seed)
    emulate(trials, check=True)


def test_cut_keeps_the_leading_bits() -> None:
    x = np.array([1 + 2.0**-10, 1 + 2.0**-11, -(1 + 2.0**-10 + 2.0**-20), 3.0], np.float32)
    np.testing.assert_array_equal(tensor.truncate(x, 10), np.array([1 + 2.0**-10, 1, -(1 + 2.0**-10), 3], np.float32))
