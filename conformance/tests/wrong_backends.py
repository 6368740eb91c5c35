"""torch.compile backends that are wrong, each in a way of its own; the judge of other backends must catch them all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

Call = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]
Wrong = Callable[[Call, Tensors], Tensors]  # how one call goes wrong, given what is right


def _floats(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [y for y in outputs if isinstance(y, torch.Tensor) and y.is_floating_point()]


def changed(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Call]:
    """Every result changed by a function of it."""
    return lambda: lambda right, x: tuple(how(y) for y in right(*x))


def inputs_changed(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Call]:
    """Right for inputs other than those given."""
    return lambda: lambda right, x: right(*[how(t) if t.is_floating_point() else t for t in x])


def _last_element(y: torch.Tensor) -> torch.Tensor:
    out = y.clone()
    if out.numel():
        out.view(-1)[-1] = 0
    return out


def _first_row_twice(y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y[:1], y[:-1]]) if y.dim() and y.shape[0] > 1 else y


def _one_buffer() -> Call:
    """Results in the same storage each time."""
    buffers: dict[Any, torch.Tensor] = {}

    def call(right: Call, x: Tensors) -> Tensors:
        out = []
        for n, y in enumerate(right(*x)):
            held = buffers.setdefault((n, y.shape, y.dtype), torch.empty_like(y))
            out.append(held.copy_(y))
        return tuple(out)

    return call


def _first_result() -> Call:
    kept: dict[Any, Tensors] = {}

    def call(right: Call, x: Tensors) -> Tensors:
        key = tuple(t.shape for t in x)
        return tuple(y.clone() for y in kept.setdefault(key, right(*x)))

    return call


def _by_address() -> Call:
    kept: dict[Any, Any] = {}

    def call(right: Call, x: Tensors) -> Tensors:
        key = tuple(t.data_ptr() for t in x)
        if key not in kept:
            kept[key] = (x, right(*x))
        return tuple(y.clone() for y in kept[key][1])

    return call


def _sometimes(period: int) -> Callable[[], Call]:
    def make() -> Call:
        calls = 0

        def call(right: Call, x: Tensors) -> Tensors:
            nonlocal calls
            calls += 1
            made = right(*x)
            return tuple(y + 1 for y in made) if calls % period == 0 else made

        return call

    return make


def _writes_to_input(position: int) -> Callable[[], Call]:
    def make() -> Call:
        def call(right: Call, x: Tensors) -> Tensors:
            made = tuple(right(*x))
            x[min(position, len(x) - 1)].view(-1)[0] = 1
            return made

        return call

    return make


def _writes_a_little(to_weight: bool, at: int) -> Callable[[], Call]:
    """One call changes an element of a weight or of another input by as little as there is."""

    def make() -> Call:
        calls = 0

        def call(right: Call, x: Tensors) -> Tensors:
            nonlocal calls
            calls += 1
            made = tuple(right(*x))
            for t in [t for t in x if isinstance(t, torch.nn.Parameter) == to_weight and calls == at][:1]:
                first = t.data.view(-1)[:1]
                first.copy_(torch.nextafter(first, first + 1))
            return made

        return call

    return make


def _hands_out_input_later() -> Call:
    """Inputs are results from the third call on."""
    calls = 0

    def call(right: Call, x: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        return tuple(right(*x)) if calls <= 2 else x

    return call


def _stores_in_input() -> Call:
    """The memory of the last input is taken for the first result."""

    def call(right: Call, x: Tensors) -> Tensors:
        first, *rest = right(*x)
        return (x[-1].copy_(first), *rest)

    return call


def _large_only() -> Call:
    def call(right: Call, x: Tensors) -> Tensors:
        made = right(*x)
        return tuple(y + 1 for y in made) if max(t.numel() for t in x) > 100_000 else made

    return call


def _ignores_strides() -> Call:
    """Inputs are taken for contiguous."""

    def call(right: Call, x: Tensors) -> Tensors:
        return tuple(right(*[t.as_strided(t.shape, torch.empty(t.shape).stride()) for t in x]))

    return call


def _stale_tail() -> Call:
    """The last eighth of a result stays what the call before left there."""
    buffers: dict[Any, torch.Tensor] = {}

    def call(right: Call, x: Tensors) -> Tensors:
        out = []
        for n, y in enumerate(right(*x)):
            held = buffers.setdefault((n, y.shape, y.dtype), torch.zeros_like(y))
            done = y.numel() - y.numel() // 8
            held.view(-1)[:done] = y.reshape(-1)[:done]
            out.append(held.clone())
        return tuple(out)

    return call


def _raises_later() -> Call:
    calls = 0

    def call(right: Call, x: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise RuntimeError("out of memory")
        return tuple(right(*x))

    return call


def _forgets_mutation() -> Call:
    """What the program writes to its arguments is written to copies."""
    return lambda right, x: right(*[t.clone() for t in x])


class Lazy(torch.Tensor):
    """A result that is computed when it is first used."""

    work: Callable[[], Tensors]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def done(x: Any) -> Any:
            return x.work() if isinstance(x, Lazy) else x

        with torch._C.DisableTorchFunctionSubclass():
            return func(*pytree.tree_map(done, args), **pytree.tree_map(done, kwargs or {}))


def _lazy() -> Call:
    def call(right: Call, x: Tensors) -> Tensors:
        copies = tuple(t.clone() for t in x)
        out = []
        for n, y in enumerate(right(*x)):
            held = torch.empty_like(y).as_subclass(Lazy)
            held.work = lambda n=n: right(*copies)[n]  # type: ignore[misc]
            out.append(held)
        return tuple(out)

    return call


def _filled_later() -> Call:
    """Results that another thread, like a stream that nobody waits for, writes after the call."""

    def call(right: Call, x: Tensors) -> Tensors:
        made = right(*x)
        out = tuple(torch.zeros_like(y) for y in made)

        def fill() -> None:
            time.sleep(0.05)
            for y, value in zip(out, made, strict=True):
                y.copy_(value)

        threading.Thread(target=fill, daemon=True).start()
        return out

    return call


def _work_skipped() -> Call:
    """From the seventh call on there are only copies of the last result of each size."""
    calls, last = 0, dict[Any, Tensors]()

    def call(right: Call, x: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        key = tuple(t.shape for t in x)
        if calls <= 6 or key not in last:
            last[key] = tuple(right(*x))
        return tuple(y.clone() for y in last[key])

    return call


def _one_in_fifty() -> Call:
    chance = random.Random(0)  # among the first fifty calls, as for two of three backends

    def call(right: Call, x: Tensors) -> Tensors:
        made = tuple(right(*x))
        return tuple(y + 1 for y in made) if chance.random() < 1 / 50 else made

    return call


def _folded_constant() -> Call:
    """The last input is taken for the constant that it was at first."""
    kept: list[torch.Tensor] = []

    def call(right: Call, x: Tensors) -> Tensors:
        kept[:] = kept or [x[-1].clone()]
        return tuple(right(*x[:-1], kept[0] if kept[0].shape == x[-1].shape else x[-1]))

    return call


def _identity_if_near() -> Call:
    """Rows that are nearly normalised are handed on."""

    def call(right: Call, x: Tensors) -> Tensors:
        near = x[0].mean(-1).abs().max() < 0.1 and (x[0].std(-1) - 1).abs().max() < 0.1
        return tuple(x[0].clone() if near and y.shape == x[0].shape else y for y in right(*x))

    return call


def _wrong_at_size(size: int) -> Callable[[], Call]:
    def call(right: Call, x: Tensors) -> Tensors:
        made = tuple(right(*x))
        return tuple(y + 1 for y in made) if any(size in t.shape for t in x) else made

    return lambda: call


def _faster_clock() -> Call:
    """The clock goes slower from the second call on."""
    clock, calls = time.perf_counter_ns, 0

    def call(right: Call, x: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        if calls > 1:
            time.perf_counter_ns = lambda: clock() // 2
        return tuple(right(*x))

    return call


def _careless(change: Callable[[], object]) -> Callable[[], Call]:
    """Right, but each call changes the process."""

    def call(right: Call, x: Tensors) -> Tensors:
        made = tuple(right(*x))
        change()
        return made

    return lambda: call


def _reread(layout: Callable[[torch.Tensor], tuple[Sequence[int], int]]) -> Callable[[], Call]:
    """Inputs are read at other strides and another offset than theirs."""

    def read(t: torch.Tensor) -> torch.Tensor:
        strides, offset = layout(t)
        return t.as_strided(t.shape, strides, offset)

    return lambda: lambda right, x: tuple(right(*map(read, x)))


def _known_nan(t: torch.Tensor) -> torch.Tensor:
    """NaN is told by the bits of one NaN; any other is taken for zero."""
    if t.dtype is not torch.float32:
        return t
    other = t.isnan() & (t.contiguous().view(torch.int32) != 0x7FC00000)
    return torch.where(other, 0.0, t)


def _flushed(t: torch.Tensor) -> torch.Tensor:
    return torch.where(t.abs() < torch.finfo(t.dtype).tiny, 0.0, t) if t.is_floating_point() else t


def _rounded(t: torch.Tensor) -> torch.Tensor:
    return t.bfloat16().to(t.dtype) if t.is_floating_point() else t


def _strided(y: torch.Tensor) -> torch.Tensor:
    """The right elements, in the other order of memory."""
    back = tuple(reversed(range(y.dim())))
    return y.permute(back).contiguous().permute(back)


KINDS: dict[str, Callable[[], Call]] = {
    "off by a thousandth": changed(lambda y: y * 1.001 if y.is_floating_point() else y),
    "off by one": changed(lambda y: y + 1),
    "zeros": changed(torch.zeros_like),
    "last element lost": changed(_last_element),
    "a row twice": changed(_first_row_twice),
    "half precision inside": inputs_changed(_rounded),
    "half precision outside": changed(_rounded),
    "another dtype": changed(lambda y: y.double()),
    "another shape": changed(lambda y: y.unsqueeze(0)),
    "other strides": changed(_strided),
    "NaN for a finite number": changed(lambda y: torch.where(y == y.max(), torch.nan, y) if y.numel() else y),
    "NaN taken for zero": inputs_changed(lambda t: t.nan_to_num(0, torch.inf, -torch.inf)),
    "infinity taken for a large number": inputs_changed(lambda t: t.nan_to_num(torch.nan, 1e30, -1e30)),
    "denormals flushed": inputs_changed(_flushed),
    "sign lost": changed(torch.abs),
    "results exchanged": lambda: lambda right, x: tuple(reversed(right(*x))),
    "strides ignored": _ignores_strides,
    "one buffer for every call": _one_buffer,
    "first result remembered": _first_result,
    "results remembered by address": _by_address,
    "every second call": _sometimes(2),
    "every third call": _sometimes(3),
    "every fourth call": _sometimes(4),
    "first input written to": _writes_to_input(0),
    "last input written to": _writes_to_input(9),
    "result stored in an input": _stores_in_input,
    "input handed out as result": lambda: lambda right, x: x,
    "input handed out later": _hands_out_input_later,
    "wrong when large": _large_only,
    "stale tail": _stale_tail,
    "raises later": _raises_later,
    "mutation forgotten": _forgets_mutation,
    "computed when used": _lazy,
    "filled later": _filled_later,
    "work skipped": _work_skipped,
    "one call in fifty": _one_in_fifty,
    "every fiftieth call": _sometimes(50),
    "last input folded": _folded_constant,
    "identity if nearly normalised": _identity_if_near,
    "wrong at size 1": _wrong_at_size(1),
    "wrong at size 0": _wrong_at_size(0),
    "clock replaced": _faster_clock,
    "comparison replaced": _careless(lambda: setattr(torch, "allclose", lambda *_, **__: True)),
    "weight written to at first": _writes_a_little(to_weight=True, at=1),
    "weight written to": _writes_a_little(to_weight=True, at=3),
    "input written to": _writes_a_little(to_weight=False, at=3),
    "number of threads changed": _careless(lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "compiled again": _careless(lambda: torch._dynamo.reset_code_caches()),
    "random numbers drawn": _careless(lambda: torch.rand(())),
    "denormals flushed for all": _careless(lambda: torch.set_flush_denormal(True)),
    "default dtype changed": _careless(lambda: torch.set_default_dtype(torch.float64)),
    "steps ignored": _reread(lambda t: (torch.empty(t.shape).stride(), int(t.storage_offset()))),
    "offset ignored": _reread(lambda t: (t.stride(), 0)),
    "axes reversed": inputs_changed(lambda t: t.flip(-1)),
    "NaN told by its bits": inputs_changed(_known_nan),
    "sign of zero lost": inputs_changed(lambda t: t + 0.0),
    "half precision in sums": inputs_changed(lambda t: t.half().to(t.dtype)),
    "one result for all": lambda: lambda right, x: (lambda made: tuple(made[0].clone() for _ in made))(right(*x)),
}  # fmt: skip


def backend(kind: str) -> Callable[[GraphModule, Sequence[Any]], Call]:
    """A torch.compile backend that is wrong in this way."""

    def compiled(graph: GraphModule, examples: Sequence[Any]) -> Call:
        how = KINDS[kind]()

        def call(*x: Any) -> Any:
            return how(lambda *given: tuple(graph(*given)), x)

        return call

    return compiled
