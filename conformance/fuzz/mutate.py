"""Mutate programs: other calls at the end, another size, or another layout of an argument."""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conformance.fuzz import asked, corpus, generate
from conformance.fuzz.drawing import DISCARDING, LARGE, LARGER_SIZES, LAYOUTS, MOST_SCHEDULED, Drawing, Value, require
from conformance.fuzz.program import Program, arguments
from conformance.shapes.cases import FLOATS, Arg
from conformance.shapes.distributions import fits

TRIES = 12
MOST_CALLS = 2 * generate.MOST_CALLS
LARGEST = (*LARGER_SIZES, 192, 255, 256, 257, 512)
MOST_ALLOCATED = 1 << 27  # elements that one call may make before its result is found to be too large


def draw(seed: int, index: int, options: Mapping[str, Any]) -> Program:
    """Return the program of the file or derived from the corpus entry in `options`, or else the one of this number."""
    what = options.get("what", asked.DEFAULT)
    if options.get("program"):
        return corpus.program_from_json(Path(options["program"]).read_text(encoding="utf-8"))
    if options.get("entry"):
        return mutate(corpus.program_from_json(Path(options["entry"]).read_text(encoding="utf-8")), seed, index, what)
    return generate.program(seed, index, what)


def mutate(program: Program, seed: int, index: int, what: tuple[str, ...]) -> Program:
    """Return a mutation of a program, with this seed and index; a newly drawn program if all tries fail."""
    for attempt in range(TRIES):
        rng = random.Random(f"{seed}.{index}.{attempt} mutated")
        with contextlib.suppress(*DISCARDING), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mutation = rng.choice(MUTATIONS)(replace(program, seed=seed, index=index), rng)
            if mutation.lines != program.lines or mutation.args != program.args:
                return mutation
    return generate.program(seed, index, what)


def _redraw_end(program: Program, rng: random.Random) -> Program:
    """Cut up to half of the calls off the end and draw new ones."""
    lines = list(program.lines[: rng.randint(len(program.lines) // 2, len(program.lines))])
    d = _drawing_of(program, lines, rng)
    added_count = rng.randint(1, generate.MOST_CALLS)
    call_count = min(len(lines) + added_count, MOST_CALLS)
    for _ in range(generate.TRIES * added_count):
        if len(lines) < call_count:
            lines += generate.try_call(d, lines)
    return generate.finish(d, lines)


def _resize(program: Program, rng: random.Random) -> Program:
    """Replace a size by another one in all arguments, and in half of the cases also in the lines."""
    require(not program.dynamic)
    n = rng.choice([n for arg in program.args for n in arg.shape])
    m = rng.choice([m for m in LARGEST if m != n])
    args = tuple(resize(arg, n, m) for arg in program.args)
    texts = [re.subn(rf"(?<![\w.]){n}(?![\w.])", str(m), text) for text in program.lines]
    require(all(torch.Size(arg.shape).numel() <= LARGE[1] for arg in args))
    require(all(m**count * MOST_SCHEDULED <= MOST_ALLOCATED for _, count in texts))
    resized_program = replace(
        program, args=args, lines=tuple(t for t, _ in texts) if rng.random() < 0.5 else program.lines
    )
    return _require_valid(program, resized_program, rng)


def _change_layout(program: Program, rng: random.Random) -> Program:
    """Change the layout of an argument."""
    k = rng.randrange(len(program.args))
    arg = program.args[k]
    layouts = ["contig", *(x for x in LAYOUTS if fits(x, arg.shape) and not x.startswith("expanded"))]
    argument = replace(arg, layout=rng.choice(layouts))
    return _require_valid(program, replace(program, args=(*program.args[:k], argument, *program.args[k + 1 :])), rng)


Mutation = Callable[[Program, random.Random], Program]
MUTATIONS: tuple[Mutation, ...] = (_redraw_end, _redraw_end, _redraw_end, _resize, _change_layout)


def _require_valid(before: Program, after: Program, rng: random.Random) -> Program:
    """Return `after` if it runs and all exact values of `before` are still exact, as discontinuous calls require."""
    exact = [{v.name for v in _drawing_of(p, p.lines, rng).values.values() if v.exact} for p in (before, after)]
    require(exact[0] <= exact[1] and all(generate.runs_at(after, point) for point in after.points))
    return after


def _drawing_of(program: Program, lines: Any, rng: random.Random) -> Drawing:
    """Return the drawing state of a program after some of its lines."""
    dtype = next((arg.dtype for arg in program.args if arg.dtype in FLOATS), program.args[0].dtype)
    sizes = [{name: n for name, n in point.items() if name not in program.numbers} for point in program.points]
    d = Drawing(program.seed, program.index, rng, dtype, sizes, bool(program.gradients), most=MOST_SCHEDULED)
    d.numbers = {name: program.points[0][name] for name in program.numbers}
    d.specials = generate.has_specials(program)
    d.sizes = LARGER_SIZES
    d.args, d.gradients = list(program.args), list(program.gradients)
    tensors = arguments(program, program.points[0])
    d.values = {name: Value(name, x, x, True, False) for name, x in tensors.items()}
    eager, shadow = generate.run_lines(d, lines)
    d.values = {}
    for name, x in eager.items():
        reference = shadow[name]
        exact = not x.is_floating_point() or torch.equal(x.detach().double(), reference.detach().double())
        integral = exact and (not x.is_floating_point() or torch.equal(x.detach(), x.detach().round()))
        d.values[name] = Value(name, x, reference, exact, integral, int(name in tensors))
    return d


def resize(arg: Arg, n: int, m: int) -> Arg:
    """Return an argument with size n replaced by m, also in the limit of indices."""
    drawn = {**arg.inputs, "below": m} if arg.inputs.get("below") == n else arg.inputs
    return replace(arg, shape=tuple(m if size == n else size for size in arg.shape), inputs=drawn)
