"""The state of drawing a random program: its values, evaluated in eager and in f64, and the choice of operands."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from conformance.fuzz import literals, runs
from conformance.fuzz.program import SCOPE, Number, Point, Program, hash_seed
from conformance.shapes import inputs
from conformance.shapes.cases import FLOATS, Arg
from conformance.shapes.distributions import fits

T = TypeVar("T")
NAMES = {dtype: name for name, dtype in inputs.DTYPES.items()}
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65)
SMALL_SIZES = (1, 2, 3, 4, 5, 8)  # sizes of tensors with 3 or more axes
SIDES = (1, 3, 4, 5, 7, 8, 9, 12)  # side lengths of 1-d and 2-d images
EDGES = (1, 2, 3, 4, 5, 7)  # side lengths of 3-d images
MOST_ELEMENTS = 4096  # most elements of a value
# The same if schedules are drawn, whose tiles have sides of up to 128.
LARGER_SIZES = (*SIZES, 96, 100, 127, 128, 129)
MOST_SCHEDULED = 16384
EQUAL_SHARE = 0.25  # share of repeated calls whose operands are the same
LARGE = (20_000, 200_000)  # fewest elements of the first argument of a large program, most elements of a value
LAYOUTS = ("transposed(0,1)", "transposed(-1,-2)", "permuted", "strided(-1,2)", "strided(0,3)", "expanded(0)",
           "expanded(-1)", "offset(1)", "offset(4)", "channels_last")  # fmt: skip


def is_large(program: Program) -> bool:
    """Return whether a program is too large for interpreters and emulators."""
    return any(torch.Size(arg.shape).numel() > MOST_SCHEDULED for arg in program.args)


class NotFitting(Exception):
    """No value of the program fits the call, so another call is drawn."""


def require(fits: object) -> None:
    """Raise NotFitting unless the condition holds."""
    if not fits:
        raise NotFitting


# Exceptions that discard a drawn call: it does not fit, or eager refuses it.
DISCARDING = (
    NotFitting, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError, AssertionError,
)  # fmt: skip


@dataclass
class Value:
    """A named tensor in eager and in f64; `exact`: computed without rounding; `whole`: its elements are integers."""

    name: str
    eager: Tensor
    wide: Tensor
    exact: bool
    integral: bool
    used: int = 0


@dataclass(frozen=True)
class DrawnCall:
    """A call of the program with one result: its row, its text, and the names of its operands and its result."""

    row: Any
    text: str
    operands: tuple[str, ...]
    result: str


@dataclass
class Drawing:
    """A program that is being drawn.

    `points` are the values of dynamic sizes; the program is drawn at the first. `differentiable`: arguments may require
    gradients. `integers`: floating-point data are integers. `layouts`: arguments may have any strides. `most`: limit of
    elements per value. `specials`: arguments may contain NaN, infinities and the extreme integers. `numbers`: arguments
    that are Python numbers. `operands`, `new` and `added` are the operands, new arguments and new numbers of the call
    that is being drawn.
    """

    seed: int
    index: int
    rng: random.Random
    dtype: str
    points: Sequence[Point] = ({},)
    differentiable: bool = False
    integers: bool = False
    layouts: bool = True
    sizes: Sequence[int] = SIZES
    most: int = MOST_ELEMENTS
    specials: bool = False
    values: dict[str, Value] = field(default_factory=dict)
    args: list[Arg] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    new: list[tuple[Arg, Value]] = field(default_factory=list)
    calls: list[DrawnCall] = field(default_factory=list)
    numbers: dict[str, Number] = field(default_factory=dict)
    added: dict[str, Number] = field(default_factory=dict)

    # ---- choice

    def among(self, *choices: T) -> T:
        """Return one of the choices at random."""
        return self.rng.choice(choices)

    def up_to(self, low: int, high: int) -> int:
        """Return a random integer from low to high, both included; raises NotFitting if there is none."""
        require(high >= low)
        return self.rng.randint(low, high)

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < share

    # ---- operands

    @property
    def first(self) -> Value:
        """The first operand of the call that is being drawn."""
        return self.operands[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return tuple(self.first.eager.shape)

    def tensor(self, rank: int = 0) -> str:
        """Pick a value of any dtype and at least this rank, and return its name."""
        return self._pick_value(lambda x: x.dim() >= rank)

    def real(self, rank: int = 0, most: int = 9) -> str:
        """Pick a floating-point value."""
        return self._pick_value(lambda x: rank <= x.dim() <= most and x.is_floating_point())

    def image(self, rank: int) -> str:
        """Pick a floating-point value of this rank as an image (batch, channels, sides…).

        If there is none, make a new argument, or half of the time raise NotFitting.
        """
        value = self._find_value(lambda x: x.dim() == rank and x.is_floating_point())
        if value is not None:
            return self._use(value)
        require(not self.chance(0.5))
        sides = SIDES if rank < 5 else EDGES
        sizes = [self.among(1, 2, 3), self.among(1, 2, 3, 4, 8), *(self.among(*sides) for _ in range(rank - 2))]
        return self._argument(sizes, self.dtype if self.dtype in FLOATS else "f32", None)

    def number(self, rank: int = 0) -> str:
        """Pick a value that is not bool."""
        return self._pick_value(lambda x: x.dim() >= rank and x.dtype is not torch.bool)

    def integer(self, rank: int = 0) -> str:
        """Pick an integer value."""
        return self._pick_value(lambda x: x.dim() >= rank and not x.is_floating_point() and x.dtype is not torch.bool)

    def boolean(self, rank: int = 0) -> str:
        """Pick a bool value."""
        return self._pick_value(lambda x: x.dim() >= rank and x.dtype is torch.bool)

    def like(self) -> str:
        """Pick a value that broadcasts with the first operand, or make a new argument of its dtype."""
        shape = self.shape

        def broadcasts(x: Tensor) -> bool:
            return x.dtype is not torch.bool and _broadcasts(tuple(x.shape), shape, self.most)

        if self.chance(0.6) and (value := self._find_value(broadcasts)):
            return self._use(value)
        sizes = [1 if self.chance(0.25) else n for n in shape]
        return self.fresh(*sizes[self.up_to(0, len(sizes)) if self.chance(0.3) else 0 :])

    def same(self) -> str:
        """Pick a value of the first operand's shape and dtype, or make a new argument."""
        x = self.first.eager
        value = self._find_value(lambda y: y.shape == x.shape and y.dtype == x.dtype)
        return self._use(value) if value and self.chance(0.6) else self.fresh(*x.shape)

    def matching(self, fits: Callable[[Tensor], bool], *shape: int) -> str:
        """Pick a value of the first operand's dtype for which `fits` holds, or make a new argument of that shape."""
        dtype = self.first.eager.dtype
        value = self._find_value(lambda y: y.dtype == dtype and fits(y))
        return self._use(value) if value and self.chance(0.7) else self.fresh(*shape)

    def mask(self) -> str:
        """Pick a bool value that broadcasts to the first operand, or make a new argument."""
        shape = self.shape
        value = self._find_value(
            lambda y: y.dtype is torch.bool and _broadcasts(tuple(y.shape), shape, self.most, to=True)
        )
        return self._use(value) if value else self._argument(shape, "bool", {"kind": "bool"})

    def fresh(self, *shape: int) -> str:
        """Make a new argument of the first operand's dtype."""
        return self._argument(shape, NAMES[self.first.eager.dtype], None)

    def indices(self, below: int, *shape: int, unique_along: int | None = None) -> str:
        """Make a new argument of indices below a number, without duplicates along an axis if that is given."""
        require(below >= 1)
        options: dict[str, object] = {"kind": "index", "below": self._least_size(below)}
        if unique_along is not None:
            options["unique_along"] = unique_along
        return self._argument(shape, "i64", options)

    def drawn_as(self, kind: str, *shape: int) -> str:
        """Make a new argument of the first operand's dtype with data of the distribution `kind`."""
        return self._argument(shape, NAMES[self.first.eager.dtype], {"kind": kind})

    def truths(self, *shape: int) -> str:
        """Make a new bool argument."""
        return self._argument(shape, "bool", {"kind": "bool"})

    def axis(self) -> int:
        """Return a random axis of the first operand, positive or negative."""
        rank = len(self.shape)
        return self.up_to(-rank, rank - 1) if rank else self._raise_not_fitting()

    def size(self, axis: int) -> int:
        """Return a size of the first operand."""
        return self.shape[axis]

    def size_text(self, axis: int) -> str:
        """Return a size of the first operand as text that is also right for other values of dynamic sizes."""
        n = self.shape[axis]
        return f"{self.first.name}.size({axis})" if n in self.points[0].values() else str(n)

    def repeat_call(self) -> tuple[Any, str]:
        """Repeat an earlier call, on its own result like consecutive layers of a network, or on the same operands.

        Returns its row and text. A compiler may compute equal calls once.
        """
        require(self.calls)
        earlier = self.rng.choice(self.calls)
        first, *others = earlier.operands
        if self.chance(EQUAL_SHARE):
            for name in earlier.operands:
                self._use(self.values[name])
            return earlier.row, earlier.text
        operand, result = self.values[first].eager, self.values[earlier.result].eager
        require((operand.shape, operand.dtype) == (result.shape, result.dtype))
        for name in (earlier.result, *others):
            self._use(self.values[name])
        return earlier.row, re.sub(rf"\b{first}\b", earlier.result, earlier.text)

    def with_number_argument(self, text: str) -> str:
        """Replace one of the numbers in a text by a new argument of the program, if it has any."""
        name = f"k{1 + max((int(name[1:]) for name in self.numbers), default=-1)}"
        replaced = literals.replace_number(text, name, self.rng)
        if replaced is None:
            return text
        self.added = {name: replaced[1]}
        return replaced[0]

    @property
    def is_large(self) -> bool:
        """Whether the program is a large one."""
        return self.most > MOST_SCHEDULED

    def start(self) -> str:
        """Make the first argument."""
        if self.is_large:
            return self._argument(self._large_shape(), self.dtype, None)
        rank = self.rng.choices((0, 1, 2, 3, 4), (1, 4, 10, 4, 3))[0]
        pool = self.sizes if rank < 3 else SMALL_SIZES
        shape = [self.rng.choice(pool) for _ in range(rank)]
        if rank >= 2 and self.chance(0.3):
            shape[-1] = shape[-2]
        if shape and not self.points[0] and self.chance(0.03):
            shape[self.rng.randrange(rank)] = 0
        for n in self.points[0].values():
            if shape:
                shape[self.rng.randrange(rank)] = n
        return self._argument(tuple(shape), self.dtype, None)

    # ---- inside

    def _large_shape(self) -> list[int]:
        """Return a shape with many elements, most of them along one axis."""
        low, high = map(math.log, LARGE)
        others = [self.among(*self.sizes) for _ in range(self.up_to(0, 2))]
        shape = [*others, max(1, int(math.exp(self.rng.uniform(low, high))) // math.prod(others))]
        self.rng.shuffle(shape)
        return shape

    def _least_size(self, size: int) -> int:
        """Return the least value of a dynamic size, or the size itself if it is fixed."""
        names = [name for name, n in self.points[0].items() if n == size]
        return min((point[name] for name in names for point in self.points), default=size)

    def _raise_not_fitting(self) -> int:
        raise NotFitting

    def _find_value(self, fits: Callable[[Tensor], bool]) -> Value | None:
        fitting = [v for v in self.values.values() if fits(v.eager)]
        newest = list(self.values)[-3:]
        weights = [(3.0 if not v.used else 1.0) * (2.0 if v.name in newest else 1.0) for v in fitting]
        return self.rng.choices(fitting, weights)[0] if fitting else None

    def _pick_value(self, fits: Callable[[Tensor], bool]) -> str:
        value = self._find_value(fits)
        if value is None:
            raise NotFitting
        return self._use(value)

    def _use(self, value: Value) -> str:
        self.operands.append(value)
        return value.name

    def _argument(self, shape: Iterable[int], dtype: str, data: Mapping[str, object] | None) -> str:
        sizes = tuple(shape)
        require(len(self.args) + len(self.new) < 8 and torch.Size(sizes).numel() <= self.most)
        integral = self.integers or dtype not in FLOATS
        if data is None and self.specials and dtype != "bool" and self.chance(0.6):
            data, integral = {"kind": "choice", "values": self._special_values(dtype)}, dtype not in FLOATS
        if data is None:
            data = {"kind": "bool"} if dtype == "bool" else {"kind": "integers"} if integral else {"kind": "normal"}
        layouts = [x for x in LAYOUTS if fits(x, sizes) and not (x.startswith("expanded") and data["kind"] == "index")]
        layout = self.rng.choice(layouts) if layouts and self.chance(0.35) and self.layouts else "contig"
        arg = Arg(f"x{len(self.args) + len(self.new)}", sizes, dtype, layout, dict(data))
        eager = inputs.tensor(arg, hash_seed(self.seed, self.index, arg.name))
        shadow = runs.widen(eager)
        if self.differentiable and dtype in FLOATS and (not self.args or self.chance(0.6)):
            eager.requires_grad_()
            shadow.requires_grad_()
        value = Value(arg.name, eager, shadow, True, integral)
        self.new.append((arg, value))
        return self._use(value)

    def _special_values(self, dtype: str) -> tuple[float, ...]:
        """Return values to choose from, only a few of them special; otherwise every sum would be NaN."""
        if dtype in FLOATS:
            ordinary, special = [self.up_to(-12, 12) / 4 for _ in range(30)], (math.inf, -math.inf, math.nan, -0.0)
            return (*ordinary, *self.rng.sample(special, self.up_to(1, 2)))
        limits = torch.iinfo(inputs.DTYPES[dtype])
        return (*(self.up_to(max(-3, limits.min), 3) for _ in range(9)), self.among(limits.min, limits.max))

    def accept(self) -> None:
        """Add the new arguments of the drawn call to the program."""
        for arg, value in self.new:
            self.args.append(arg)
            self.values[arg.name] = value
            if value.eager.requires_grad:
                self.gradients.append(arg.name)
        for value in self.operands:
            value.used += 1
        self.numbers |= self.added
        self.discard()

    def discard(self) -> None:
        """Discard the drawn call."""
        self.new, self.operands, self.added = [], [], {}

    def all_values(self) -> list[Value]:
        """Return the values of the program and the new arguments of the call that is being drawn."""
        return [*self.values.values(), *(value for _, value in self.new)]

    def arguments(self) -> list[tuple[Arg, Value]]:
        """Return the arguments of the program and the new ones of the call that is being drawn."""
        return [(arg, self.values[arg.name]) for arg in self.args] + self.new

    def needs_gradient(self, name: str) -> bool:
        """Return whether an argument requires a gradient."""
        return name in self.gradients or any(v.name == name and v.eager.requires_grad for _, v in self.new)

    def scopes(self) -> tuple[dict[str, object], dict[str, object]]:
        """Return the names that a line may use, with their values in eager and in f64."""
        values, constants = self.all_values(), self.constants()
        return {**constants, **{v.name: v.eager for v in values}}, {**constants, **{v.name: v.wide for v in values}}

    def constants(self) -> dict[str, object]:
        """Return the names that have the same value in eager and in f64."""
        return {**SCOPE, **self.numbers, **self.added}


def _broadcasts(a: Sequence[int], b: Sequence[int], most: int, to: bool = False) -> bool:
    """Return whether shapes broadcast to at most `most` elements; `to`: to the shape `b`."""
    try:
        shape = torch.broadcast_shapes(tuple(a), tuple(b))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return shape.numel() <= most and (not to or tuple(shape) == tuple(b))


def overlaps(x: Tensor) -> bool:
    """Return whether two elements share a memory location."""
    offsets = torch.zeros((), dtype=torch.int64)
    for axis, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)):
        offsets = offsets + (torch.arange(n) * step).reshape([-1] + [1] * (x.dim() - 1 - axis))
    return len(set(offsets.flatten().tolist())) < x.numel()
