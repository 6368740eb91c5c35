"""Seeded bugs: each edit of a correct kernel is reported, as what it is and at the line where it shows."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compiler.runtime.emulator import emulator
from compiler.tests import emulator_programs as programs


@dataclass(frozen=True)
class Bug:
    """The lines `old` of kernel `of` become `new`; a report of one of `kinds` is wanted at a line with one of `at`."""

    name: str
    of: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    kinds: tuple[str, ...]
    at: tuple[str, ...]

    def planted(self) -> str:
        """The text of the kernel with the bug; the edited lines must be there exactly once."""
        lines = programs.text(self.of).splitlines()
        bare = [line.strip() for line in lines]
        places = [i for i in range(len(lines)) if tuple(bare[i : i + len(self.old)]) == self.old]
        assert len(places) == 1, f"{self.of} has the lines to edit {len(places)} times"
        return "\n".join([*lines[: places[0]], *self.new, *lines[places[0] + len(self.old) :], ""])


def parse(block: str) -> Bug:
    """A bug from its lines in bugs.txt."""
    name, of, *edits, expected = block.splitlines()
    kinds, _, at = expected.partition(" at ")
    return Bug(
        name.removeprefix("# "),
        of,
        tuple(line[2:] for line in edits if line.startswith("- ")),
        tuple(line[2:] for line in edits if line.startswith("+ ")),
        tuple(kinds.split(", ")),
        tuple(at.split(" | ")),
    )


ORDERS = 4  # of threads and blocks: when every thread's first arrival comes before any second one, nothing is wrong yet

BUGS = [parse(block) for block in (programs.KERNELS / "bugs.txt").read_text().strip().split("\n\n")[1:]]


# Bugs of which fast mode sees nothing: for each kind of report, some of which results are right in any order.
UNSEEN = (
    ("reduce", "barrier of one thread"), ("reduce", "uninitialised element whose value does not matter"),
    ("reduce", "variable of another thread"), ("pipeline", "wait removed"), ("ring", "init not fenced"),
    ("store", "proxy fence missing"), ("store", "read wait missing"), ("store", "last wait missing"),
    ("store", "bulk commit missing"), ("cluster", "block ends while it is read"), ("wgmma_written", "sums not fenced"),
    ("wgmma", "wgmma wait depth off by one"), ("mma", "stage of ldmatrix not waited for"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.of}: {bug.name}")
def test_reported(bug: Bug) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    source = bug.planted()
    expected = {i for i, line in enumerate(source.splitlines(), 1) if any(part in line for part in bug.at)}
    assert expected, "no such line"
    program = programs.PROGRAMS[bug.of](np.random.default_rng(seed))
    for order in range(seed, seed + ORDERS):
        outcome, _ = programs.run(source, program, check=True, seed=order)
        found = "\n".join(str(report) for report in outcome.reports)
        hits = [report for report in outcome.reports if report.kind in bug.kinds]
        if hits:
            break
    assert hits, f"not reported as {' or '.join(bug.kinds)}; found:\n{found}"
    assert any({r.line, r.other_line} & expected for r in hits), f"not at {sorted(expected)}:\n{found}"


@pytest.mark.parametrize(("of", "name"), UNSEEN)
def test_check_mode_alone_reports(of: str, name: str, seed: int) -> None:
    """In fast mode the results of these bugs are right; `test_reported` shows that check mode reports them."""
    (bug,) = [bug for bug in BUGS if (bug.of, bug.name) == (of, name)]
    random = np.random.default_rng(seed)
    outcome, right = programs.run(
        bug.planted(), programs.PROGRAMS[of](random), check=False, seed=int(random.integers(9))
    )
    assert right and not outcome.reports, f"seed {seed}: {outcome.reports}"


def test_every_kind_of_report_has_a_bug_here_or_in_another_test() -> None:
    headers = Path(emulator.__file__).parent.glob("*.h")
    pattern = re.compile(r'\b(?:fatal|(?:memory_)?report)\("([a-z. ]+)"')
    kinds = {kind for header in headers for kind in pattern.findall(header.read_text())}
    assert len(kinds) > 25, "reports are made in another way"
    others = "".join(path.read_text() for path in Path(__file__).parents[1].glob("*/test_*.py"))
    planted = {kind for bug in BUGS for kind in bug.kinds}
    lacking = {kind for kind in kinds - planted if f'"{kind}"' not in others}
    assert lacking <= {"out of memory"}, "no planted bug is reported as this"
