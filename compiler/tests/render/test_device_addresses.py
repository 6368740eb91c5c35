"""Mistakes with addresses and descriptors, planted in the device functions themselves, show without a GPU."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from compiler.checks.instructions import tensor
from compiler.checks.instructions.trial import HEADERS, Trial, WrongResult, judge, plan, poisoned, source
from compiler.runtime.emulator import emulator
from compiler.targets.nvidia import SM_90A
from compiler.targets.target import instruction
from compiler.tests.meaning import fresh_seed


@dataclass(frozen=True)
class Mistake:
    """In `header`, `old` becomes `new`."""

    name: str
    header: str
    old: str
    new: str


MISTAKES = (
    Mistake("address not masked", "wgmma.cuh", "(address & 0x3ffff) >> 4", "address >> 4"),
    Mistake("strides exchanged", "wgmma.cuh", "swapped = SPAN == 0 && !K_MAJOR", "swapped = SPAN != 0 || K_MAJOR"),
    Mistake("another swizzle", "wgmma.cuh", "SPAN == 64 ? 2 : SPAN == 32 ? 3", "SPAN == 64 ? 3 : SPAN == 32 ? 2"),
    Mistake("stride of half the rows", "wgmma.cuh", "rows = 8 * (SPAN", "rows = 4 * (SPAN"),
)
ROWS = ("wgmma.m64n64k16.f16", "wgmma.m64n64k8.tf32", "wgmma.m64n64k16.bf16.rs")


def trials(row: str) -> list[Trial]:
    seed = fresh_seed()
    print(f"seed {seed}")
    return tensor.trials(instruction(SM_90A, row), seed, thorough=True)


def wrong(made: list[Trial], headers: Path, check: bool) -> list[str]:
    """What is wrong with each trial that is not right."""
    path = emulator.build(source(made), (headers,), check)
    found = []
    for trial in made:
        outputs = poisoned(trial)
        outcome = emulator.run(path, plan(trial), [*(a for _, a in trial.inputs), *outputs], check)
        found += [str(report) for report in outcome.reports]
        if outcome.complete:
            try:
                judge(trial, outputs)
            except WrongResult as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("row", ROWS)
def test_rows_run_in_clusters_where_panels_have_a_stride(row: str) -> None:
    made = trials(row)
    assert 2 in {trial.launch.cluster[0] for trial in made}
    assert wrong(made, HEADERS, check=True) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_shows(mistake: Mistake, tmp_path: Path) -> None:
    shutil.copytree(HEADERS, tmp_path / "headers")
    header = tmp_path / "headers" / "mlc" / mistake.header
    text = header.read_text()
    assert text.count(mistake.old) == 1
    header.write_text(text.replace(mistake.old, mistake.new))
    assert wrong(trials(ROWS[0]), tmp_path / "headers", check=False)
