"""Seeded bugs: each edit of a correct kernel is reported, as what it is and at the line where it shows."""

from dataclasses import dataclass

import numpy as np
import pytest

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


BUGS = [parse(block) for block in (programs.KERNELS / "bugs.txt").read_text().strip().split("\n\n")[1:]]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.of}: {bug.name}")
def test_reported(bug: Bug) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    source = bug.planted()
    expected = {i for i, line in enumerate(source.splitlines(), 1) if any(part in line for part in bug.at)}
    assert expected, "no such line"
    program = programs.PROGRAMS[bug.of](np.random.default_rng(seed))
    outcome, _ = programs.run(source, program, check=True, seed=seed)
    found = "\n".join(str(report) for report in outcome.reports)
    hits = [report for report in outcome.reports if report.kind in bug.kinds]
    assert hits, f"not reported as {' or '.join(bug.kinds)}; found:\n{found}"
    assert any({r.line, r.other_line} & expected for r in hits), f"not at {sorted(expected)}:\n{found}"
