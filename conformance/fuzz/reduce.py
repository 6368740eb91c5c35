"""Minimise a failing program to a smaller one that fails in the same way, and write that as a shape file.

It tries fewer results and calls, then smaller sizes, then simpler dtypes and strides, then simpler data, and keeps each
candidate that eager runs and that still fails. A trial may crash the process, so the outcomes of all earlier trials are
reported before each trial, and the next process continues from there.
"""

from __future__ import annotations

import ast
import builtins
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compiler
from conformance.fuzz import asked, check, exported, generate, literals, mutate, regression, relations, schedules
from conformance.fuzz.asked import OUTCOMES_PREFIX
from conformance.fuzz.mutate import resize
from conformance.fuzz.program import SCOPE, Program, as_line, call_arguments, describe_arguments, names
from conformance.judge.ladder import threads
from conformance.shapes import inputs
from conformance.shapes.cases import FLOATS, Arg

Tell = Callable[[str], None]
Candidates = Callable[[Program], Iterator[Program]]

TRIALS = 150
SMALL = (1, 2, 3, 4, 8, 16)
NAMES = {dtype: name for name, dtype in inputs.DTYPES.items()}


def reduce(seed: int, index: int, options: Mapping[str, Any], tell: Tell) -> dict[str, str]:
    """Return the line and arguments of the reduced program, and what became of its shape file in the repro folder.

    `options` are those of `check.checked`, with `kind` and `stage` of the finding, the `outcomes` of trials of earlier
    processes, and the time limit `seconds`.
    """
    program = mutate.draw(seed, index, options)
    deadline = time.monotonic() + options.get("seconds", 60.0)
    with threads(options.get("threads", 1)):
        trials = Trials(lambda p: fails_alike(p, options), tell, options.get("outcomes", ""), deadline)
        minimal = minimise(program, trials)
        tell("the shape file of it")
        path = Path(options["dump"]) / "regression.toml" if options.get("dump") else None
        message = regression.write(path, relations.alter(minimal, options["kind"]), options) if path is not None else ""
    return {"line": as_line(minimal), "arguments": describe_arguments(minimal), "regression": message}


def fails_alike(program: Program, options: Mapping[str, Any]) -> bool:
    """Return whether a program fails with the same kind of difference as the finding."""
    if check.reason_to_skip(program, compiler.target(options["target"])):
        return False
    quiet = {name: value for name, value in options.items() if name not in ("dump", "lost")}
    if options["kind"] == "schedule":
        return schedules.check_schedules(program, quiet, lambda at: None).verdict == "fail"
    if options["kind"] == exported.KIND:
        return (
            exported.check_exported(program, {**quiet, "what": ()}, lambda at: None, check.value_difference).verdict
            == "fail"
        )
    try:
        wrong = check.find_difference(program, options["target"], options.get("what", asked.DEFAULT))
    except check.RefusedProgram:
        return False
    return wrong is not None and wrong.kind == options["kind"]


@dataclass
class Trials:
    """Runs trials and records `+` (fails) or `-` for each; `known` are the outcomes of earlier processes."""

    fails: Callable[[Program], bool]
    tell: Tell = lambda at: None
    earlier: str = ""
    deadline: float = float("inf")
    outcomes: str = field(default="", init=False)

    def __call__(self, program: Program) -> bool:
        if len(self.outcomes) < len(self.earlier):
            self.outcomes += self.earlier[len(self.outcomes)]
            return self.outcomes[-1] == "+"
        if len(self.outcomes) >= TRIALS or time.monotonic() > self.deadline:
            return False
        self.tell(OUTCOMES_PREFIX + self.outcomes)
        self.outcomes += "+" if self.fails(program) else "-"
        return self.outcomes[-1] == "+"


def minimise(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a program that still `fails` and that no single step makes smaller or simpler."""
    before = None
    while program != before:
        before = program
        for smaller in (_smaller_graphs, _smaller_sizes, _simpler_types, _simpler_data):
            program = _apply_candidates(program, smaller, fails)
    return program


def _apply_candidates(program: Program, smaller: Candidates, fails: Callable[[Program], bool]) -> Program:
    tried = {(as_line(program), describe_arguments(program))}
    while True:
        for candidate in smaller(program):
            key = (as_line(candidate), describe_arguments(candidate))
            if key in tried:
                continue
            tried.add(key)
            if _is_valid(candidate) and fails(candidate):
                program = candidate
                break
        else:
            return program


def _is_valid(program: Program) -> bool:
    """Return whether all names are defined (a removed call may have defined one) and eager runs the program."""
    defined = set(names(program))
    for text in program.lines:
        defined_here, used = _defined_and_used(text)
        if not defined >= set(used):
            return False
        defined |= set(defined_here)
    if not program.args or not defined >= set(program.results):
        return False
    return all(generate.runs_at(program, point) for point in program.points)


# ---- calls


def _smaller_graphs(program: Program) -> Iterator[Program]:
    """Yield candidates with fewer results, points, gradients, numbers and calls.

    A call is removed, replaced by one of its operands, or its result becomes an argument, which saves all calls before.
    """
    for name in program.results if len(program.results) > 1 else ():
        yield without_unused(replace(program, results=(name,)))
    if program.dynamic:
        yield replace(program, points=program.points[:1], varying={})
    if program.gradients:
        yield replace(program, gradients=())
    for name in program.numbers:
        texts = tuple(literals.substitute_number(text, name, program.points[0][name]) for text in program.lines)
        yield without_unused(replace(program, lines=texts))
    values = _values(program)
    for k in reversed(range(len(program.lines))):
        defined, used = _defined_and_used(program.lines[k])
        remaining = (*program.lines[:k], *program.lines[k + 1 :])
        if defined and all(name in values for name in defined):
            new = tuple(_argument(name, values[name]) for name in defined)
            yield without_unused(replace(program, lines=remaining, args=(*program.args, *new)))
        for name in sorted(set(used) - set(program.numbers)) if len(defined) == 1 else ():
            yield without_unused(_rename(replace(program, lines=remaining), defined[0], name))
        yield without_unused(replace(program, lines=remaining))


def _defined_and_used(text: str) -> tuple[list[str], list[str]]:
    """Return the names that a line defines, and those that it uses.

    >>> _defined_and_used("t2, = x0.chunk(2, 1)"), _defined_and_used("t0[1:] = x1")
    ((['t2'], ['x0']), ([], ['t0', 'x1']))
    """
    builtin_names = SCOPE.keys() | vars(builtins).keys()
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id not in builtin_names]
    targets = [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
    if isinstance(ast.parse(text).body[0], ast.AugAssign):
        return [], sorted({node.id for node in nodes})
    return targets, sorted({node.id for node in nodes if isinstance(node.ctx, ast.Load)})


def _rename(program: Program, old: str, new: str) -> Program:
    pattern = re.compile(rf"\b{old}\b")
    lines = tuple(pattern.sub(new, text) for text in program.lines)
    return replace(program, lines=lines, results=tuple(dict.fromkeys(new if r == old else r for r in program.results)))


def without_unused(program: Program) -> Program:
    """Return the program without unused values and arguments."""
    needed = set(program.results)
    lines: list[str] = []
    for text in reversed(program.lines):
        defined, used = _defined_and_used(text)
        if not defined or needed & set(defined):
            needed |= set(used)
            lines.insert(0, text)
    args = tuple(arg for arg in program.args if arg.name in needed)
    return replace(
        program,
        lines=tuple(lines),
        args=args,
        gradients=tuple(name for name in program.gradients if name in needed),
        numbers=tuple(name for name in program.numbers if name in needed),
        varying={arg.name: program.varying.get(arg.name, {}) for arg in args} if program.dynamic else {},
    )


def _values(program: Program) -> dict[str, Tensor]:
    """Run the program and return all its tensors by name."""
    point = program.points[0]
    scope: dict[str, Any] = {**SCOPE, **dict(zip(names(program), call_arguments(program, point), strict=True))}
    with torch.no_grad():
        exec("\n".join(program.lines), scope)
    return {name: x for name, x in scope.items() if isinstance(x, Tensor)}


def _argument(name: str, x: Tensor) -> Arg:
    """Return an argument that replaces a value: of its shape and dtype, with data of a similar range."""
    data: dict[str, Any] = {"kind": "normal"}
    if x.dtype is torch.bool:
        data = {"kind": "bool"}
    elif not x.is_floating_point():
        low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
        data = {"kind": "index", "below": high + 1} if low >= 0 else {"kind": "integers", "low": low, "high": high}
    return Arg(name, tuple(x.shape), NAMES[x.dtype], "contig", data)


# ---- sizes, types, data


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """Yield candidates with one size reduced in all arguments, without and with the same change of the lines."""
    if program.dynamic:
        return
    for n in sorted({n for arg in program.args for n in arg.shape if n > 1}, reverse=True):
        for m in sorted({m for m in (*SMALL, n // 2, n - 1) if 0 < m < n}):
            args = tuple(resize(arg, n, m) for arg in program.args)
            texts = tuple(re.sub(rf"(?<![\w.]){n}(?![\w.])", str(m), text) for text in program.lines)
            yield replace(program, args=args)
            if texts != program.lines:
                yield replace(program, args=args, lines=texts)


def _simpler_types(program: Program) -> Iterator[Program]:
    """Yield candidates with contiguous arguments, and with f32 in place of other floating-point dtypes."""
    for k, arg in enumerate(program.args):
        if arg.layout != "contig":
            yield _with_argument(program, k, replace(arg, layout="contig"))
    for dtype in sorted({arg.dtype for arg in program.args if arg.dtype in FLOATS and arg.dtype != "f32"}):
        args = tuple(replace(arg, dtype="f32") if arg.dtype == dtype else arg for arg in program.args)
        yield replace(program, args=args)


def _simpler_data(program: Program) -> Iterator[Program]:
    """Yield candidates whose data are ones or integers."""
    simple_kinds = ("ones", "integers")
    for k, arg in enumerate(program.args):
        for kind in (
            simple_kinds[: simple_kinds.index(str(arg.inputs["kind"]))]
            if arg.inputs["kind"] in simple_kinds
            else simple_kinds
        ):
            if arg.dtype in FLOATS:
                yield _with_argument(program, k, replace(arg, inputs={"kind": kind}))


def _with_argument(program: Program, k: int, arg: Arg) -> Program:
    return replace(program, args=(*program.args[:k], arg, *program.args[k + 1 :]))
