"""`--mlcomp-gate`: compile cases for GPUs without running them, and inspect the machine code of every kernel.

It runs in the child process and needs a CUDA compiler but no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import compiler
from conformance import rows
from conformance.judge import ladder, subject
from conformance.shapes import cases
from conformance.shapes.cases import BenchCase, Case

# The oldest, the data centre's and the newest: each has instructions and limits that the others lack.
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
MEASURED = ("f32", "bf16")  # dtypes in which benchmark rows are compiled
# Family of benchmarks -> family of `compiler.inspect`, which determines what its machine code must look like. Attention
# is left out: for its products, as for those of f32, schedules may choose between two instructions.
FAMILIES = {"matmul": "contraction", "bmm": "contraction", "pointwise": "pointwise"}


def run(cases_json: Sequence[Mapping[str, Any]], options: Mapping[str, Any], tell: Callable[[str], None]) -> rows.Gate:
    """Compile the cases and return their row; `options` has seed, threads and optionally architectures."""
    lowered: list[tuple[Case, compiler.Lowering]] = []
    families: list[tuple[str, str] | None] = []
    complaints: list[str] = []
    architectures = options.get("architectures") or ARCHITECTURES
    with ladder.threads(options.get("threads", 1)), torch.no_grad():
        for case in _in_measured_dtypes([cases.from_json(data) for data in cases_json]):
            tell(case.id)
            try:
                prepared = subject.prepare(case, options["seed"], blank=True)
                lowerings = [(case, compiler.lower(prepared.program, compiler.target(arch))) for arch in architectures]
                lowered += lowerings
                families += [_family_and_dtype(case)] * len(lowerings)
            except compiler.Unsupported:  # the check of the case reports it
                continue
            except Exception as error:  # an error of a pass fails this case only
                complaints.append(f"{case.id}: {type(error).__name__}: {error}")
    tell("the compiler")
    kernels = [
        rows.Kernel(
            case=case.id,
            name=kernel.name,
            arch=kernel.arch,
            registers=kernel.registers,
            stack=kernel.stack,
            spilled=kernel.spilled,
            shared=kernel.shared,
            disassembled=bool(kernel.opcodes),
            mix=_opcode_counts(kernel.opcodes),
            complaints=kernel.complaints,
        )
        for (case, _), inspected in zip(
            lowered, compiler.inspect([x for _, x in lowered], families=families), strict=True
        )
        for kernel in inspected
    ]
    complaints += [f"{kernel.case} for {kernel.arch}: {text}" for kernel in kernels for text in kernel.complaints]
    verdict = "fail" if complaints else "pass"
    return rows.Gate(verdict=verdict, detail="\n".join(complaints), cases=len(cases_json), kernels=tuple(kernels))


def _opcode_counts(opcodes: Mapping[str, int]) -> dict[str, int]:
    names = sorted({opcode.partition(".")[0] for opcode in opcodes})
    return {name: sum(n for opcode, n in opcodes.items() if opcode.partition(".")[0] == name) for name in names}


def _in_measured_dtypes(selected: Sequence[Case]) -> list[Case]:
    """Return the cases, with the benchmarks among them also in each dtype of MEASURED."""
    benchmarks = [case for case in selected if isinstance(case, BenchCase)]
    ids = {case.id for case in benchmarks}
    added = {
        row.id: row for case in benchmarks for dtype in MEASURED if (row := _with_dtype(case, dtype)).id not in ids
    }
    return [*selected, *added.values()]


def _with_dtype(case: Case, dtype: str) -> Case:
    """Return the row in another dtype; only arguments of the case's own dtype change, not a mask, for example."""
    args = tuple(replace(arg, dtype=dtype if arg.dtype == case.dtype else arg.dtype) for arg in case.args)
    return replace(case, id=case.id.replace(f".{case.dtype}.", f".{dtype}.", 1), args=args, dtype=dtype)


def _family_and_dtype(case: Case) -> tuple[str, str] | None:
    name = FAMILIES.get(case.family.partition(".")[0]) if isinstance(case, BenchCase) else None
    return (name, case.dtype) if name else None
