"""Gradients of attention, in every form that torch has: those of f64, from the values and the logsumexp of forward."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import compiler
from compiler import frontend
from compiler.execution import executable
from compiler.ir import dtype
from compiler.ir.expr import static
from compiler.ir.statement import Program
from compiler.ir.tensor import numel
from compiler.tests.meaning import fresh_seed

inf = float("inf")
ops = torch.ops.aten
SCALE = 0.3
EVERY = (True, True, True, True)

# What forward has left for dropout and for batches of several lengths is not read: any tensor will do.


def flash(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
    lengths = (q, q, q.shape[-2], k.shape[-2])
    return ops._scaled_dot_product_flash_attention_backward(
        g, q, k, v, out, lse, *lengths, 0.0, causal, q, q, scale=SCALE
    )


def efficient(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
    return ops._scaled_dot_product_efficient_attention_backward(
        g, q, k, v, mask, out, lse, q, q, 0.0, EVERY, causal, scale=SCALE
    )


def cudnn(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
    lengths = (q, q, q.shape[-2], k.shape[-2])
    return ops._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, lse.unsqueeze(-1), q, q, mask, *lengths, 0.0, causal, scale=SCALE
    )


def overrideable(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
    lengths = (q, q, q.shape[-2], k.shape[-2])
    return ops._scaled_dot_product_fused_attention_overrideable_backward(
        g, q, k, v, mask, EVERY, out, lse, *lengths, 0.0, causal, q, q, scale=SCALE
    )


def for_cpu(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
    return ops._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=SCALE
    )


Form = Callable[..., Any]
FORMS: tuple[Form, ...] = (flash, efficient, cudnn, overrideable, for_cpu)


def exact(inputs: list[Tensor], mask: Tensor | None, seen: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Values, logsumexp and gradients in f64."""
    grad, query, key, value = (x.double() for x in inputs)
    leaves = [x.detach().requires_grad_() for x in (query, key, value, *([] if mask is None else [mask.double()]))]
    q, k, v = leaves[:3]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * SCALE).masked_fill(~seen, -inf)
    if mask is not None:
        scores = scores + leaves[3]
    hidden = (scores == -inf).all(-1, keepdim=True)
    weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    out = weights @ v
    total = scores.detach().logsumexp(-1)
    gradients = torch.autograd.grad(out, leaves, grad)
    return out.detach(), total.masked_fill(total == -inf, inf), list(gradients)


def agree(form: Form, shapes: tuple[int, int, int, int, int], target: str, causal: bool, masked: bool) -> Program:
    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    rows, columns, heads, groups, size = shapes
    kind = torch.bfloat16 if target != "cpu" else torch.float32
    inputs = [
        torch.randn(2, h, n, size).to(kind)
        for h, n in ((heads, rows), (heads, rows), (groups, columns), (groups, columns))
    ]
    added = torch.randn(2, heads, rows, columns).masked_fill(torch.rand(2, heads, rows, columns) > 0.7, -inf)
    added[:, :, 3] = -inf
    mask = added.to(kind) if masked else None
    ahead = columns - rows if form is flash else 0
    seen = torch.ones(rows, columns, dtype=torch.bool)
    seen = seen.tril(ahead) if causal else seen
    out, total, wanted = exact(inputs, mask, seen)
    given = [*inputs, out.to(kind), total.float()] + ([mask] if mask is not None else [])
    several = 4 if masked and form in (efficient, overrideable) else 3  # others give none for the mask
    with FakeTensorMode():
        where = "cpu" if form is for_cpu else "cuda"
        fakes = [torch.empty(x.shape, dtype=x.dtype, device=where) for x in given]
        graph = make_fx(lambda *x: form(*x[:6], x[6] if masked else None, causal)[:several])(*fakes)
    graph.graph.eliminate_dead_code()
    lowering = compiler.lower(frontend.from_graph(graph).program, compiler.target(target))
    made = executable.execute(lowering, "cuda" if target != "cpu" else "cpp", given)
    loose = 1e-4 if kind is torch.float32 else 0.05
    for got, right in zip(made, wanted[:several], strict=True):
        torch.testing.assert_close(got.double(), right, rtol=loose, atol=loose * float(right.abs().max()))
    tiles: Program = lowering.stages["tile"]
    return tiles


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_causal(form: Form, target: str) -> None:
    agree(form, (40, 48, 2, 2, 16), target, True, False)


@pytest.mark.parametrize("form", [flash, cudnn, for_cpu], ids=lambda f: f.__name__)
def test_several_heads_share_a_key(form: Form) -> None:
    agree(form, (17, 17, 6, 2, 24), "cpu", False, False)


@pytest.mark.parametrize("form", [efficient, cudnn, overrideable, for_cpu], ids=lambda f: f.__name__)
def test_masks(form: Form) -> None:
    agree(form, (20, 30, 2, 2, 8), "cpu", False, True)


@pytest.mark.parametrize(
    ("form", "shapes", "target", "causal", "masked"),
    [
        (flash, (65, 130, 1, 1, 64), "sm_90a", True, False),
        (cudnn, (70, 65, 1, 1, 24), "sm_90a", False, True),
        (efficient, (130, 65, 1, 1, 40), "sm_80", True, False),
    ],
)
def test_weights_are_made_anew_on_gpus(
    form: Form, shapes: tuple[int, int, int, int, int], target: str, causal: bool, masked: bool
) -> None:
    """Nothing that has a number for each query and key goes from one kernel to another."""
    made = agree(form, shapes, target, causal, masked)
    assert len(made.kernels) == 4
    assert max(static(numel(t.shape)) for t in made.temps) < shapes[0] * shapes[1]


@pytest.mark.parametrize("size", [4, 24])
def test_a_tile_deeper_than_a_head_holds_nothing_of_the_next(size: int) -> None:
    """Heads lie side by side, and behind the last one there is nothing to read."""

    def f(*given: Tensor) -> Tensor:
        q, k, v = (x.view(2, 9, 3, size).transpose(1, 2) for x in given)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    torch.manual_seed(seed := fresh_seed())
    print("seed", seed)
    inputs = [torch.randn(2, 9, 3 * size).bfloat16() for _ in range(3)]
    grad = torch.randn(2, 9, 3 * size).bfloat16()
    captured = compiler.capture_gradient(f, inputs, [grad], [0, 1, 2])
    lowering = compiler.lower(captured.program, compiler.target("sm_90a"))
    leaves = [x.double().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(f(*leaves), leaves, grad.double())
    for got, right in zip(compiler.execute(lowering, "tile", [*inputs, grad]), wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=0.05, atol=0.05 * float(right.abs().max()))


def test_what_an_older_torch_declares_as_f32_stays_f64() -> None:
    """The logsumexp of queries in f64: its kernels have always made that f64; as a result it is refused by name."""
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    captured = compiler.capture_gradient(lambda q: F.scaled_dot_product_attention(q, q, q), [x], [x], [0])
    call, *rest = captured.program.calls
    assert call.types[1] is not None
    older = replace(call, types=(call.types[0], replace(call.types[1], dtype=dtype.f32)))
    program = replace(captured.program, calls=(older, *rest))
    (right,) = compiler.reference(captured.program, [x, x])
    lowering = compiler.lower(program, compiler.target("cpu"))
    torch.testing.assert_close(executable.execute(lowering, "tensor", [x, x])[0], right, rtol=1e-12, atol=1e-12)
    with pytest.raises(compiler.Unsupported, match="declared f32, where eager makes it f64"):
        compiler.lower(replace(program, calls=(older,), outputs=(call.outputs[1],)), compiler.target("cpu"))
