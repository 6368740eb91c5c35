"""Cases as JSON in; one row out: every kernel that they compile to for GPUs, with its resources and complaints.

Runs in the child process, and nothing of what is compiled runs at all: no GPU is needed, only a CUDA compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

import compiler
from conformance import cases, ladder, subject
from conformance.cases import Case

Row = dict[str, Any]

# The oldest, the newest and the data centre's own: each has instructions and limits that the others lack.
ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")


def run(cases_json: Sequence[Mapping[str, Any]], options: Mapping[str, Any], tell: Callable[[str], None]) -> Row:
    """The row of some cases; `options` gives seed and threads."""
    lowered: list[tuple[Case, compiler.Lowering]] = []
    wrong: list[str] = []
    with ladder.threads(options.get("threads", 1)), torch.no_grad():
        for case in map(cases.from_json, cases_json):
            tell(case.id)
            try:
                made = subject.prepare(case, options["seed"])
                for arch in ARCHITECTURES:
                    lowered.append((case, compiler.lower(made.program, compiler.target(arch))))
            except compiler.Unsupported:  # the check of the case says so
                continue
            except Exception as error:  # whatever a pass raises is one case's failure
                wrong.append(f"{case.id}: {type(error).__name__}: {error}")
    tell("the compiler")
    kernels = [
        {"case": case.id, **asdict(kernel)}
        for (case, _), found in zip(lowered, compiler.inspect([x for _, x in lowered]), strict=True)
        for kernel in found
    ]
    wrong += [f"{k['case']} for {k['arch']}: {c}" for k in kernels for c in k["complaints"]]
    verdict = "fail" if wrong else "pass"
    return {"verdict": verdict, "detail": "\n".join(wrong), "cases": len(cases_json), "kernels": kernels}
