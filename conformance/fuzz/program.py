"""A random program as a value: its arguments, lines of torch code and results.

It prints as one line of Python. The data of its arguments depend only on the seed and the index of the program.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from conformance.shapes import inputs
from conformance.shapes.cases import Arg
from conformance.shapes.inputs import Function

SCOPE = {"torch": torch, "F": F}
Number = int | float
Point = Mapping[str, Any]  # values of dynamic sizes (int) and of arguments that are numbers


@dataclass(frozen=True)
class Altered:
    """A change of the drawn data: arguments times powers of two, and only the `picked` positions along some axes.

    A picked position of -1 is a margin that must not influence other positions: NaN, or an arbitrary integer.
    """

    scales: Mapping[str, int] = field(default_factory=dict)
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    picked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """A program: `lines` are statements over the arguments, `results` the names that it returns.

    `gradients` are the arguments that require gradients, `numbers` the arguments after `args` that are Python numbers.
    Each of `points` has values for the numbers and the dynamic sizes; the first point has the sizes of `args`, and with
    only one point the sizes are fixed. `varying` maps the axes of each argument to the names of dynamic sizes.
    """

    seed: int
    index: int
    args: tuple[Arg, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str, ...] = ()
    points: tuple[Point, ...] = field(default=({},), hash=False)
    varying: Mapping[str, Mapping[int, str]] = field(default_factory=dict, hash=False)
    altered: Altered | None = field(default=None, hash=False)
    numbers: tuple[str, ...] = ()

    @property
    def dynamic(self) -> bool:
        """Whether sizes or numbers vary from call to call."""
        return len(self.points) > 1


def hash_seed(*words: object) -> int:
    """Return a seed of 63 bits, a hash of the words.

    >>> hash_seed(1, "x") == hash_seed(1, "x"), hash_seed(1, "x") == hash_seed(1, "y")
    (True, False)
    """
    text = "\0".join(map(str, words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def call_arguments(program: Program, point: Point) -> list[Any]:
    """Return the arguments of a call at a point: new tensors, then numbers."""
    return [*arguments(program, point).values(), *(point[name] for name in program.numbers)]


def gradient_flags(program: Program) -> list[bool]:
    """Return for each argument whether it requires a gradient."""
    return [name in program.gradients for name in names(program)]


def names(program: Program) -> list[str]:
    """Return the names of all arguments, in order."""
    return [*(arg.name for arg in program.args), *program.numbers]


def arguments(program: Program, point: Point) -> dict[str, Tensor]:
    """Make the tensors of a call at a point, by name."""
    tensors = {}
    for arg in program.args:
        sized_arg = with_sizes(arg, program.varying.get(arg.name, {}), point)
        tensors[arg.name] = inputs.tensor(sized_arg, hash_seed(program.seed, program.index, arg.name))
    if program.altered is not None:
        tensors = {name: _alter(x, name, program.altered) for name, x in tensors.items()}
    return tensors


def _alter(x: Tensor, name: str, altered: Altered) -> Tensor:
    """Return the altered tensor, with the layout of `x` if the sizes are unchanged and no stride is 0."""
    result = inputs.clone_storage(x)
    if name in altered.scales:
        result.new_empty(0).set_(result.untyped_storage()).mul_(2.0 ** altered.scales[name])
    for axis in altered.axes.get(name, ()):
        result = pick_positions(result, axis, altered.picked)
        if result.is_floating_point():
            gaps = [n for n, k in enumerate(altered.picked) if k < 0]
            result.index_fill_(axis, torch.tensor(gaps, dtype=torch.long), float("nan"))
    if result.shape != x.shape or 0 in result.stride():
        return result
    copy = inputs.clone_storage(x)
    return result if 0 in x.stride() else copy.copy_(result)


def pick_positions(x: Tensor, axis: int, picked: Sequence[int]) -> Tensor:
    """Return the picked positions of an axis; -1 becomes position 0."""
    return x.index_select(axis, torch.tensor([max(k, 0) for k in picked], device=x.device))


def with_sizes(arg: Arg, axes: Mapping[int, str], point: Point) -> Arg:
    """Return an argument with the sizes of a point."""
    shape = tuple(point[axes[k]] if k in axes else n for k, n in enumerate(arg.shape))
    return replace(arg, shape=shape)


def as_line(program: Program) -> str:
    """Return the program as one line of Python."""
    parts = [*program.lines, f"return {', '.join(program.results)}"]
    return f"def f({', '.join(names(program))}): {'; '.join(parts)}"


def describe_arguments(program: Program) -> str:
    """Describe the arguments: dtype, shape, layout, distribution, gradient; and the points."""
    parts = []
    for arg in program.args:
        axes = program.varying.get(arg.name, {})
        sizes = ", ".join(axes.get(k, str(n)) for k, n in enumerate(arg.shape))
        layout = "" if arg.layout == "contig" else f" {arg.layout}"
        gradient = " with gradient" if arg.name in program.gradients else ""
        parts.append(f"{arg.name}: {arg.dtype}[{sizes}]{layout} {arg.inputs['kind']}{gradient}")
    if program.dynamic or program.numbers:
        parts += [", ".join(f"{k} = {n}" for k, n in point.items()) for point in program.points]
    return "; ".join(parts)


def function(program: Program) -> Function:
    """Return the program as a function of its arguments."""
    text = as_line(program) + "\n"
    file = f"<random program {program.seed}.{program.index}>"
    linecache.cache[file] = (len(text), None, [text], file)  # the source for tracebacks and Dynamo
    scope = dict(SCOPE)
    defined: dict[str, Function] = {}
    exec(compile(text, file, "exec"), scope, defined)
    return defined["f"]


def bind_numbers(program: Program, point: Point) -> Function:
    """Return the program as a function of its tensors only, with the numbers of a point bound."""
    call, numbers = function(program), [point[name] for name in program.numbers]
    return (lambda *tensors: call(*tensors, *numbers)) if numbers else call
