"""Input distributions: functions that draw a tensor of a given shape and dtype from a seeded generator."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from conformance.shapes.cases import Value

# First and last positions of tiles in most schedules, where index errors show.
_CORNERS = (0, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256)
_INSIDE = 0.998  # about the largest number that 16-bit floats do not round to 1


@dataclass(frozen=True)
class Draw:
    """What to draw: the shape, the final dtype, and the random generator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    generator: torch.Generator

    @property
    def drawing_dtype(self) -> torch.dtype:
        """The dtype to draw in."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def normal(self) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(self.shape, dtype=self.drawing_dtype, generator=self.generator)

    def uniform(self) -> Tensor:
        """Draw numbers in [0, 1)."""
        return torch.rand(self.shape, dtype=self.drawing_dtype, generator=self.generator)

    def integers(self, low: int, high: int) -> Tensor:
        """Draw integers, both limits included."""
        return torch.randint(low, high + 1, self.shape, generator=self.generator)

    def full(self, value: float) -> Tensor:
        """Fill with one value."""
        return torch.full(self.shape, value, dtype=self.drawing_dtype)


def tensor(inputs: Mapping[str, Value], draw: Draw) -> Tensor:
    """Draw a contiguous tensor of a distribution such as `{"kind": "uniform", "low": -2}`."""
    options = {key: value for key, value in inputs.items() if key != "kind"}
    return KINDS[inputs["kind"]](draw, **options).to(draw.dtype).contiguous()


def normal(draw: Draw, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return draw.normal() * std + mean


def uniform(draw: Draw, low: float = -1.0, high: float = 1.0) -> Tensor:
    return _round_below(draw.uniform() * (high - low) + low, low, high, draw.dtype)


def integers(draw: Draw, low: int = -3, high: int = 3) -> Tensor:
    """Draw integers so small that their sums and products are exact in f32; unsigned dtypes start at 0."""
    floor = low if draw.dtype.is_floating_point else max(low, torch.iinfo(draw.dtype).min)
    return draw.integers(min(floor, high), high)


def positive(draw: Draw) -> Tensor:
    if not draw.dtype.is_floating_point:
        return draw.integers(1, 7)
    return _round_below(draw.uniform() * 3.875 + 0.125, 0.125, 4.0, draw.dtype)


def unit(draw: Draw) -> Tensor:
    return (draw.uniform() * 2 - 1).clamp(-_INSIDE, _INSIDE) * _INSIDE


def prob(draw: Draw) -> Tensor:
    return draw.uniform() * (_INSIDE - 0.001) + 0.001


def simplex(draw: Draw) -> Tensor:
    return torch.softmax(draw.normal(), -1) if draw.shape else draw.full(1.0)


def big_offset(draw: Draw, offset: float = 1000.0) -> Tensor:
    return draw.normal() + offset


def sorted_values(draw: Draw, descending: bool = False) -> Tensor:
    values = draw.normal() if draw.dtype.is_floating_point else draw.integers(0, 100)
    return torch.sort(values, dim=-1, descending=descending).values if draw.shape else values


def one_hot(draw: Draw) -> Tensor:
    hot = draw.full(0.0)
    if not draw.shape:
        return hot + 1
    if hot.numel():
        position = torch.randint(0, draw.shape[-1], (*draw.shape[:-1], 1), generator=draw.generator)
        hot.scatter_(-1, position, 1.0)
    return hot


def denormal(draw: Draw) -> Tensor:
    # Drawn in f64, which represents them all, and below 0.995 of the limit, so that none rounds up to a normal number.
    return (draw.uniform().double() * 2 - 1) * 0.995 * torch.finfo(draw.dtype).smallest_normal


def huge(draw: Draw) -> Tensor:
    largest = torch.finfo(draw.dtype).max
    sign = draw.integers(0, 1) * 2 - 1
    return (draw.uniform().double() * (7 / 16) + 1 / 16) * largest * sign


def specials(draw: Draw) -> Tensor:
    """Draw normal numbers with special values at tile corners: one per row, so that each shows in a reduction.

    The sequence of special values starts at a random one, so that different ones meet in ops with two arguments.
    """
    if draw.dtype is torch.bool:
        return boolean(draw)
    values = (draw.normal().double() if draw.dtype.is_floating_point else integers(draw)).to(draw.dtype)
    if not values.numel():
        return values
    special = _special_values(draw.dtype)
    first = int(torch.randint(len(special), (), generator=draw.generator))
    special_cycle = cycle([*special[first:], *special[:first]])
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(1, -1)
    corners = [[i for i in (*_CORNERS, size - 1) if i < size] for size in rows.shape]
    if rows.shape[0] == 1:
        positions = [(0, column) for column in dict.fromkeys(corners[1])]
    else:
        positions = list(zip(dict.fromkeys(corners[0]), cycle(corners[1])))
    for row, column in positions:
        rows[row, column] = next(special_cycle)
    rows[-1, -1] = next(special_cycle)
    return values


def _special_values(dtype: torch.dtype) -> tuple[Tensor, ...]:
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor((info.max, info.min, 0, 1, max(-1, info.min)), dtype=dtype).unbind()
    real = torch.finfo(dtype)
    numbers = (math.inf, -0.0, math.nan, -math.inf, real.max, 0.0, real.min, real.smallest_normal / 2)
    return (*torch.tensor(numbers, dtype=dtype).unbind(), _negative_nan(dtype))


def extremes(draw: Draw) -> Tensor:
    """Draw extremes: limits of the range, numbers beside them, and limits of wider and narrower dtypes."""
    if draw.dtype is torch.bool:
        return boolean(draw)
    if draw.dtype.is_floating_point:
        real = torch.finfo(draw.dtype)
        numbers = (1, -1, 0.5, -1.5, 2.5, 1 + real.eps, 1 - real.eps / 2, 2 / real.eps + 2, 2.0**31, -(2.0**63))
        values = torch.stack([*_special_values(draw.dtype), *torch.tensor(numbers, dtype=draw.dtype).unbind()])
    else:
        info = torch.iinfo(draw.dtype)
        powers = [sign * 2**bits for bits in (0, 7, 8, 15, 24, 31, 53, 63) for sign in (1, -1)]
        limits = {power + delta for power in powers for delta in (-1, 0, 1)}
        others = {3, 7, -7, info.max // 2, info.min // 2, info.max - 1}
        in_range = sorted(n for n in limits | others if info.min <= n <= info.max)
        values = torch.tensor(in_range, dtype=draw.dtype)
    return values[draw.integers(0, len(values) - 1)]


def _negative_nan(dtype: torch.dtype) -> Tensor:
    """Return a NaN with sign bit, whose bits are ones down to the leading fraction bit.

    It is made from its bits, since conversions to 16 bits lose the sign of NaN.
    """
    if dtype.itemsize == 1:
        return torch.tensor(-1, dtype=torch.int8).view(dtype)
    word = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    fraction = round(-math.log2(torch.finfo(dtype).eps))
    return torch.tensor(-1 << (fraction - 1), dtype=word).view(dtype)


def index(draw: Draw, below: int, unique_along: int | str = "no", negative: bool = False) -> Tensor:
    """Draw valid indices into an axis of `below` elements, distinct along the axis `unique_along` if that is given."""
    if isinstance(unique_along, str):
        return torch.randint(-below if negative else 0, max(below, 1), draw.shape, generator=draw.generator)
    wide = list(draw.shape)
    wide[unique_along] = below
    order = torch.rand(wide, generator=draw.generator).argsort(dim=unique_along)
    order = order.narrow(unique_along, 0, draw.shape[unique_along])
    flip = draw.integers(0, 1) * below if negative else 0
    return order - flip


def invalid_index(draw: Draw, below: int, wraps: bool = False) -> Tensor:
    """Draw indices of which some, at least one, are invalid for an axis of `below` elements.

    With `wraps`, negative indices count from the end and are valid.
    """
    valid = index(draw, below)
    lowest, highest = torch.iinfo(draw.dtype).min, torch.iinfo(draw.dtype).max
    candidates = (below, below + 1, 10**9, -below - 1, -(10**9), *([] if wraps else [-1, -below]))
    invalid = torch.tensor([x for x in candidates if lowest <= x <= highest])
    is_invalid = torch.rand(draw.shape, generator=draw.generator) < 1 / 8
    if is_invalid.numel():
        is_invalid.view(-1)[int(torch.randint(0, is_invalid.numel(), (), generator=draw.generator))] = True
    return torch.where(is_invalid, invalid[torch.randint(0, len(invalid), draw.shape, generator=draw.generator)], valid)


def boolean(draw: Draw, p: float = 0.5) -> Tensor:
    return draw.uniform() < p


def choice(draw: Draw, values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=draw.dtype)[draw.integers(0, len(values) - 1)]


def _round_below(values: Tensor, low: float, high: float, dtype: torch.dtype) -> Tensor:
    """Round values to the dtype, and replace those that reach the open upper limit by the lower one."""
    if not dtype.is_floating_point or high <= low:
        return values
    rounded = values.to(dtype)
    return torch.where(rounded.double() < high, rounded.to(values.dtype), low).to(dtype)


KINDS: Mapping[str, Callable[..., Tensor]] = {
    "normal": normal, "uniform": uniform, "integers": integers, "zeros": lambda draw: draw.full(0.0),
    "ones": lambda draw: draw.full(1.0), "positive": positive, "unit": unit, "prob": prob, "simplex": simplex,
    "big_offset": big_offset, "sorted": sorted_values, "one_hot": one_hot, "denormal": denormal, "huge": huge,
    "specials": specials, "extremes": extremes, "index": index, "invalid_index": invalid_index,
    "bool": boolean, "choice": choice,
}  # fmt: skip
