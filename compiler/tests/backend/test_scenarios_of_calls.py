"""What people compile and call: methods, partial functions, generators, records; sizes and layouts in turn; errors.

Scenarios as in `test_scenarios`: each is a function of what compiles, some are run, and kernels are not built.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.tests.backend.test_backend_programs import BUGS
from compiler.tests.backend.test_scenarios import Compile, go_as_in_eager, interpreted, network, slopes

__all__ = ["interpreted"]
Function = Callable[..., Any]

# Forms ----------------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    factor = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def by(self, x: Tensor, more: float = 2.0) -> Tensor:
        return x * self.weight * more + self.doubled

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x * cls.factor

    @staticmethod
    def plain(x: Tensor) -> Tensor:
        return x + 1

    @property
    def doubled(self) -> Tensor:
        return self.weight * 2


def methods(run: Compile) -> Any:
    net, x = Scaled(), torch.randn(4, 6)
    made = [run(net.by)(x, more=3.0), run(Scaled.of_class)(x), run(net.of_class)(x), run(Scaled.plain)(x)]
    return made, run(functools.partial(net.by, more=0.5))(x), run(lambda x: functools.partial(torch.sub, x)(x * 2))(x)


def nested(run: Compile) -> Any:
    x = torch.randn(4, 6)

    def deeper(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else deeper(x.sin() + 1, n - 1)

    return run(lambda x: run(torch.exp)(x) + 1)(x), run(run(lambda x: x.exp() + 1))(x), run(deeper)(x, 3)


def rows(x: Tensor) -> Iterator[Tensor]:
    for row in x:
        yield row.sum()


def iterators(run: Compile) -> Any:
    x = torch.randn(4, 6)
    return (
        run(lambda x: torch.stack(list(rows(x))))(x),
        run(lambda x: sum(r * k for k, r in enumerate(x.unbind(0))))(x),
        run(lambda x: list(itertools.accumulate(x.unbind(0), lambda a, b: 0.5 * a + b)))(x),
        run(lambda x: functools.reduce(torch.maximum, x.unbind(1)))(x),
        run(lambda x: torch.stack(list(collections.deque(x.unbind(0), maxlen=2))))(x),
    )


@dataclasses.dataclass
class Made:
    values: Tensor
    loss: Tensor | None = None
    more: dict[str, Tensor] = dataclasses.field(default_factory=dict)


class Pair(NamedTuple):
    a: Tensor
    b: int = 3


class Kind(enum.Enum):
    DOUBLE = 1
    MORE = 2


def records(run: Compile) -> Any:
    made = run(lambda m: Made(m.values * 2, loss=m.values.sum(), more={"first": m.values[0]}))(Made(torch.randn(4, 6)))
    pair = run(lambda p: Pair(p.a * p.b, p.b + 1))(Pair(torch.randn(3)))
    named = run(lambda d: {k: v + n for n, (k, v) in enumerate(d.items())})({"b": torch.randn(2), "a": torch.randn(3)})
    kinds = run(lambda x, kind: x * 2 if kind is Kind.DOUBLE else x + 2)
    every = [kinds(torch.randn(3), kind) for kind in Kind]
    in_order = list(named) == ["b", "a"]
    return dataclasses.asdict(made), type(pair) is Pair, pair, in_order, list(named.values()), every


def state_outside(run: Compile) -> Any:
    class Counter:
        n = 1
        last: Tensor | None = None

    held: dict[str, Any] = {"factor": 1.0, "sums": []}
    counter, calls = Counter(), 0

    def step(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        held["factor"] *= 2
        held["sums"].append(x.sum())
        counter.n += calls
        counter.last = x * counter.n
        made: Tensor = x * held["factor"]
        return made

    own = run(step)
    return [own(torch.randn(3)) for _ in range(3)], calls, held, counter.n, counter.last


# Sizes and layouts in turn --------------------------------------------------------------------------------------------

SIZED: tuple[Function, ...] = (
    lambda x: x.softmax(0), lambda x: F.pad(x, (0, 0, 0, 9 - x.shape[0])), lambda x: x / x.shape[0] ** 0.5,
    lambda x: x.flip(0) + x.roll(1, 0), lambda x: x[x.shape[0] // 2 :] - 1, lambda x: x.tensor_split(3),
    lambda x: x[x > 0].sum(), lambda x: x + torch.arange(x.shape[0])[:, None] / max(x.shape[0], 1),
    lambda x: x[:, None].expand(-1, x.shape[0], -1).sum(1), lambda x: torch.einsum("ij,kj->ik", x, x).triu(),
    lambda x: torch.cat([x, x[:1], x * 2]), lambda x: x.sum(0) if x.shape[0] > 4 else x.mean(0), lambda x: x.cdist(x),
    lambda x: x.unfold(0, 3, 1).mean(-1), lambda x: (x.amax(1), x.logsumexp(0)), lambda x: (x.prod(0), (x > 0).all(0)),
)  # fmt: skip
SIZES = (3, 5, 1, 0, 9)


def happening(f: Function, *given: Any) -> Any:
    """What is made, or of which kinds the exception is that is raised."""
    try:
        return f(*given)
    except Exception as problem:
        assert str(problem)
        kinds = IndexError, ValueError, TypeError, AssertionError, ArithmeticError
        return [isinstance(problem, kind) for kind in kinds]


def sizes_in_turn(run: Compile) -> Any:
    chosen = [SIZED[k] for k in torch.randperm(len(SIZED))[:3].tolist()]
    return [[happening(own, torch.randn(n, 4)) for n in SIZES] for own in map(run, chosen)]


def marked_sizes(run: Compile) -> Any:
    own, made = run(lambda x: (x * x.shape[0]).cumsum(0)), []
    for n in (4, 7, 2):
        x = torch.randn(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        made.append(own(x))
    return made, own(torch.randn(1, 4)), own(torch.randn(0, 4))


LAID_OUT: tuple[Function, ...] = (
    lambda x: x + 1, lambda x: x * x.contiguous(), lambda x: x.softmax(1), lambda x: x.flatten(1) * 2,
    lambda x: (x.clone(), x.contiguous(), x.double(), x.clone(memory_format=torch.contiguous_format)),
    lambda x: x.view(x.shape[0], -1) * 2, lambda x: torch.cat([x, x], 1), lambda x: x[:, [0, 0]],
    lambda x: x.sort(1)[0], lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), lambda x: x.cumsum(2),
    lambda x: torch.stack([x, x * 2], -1), lambda x: torch.where(x > 0, x, -x), lambda x: x.clone().relu_(),
)  # fmt: skip


def layouts_in_turn(run: Compile) -> Any:
    x = torch.randn(3, 4, 6, 5)
    forms = [
        x, x.to(memory_format=torch.channels_last), x.transpose(1, 3), x[:, ::2, 1:5], x[:1].expand(3, -1, -1, -1),
        x[:, :1], x[..., :1], x[:0], x.permute(3, 2, 1, 0), x[:, :, 2:3, 1:4],
    ]  # fmt: skip
    own = run(LAID_OUT[int(torch.randint(len(LAID_OUT), ()))])
    made = [happening(own, form) for form in forms]
    return made, [[y.stride() for y in ([z] if isinstance(z, Tensor) else z) if isinstance(y, Tensor)] for z in made]


# Writes, gradients, modules, modes ------------------------------------------------------------------------------------


def writes(run: Compile) -> Any:
    def assigned(x: Tensor) -> Tensor:
        x[0] = 1
        x[:, 0] = torch.tensor(5.0)
        x[..., -1] = x[..., 0]
        x[x < -1] = 0
        x.view(-1)[3:9].view(2, 3).t().add_(5)
        x.diagonal().fill_(0)
        return x[1:].copy_(x[:-1].clone())

    xs = [torch.randn(4, 6) for _ in range(4)]
    return (
        run(assigned)(xs[0]), run(lambda a, b: (a.add_(b), b.mul_(a)))(xs[1], xs[2]),
        run(lambda x: x.t().mul_(2))(xs[3]), run(lambda x, out: (torch.mul(x, 2, out=out), out.sum()))(xs[0], xs[1]),
        xs,
    )  # fmt: skip


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Any:
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ((ctx.saved_tensors[0] > ctx.low) | (grad < 0)), None, None


class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        value, place = x.max(1)
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return value, place

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        (place,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter_(1, place[:, None], grad[:, None])


def own_gradients(run: Compile) -> Any:
    x = torch.randn(4, 6, requires_grad=True)

    def all_of(x: Tensor) -> Any:
        clipped = functools.reduce(lambda y, k: Clipped.apply(y * 1.5, -k, k), (1.0, 2.0), x)  # type: ignore[no-untyped-call]
        return clipped.sum() + Largest.apply(x)[0].sum()  # type: ignore[no-untyped-call]

    return torch.autograd.grad(run(all_of)(x), x)


def at_kinks(run: Compile) -> Any:
    x = torch.zeros(4, 6, requires_grad=True)
    y = run(lambda x: (x.abs() + x.relu() + (x + 1).clamp(-1, 1) + x**2 + x.sign(), x.max(), x.amax(), x.norm()))(x)
    return torch.autograd.grad([z.sum() for z in y], x), y


def changed_modules(run: Compile) -> Any:
    net, layers, x = network(), nn.ModuleList([nn.Linear(6, 6)]), torch.randn(4, 6)
    hook = net[0].register_forward_hook(lambda module, inputs, made: made + 1)
    own, deep = run(net), run(lambda x: functools.reduce(lambda y, layer: layer(y), layers, x))
    made = [own(x), deep(x)]
    hook.remove()
    layers.append(nn.Linear(6, 6))
    made += [own(x), deep(x)]
    net[1] = nn.ReLU()
    net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}, assign=True)
    own(x).sum().backward()
    return [y.detach() for y in made], own(x).detach(), slopes(net)


def mixed_precision(run: Compile) -> Any:
    net, x = network(), torch.randn(4, 6)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    own = run(lambda x: net(x).float().square().mean())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scaler.scale(own(x)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert all(torch.isfinite(p).all() for p in net.parameters())
    return [p.dtype is torch.float32 for p in net.parameters()], scaler.get_scale()


def types_made(run: Compile) -> Any:
    own = run(lambda: (torch.ones(3) / 3, torch.arange(3), torch.tensor(1.5) + torch.zeros(2)))
    made = [own()]
    torch.set_default_dtype(torch.float64)
    try:
        made.append(own())
    finally:
        torch.set_default_dtype(torch.float32)
    weight = nn.Parameter(torch.randn(3))
    return made, run(lambda w: w)(weight) is weight, run(torch.no_grad()(lambda w: w * 2))(weight)


# Errors ---------------------------------------------------------------------------------------------------------------


def after_an_error(run: Compile) -> Any:
    def refused(x: Tensor) -> Tensor:
        if (x * 2).shape[0] == 4:
            raise ValueError("no fours")
        return x

    x, product, picked = torch.randn(4, 6), run(torch.matmul), run(lambda x, i: x[i] * 2)
    made = [happening(product, x, torch.randn(5, 5)), happening(product, x, torch.ones(6, 2))]
    made += [happening(picked, x, torch.tensor([9])), happening(picked, x, torch.tensor([1]))]
    return made, happening(run(refused), x), happening(run(refused), x[:3])


SCENARIOS = (
    methods, nested, iterators, records, state_outside, sizes_in_turn, marked_sizes, layouts_in_turn, writes,
    own_gradients, at_kinks, changed_modules, mixed_precision, types_made, after_an_error,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore", BUGS)
def test_scenarios_of_calls_go_as_in_eager() -> None:
    go_as_in_eager(SCENARIOS)


def test_what_only_a_trace_allows_is_as_torch_traces_it() -> None:
    x = torch.randn(4, 6, 8, 5)[:, :, 2:3, 1:4]
    with pytest.raises(RuntimeError, match="view size"):
        x.view(4, -1)
    with contextlib.suppress(RuntimeError):  # of a torch that does not trace it either
        torch.testing.assert_close(torch.compile(lambda x: x.view(4, -1) * 2, backend="mlcomp")(x), x.flatten(1) * 2)
    picture = torch.randn(1, 1, 3, 4)
    picture[0, 0, 0, 1] = torch.inf

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, (4, 6), mode="bilinear")

    for derived in (False, True):
        picture.requires_grad_(derived)
        torch.testing.assert_close(torch.compile(resized, backend="mlcomp")(picture), resized(picture), equal_nan=True)
    compiled = (torch.compile(resized, backend=backend, dynamic=True) for backend in ("mlcomp", "aot_eager"))
    ours, traced = (c(picture) for c in compiled)
    torch.testing.assert_close(ours, traced, equal_nan=True)
    assert ours.isnan().sum() > resized(picture).isnan().sum()
