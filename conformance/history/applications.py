"""Write every pass application of lowering a case with this process's compiler, as JSON.

    python -m conformance.history.applications FILE CASE TARGET OUT [--steps FILE] [--judge SEED]

A bisection starts it with the compiler of a revision. `--steps` reads schedules to use, in the format of `schedules` in
the output. `--judge` also runs every stage and adds the first bad stage and the pass to blame.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import compiler
from conformance.bench.emitted import kernels, normalise
from conformance.history import texts
from conformance.judge import ladder, subject
from conformance.shapes import cases


def record(file: Path, case: str, target: str, steps: str = "") -> dict[str, Any]:
    """Return the applications with the text after each, the schedules and the emitted text; or the error."""
    (selected,) = texts.cases_by_id([file], [case])
    applications: list[compiler.Application] = []
    torch.set_num_threads(1)
    answer: dict[str, Any] = {"error": "", "text": "", "schedules": "", "kernels": []}
    try:
        with torch.no_grad():
            program = subject.prepare(selected, texts.SEED, blank=True).program
            machine = compiler.target(target)
            schedules = compiler.read_schedules(steps, program, machine) if steps else None
            lowering = compiler.lower(program, machine, schedules, trace=applications.append)
        text = lowering.stages[compiler.stages(machine)[-1]]
        answer["text"], answer["kernels"] = normalise(text), kernels(text)
        answer["schedules"] = compiler.show_schedules(lowering.schedules)
    except Exception as error:  # a failure of the revision's compiler is part of the answer
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["applications"] = [
        {"number": a.number, "name": a.name, "pass": a.part_of or a.name, "stage": a.stage, "text": _text_after(a)}
        for a in applications
    ]
    return answer


def _text_after(a: compiler.Application) -> str:
    """Return the text of the program after an application."""
    return a.after if isinstance(a.after, str) else compiler.IRS[a.stage].show(a.after)


def main(words: Sequence[str]) -> int:
    """Write the record to OUT."""
    parser = argparse.ArgumentParser(prog="python -m conformance.history.applications", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("case")
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--judge", type=int)
    options = parser.parse_args(words)
    steps = options.steps.read_text(encoding="utf-8") if options.steps else ""
    answer = record(options.file, options.case, options.target, steps)
    if options.judge is not None:
        (case,) = texts.cases_by_id([options.file], [options.case])
        row = ladder.check(cases.to_json(case), {"target": options.target, "seed": options.judge})
        answer["stage"], answer["pass"] = row.first_bad_stage, row.first_bad_pass
    options.out.write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
