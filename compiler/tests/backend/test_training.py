"""Gradients through torch.compile: to what was largest, far from a margin, and with batches of any size."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters

from compiler import backend
from compiler.backend import FallbackWarning, explain
from compiler.errors import ToolchainError
from compiler.ir.text import show_type
from compiler.tests.meaning import fresh_seed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_go_to_what_was_largest(dtype: torch.dtype) -> None:
    """Forward and backward agree on which elements are equal to the largest of a row."""
    torch.manual_seed(seed := fresh_seed())
    x, ours = (t.detach().requires_grad_() for t in [torch.randn(9, 33, dtype=dtype)] * 2)

    def largest(x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(F.gelu(torch.cos(x), approximate="tanh").unsqueeze(0).amax(-1))

    largest(x).sum().backward()  # type: ignore[no-untyped-call]
    torch.compile(largest, backend="mlcomp")(ours).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and ours.grad is not None
    assert torch.equal(ours.grad.isfinite(), x.grad.isfinite()), seed
    assert bool(((ours.grad != 0).sum(-1) >= 1).all()), seed


def _slopes(step: Any, backend: str) -> tuple[list[Any], int]:
    """What training steps give, and how many frames of Python Dynamo has looked at for them."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    before = counters["frames"]["total"]
    for n in (3, 5, 3):
        step(net, torch.randn(n, 4), backend)
    return [p.grad for p in net.parameters()], counters["frames"]["total"] - before


def _step(net: nn.Module, x: torch.Tensor) -> None:
    net(x).square().sum().backward()


def _in_one_function(net: nn.Module, x: torch.Tensor, backend: str) -> None:
    torch.compile(_step, backend=backend)(net, x)


def _backward_as_one_graph(net: nn.Module, x: torch.Tensor, backend: str) -> None:
    loss = torch.compile(net, backend=backend)(x).square().sum()
    enable: Any = compiled_autograd._enable
    with enable(lambda graph: torch.compile(graph, backend=backend)):
        loss.backward()


@pytest.mark.parametrize("step", [_in_one_function, _backward_as_one_graph])
def test_dynamo_looks_at_what_the_user_wrote_alone(step: Any) -> None:
    """Backward passes are compiled while Dynamo watches, and run so; the compiler is not for it to trace."""
    ours, frames = _slopes(step, "mlcomp")
    theirs, least = _slopes(step, "aot_eager")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert frames == least


def test_a_gradient_far_from_its_margin_keeps_its_digits() -> None:
    x, target = torch.linspace(9, 16, 15), torch.ones(15)
    exact, ours = x.double().requires_grad_(), x.clone().requires_grad_()
    F.soft_margin_loss(exact, target.double()).backward()  # type: ignore[no-untyped-call]
    torch.compile(F.soft_margin_loss, backend="mlcomp")(ours, target).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=0)  # type: ignore[union-attr]


def test_batches_of_any_size_are_trained_on() -> None:
    """Forward once for all of them; backward, in which numbers depend on the size, once for each, none in eager."""
    torch.manual_seed(seed := fresh_seed())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    eager = copy.deepcopy(model)
    run = torch.compile(model, backend="mlcomp", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for size in (4, 6):
            x = torch.randn(size, 3, 4, 4)
            for f in (run, eager):
                f(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4, msg=f"seed {seed}")
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):  # type: ignore[assignment]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=f"seed {seed}")


def test_a_loss_keeps_scores_and_no_logarithms_of_them(unpacked: None) -> None:
    """Backward makes a log_softmax again from the scores, which are kept as they were made, rounded."""
    torch.manual_seed(seed := fresh_seed())
    x, w = torch.randn(24, 16), torch.randn(50, 16)
    target = torch.randint(0, 50, (24,))

    def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(F.linear(x, w).float(), target)

    kept: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        ours = torch.compile(loss, backend="mlcomp", fullgraph=True)(x, w.requires_grad_(), target)
    (gradient,) = torch.autograd.grad(ours, w)
    assert [t.dtype for t in kept if t.shape == (24, 50)] == [torch.bfloat16]
    exact = w.detach().double().requires_grad_()
    scores = F.linear(x.bfloat16().double(), exact.bfloat16().double())
    scores = scores + (scores.bfloat16().double() - scores).detach()
    (expected,) = torch.autograd.grad(F.cross_entropy(scores, target), exact)
    torch.testing.assert_close(gradient.double(), expected, rtol=2e-2, atol=1e-2, msg=f"seed {seed}")


def test_what_is_kept_in_another_shape_is_written_once() -> None:
    """A rounded weight is kept transposed, and read by the matmul: both are the same memory."""
    x, w = torch.randn(2, 4, 16, requires_grad=True), torch.randn(12, 16, requires_grad=True)

    def rounded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x.reshape(-1, 16).bfloat16(), w.bfloat16()).float().tanh()

    (report,) = explain(rounded, (x, w), {"fallback": "error"})
    (region,) = report.regions
    program = region.code.stages["kernel"]
    assert [show_type(t.dtype, t.shape) for t in program.outputs] == ["f32[8, 12]", "bf16[8, 16]", "bf16[12, 16]"]
    assert not program.temps


@pytest.mark.parametrize("seen", [False, True], ids=["only saved", "also a result"])
def test_what_rows_are_normalised_of_is_saved_in_rows(seen: bool, unpacked: None) -> None:
    """In eager what lies across its rows goes on so from sum to sum; a result of the function is to lie as there."""
    torch.manual_seed(seed := fresh_seed())
    patches, w = torch.randn(2, 16, 3, 5), torch.randn(16, 16)
    places = torch.randn(15, 16, requires_grad=True)

    def layers(patches: torch.Tensor, places: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = patches.flatten(2).transpose(1, 2) + places
        x = x + F.linear(F.layer_norm(x, (16,)), w)
        made = F.linear(F.layer_norm(x, (16,)), w).sum()
        return (made, x) if seen else (made,)

    kept: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        ours = torch.compile(layers, backend="mlcomp", fullgraph=True, options={"fallback": "error"})(
            patches, places, w
        )
    eager = layers(patches, places, w)
    assert [t.stride() for t in ours] == [t.stride() for t in eager]
    across = {t.stride() for t in kept if t.shape == (2, 15, 16)}
    assert across == {(240, 1, 15), (240, 16, 1)} if seen else across == {(240, 16, 1)}
    (own,), (wanted,) = torch.autograd.grad(ours[0], places), torch.autograd.grad(eager[0], places)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4, msg=lambda m: f"seed {seed}: {m}")


def _halved() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def _inverse(x: torch.Tensor) -> Any:
    return torch.linalg.inv(x / 8 + torch.eye(8))


def _autocast_off(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return x.tanh() @ x


def _spectrum(x: torch.Tensor) -> Any:
    return torch.fft.rfft(x).abs()


class _Product(torch.autograd.Function):
    """Its gradient exists within autocast only, where operands of several types are made one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


def _in_forward(f: Any, x: torch.Tensor) -> torch.Tensor:
    with _halved():
        y: torch.Tensor = f(x)
    return torch.autograd.grad(y.sin().sum(), x)[0]


def _in_backward(f: Any, x: torch.Tensor) -> torch.Tensor:
    y = f(x).sin().sum()
    with _halved():
        return torch.autograd.grad(y, x)[0]


@pytest.mark.parametrize(
    ("f", "how"), [(_inverse, _in_forward), (_autocast_off, _in_forward), (_spectrum, _in_backward)]
)
def test_autocast_rounds_nothing_in_backward_that_it_left_in_forward(f: Any, how: Any) -> None:
    torch.manual_seed(seed := fresh_seed())
    x = torch.randn(8, 8, requires_grad=True)
    ours, theirs = how(torch.compile(f, backend="mlcomp"), x), how(f, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda m: f"seed {seed}: {m}")


@pytest.mark.parametrize("is_compiled", [True, False])
def test_gradients_that_exist_within_autocast_only(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their calls run in eager."""
    torch._dynamo.reset()

    def missing(*_: Any) -> Any:
        raise ToolchainError("the C++ compiler g++ is missing")

    if not is_compiled:
        monkeypatch.setattr(backend, "_build", missing)

    def loss(x: torch.Tensor, w: torch.Tensor) -> Any:
        return _Product.apply(x, w).float().square().mean()  # type: ignore[no-untyped-call]

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    found = []
    for f in (loss, torch.compile(loss, backend="mlcomp")):
        with _halved():
            found.append(torch.autograd.grad(f(x, w), (x, w)))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
