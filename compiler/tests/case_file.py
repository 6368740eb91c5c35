"""A case file, and what is asked of it: a program, `# ---`, and the program that its passes make of it.

The comments that begin the file name the passes of the pipeline, in order, and the steps of a schedule:

```
# pass: compose, fuse
# schedule: split("i", 16)
```
or `# schedule: chosen` for what the heuristic of `# target: NAME` gives for a program of Loop IR.
After `# ---` may stand `# error: message` instead: the program is refused so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import Unsupported
from compiler.ir import statement
from compiler.ir.stages import IRS
from compiler.pipeline import PIPELINE, Context, Pass, schedules_for
from compiler.schedule import steps
from compiler.targets import cpu, mlir, nvidia, triton
from compiler.tests.meaning import Disagreement, same_meaning

SEPARATOR = "# ---\n"
PAIRS = cpu.target((*cpu.AVX512.features, *cpu.PAIRS), name="cpu:avx512_bf16")
TARGETS = {t.name: t for t in (cpu.BASELINE, cpu.AVX2, cpu.AVX512, PAIRS, *nvidia.TARGETS, mlir.LINALG, mlir.TOSA,
                               triton.TRITON)}  # fmt: skip
PASSES = {p.name: p for p in PIPELINE}


@dataclass(frozen=True)
class Case:
    """One case file; `words` are the lines of its head by key."""

    words: dict[str, list[str]] = field(default_factory=dict)
    before: str = ""
    after: str = ""

    @property
    def passes(self) -> list[Pass]:
        return [PASSES[name.strip()] for line in self.words["pass"] for name in line.split(",")]

    def schedules(self, program: Any) -> dict[str, steps.Schedule]:
        """The schedule of every kernel."""
        if not isinstance(program, statement.Program):
            return {}
        if self.words.get("schedule") == ["chosen"]:
            return schedules_for(program, self.target)
        return dict.fromkeys((k.name for k in program.kernels), steps.parse("\n".join(self.words.get("schedule", []))))

    @property
    def target(self) -> Any:
        return TARGETS[self.words.get("target", [cpu.AVX2.name])[0]]


def read(path: Path) -> Case:
    """The case in a file; raises ValueError for one that is not laid out as the others."""
    head, middle, after = path.read_text(encoding="utf-8").partition(SEPARATOR)
    lines = head.splitlines()
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    words: dict[str, list[str]] = {}
    for line in lines[:count]:
        key, colon, value = line.removeprefix("#").partition(":")
        if colon and key.strip() in ("pass", "schedule", "target"):
            words.setdefault(key.strip(), []).append(value.strip())
    if not middle or "pass" not in words:
        raise ValueError(f"{path}: a case begins with `# pass: NAME` and has one line `# ---`")
    return Case(words, head, after)


def check(case: Case, seed: int) -> str:
    """What the passes make of a case, as text; raises Disagreement where it computes something else than before."""
    stage = case.passes[0].source
    program = IRS[stage].parse(case.before)
    IRS[stage].verify(program)
    assert IRS[stage].parse(IRS[stage].show(program)) is program, "the text of the program does not read back"
    try:
        made = apply(program, case)
    except (steps.ScheduleError, Unsupported) as refusal:
        return f"# error: {refusal}\n"
    result = case.passes[-1].result
    if result not in IRS:
        return str(made)
    text = IRS[result].show(made)
    IRS[result].verify(made)
    assert IRS[result].parse(text) is made, f"the text of the result does not read back:\n{text}"
    try:
        same_meaning((stage, program), (result, made), seed)
    except Disagreement as problem:
        raise Disagreement(f"{problem}\n{text}") from problem
    return text


def apply(program: Any, case: Case) -> Any:
    """The passes, one after the other; the schedule is every kernel's."""
    schedules = case.schedules(program)
    for p in case.passes:
        program = p.run(program, Context(case.target, schedules))
    return program
