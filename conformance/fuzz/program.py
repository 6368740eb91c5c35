"""A random program as a value: arguments, lines of torch code and what it returns.

It prints as one line of Python, over arguments whose data depend on the seed and the index of the program alone.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from conformance.shapes import inputs
from conformance.shapes.cases import Arg
from conformance.shapes.inputs import Function

SCOPE = {"torch": torch, "F": F}
Point = Mapping[str, int]


@dataclass(frozen=True)
class Program:
    """`lines` are statements over the arguments, `results` the names that it returns.

    `gradients` are the arguments that require them. `points` are values for the sizes that vary, the first being those
    of `args`, and `varying` says for each argument which of its axes is which of them; one point: sizes are fixed.
    """

    seed: int
    index: int
    args: tuple[Arg, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str, ...] = ()
    points: tuple[Point, ...] = field(default=({},), hash=False)
    varying: Mapping[str, Mapping[int, str]] = field(default_factory=dict, hash=False)

    @property
    def dynamic(self) -> bool:
        """Whether its sizes vary from call to call."""
        return len(self.points) > 1


def number(*words: object) -> int:
    """A seed of 63 bits that depends on all of the words.

    >>> number(1, "x") == number(1, "x"), number(1, "x") == number(1, "y")
    (True, False)
    """
    text = "\0".join(map(str, words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def arguments(program: Program, point: Point) -> dict[str, Tensor]:
    """Fresh tensors by name, with the sizes of a point."""
    made = {}
    for arg in program.args:
        there = sized(arg, program.varying.get(arg.name, {}), point)
        made[arg.name] = inputs.tensor(there, number(program.seed, program.index, arg.name))
    return made


def sized(arg: Arg, axes: Mapping[int, str], point: Point) -> Arg:
    """An argument with the sizes of one point."""
    shape = tuple(point[axes[k]] if k in axes else n for k, n in enumerate(arg.shape))
    return replace(arg, shape=shape)


def line(program: Program) -> str:
    """The program on one line."""
    parts = [*program.lines, f"return {', '.join(program.results)}"]
    return f"def f({', '.join(arg.name for arg in program.args)}): {'; '.join(parts)}"


def described(program: Program) -> str:
    """What the arguments of the line are."""
    words = []
    for arg in program.args:
        axes = program.varying.get(arg.name, {})
        sizes = ", ".join(axes.get(k, str(n)) for k, n in enumerate(arg.shape))
        layout = "" if arg.layout == "contig" else f" {arg.layout}"
        needs = " with gradient" if arg.name in program.gradients else ""
        words.append(f"{arg.name}: {arg.dtype}[{sizes}]{layout} {arg.inputs['kind']}{needs}")
    if program.dynamic:
        words += [", ".join(f"{k} = {n}" for k, n in point.items()) for point in program.points]
    return "; ".join(words)


def function(program: Program) -> Function:
    """The program as a function of its tensors, in order."""
    text = line(program) + "\n"
    file = f"<random program {program.seed}.{program.index}>"
    linecache.cache[file] = (len(text), None, [text], file)  # tracebacks and Dynamo show it
    scope = dict(SCOPE)
    made: dict[str, Function] = {}
    exec(compile(text, file, "exec"), scope, made)
    return made["f"]
