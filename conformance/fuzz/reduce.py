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
from conformance.fuzz.asked import TRIED
from conformance.fuzz.mutate import resized
from conformance.fuzz.program import SCOPE, Program, described, given, line, names
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
    program = mutate.drawn(seed, index, options)
    ends = time.monotonic() + options.get("seconds", 60.0)
    with threads(options.get("threads", 1)):
        trials = Trials(lambda p: goes_wrong(p, options), tell, options.get("outcomes", ""), ends)
        least = reduced(program, trials)
        tell("the shape file of it")
        path = Path(options["dump"]) / "regression.toml" if options.get("dump") else None
        said = regression.write(path, relations.altered(least, options["kind"]), options) if path is not None else ""
    return {"line": line(least), "arguments": described(least), "regression": said}


def goes_wrong(program: Program, options: Mapping[str, Any]) -> bool:
    """Return whether a program fails with the same kind of difference as the finding."""
    if check.left_out(program, compiler.target(options["target"])):
        return False
    quiet = {name: value for name, value in options.items() if name not in ("dump", "lost")}
    if options["kind"] == "schedule":
        return schedules.found(program, quiet, lambda at: None).verdict == "fail"
    if options["kind"] == exported.KIND:
        return exported.found(program, {**quiet, "what": ()}, lambda at: None, check.far).verdict == "fail"
    try:
        wrong = check.difference(program, options["target"], options.get("what", asked.DEFAULT))
    except check.Refused:
        return False
    return wrong is not None and wrong.kind == options["kind"]


@dataclass
class Trials:
    """Runs trials and records `+` (fails) or `-` for each; `known` are the outcomes of earlier processes."""

    fails: Callable[[Program], bool]
    tell: Tell = lambda at: None
    known: str = ""
    ends: float = float("inf")
    done: str = field(default="", init=False)

    def __call__(self, program: Program) -> bool:
        if len(self.done) < len(self.known):
            self.done += self.known[len(self.done)]
            return self.done[-1] == "+"
        if len(self.done) >= TRIALS or time.monotonic() > self.ends:
            return False
        self.tell(TRIED + self.done)
        self.done += "+" if self.fails(program) else "-"
        return self.done[-1] == "+"


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a program that still `fails` and that no single step makes smaller or simpler."""
    before = None
    while program != before:
        before = program
        for smaller in (_graph, _sizes, _types, _data):
            program = _while_any(program, smaller, fails)
    return program


def _while_any(program: Program, smaller: Candidates, fails: Callable[[Program], bool]) -> Program:
    met = {(line(program), described(program))}
    while True:
        for candidate in smaller(program):
            known = (line(candidate), described(candidate))
            if known in met:
                continue
            met.add(known)
            if _runs(candidate) and fails(candidate):
                program = candidate
                break
        else:
            return program


def _runs(program: Program) -> bool:
    """Return whether all names are defined (a removed call may have defined one) and eager runs the program."""
    defined = set(names(program))
    for text in program.lines:
        made, used = _names(text)
        if not defined >= set(used):
            return False
        defined |= set(made)
    if not program.args or not defined >= set(program.results):
        return False
    return all(generate.runs_at(program, point) for point in program.points)


# ---- calls


def _graph(program: Program) -> Iterator[Program]:
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
        texts = tuple(literals.filled(text, name, program.points[0][name]) for text in program.lines)
        yield without_unused(replace(program, lines=texts))
    values = _values(program)
    for k in reversed(range(len(program.lines))):
        made, used = _names(program.lines[k])
        kept = (*program.lines[:k], *program.lines[k + 1 :])
        if made and all(name in values for name in made):
            new = tuple(_argument(name, values[name]) for name in made)
            yield without_unused(replace(program, lines=kept, args=(*program.args, *new)))
        for name in sorted(set(used) - set(program.numbers)) if len(made) == 1 else ():
            yield without_unused(_renamed(replace(program, lines=kept), made[0], name))
        yield without_unused(replace(program, lines=kept))


def _names(text: str) -> tuple[list[str], list[str]]:
    """Return the names that a line defines, and those that it uses.

    >>> _names("t2, = x0.chunk(2, 1)"), _names("t0[1:] = x1")
    ((['t2'], ['x0']), ([], ['t0', 'x1']))
    """
    known = SCOPE.keys() | vars(builtins).keys()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id not in known]
    targets = [node.id for node in found if isinstance(node.ctx, ast.Store)]
    if isinstance(ast.parse(text).body[0], ast.AugAssign):
        return [], sorted({node.id for node in found})
    return targets, sorted({node.id for node in found if isinstance(node.ctx, ast.Load)})


def _renamed(program: Program, old: str, new: str) -> Program:
    pattern = re.compile(rf"\b{old}\b")
    lines = tuple(pattern.sub(new, text) for text in program.lines)
    return replace(program, lines=lines, results=tuple(dict.fromkeys(new if r == old else r for r in program.results)))


def without_unused(program: Program) -> Program:
    """Return the program without unused values and arguments."""
    needed = set(program.results)
    lines: list[str] = []
    for text in reversed(program.lines):
        made, used = _names(text)
        if not made or needed & set(made):
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
    scope: dict[str, Any] = {**SCOPE, **dict(zip(names(program), given(program, point), strict=True))}
    with torch.no_grad():
        exec("\n".join(program.lines), scope)
    return {name: x for name, x in scope.items() if isinstance(x, Tensor)}


def _argument(name: str, x: Tensor) -> Arg:
    """Return an argument that replaces a value: of its shape and dtype, with data of a similar range."""
    drawn: dict[str, Any] = {"kind": "normal"}
    if x.dtype is torch.bool:
        drawn = {"kind": "bool"}
    elif not x.is_floating_point():
        low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
        drawn = {"kind": "index", "below": high + 1} if low >= 0 else {"kind": "integers", "low": low, "high": high}
    return Arg(name, tuple(x.shape), NAMES[x.dtype], "contig", drawn)


# ---- sizes, types, data


def _sizes(program: Program) -> Iterator[Program]:
    """Yield candidates with one size reduced in all arguments, without and with the same change of the lines."""
    if program.dynamic:
        return
    for n in sorted({n for arg in program.args for n in arg.shape if n > 1}, reverse=True):
        for m in sorted({m for m in (*SMALL, n // 2, n - 1) if 0 < m < n}):
            args = tuple(resized(arg, n, m) for arg in program.args)
            texts = tuple(re.sub(rf"(?<![\w.]){n}(?![\w.])", str(m), text) for text in program.lines)
            yield replace(program, args=args)
            if texts != program.lines:
                yield replace(program, args=args, lines=texts)


def _types(program: Program) -> Iterator[Program]:
    """Yield candidates with contiguous arguments, and with f32 in place of other floating-point dtypes."""
    for k, arg in enumerate(program.args):
        if arg.layout != "contig":
            yield _with(program, k, replace(arg, layout="contig"))
    for dtype in sorted({arg.dtype for arg in program.args if arg.dtype in FLOATS and arg.dtype != "f32"}):
        args = tuple(replace(arg, dtype="f32") if arg.dtype == dtype else arg for arg in program.args)
        yield replace(program, args=args)


def _data(program: Program) -> Iterator[Program]:
    """Yield candidates whose data are ones or integers."""
    plain = ("ones", "integers")
    for k, arg in enumerate(program.args):
        for kind in plain[: plain.index(str(arg.inputs["kind"]))] if arg.inputs["kind"] in plain else plain:
            if arg.dtype in FLOATS:
                yield _with(program, k, replace(arg, inputs={"kind": kind}))


def _with(program: Program, k: int, arg: Arg) -> Program:
    return replace(program, args=(*program.args[:k], arg, *program.args[k + 1 :]))
