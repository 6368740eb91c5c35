"""Programs as people write them in torch, crossed with how they are called.

`python -m conformance.tests.torch_programs [WORD …]` runs all of them, or those whose text holds one of the words. Each
line is one program of the tensors that it names. What it gives through `torch.compile(backend="mlcomp")` is what eager
gives: values and their classes, dtypes, shapes, strides, gradients, what it writes to its arguments, that it raises.
"""

from __future__ import annotations

import ast
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from conformance import inputs, oracle
from conformance.fuzz import wide
from conformance.inputs import clone_storage

# Shapes of the tensors that a program may name; those of whole numbers and truth values by `WHOLE` and `TRUE`.
SHAPES: dict[str, tuple[int, ...]] = {
    "x": (6, 8), "y": (6, 8), "w": (8, 5), "v": (8,), "u": (6, 1), "s": (), "b": (3, 6, 8), "d": (3, 8, 4),
    "c": (2, 4, 9, 8), "k": (6, 4, 3, 3), "g": (4, 1, 3, 3), "q": (2, 2, 6, 8), "z": (0, 8), "o": (1, 1),
}  # fmt: skip
WHOLE: dict[str, tuple[tuple[int, ...], int]] = {
    "i": ((4,), 6), "j": ((6, 3), 8), "n": ((6, 8), 9), "t": ((6,), 8), "h": ((2, 7), 6),
}  # fmt: skip
TRUE: dict[str, tuple[int, ...]] = {"m": (6, 8), "p": (6,)}
SCOPE = {"torch": torch, "F": F, "nn": nn, "inf": float("inf"), "nan": float("nan")}

POINTWISE = """
x + y
x - 2 * y
x * v + u
x / (y.abs() + 1)
-x
x ** 2
x ** 0.5
2 ** x
1 / x
x // 2
x % 3
x.remainder(-2.5)
torch.fmod(x, 1.5)
x.abs().sqrt()
x.rsqrt()
x.exp() - 1
torch.expm1(x)
torch.log1p(x.abs())
x.sigmoid() * x
x.tanh()
F.gelu(x)
F.gelu(x, approximate="tanh")
F.silu(x)
F.relu(x) + F.leaky_relu(y, 0.1)
F.elu(x)
F.softplus(x)
F.mish(x)
F.hardswish(x)
F.hardtanh(x, -0.5, 0.5)
F.logsigmoid(x)
F.glu(x, -1)
F.threshold(x, 0.1, 20)
torch.erf(x)
torch.sin(x) + torch.cos(y)
torch.atan2(x, y)
torch.hypot(x, y)
torch.lerp(x, y, 0.3)
torch.addcmul(x, y, x, value=0.5)
torch.addcdiv(x, y, y.abs() + 1)
torch.clamp(x, -0.5, 0.5)
x.clamp(min=y)
x.clamp_max(s)
torch.maximum(x, y)
torch.minimum(x, v)
torch.fmax(x, y)
torch.where(x > y, x, y)
torch.where(m, x, 0.0)
torch.where(m, x, s)
x.masked_fill(m, -inf)
x.masked_fill(x < 0, 0)
(x > 0) & (y < 1) | m
~m
x == y
torch.isclose(x, y)
torch.isnan(x) | torch.isinf(x)
torch.isfinite(x)
torch.signbit(x)
torch.sign(x)
torch.copysign(x, y)
torch.nan_to_num(x)
x.nan_to_num(1.0, 2.0, -2.0)
x.round() + x.floor() + x.ceil() + x.trunc()
x.round(decimals=1)
torch.frac(x)
torch.heaviside(x, y)
torch.logaddexp(x, y)
torch.xlogy(x, y.abs())
torch.logit(x.sigmoid())
torch.sinc(x)
torch.deg2rad(x)
torch.float_power(x.abs(), 1.5)
torch.reciprocal(x)
torch.square(x).neg()
x.double() + y
x.half().float()
x.to(torch.bfloat16) * 2
x.int() + n
x.bool()
n + x
n * 2 - 1
n // 4 + n % 4
n / 3
n & 3 | 4
n << 1
n >> 1
n ^ 5
~n
n.float() / 7
n.clamp(2, 5)
n ** 2
m + n
m * x
x * True
x + 1j.real
s * x + s
s + 1
torch.add(x, y, alpha=2)
torch.sub(x, y, alpha=-1)
torch.rsub(x, 1)
x.type_as(n)
x * torch.tensor(2.5)
x + torch.tensor(2.5, dtype=torch.float64)
x * torch.pi
x.new_full((8,), 3.0) * x
torch.zeros_like(x) + 1
torch.full_like(x, 2.5)
torch.ones(6, 8) + x
torch.arange(8) + x
torch.linspace(0, 1, 8) * x
torch.eye(6, 8) * x
x.numel() * x
x.shape[0] + x
torch.polygamma(1, x.abs() + 1)
F.normalize(x)
F.normalize(x, p=1, dim=0)
"""

VIEWS = """
x.t()
x.T + y.T
x.transpose(0, 1)
x[1:4]
x[:, ::2]
x[1:, 2:-1] * 2
x[-1]
x[..., 0]
x[:, None]
x[2, 3]
x[::3, 1::2] + 1
x.view(-1)
x.view(4, 12)
x.reshape(2, 3, 8)
x.t().reshape(-1)
x.flatten()
x.unflatten(1, (2, 4))
x.unsqueeze(0).expand(3, 6, 8)
u.expand(6, 8)
u.expand(6, 8) * x
v.repeat(3, 2)
x.repeat_interleave(2, dim=1)
b.permute(2, 0, 1)
b.permute(2, 0, 1).contiguous()
b.movedim(0, -1)
b.swapaxes(0, 2) + 1
b.squeeze(0)
o.squeeze()
x.narrow(1, 2, 3)
x.select(1, 2)
x.diagonal()
x.diagonal(1) * 2
torch.diag_embed(v)
torch.diag(v)
x.tril()
x.triu(1)
x.flip(0)
x.flip(0, 1)
torch.roll(x, 2)
torch.roll(x, (1, -1), (0, 1))
torch.rot90(x)
x.chunk(2)
x.chunk(3, dim=1)
x.split(4)
x.split([1, 2, 5], dim=1)
x.unbind(0)
torch.tensor_split(x, 4, dim=1)
torch.cat([x, y])
torch.cat([x, y, u], 1)
torch.cat([x.t(), y.t()], 1)
torch.stack([x, y])
torch.stack([x, y], -1)
torch.hstack([x, y])
torch.vstack([x, v])
torch.dstack([x, y])
F.pad(x, (1, 2))
F.pad(x, (1, 2, 3, 0), value=-1)
F.pad(x, (-1, 2))
F.pad(c, (1, 1, 2, 2), mode="reflect")
F.pad(c, (1, 1, 2, 2), mode="replicate")
F.pad(c, (1, 1, 2, 2), mode="circular")
x.unfold(1, 3, 2)
F.unfold(c, 3)
x.as_strided((3, 4), (8, 2), 1)
torch.broadcast_to(v, (6, 8)) + x
torch.atleast_3d(x)
torch.meshgrid(v, v, indexing="ij")
torch.tile(x, (2, 1))
x.contiguous()
x.clone()
x
(x, x)
(x, x[0])
(x * 2, x * 2)
[x + 1, {"a": y, "b": (x, 3)}]
(x * 2)[1:]
(x * 2).t()
(lambda a: (a, a[1:], a.t()))(x * 2)
(lambda a: (a.view(-1), a))(x + 1)
x.detach() * x
z * 2
z.sum(0)
torch.cat([z, x])
c.contiguous(memory_format=torch.channels_last) * 2
c.to(memory_format=torch.channels_last)
F.pixel_shuffle(c, 2)
c.flatten(1)
c.mean((2, 3), keepdim=True) * c
torch.complex(x, y).real
"""

REDUCTIONS = """
x.sum()
x.sum(0)
x.sum(-1, keepdim=True)
x.sum((0, 1))
b.sum((0, 2))
x.mean()
x.mean(1)
x.prod(1)
x.var()
x.var(0, correction=0)
x.std(1)
torch.var_mean(x, 1)
x.amax(1)
x.amin((0, 1))
x.max()
x.max(1)
x.min(0)
x.argmax()
x.argmax(1)
x.argmin(0, keepdim=True)
x.norm()
x.norm(dim=1)
x.norm(1, dim=0)
torch.linalg.vector_norm(x, inf, dim=1)
x.logsumexp(1)
x.softmax(-1)
x.softmax(0)
F.log_softmax(x, 1)
F.softmin(x, 1)
x.cumsum(0)
x.cumsum(1)
x.cumprod(1)
x.cummax(1)
x.logcumsumexp(1)
(x > 0).all()
(x > 0).any(1)
(x > 0).sum()
x.count_nonzero(1)
n.sum()
n.max(1)
n.float().mean()
m.sum(1)
x.nansum(1)
x.nanmean()
x.aminmax(dim=1)
x.sort(1)
x.sort(0, descending=True)
x.argsort(1)
x.topk(3)
x.topk(2, dim=0, largest=False)
n.sort(stable=True)
torch.diff(x)
torch.trapezoid(x)
torch.cov(x)
F.layer_norm(x, (8,))
F.layer_norm(x, (8,), v, v)
F.rms_norm(x, (8,))
F.rms_norm(x, (8,), v)
F.group_norm(c, 2)
F.instance_norm(c)
F.batch_norm(c, None, None, training=True)
F.batch_norm(x, v, v.abs() + 1)
F.cosine_similarity(x, y)
F.pairwise_distance(x, y)
torch.cdist(x, y)
F.mse_loss(x, y)
F.l1_loss(x, y, reduction="sum")
F.smooth_l1_loss(x, y)
F.huber_loss(x, y, delta=0.5)
F.cross_entropy(x, t)
F.cross_entropy(x, t, label_smoothing=0.1)
F.cross_entropy(x, y.softmax(1))
F.nll_loss(F.log_softmax(x, 1), t)
F.kl_div(F.log_softmax(x, 1), y.softmax(1), reduction="batchmean")
F.binary_cross_entropy_with_logits(x, y.sigmoid())
F.binary_cross_entropy(x.sigmoid(), y.sigmoid())
F.hinge_embedding_loss(x, torch.where(m, 1.0, -1.0))
F.margin_ranking_loss(x, y, torch.ones(6, 8))
"""

PRODUCTS = """
x @ w
x @ y.t()
x.t() @ y
x @ v
v @ v
v @ w
torch.mm(x, w)
torch.bmm(b, d)
b @ w
x @ d
torch.matmul(b, d[0])
torch.addmm(x[:, :5], x, w)
torch.addmm(x[:, :5], x, w, beta=0.5, alpha=2)
torch.baddbmm(b[..., :4], b, d)
torch.addmv(x[:, 0], y, v)
torch.outer(v, v)
torch.dot(v, v)
torch.einsum("ij,jk->ik", x, w)
torch.einsum("bij,bjk->bik", b, d)
torch.einsum("bij,ij->b", b, x)
torch.einsum("ij,ij->", x, y)
torch.einsum("bij,bjk,kl->bil", b, d, d[0].t())
torch.tensordot(b, w, 1)
torch.kron(x[:2], y[:, :2])
torch.chain_matmul(x, w, w.t())
F.linear(x, w.t())
F.linear(b, w.t(), w[0])
F.linear(x, w.t()).relu()
F.bilinear(x, y, torch.ones(2, 8, 8))
(x @ w).sum()
(x @ w).softmax(1) @ w.t()
x.expand(3, 6, 8) @ w
x[i] @ w
F.pad(x, (0, 0, 1, 1)) @ w
x.cumsum(1) @ w
x.flip(1) @ w
torch.cat([x, y]) @ w
x @ w.flip(0)
F.conv2d(c, k)
F.conv2d(c, k, padding=1, stride=2)
F.conv2d(c, g, groups=4, padding="same")
F.conv2d(c, k, dilation=2)
F.conv1d(b, d.transpose(0, 1)[:, :, :3].transpose(0, 1)[:, :6])
F.conv_transpose2d(c, k.transpose(0, 1), stride=2)
F.max_pool2d(c, 2)
F.max_pool2d(c, 3, stride=1, padding=1, return_indices=True)
F.avg_pool2d(c, 2, ceil_mode=True)
F.adaptive_avg_pool2d(c, 1)
F.adaptive_avg_pool2d(c, (2, 3))
F.adaptive_max_pool2d(c, 2)
F.avg_pool1d(b, 3, 2)
F.interpolate(c, scale_factor=2)
F.interpolate(c, size=(5, 6), mode="bilinear")
F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=True)
F.scaled_dot_product_attention(q, q, q)
F.scaled_dot_product_attention(q, q, q, is_causal=True)
F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(6, 6).tril().bool())
F.scaled_dot_product_attention(q, q, q, scale=0.5)
(q @ q.transpose(-1, -2) / 8 ** 0.5).softmax(-1) @ q
nn.functional.local_response_norm(c, 2)
torch.linalg.multi_dot([x, w, w.t()])
x @ x.t() @ x
"""

INDICES = """
x[i]
x[:, t]
x[i, t[:4]]
x[p]
x[m]
x[i] + 1
x[[0, 2, 1]]
x[torch.tensor([1, -1])]
x.gather(1, j)
x.take(i)
torch.take_along_dim(x, j, 1)
x.index_select(0, i)
x.index_select(1, t)
F.embedding(i, x)
F.embedding(h, x)
F.embedding(h, x, padding_idx=0)
F.one_hot(t, 8)
F.one_hot(i)
x.scatter(1, j, 2.0)
x.scatter(1, j, y)
x.scatter_add(1, j, y)
x.scatter_reduce(1, j, y, "amax")
x.scatter_reduce(1, j, y, "mean", include_self=False)
x.index_add(0, i, y[:4])
x.index_copy(0, torch.tensor([3, 1, 0, 5]), y[:4])
x.index_fill(1, t, -1)
x.index_put((i, t[:4]), v[:4])
x.index_put((i,), y[:4], accumulate=True)
torch.bincount(i)
torch.nonzero(m)
torch.masked_select(x, m)
torch.searchsorted(v.sort()[0], x)
torch.bucketize(x, v.sort()[0])
torch.histc(x, 4)
torch.unique(n)
x[i][:, t] @ w[:, :3]
x.masked_scatter(m, y)
x.put(i, v[:4])
torch.embedding(x, h).mean(1)
x[torch.arange(6), t].sum()
"""

STATEMENTS = """
x.add_(1)
x.mul_(y).relu_()
x[0] = 0
x[:, 1:3] = y[:, 1:3]
x[i] = 1.5
x[m] = 0
x[x < 0] = 0
x.copy_(y)
x.zero_()
x.fill_(s)
x.t().add_(1)
x.view(-1)[3:9].mul_(2)
x.clamp_(-1, 1)
x.index_add_(0, i, y[:4])
x.scatter_(1, j, 1.0)
a = x + 1; a[0] = 5; r = a * 2
a = x * 2; a.add_(y); r = (a, a.sum())
a = x.clone(); a.t().mul_(2); r = a
a = torch.empty(6, 8); a.copy_(x); r = a + 1
a = torch.zeros(6, 8); a[:, ::2] = x[:, ::2]; r = a
a, e = x.split(4, 1); a += e; r = a.sum()
r = x; r = r + 1 if x.shape[0] > 3 else r - 1
r = sum(x[k] for k in range(x.shape[0]))
r = [x * k for k in range(3)]
r = {"a": x, "b": x.sum()}
r = x\nfor _ in range(4): r = torch.tanh(r @ y.t() @ x)
r = torch.stack([row.sort()[0] for row in x])
out = torch.empty(6, 5); torch.mm(x, w, out=out); r = out
r = x.sum().item() if x.numel() else 0
x += 1; r = x.sum(); x -= 1
with torch.no_grad(): a = x * 2\nr = a + x
with torch.autocast("cpu", torch.bfloat16): r = x @ w
with torch.autocast("cpu", torch.bfloat16): r = F.linear(x, w.t()).softmax(-1)
f = torch.func.vmap(lambda row: (row * v).sum()); r = f(x)
r = torch.func.grad(lambda a: (a ** 2).sum())(x)
r = torch.func.vmap(torch.func.grad(lambda a: a.sin().sum()))(x)
r = torch.func.jvp(torch.sin, (x,), (y,))
r = torch.vmap(lambda a, e: a @ e)(b, d)
l = nn.Linear(8, 3, dtype=x.dtype); torch.nn.init.ones_(l.weight); torch.nn.init.zeros_(l.bias); r = l(x)
a = x.detach(); a = a + 1; r = a
r = x.expand(2, 6, 8).contiguous().view(12, 8)
r = torch.cond(x.sum() > 1e9, lambda a: a + 1, lambda a: a - 1, (x,))
"""

ERRORS = """
x @ x
x + w
torch.cat([x, w])
x.view(5, 5)
x.reshape(-1, 7)
x[10]
x.gather(1, t)
F.linear(x, w)
torch.bmm(x, w)
x.transpose(0, 3)
x.sum(5)
x.squeeze(9)
F.conv2d(x, k)
torch.stack([x, v])
x.expand(7, 8)
x.unflatten(1, (3, 3))
n.mean()
n.sqrt_()
m - m
torch.zeros(2, 3) @ torch.zeros(2, 3)
x.split([1, 2])
"""


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


def lines(table: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in table.strip().splitlines()]


# What begins so gives for NaN and infinities what README says under Numerics, not what each of eager's kernels does.
OPEN = ("F.conv", "F.scaled_dot_product_attention", "x ** 0.5")


def programs() -> list[Program]:
    """Every program in every way; errors in one."""
    tables = [(table, table is STATEMENTS) for table in (POINTWISE, VIEWS, REDUCTIONS, PRODUCTS, INDICES, STATEMENTS)]
    every = [(text, statement) for table, statement in tables for text in lines(table)]
    made = [
        Program(text, way, statement)
        for text, statement in every
        for way in WAYS
        if way.data != "specials" or not text.startswith(OPEN)
    ]
    return made + [Program(text, WAYS[0]) for text in lines(ERRORS)]


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
        if want.raised and program.text not in lines(ERRORS):
            return ""
        made = outcome(compiled, given, mode)
        if wrong := compared(made, want, lambda given=given: _right(program, eager, given)):  # type: ignore[misc]
            # What torch promises when it traces is not always what eager's kernels give.
            return "" if "strides" in wrong and _as_traced(made, eager, given) else wrong
    return ""


def _as_traced(made: Outcome, eager: Callable[..., Any], given: Sequence[Tensor]) -> bool:
    traced = pytree.tree_leaves(inputs.traced(eager, [clone_storage(x) for x in given]))
    tensors = [(a, b) for a, b in zip(made.leaves, traced, strict=True) if isinstance(a, Tensor)]
    return all(_places(a) == _places(b) for a, b in tensors)


def _right(program: Program, eager: Callable[..., Any], given: Sequence[Tensor]) -> Outcome:
    with wide.in_f64():
        return outcome(eager, [wide.widened(x) for x in given], program.way.mode)


def compared(made: Outcome, want: Outcome, right: Callable[[], Outcome]) -> str:
    """The first difference; `right` is what f64 says, where ours and eager's are not close."""
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
            if _places(a) != _places(b):
                return f"{where} has strides {a.stride()}, eager's {b.stride()}"
            if wrong := _values(a.detach(), b.detach(), lambda part=part, n=n: getattr(right(), part)[n]):  # type: ignore[misc]
                return f"{where}: {wrong}"
    return ""


def _told(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}{' with a gradient' if x.requires_grad else ''}"


def _places(x: Tensor) -> list[int]:
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


def _values(a: Tensor, b: Tensor, right: Callable[[], Any]) -> str:
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
