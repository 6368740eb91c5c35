"""Programs as people write them in torch, crossed with how they are called.

`python -m conformance.tests.torch_programs [WORD …]` runs all of them, or those whose text holds one of the words. Each
line is one program of the tensors that it names. What it gives through `torch.compile(backend="mlcomp")` is what eager
gives: values and their classes, dtypes, shapes, strides, gradients, what it writes to its arguments, that it raises.
"""

from __future__ import annotations

import ast
import functools
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from conformance.fuzz import runs
from conformance.judge import oracle
from conformance.shapes import inputs
from conformance.shapes.inputs import clone_storage

# Shapes of the tensors that a program may name; those of whole numbers and truth values by `WHOLE` and `TRUE`.
SHAPES: dict[str, tuple[int, ...]] = {
    "x": (6, 8), "y": (6, 8), "w": (8, 5), "v": (8,), "u": (6, 1), "s": (), "b": (3, 6, 8), "d": (3, 8, 4),
    "c": (2, 4, 9, 8), "k": (6, 4, 3, 3), "g": (4, 1, 3, 3), "q": (2, 2, 6, 8), "z": (0, 8), "o": (1, 1),
}  # fmt: skip
WHOLE: dict[str, tuple[tuple[int, ...], int]] = {
    "i": ((4,), 6), "j": ((6, 3), 8), "n": ((6, 8), 9), "t": ((6,), 8), "h": ((2, 7), 6),
}  # fmt: skip
TRUE: dict[str, tuple[int, ...]] = {"m": (6, 8), "p": (6,)}
TABLES = Path(__file__).with_suffix(".txt")
SCOPE = {"torch": torch, "F": F, "nn": nn, "inf": float("inf"), "nan": float("nan")}


@dataclass(frozen=True)
class Way:
    """How a program is called."""

    dtype: torch.dtype
    layout: str  # contig, transposed, sliced
    mode: str  # plain, inference, grad, dynamic
    data: str  # normal, specials, whole


@dataclass(frozen=True)
class Program:
    text: str
    way: Way
    statement: bool = False

    def __str__(self) -> str:
        way = self.way
        return f"{self.text}  # {str(way.dtype).removeprefix('torch.')}, {way.layout}, {way.mode}, {way.data}"


WAYS = (
    Way(torch.float32, "contig", "plain", "normal"),
    Way(torch.float32, "transposed", "grad", "normal"),
    Way(torch.float32, "sliced", "inference", "specials"),
    Way(torch.bfloat16, "contig", "grad", "normal"),
    Way(torch.float64, "sliced", "dynamic", "normal"),
    Way(torch.float32, "contig", "dynamic", "whole"),
    Way(torch.float16, "transposed", "plain", "specials"),
    Way(torch.int64, "contig", "plain", "whole"),
)


@functools.cache
def tables() -> Mapping[str, list[str]]:
    """The programs of each table of the text beside this file; what stands there as \\n ends a line of a program."""
    found: dict[str, list[str]] = {}
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found[line.removeprefix("# ")] = listed = []
        elif line:
            listed.append(line.replace("\\n", "\n"))
    return found


# What begins so gives for NaN and infinities what compiler/README.md says under Numerics, not what eager's kernels do.
OPEN = (
    "F.conv", "F.scaled_dot_product_attention", "x ** 0.5", "torch.bucketize", "torch.searchsorted", "torch.fft",
    "torch.linalg.qr", "torch.complex", "(torch.complex", "torch.view_as_", "torch.polar", "F.embedding_bag",
)  # fmt: skip


# Eager's own kernels are not right to roundings of f64 in these, and there is nothing wider to ask: its trigamma adds
# few terms of a series and is off by 8e-10.
COARSE = ("torch.polygamma",)


def programs() -> list[Program]:
    """Every program in every way; errors in one."""
    every = [(text, name == "statements") for name, listed in tables().items() if name != "errors" for text in listed]
    made = [
        Program(text, way, statement)
        for text, statement in every
        for way in WAYS
        if not (way.data == "specials" and text.startswith(OPEN))
        if not (way.dtype == torch.float64 and text.startswith(COARSE))
    ]
    return made + [Program(text, WAYS[0]) for text in tables()["errors"]]


def names(program: Program) -> list[str]:
    used = {x.id for x in ast.walk(ast.parse(program.text)) if isinstance(x, ast.Name)}
    return [name for name in (*SHAPES, *WHOLE, *TRUE) if name in used]


def function(program: Program) -> Callable[..., Any]:
    """The program as a function of the tensors that it names."""
    body = f"r = None\n{program.text}\nreturn r" if program.statement else f"return {program.text}"
    text = f"def program({', '.join(names(program))}):\n" + "\n".join(f"    {line}" for line in body.splitlines())
    made: dict[str, Any] = {}
    exec(compile(text, f"<{program.text}>", "exec"), dict(SCOPE), made)
    found: Callable[..., Any] = made["program"]
    return found


def arguments(program: Program, rng: torch.Generator, rows: int = 6) -> list[Tensor]:
    """Fresh tensors; the sizes that are 6 are `rows`."""
    return [_argument(name, program.way, rng, rows) for name in names(program)]


def _argument(name: str, way: Way, rng: torch.Generator, rows: int) -> Tensor:
    if name in WHOLE:
        shape, below = WHOLE[name]
        return torch.randint(0, min(below, rows) if below == 6 else below, _sized(shape, rows), generator=rng)
    if name in TRUE:
        return torch.rand(_sized(TRUE[name], rows), generator=rng) < 0.5
    shape = _sized(SHAPES[name], rows)
    if way.data == "whole" or not way.dtype.is_floating_point:
        count = math.prod(shape)  # each once: among equal ones it is open which are the first, or the largest
        values = (torch.randperm(count, generator=rng) - count // 2).view(shape).to(way.dtype)
    else:
        values = torch.randn(shape, generator=rng, dtype=torch.float64).to(way.dtype)
    if way.data == "specials" and values.numel():
        flat = values.view(-1)
        for k, special in enumerate((float("nan"), float("inf"), -float("inf"), -0.0, 0.0)):
            flat[(7 * k + 3) % flat.numel()] = special
    return _laid_out(values, way.layout)


def _sized(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    return tuple(rows if n == 6 else n for n in shape)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced" and x.dim():
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), 77, dtype=x.dtype)
        wide[..., 2:-1] = x
        return wide[..., 2:-1]
    return x


@dataclass(frozen=True)
class Outcome:
    """What a call gave: leaves of the result, what the arguments are afterwards, gradients; or what it raised."""

    leaves: tuple[object, ...] = ()
    left: tuple[Tensor, ...] = ()
    gradients: tuple[Tensor | None, ...] = ()
    raised: str = ""


def outcome(call: Callable[..., Any], given: Sequence[Tensor], mode: str) -> Outcome:
    """One call on copies of the tensors."""
    own = [clone_storage(x) for x in given]
    try:
        if mode != "grad":
            with torch.inference_mode() if mode == "inference" else torch.no_grad():
                made = pytree.tree_leaves(call(*own))
            return Outcome(tuple(made), tuple(own))
        # Programs write to what they are given, which leaves that ask for gradients do not allow.
        wanted = [x.requires_grad_() if x.is_floating_point() else x for x in own]
        made = pytree.tree_leaves(call(*(x.view_as(x) if x.requires_grad else x for x in wanted)))
        floats = [y for y in made if isinstance(y, Tensor) and y.requires_grad and y.is_floating_point()]
        if not floats:
            return Outcome(tuple(made), tuple(own))
        sum((y * torch.arange(1, y.numel() + 1).view(y.shape).to(y.dtype)).sum() for y in floats).backward()  # type: ignore[union-attr]
        return Outcome(tuple(made), tuple(x.detach() for x in own), tuple(x.grad for x in wanted))
    except Exception as error:  # whatever a program raises in eager it must raise compiled
        return Outcome(raised=type(error).__name__)


def difference(program: Program, seed: int) -> str:
    """How the program differs from eager through our backend; empty where PyTorch's own `aot_eager` differs as well."""
    wrong = difference_of("mlcomp", program, seed)
    return "" if wrong and difference_of("aot_eager", program, seed) else wrong


def difference_of(backend: str, program: Program, seed: int) -> str:
    """How the compiled program differs from eager; empty if it does not, or if eager has no such program."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    mode = program.way.mode
    torch._dynamo.reset()
    eager = function(program)
    compiled = torch.compile(eager, backend=backend, dynamic=True if mode == "dynamic" else None)
    for rows in (6, 9) if mode == "dynamic" else (6,):
        given = arguments(program, rng, rows)
        want = outcome(eager, given, mode)
        if want.raised and program.text not in tables()["errors"]:
            return ""
        made = outcome(compiled, given, mode)
        promised = functools.partial(inputs.predicted_layouts, eager, given, dynamic=mode == "dynamic")
        if wrong := compared(made, want, promised, lambda given=given: _right(program, eager, given)):  # type: ignore[misc]
            return wrong
    return ""


def _right(program: Program, eager: Callable[..., Any], given: Sequence[Tensor]) -> Outcome:
    with runs.in_f64():
        return outcome(eager, [runs.perturb(x) for x in given], program.way.mode)


def compared(
    made: Outcome,
    want: Outcome,
    promised: Callable[[], list[inputs.StridesAndOffset] | None],
    right: Callable[[], Outcome],
) -> str:
    """The first difference; `right` is what f64 says, where ours and eager's are not close, and `promised` are the
    strides of results that torch's trace has, where ours are not eager's."""
    if bool(made.raised) != bool(want.raised):
        return f"raises {made.raised or 'nothing'}, eager {want.raised or 'nothing'}"
    if len(made.leaves) != len(want.leaves):
        return f"{len(made.leaves)} results, eager {len(want.leaves)}"
    for part in ("leaves", "left", "gradients"):
        for n, (a, b) in enumerate(zip(getattr(made, part), getattr(want, part), strict=True)):
            where = f"{part}[{n}]"
            if not isinstance(b, Tensor):
                if a != b and not (isinstance(a, float) and isinstance(b, float)):
                    return f"{where} is {a!r}, eager's {b!r}"
                continue
            if not isinstance(a, Tensor):
                return f"{where} is {a!r}, eager's a tensor"
            if (a.dtype, a.shape, a.requires_grad) != (b.dtype, b.shape, b.requires_grad):
                return f"{where} is {_told(a)}, eager's {_told(b)}"
            if (steps := inputs.strides(a)) != inputs.strides(b):
                traced = promised() if part == "leaves" else None
                if traced is None or steps != traced[n][0]:
                    return f"{where} has strides {a.stride()}, eager's {b.stride()}"
            if wrong := _values(a.detach(), b.detach(), lambda part=part, n=n: getattr(right(), part)[n]):  # type: ignore[misc]
                return f"{where}: {wrong}"
    return ""


def _told(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}{' with a gradient' if x.requires_grad else ''}"


def _values(a: Tensor, b: Tensor, right: Callable[[], Any]) -> str:
    if a.is_complex():
        mine, its = (torch.view_as_real(x.resolve_conj()) for x in (a, b))
        return _values(mine, its, lambda: torch.view_as_real(right().detach().resolve_conj()))
    if a.dtype not in oracle.NAMES or not a.is_floating_point():
        return "" if torch.equal(a, b) else f"is {a.flatten()[:5].tolist()}, eager's {b.flatten()[:5].tolist()}"
    reference: object = None
    ok, _, message = oracle.quick_compare(a, b)
    if not ok:
        found = right()
        reference = found.detach() if isinstance(found, Tensor) else None
        usable = isinstance(reference, Tensor) and reference.shape == a.shape and reference.is_floating_point()
        ok, _, message = oracle.quick_compare(a, b, reference if usable else None)
    return "" if ok else message


def _line(job: tuple[Program, int]) -> str:
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # which tells of every error in a program
    program, seed = job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = difference(program, seed)
    return f"{program}\n    {wrong} (seed {seed})" if wrong else ""


def main(words: Sequence[str]) -> int:
    """Every program, or those whose text holds one of the words, in as many processes as there are processors."""
    seed = random.SystemRandom().randrange(2**31)
    chosen = [p for p in programs() if not words or any(word in str(p) for word in words)]
    print(f"{len(chosen)} programs, seed {seed}", flush=True)
    count = 0
    with ProcessPoolExecutor() as pool:
        for found in _told_as_they_come(pool.map(_line, [(p, seed) for p in chosen], chunksize=8)):
            count += bool(found)
    print(f"{count} of {len(chosen)} differ")
    return 1 if count else 0


def _told_as_they_come(found: Iterator[str]) -> Iterator[str]:
    for text in found:
        if text:
            print(text, flush=True)
        yield text


def counts(chosen: Sequence[Program]) -> Mapping[str, int]:
    """How many programs there are of each mode."""
    return {mode: sum(p.way.mode == mode for p in chosen) for mode in dict.fromkeys(p.way.mode for p in chosen)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
