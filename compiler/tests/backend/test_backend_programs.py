"""Programs that a person would write, through `torch.compile(backend="mlcomp")`, against eager, in the modes of torch.

Values, types, strides, offsets, what shares memory, gradients, what is done to arguments and what is raised are as in
eager. Every program is run in a few of the modes, drawn anew each time. Kernels are not built: what is tested here is
all that surrounds them, and the graphs are run call by call.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from compiler import frontend
from compiler.backend import mlcomp
from compiler.execution import buffers, executable
from compiler.execution.views import with_views
from compiler.ir import aten
from compiler.ir.sizes import bind, numbers
from compiler.runtime import launcher
from compiler.runtime.packs import with_pieces
from compiler.tests.meaning import fresh_seed

Function = Callable[..., Any]
Compile = Callable[..., Function]
EACH = 2  # modes a program is run in
BUGS = "error:(?s).*this is a bug in mlcomp"  # a program that falls back to eager for one is compared with nothing


@dataclass(frozen=True)
class Interpreted:
    """A program in the place of its executable: arguments are checked and results laid out as those of kernels are."""

    captured: frontend.Captured
    names: tuple[str, ...] = ()
    code: None = None

    def launch(self, *arguments: Tensor) -> Any:
        program, given = self.captured.program, iter(arguments)
        tensors = [self.captured.constants[i.name] if i.constant else next(given) for i in program.inputs]
        if self.captured.packed_inputs:
            layouts = [
                launcher.Buffer(i.name, "", numbers(i.type.shape, {}), numbers(i.type.strides, {}))
                for i in program.inputs
            ]
            tensors = [*with_pieces(dict(enumerate(tensors)), self.captured.packed_inputs, layouts).values()]
        sizes = bind(program.sizes, [(i.name, i.type.shape) for i in program.inputs], [x.shape for x in tensors])
        for n, (i, x) in enumerate(zip(program.inputs, tensors, strict=True)):
            lies = numbers(i.type.shape, sizes), numbers(i.type.strides, sizes)
            tensors[n] = launcher.admit(n, launcher.Buffer(i.name, i.type.dtype.name, *lies), x)
        known = aten.types(program)
        kinds = [known[name] for name in program.outputs]
        made = frontend.execute(program, [x.detach() for x in tensors])
        planned = [launcher.Buffer("", k.dtype.name, *buffers.layout(k, sizes)) for k in kinds]
        placed = []
        for b, x in zip(planned, made, strict=True):
            assert x.shape == b.shape
            placed.append(torch.empty_strided(b.shape, b.stride, dtype=launcher.DTYPES[b.dtype]).copy_(x))
        return with_views(lambda: tuple(placed), planned, self.captured.views or (), sizes)()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executable, "build_captured", lambda captured, *_, **__: Interpreted(captured))
    yield
    torch._dynamo.reset()


# Programs -------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.norm(x))


class Averages(nn.Module):
    """Keeps a running mean, and counts."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Any:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.calls += 1
        return (x - self.mean) * self.scale + self.calls


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.first.register_forward_hook(lambda module, inputs, made: made * 2)

    def forward(self, x: Tensor) -> Any:
        return self.second(F.gelu(self.first(x)))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x[None], x[None], x[None])


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Any:
        return self.linear(x)


class HalfSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0]


def half_slope(x: Tensor) -> Any:
    return HalfSlope.apply(x) + 1  # type: ignore[no-untyped-call]


def no_gradient_inside(x: Tensor) -> Any:
    with torch.no_grad():
        weight = x.exp()
    return x * weight


def half_inside(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def items_set(x: Tensor) -> Any:
    y = x.clone()
    y[:, 0] = 5
    y[y > 1] = 0
    y[1:3, 2:] += 1
    return y


def parts_updated(x: Tensor) -> Any:
    y = x * 1
    y[1:].add_(1)
    y.t()[0].mul_(3)
    return y, y[1]


def argument_updated(x: Tensor) -> Any:
    x.add_(1)
    return x * 2, x


def hooked(x: Tensor) -> Any:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 3)  # type: ignore[no-untyped-call]
    return y.sin()


def raising(x: Tensor) -> Any:
    raise ValueError("of the program")


def wide() -> tuple[Tensor, ...]:
    return (torch.randn(4, 6),)


def whole(high: int, *shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(0, high, shape),)


def pairs(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def indexed(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(4, 6), torch.randint(0, 4, shape))


# fmt: off
PROGRAMS: dict[str, tuple[Any, Callable[[], tuple[Tensor, ...]]]] = {
    "affine": (lambda x: x * 2 + 1, wide),
    "activations": (lambda x: F.gelu(x) + F.silu(x) * F.mish(x) + F.relu6(x) + F.softplus(x) + F.glu(x).sum(), wide),
    "several": (lambda x: (x.sum(0), x.mean(1, keepdim=True), x.softmax(-1)), wide),
    "nested": (lambda x: {"a": x + 1, "b": [x.t(), (x * 2).t(), (None, 3, 4.5)]}, wide),
    "product": (lambda x, w: (x @ w, w.t() @ x.t()), pairs((4, 6), (6, 3))),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), pairs((4, 6), (3, 6), (3,))),
    "batches": (lambda x, y: torch.bmm(x, y).transpose(1, 2), pairs((2, 3, 4), (2, 4, 5))),
    "added products": (lambda a, x, y: torch.addmm(a, x, y, beta=0.5, alpha=2), pairs((4, 3), (4, 6), (6, 3))),
    "einsum": (lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z), pairs((4, 6), (6, 5), (5, 2))),
    "chunks": (lambda x: (x * 2).chunk(3, 1), wide),
    "split and stacked": (lambda x: torch.stack([p.sum() for p in x.split([1, 2, 3], 1)]), wide),
    "views": (lambda x: (lambda y: (y.view(2, 12), y.view(24)[3:7], y.t()[::2], y))(x + 1), wide),
    "views of arguments": (lambda x: (x.t(), x[1:], x.view(2, 12), x, x.unbind(1)[2]), wide),
    "expanded": (lambda x: (x[:1].expand(4, 6), x.sum(0).expand(3, 6), x[:, None].expand(-1, 2, -1) * 2), wide),
    "moved axes": (lambda x: (x.swapaxes(0, 1) * 2, x[..., None].squeeze(-1), x.unflatten(1, (2, 3)) + 1), wide),
    "slices": (lambda x: (x[-1] * 2, x[..., -2:], x[::2] + 1, x[:, None, 1], (x * 2)[1:3, 2:5]), wide),
    "diagonals": (lambda x: (x.diagonal(), torch.diag(x[0]), x.diagonal(1).sum(), (x * 2).diagonal()), wide),
    "windows": (lambda x: (x.unfold(1, 2, 2), (x * 2).unfold(1, 3, 1).sum(-1)), wide),
    "copies": (lambda x: (x.clone(), x.detach(), x.contiguous(), x.t().contiguous(), (x * 2).detach()), wide),
    "twice the same": (lambda x: (lambda y: (y, y))(x + 1), wide),
    "of no elements": (lambda x: (x[:0] * 2, x[:0].sum(0), torch.cat([x[:0], x]), x[:0].sum()), wide),
    "numbers": (lambda x: (x.sum() * 2, x[0, 0] + 1, x.shape[0] * 2, x.numel()), wide),
    "in place": (lambda x: (x * 1).add_(1).mul_(2).relu_().clamp_(max=1), wide),
    "parts in place": (parts_updated, wide),
    "argument in place": (argument_updated, wide),
    "items set": (items_set, wide),
    "given an output": (lambda x: torch.add(x, 1, out=torch.empty_like(x)), wide),
    "nan": (lambda x: (torch.where(x > 0, x, float("nan")).nan_to_num(), x / 0, (x * 0).log(), x.isinf()), wide),
    "logic": (lambda x: ((x > 0) & ~(x < 0.5) | (x == 1), (x > 0).any(), (x > 0).all(1), x.count_nonzero()), wide),
    "whole quotients": (lambda k: (k // 3, k % 3, k / 3, -k // 2, torch.fmod(-k, 3)), whole(20, 5)),
    "whole powers": (lambda k: (k**2, 2**k, k.float() ** 0.5), whole(6, 5)),
    "bits": (lambda k: ((k & 3) | (k ^ 5), k << 1, k >> 1, ~k), whole(20, 5)),
    "powers": (lambda x: (x.abs() ** 0.3, x**2, x**3, (2**x).contiguous(), x.abs() ** -1), wide),
    "remainders": (lambda x: (x % 0.7, torch.fmod(x, 0.7), x // 0.7, torch.remainder(x, -0.7)), wide),
    "rounded": (lambda x: (x.round(), x.floor(), x.trunc(), x.frac(), (x * 10).round(decimals=1), x.sign()), wide),
    "trigonometry": (lambda x: (x.sin(), x.atan(), torch.atan2(x, x + 1), x.sinh(), x.tanh(), x.asinh()), wide),
    "logarithms": (lambda x: (x.abs().log1p(), x.expm1(), x.sigmoid().logit(), torch.logaddexp(x, -x)), wide),
    "extremes": (lambda x: (x.max(), x.max(0), x.amin(1), x.argmax(), x.min(1)[1], torch.fmin(x, -x)), wide),
    "ordered": (lambda x: (x.sort(0), x.topk(2), x.argsort(1, descending=True), x.median(1)), wide),
    "scans": (lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1), x.cummax(0)), wide),
    "spread": (lambda x: (x.std(), x.var(0, unbiased=False), torch.var_mean(x, 1), x.norm(), x.logsumexp(1)), wide),
    "normalised": (lambda x: (F.normalize(x), F.layer_norm(x, (6,)), F.rms_norm(x, (6,)), x.softmax(0)), wide),
    "casts": (lambda x: (x.half(), x.bfloat16() * 2, x.double().sum(), x.long(), x.bool(), x.int().float()), wide),
    "promotion": (lambda x: (x + torch.arange(6), x.double() * x, x * torch.tensor(2.0).double(), x.half() + x), wide),
    "created": (lambda x: (torch.arange(5) * 2.0, torch.full((2,), 3), torch.zeros_like(x) + x, torch.eye(3)), wide),
    "table": (lambda w, x: F.embedding(torch.tensor([[1, 2], [0, 3]]), w).sum(1) + x, pairs((10, 6), (2, 6))),
    "gathered": (lambda x, k: (x.gather(1, k), x.take(k), torch.take_along_dim(x, k, 1)), indexed(4, 2)),
    "indexed": (lambda x, k: (x[k], x[:, k], x[k, k], x.index_select(1, k)), indexed(3)),
    "scattered": (lambda x, k: x.scatter_add(1, k, torch.ones(4, 2)), indexed(4, 2)),
    "put": (lambda x, k: x.index_put((k,), torch.ones(6, dtype=x.dtype), accumulate=True), indexed(3)),
    "joined": (lambda x: (torch.cat([x, x * 2, x[:1]]), torch.stack([x, x * 2], -1).flatten(1)), wide),
    "padded": (lambda x: (F.pad(x, (1, 2)), F.pad(x[None], (1, 1), mode="reflect"), F.pad(x, (-1, 2), value=3)), wide),
    "turned": (lambda x: (x.roll(1, 0), x.flip(1), x.rot90(), x.tril(), x.triu(1)), wide),
    "repeated": (lambda x: (x.repeat(2, 1), x.repeat_interleave(2, 0), x.tile(2)), wide),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), pairs(*[(1, 2, 5, 4)] * 2)),
    "convolution": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), pairs((2, 3, 6, 6), (4, 3, 3, 3))),
    "channels last": (lambda x: x.to(memory_format=torch.channels_last).relu(), pairs((2, 3, 4, 5))),
    "pools": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1), F.interpolate(x, scale_factor=2)),
              pairs((2, 3, 6, 6))),
    "losses": (lambda x: (F.cross_entropy(x, torch.arange(x.shape[0]) % 6), F.mse_loss(x, x * 2), F.l1_loss(x, -x),
                          F.binary_cross_entropy_with_logits(x, (x > 0).float())), wide),
    "sizes decide": (lambda x: x * 2 if x.shape[0] > 4 else x.view(x.size(0), -1).sum() / x.numel(), wide),
    "data decide": (lambda x: x * 2 if x.sum() > 0 else x * 3, wide),
    "an item": (lambda x: x * x.sum().item(), wide),
    "chosen": (lambda x: (x[x > 0].sum(), x.masked_fill(x > 0, -1), x.masked_select(x > 1).numel()), wide),
    "unique": (lambda k: torch.unique(k) * 2, whole(4, 8)),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)).abs(), wide),
    "other bits": (lambda x: x.view(torch.int32) + 1, wide),
    "no gradient inside": (no_gradient_inside, wide),
    "detached inside": (lambda x: x * x.detach() + (x * 2).detach(), wide),
    "half inside": (half_inside, wide),
    "gradient inside": (lambda x: torch.func.grad(lambda y: (y**3).sum())(x), wide),
    "vmap inside": (lambda x: torch.func.vmap(lambda y: y.softmax(0) * 2)(x), wide),
    "vmap of a number": (lambda x: torch.func.vmap(lambda y: y / (1 + y.abs().sum()))(x), wide),
    "checkpoint": (lambda x: checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False), wide),
    "own gradient": (half_slope, wide),
    "hook": (hooked, wide),
    "batch norm": (Norm, wide), "averages": (Averages, wide), "tied": (Tied, wide), "heads": (Heads, wide),
    "weight norm": (Weighted, wide),
    "wrong product": (lambda x: x @ x, wide), "wrong view": (lambda x: (x + 1).view(5, 5), wide),
    "wrong axis": (lambda x: x.sum(7), wide), "wrong sizes": (lambda x: x + torch.ones(5), wide),
    "raising": (raising, wide),
}
# fmt: on


# Modes ----------------------------------------------------------------------------------------------------------------


def plain(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    return run(f)(*inputs)


def without_gradients(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return run(f)(*inputs)


def inference(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    with torch.inference_mode():
        return run(f)(*inputs)


def gradients(run: Compile, f: Function, inputs: tuple[Tensor, ...], **options: Any) -> Any:
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    leaves += [p for p in f.parameters()] if isinstance(f, nn.Module) else []
    # Results first: what is pushed back may not be what an update in place has left.
    made = run(f, **options)(*(x.clone() if x.requires_grad else x for x in inputs))
    pushed = [y.double().sin().sum() for y in tensors(made) if y.requires_grad and y.is_floating_point()]
    return made, [g for g in torch.autograd.grad(pushed, leaves, allow_unused=True) if g is not None] if pushed else []


def any_size(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    return run(f, dynamic=True)(*inputs)


def any_size_gradients(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    return gradients(run, f, inputs, dynamic=True)


def other_sizes(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    own, x = run(f), inputs[0]
    made = [own(*inputs)]
    return made + [own(torch.cat([x, x[:n]])) for n in (1, 3)] if len(inputs) == 1 and x.is_floating_point() else made


def other_layouts(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    own = run(f)
    turned = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in inputs]
    return own(*turned), own(*(torch.stack([x, x], -1)[..., 0] for x in inputs))


def autocast(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return run(f)(*inputs)


def double(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    f = f.double() if isinstance(f, nn.Module) else f
    return run(f)(*(x.double() if x.is_floating_point() else x for x in inputs))


def again(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    own = run(f)
    return own(*inputs), own(*(x + 1 if x.is_floating_point() else x for x in inputs))


def updated_after(run: Compile, f: Function, inputs: tuple[Tensor, ...]) -> Any:
    """What is done to one result is seen through the others."""
    with torch.no_grad():
        made = run(f)(*inputs)
        for y in tensors(made):
            if y.is_floating_point() and 0 not in y.stride():
                y.add_(1)
    return made


MODES = (
    plain, without_gradients, inference, gradients, any_size, any_size_gradients, other_sizes, other_layouts, autocast,
    double, again, updated_after,
)  # fmt: skip


# What happens ---------------------------------------------------------------------------------------------------------


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def happens(name: str, mode: Function, seed: int, run: Compile) -> tuple[Any, list[Tensor], list[Tensor]]:
    """What a program gives or raises, its arguments afterwards, and what a module holds."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    program, draw = PROGRAMS[name]
    f, inputs = program() if isinstance(program, type) else program, draw()
    try:
        made = mode(run, f, inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as problem:
        return problem, list(inputs), []
    return made, list(inputs), list(f.state_dict().values()) if isinstance(f, nn.Module) else []


def places(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    memories = [x.untyped_storage().data_ptr() for x in tensors]
    out = []
    for x, memory in zip(tensors, memories, strict=True):
        steps = tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1) if x.numel() else ()
        out.append((x.dtype, x.shape, steps, x.storage_offset() if steps else 0, memories.index(memory)))
    return out


def compiled(f: Function, **options: Any) -> Function:
    made: Function = torch.compile(f, backend=mlcomp, **options)
    return made


@pytest.mark.filterwarnings("ignore", BUGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_in_eager(name: str) -> None:
    seed = fresh_seed()
    for mode in random.Random(seed).sample(MODES, EACH):
        ours, given, held = happens(name, mode, seed, compiled)
        theirs, wanted, kept = happens(name, mode, seed, lambda f, **options: f)
        where = f"{name}, {mode.__name__}, seed {seed}: "
        if isinstance(theirs, Exception):
            assert isinstance(ours, type(theirs)), f"{where}{ours} instead of {theirs}"
            continue
        loose = 0.05 if mode is autocast or "half" in name or name in ("casts", "promotion") else 1e-3
        torch.testing.assert_close(
            [ours, given, held], [theirs, wanted, kept], rtol=loose, atol=loose, equal_nan=True,
            msg=where.__add__,
        )  # fmt: skip
        made = ours[0] if mode in (gradients, any_size_gradients) else ours  # strides of gradients are AOTAutograd's
        eager = theirs[0] if mode in (gradients, any_size_gradients) else theirs
        assert places([*given, *tensors(made)]) == places([*wanted, *tensors(eager)]), where
