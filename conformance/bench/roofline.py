"""The roofline: the bytes and flops that a function cannot avoid, and the least time that this machine needs for them.

The limits of the machine are measured, once per process, not taken from a data sheet: bandwidth by size of the working
set, because data that fits into a cache is not bound by memory, and the best rate of contractions by dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from conformance.judge import device

# Sizes of working sets in bytes, from the first-level cache to memory, in steps that resolve each cache level.
WORKING_SETS = tuple(1 << power for power in range(14, 28))
MEASURING_SECONDS = 0.02
SAMPLE_SECONDS = 2e-4  # minimum length of a sample: the thread clock may not advance during a shorter one
MATMUL_SIZE = 512
CONVOLUTION_CHANNELS, CONVOLUTION_SIZE = 128, 32
NARROW_DTYPES = frozenset({torch.bfloat16, torch.float16})
# A larger share of the roofline is not explained by noise or by the part of the working set that stays in a cache.
PLAUSIBLE = 1.3
EXACT = 1.05  # a share above this exceeds the accuracy of the measured roofline
# Ops that read only as many bytes of their first tensor as they return.
GATHERS = frozenset({"aten::embedding", "aten::index", "aten::index_select", "aten::gather", "aten::take"})


Clock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Work:
    """What any implementation must do: bytes of inputs read once and outputs written once; flops of contractions."""

    bytes: int
    flops: int


@dataclass(frozen=True)
class Limits:
    """The measured limits: pairs of working set and bytes per second (read plus written), and flops per second."""

    bandwidth: tuple[tuple[int, float], ...]
    flops: float

    def bandwidth_at(self, size: int) -> float:
        """Return the bandwidth of a working set, interpolated over the logarithm of its size."""
        sizes, rates = np.array(self.bandwidth).T
        # A smaller set is never slower; where it was measured slower, the calls were too short.
        best = np.maximum.accumulate(rates[::-1])[::-1]
        return float(np.interp(np.log(max(size, 1)), np.log(sizes), best))


def work(function: Callable[..., object], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor] = ()) -> Work:
    """Run the function once and count the bytes read of inputs and weights, the bytes returned, and the flops."""
    reads = _Reads([*inputs, *weights])
    with reads, FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
        outputs = function(*inputs)
    return Work(reads.total() + _storage_bytes(_tensors(outputs)), counter.get_total_flops())


def seconds(needed: Work, limits: Limits) -> float:
    """Return the least time in seconds: the larger of the bounds by memory and by arithmetic."""
    return max(needed.bytes / limits.bandwidth_at(needed.bytes), needed.flops / limits.flops)


def limits(threads: int, dtype: torch.dtype) -> Limits:
    """Return the limits of this CPU with so many threads; the caller must hold the machine lock on the first call."""
    return Limits(_bandwidth(threads), _flops(threads, dtype))


def device_limits(dtype: torch.dtype) -> Limits:
    """Return the limits of the GPU: the bandwidth of copies and the rate of a large matmul of PyTorch."""
    return Limits(device.bandwidth(), device.flops(dtype))


@cache
def _bandwidth(threads: int) -> tuple[tuple[int, float], ...]:
    clock = _clock(threads)
    return tuple((size, max(_copy_rate(size, clock), _read_rate(size, clock))) for size in WORKING_SETS)


def _clock(threads: int) -> Clock:
    """Return the clock: for one thread its own time, which excludes other load on the machine."""
    return time.thread_time if threads == 1 else time.perf_counter


def _copy_rate(size: int, clock: Clock) -> float:
    """Bytes per second of copying half of the working set to the other half; many rows per call amortise its cost."""
    half = size // 2 // 4
    rows = max(1, (1 << 20) // half)
    # Rows start 64 bytes apart, so they overlap and the working set does not grow with the number of rows.
    step = 16
    pair = torch.zeros(2, half + rows * step)
    target, source = (part.as_strided((rows, half), (step, 1)) for part in pair)
    return 2 * 4 * half * rows / _least_seconds(lambda: target.copy_(source), clock)


def _read_rate(size: int, clock: Clock) -> float:
    """Bytes per second of the dot product of the two halves of the working set."""
    count = size // 2 // 4
    x, y = torch.ones(2, count)
    return 4 * 2 * count / _least_seconds(lambda: torch.dot(x, y), clock)


@cache
def _flops(threads: int, dtype: torch.dtype) -> float:
    """The best measured rate: 16-bit kernels may compute in f32, and f64 has half as many lanes as f32."""
    clock = _clock(threads)
    wide = max(_matmul_rate(torch.float32, clock), _convolution_rate(clock))
    if dtype is torch.float64:
        return max(_matmul_rate(dtype, clock), wide / 2)
    return max(wide, _matmul_rate(dtype, clock)) if dtype in NARROW_DTYPES else wide


def _matmul_rate(dtype: torch.dtype, clock: Clock) -> float:
    x, y = torch.ones(2, MATMUL_SIZE, MATMUL_SIZE, dtype=dtype)
    return 2 * MATMUL_SIZE**3 / _least_seconds(lambda: torch.mm(x, y), clock)


def _convolution_rate(clock: Clock) -> float:
    """Flops per second of a convolution: on some CPUs PyTorch's matmuls use only half of the vector width."""
    channels, size = CONVOLUTION_CHANNELS, CONVOLUTION_SIZE
    image = torch.ones(1, channels, size, size).to(memory_format=torch.channels_last)
    kernel = torch.ones(channels, channels, 3, 3).to(memory_format=torch.channels_last)
    flops = 2 * 9 * channels**2 * (size - 2) ** 2
    return flops / _least_seconds(lambda: torch.conv2d(image, kernel), clock)


def _least_seconds(call: Callable[[], object], clock: Clock) -> float:
    call()
    least, repeats, started = np.inf, 1, clock()
    while clock() - started < MEASURING_SECONDS or least == np.inf:
        start = clock()
        for _ in range(repeats):
            call()
        if (elapsed := clock() - start) < SAMPLE_SECONDS:
            repeats *= 2
        else:
            least = min(least, elapsed / repeats)
    return float(least)


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts for each input storage the most bytes that a single op reads of it, directly or through views."""

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = {tensor.untyped_storage().data_ptr(): 0 for tensor in inputs}
        self.kept_alive = list(inputs)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = list(_tensors((args, kwargs)))
            gathers = func.name().partition(".")[0] in GATHERS
            for position, tensor in enumerate(tensors):
                cap = _storage_bytes(_tensors(result)) if gathers and position == 0 else None
                self._record_read(tensor, cap)
        return result

    def _record_read(self, tensor: torch.Tensor, cap: int | None) -> None:
        address = tensor.untyped_storage().data_ptr()
        if address in self.read:
            touched = _distinct_bytes(tensor)
            self.read[address] = max(self.read[address], touched if cap is None else min(cap, touched))

    def total(self) -> int:
        return sum(self.read.values())


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements: those repeated by stride 0 count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_distinct_bytes(tensor) for tensor in tensors)


def _attention_flops(causal_at: int) -> Callable[..., int]:
    """Return a function that counts the flops of the two contractions of attention.

    A causal mask (argument number `causal_at`) halves the count, as the part above the diagonal can be skipped. Key and
    value may have fewer heads than the query; then each serves several.
    """

    def count(
        query: Sequence[int],
        key: Sequence[int],
        value: Sequence[int],
        *rest: object,
        is_causal: bool = False,
        **_: object,
    ) -> int:
        batch, heads, rows, inner = query
        columns, width = key[-2], value[-1]
        causal = is_causal or rest[causal_at - 3 : causal_at - 2] == (True,)
        return batch * heads * rows * columns * (inner + width) * (1 if causal else 2)

    return count


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops(4),
    torch.ops.aten._scaled_dot_product_flash_attention: _attention_flops(4),
    torch.ops.aten._scaled_dot_product_efficient_attention: _attention_flops(6),
    torch.ops.aten._scaled_dot_product_cudnn_attention: _attention_flops(6),
}
