"""Kernel names for profiles, such as `linear_gelu_1024x3072x768_bf16`.

A name consists of the ops that the kernel comes from, the extents of its largest loop nest, and its element type. It
depends on nothing else of the program, so that equal kernels of different programs have equal names. Kernels of one
program with equal names are numbered from the second on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Iterator, Sequence

from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import Cast, Const, Expr, Load, Var
from compiler.ir.tensor import Equation, Reduce, Scatter, expressions, shape

_WORDS, _LETTERS = 5, 35  # most words, and characters in all of them
_EXTENTS, _DIGITS = 5, 16  # most extents, and characters in all of them
_UNKNOWN = 1 << 20  # assumed value of a size that is not known
_SHORT_WORDS = {
    "convolution": "conv", "addmm": "linear", "mm": "matmul",
    "bmm": "matmul", "to": "cast", "to_copy": "cast", "type_as": "cast", "clone": "copy", "contiguous": "copy",
    "result": "copy", "asserted": "check",
}  # fmt: skip
# Words that say nothing beside others, and words that are dropped first if there are too many.
_COPY_WORDS = {"cast", "copy", "check"}
_ARITHMETIC = {"add", "sub", "rsub", "mul", "div", "neg", "where", "eq", "ne", "lt", "le", "gt", "ge", "abs"}
_ATTENTION = re.compile("scaled_dot_product_(flash_|efficient_|cudnn_|fused_)?attention(_for_cpu|_overrideable)?")
_NUMBER = re.compile(rf"(?:^|_)(?:{'|'.join(DTYPES)})(_\d+)$")


def origin(sources: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The ops that a kernel comes from, each once, given the op and the part of it of every equation, in order.

    An op whose result is computed elsewhere is listed with its last part that is computed here.

    >>> origin([("aten.linear.default", "product"), ("aten.linear.default", ""), ("aten.gelu.default", "")])
    ('aten.linear.default', 'aten.gelu.default')
    >>> origin([("aten.sort.default", "key"), ("aten.sort.default", "place")])
    ('aten.sort.default/place',)
    """
    parts: dict[str, str] = {}
    for op, part in sources:
        parts[op] = part if parts.get(op, part) else ""
    return joined([f"{op}/{part}" if part else op for op, part in parts.items()])


def whole(sources: Iterable[str]) -> dict[str, str]:
    """The sources of a program that are the only part of their op, each with that op.

    >>> whole(["aten.conv2d.default/convolution", "aten.norm.Scalar/pow", "aten.norm.Scalar/sum"])
    {'aten.conv2d.default/convolution': 'aten.conv2d.default'}
    """
    every = {source: source.partition("/")[0] for source in sources}
    ops = list(every.values())
    return {source: op for source, op in every.items() if source != op and ops.count(op) == 1}


def joined(*origins: Sequence[str]) -> tuple[str, ...]:
    """The origin of a kernel made of several kernels; an op of which they have different parts is listed as a whole.

    >>> joined(["aten.sort.default/place"], ["aten.sort.default", "aten.mul.Tensor"])
    ('aten.sort.default', 'aten.mul.Tensor')
    """
    every = list(dict.fromkeys(source for own in origins for source in own))
    ops = [source.partition("/")[0] for source in every]
    return tuple(dict.fromkeys(op if ops.count(op) > 1 else source for op, source in zip(ops, every, strict=True)))


def name(sources: Sequence[str], members: Sequence[Equation]) -> str:
    """The name of a kernel that computes these equations, without a number."""
    return "_".join(x for x in (_words(sources), _extents(members), _dtype(members).name) if x)


def renamed(name: str, before: Sequence[str], after: Sequence[str]) -> str:
    """The new name of the kernel `name` after its origin grew from `before` to `after`; names of other forms are kept.

    >>> renamed("mul_64x100_f32_1", ["aten.mul.Tensor"], ["aten.softmax.int", "aten.mul.Tensor"])
    'softmax_mul_64x100_f32'
    """
    start = f"{_words(before)}_"
    number = _NUMBER.search(name)
    tail = name.removeprefix(start).removesuffix(number[1] if number else "")
    named_here = name.startswith(start) and tail.split("_")[-1] in DTYPES
    return f"{_words(after)}_{tail}" if named_here else name


def numbered(names: Iterable[str]) -> Iterator[str]:
    """The names, with a number added to those that occurred before.

    >>> list(numbered(["mul_8_f32", "add_8_f32", "mul_8_f32"]))
    ['mul_8_f32', 'add_8_f32', 'mul_8_f32_1']
    """
    taken: set[str] = set()
    for wanted in names:
        own = free(wanted, taken)
        taken.add(own)
        yield own


def free(wanted: str, taken: Container[str]) -> str:
    """The name, with the smallest number added that makes it differ from `taken`, if needed."""
    candidates = itertools.chain([wanted], (f"{wanted}_{n}" for n in itertools.count(1)))
    return next(own for own in candidates if own not in taken)


def _words(sources: Sequence[str]) -> str:
    """The words for the ops of an origin.

    >>> _words(["aten.rms_norm.default", "aten.linear.default", "aten.silu.default", "aten.mul.Tensor", "result"])
    'rms_norm_linear_silu_mul'
    """
    all_words = list(dict.fromkeys(map(_word, sources)))
    words = [w for w in all_words if w not in _COPY_WORDS] or all_words[:1]
    while len(words) > 1 and (len(words) > _WORDS or len("_".join(words)) > _LETTERS):
        arithmetic = [n for n, w in enumerate(words) if w in _ARITHMETIC]
        del words[arithmetic[-1] if arithmetic else len(words) // 2]
    return "_".join(words)[:_LETTERS].rstrip("_")


def _word(source: str) -> str:
    """The word for an op and its part, such as `softmax` for `aten._softmax.default`."""
    op, _, part = source.partition("/")
    fields = op.split(".")
    name = (fields[1] if len(fields) > 1 else op).strip("_").removeprefix("native_")
    name = _ATTENTION.sub("attention", name)
    text = re.sub(r"\W", "_", f"{_SHORT_WORDS.get(name, name)}_{part}", flags=re.ASCII).strip("_")
    return f"k{text}" if text[:1].isdigit() or not text else text


def _extents(members: Sequence[Equation]) -> str:
    """The extents of the largest equation; for a product rows, columns and depth: `1024x3072x768`."""
    largest = max(members, key=lambda e: _count_elements(_domain(e)))
    for extents in (_domain(largest), shape(largest)):
        text = "x".join(x for x in map(_extent, extents) if x)
        if len(extents) <= _EXTENTS and len(text) <= _DIGITS:
            return text
    known = _count_elements(shape(largest))
    return str(known) if all(isinstance(n, Const) for n in shape(largest)) and len(str(known)) <= _DIGITS else ""


def _domain(e: Equation) -> tuple[Expr, ...]:
    over = tuple(a.extent for a in e.over) if isinstance(e, Reduce | Scatter) else ()
    return over if isinstance(e, Scatter) and _count_elements(over) >= _count_elements(shape(e)) else (*shape(e), *over)


def _count_elements(extents: Iterable[Expr]) -> int:
    made = 1
    for n in extents:
        made *= int(n.value) if isinstance(n, Const) else _UNKNOWN
    return made


def _extent(n: Expr) -> str:
    """A size, or the symbol of an unknown size; empty for expressions of symbols."""
    return str(n.value) if isinstance(n, Const) else n.name if isinstance(n, Var) and n.name.isascii() else ""


def _dtype(members: Sequence[Equation]) -> DType:
    """The narrowest float that elements are stored as or rounded to; without floats, the type of the last result."""
    found = [n.dtype for e in members for x in expressions(e) for n in x.walk() if isinstance(n, Load | Cast)]
    floats = [d for d in (*found, *(e.dtype for e in members)) if d.is_float]
    return min(floats, key=lambda d: d.bits) if floats else members[-1].dtype
