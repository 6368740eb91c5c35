"""What `torch.compile(f, backend="mlcomp")` writes to its arguments and to what modules hold."""

import copy as copy_module
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from compiler.backend.input_writes import separate_writes
from compiler.errors import Unsupported
from compiler.tests.meaning import fresh_seed


def swapped(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    x.copy_(y)
    y.copy_(z)
    return x


def overwritten(x: Tensor, y: Tensor) -> Any:
    x.copy_(y)
    y.add_(1)
    return x * y


def returned(x: Tensor, y: Tensor) -> Any:
    z = x + y
    x.copy_(z)
    z.mul_(2)
    return z, z.t()


def cut_out(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    return torch.linalg.svdvals(x) * 2, y.sin()


def handed_on(x: Tensor, y: Tensor) -> Any:
    x[2:] = y[:2]
    y[2:] = 1
    return torch.minimum(y, y.flip(0))


def read_before(x: Tensor, y: Tensor) -> Any:
    first, last = x[:2], x[2:]
    made = last.cosh(), first.sin()
    last[:] = 1
    return made


FUNCTIONS = (swapped, overwritten, returned, cut_out, handed_on, read_before)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_arguments_hold_what_eager_leaves_in_them(function: Callable[..., Any], target: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    given = torch.randn(4, 4), torch.randn(4, 4)
    seen = []
    for f in (function, torch.compile(function, backend="mlcomp", options={"target": target})):
        mine = [x.clone() for x in given]
        seen.append((f(*mine), mine, [x._version for x in mine]))
    torch.testing.assert_close(seen[0], seen[1])


def test_buffers_of_one_type_are_written_together(copied: list[list[torch.dtype]]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    plain = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4))
    mine = copy_module.deepcopy(plain)
    ours = torch.compile(mine, backend="mlcomp")
    x = torch.randn(8, 4)
    torch.testing.assert_close(ours(x), plain(x))
    torch.testing.assert_close(dict(mine.state_dict()), dict(plain.state_dict()))
    assert len(copied) == len({tuple(set(types)) for types in copied}) and all(len(set(t)) == 1 for t in copied)


class Decaying(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9)
        return x * self.mean.sin() * self.scale


def test_gradients_see_what_a_buffer_was_when_the_value_was_computed() -> None:
    """The backward graph computes the new mean again, from the one before the call."""
    torch._dynamo.reset()
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(fresh_seed()))
    models = Decaying(), Decaying()
    for f in (models[0], torch.compile(models[1], backend="mlcomp")):
        for _ in range(2):
            f(x).sum().backward()
    torch.testing.assert_close(models[0].scale.grad, models[1].scale.grad)


def test_a_write_amid_a_graph_is_refused() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    written = graph.call_function(torch.ops.aten.copy_.default, (x, y))
    graph.output((graph.call_function(torch.ops.aten.sin.default, (written,)),))
    with pytest.raises(Unsupported, match="before the end of the graph"):
        separate_writes(GraphModule(nn.Module(), graph))


def halved(model: nn.Linear, x: Tensor) -> Any:
    for p in model.parameters():
        p.data = p.data * 0.5
    return model(x)


def turned(model: nn.Linear, x: Tensor) -> Any:
    with torch.no_grad():
        x.set_(x.mT)  # type: ignore[call-overload]
        model.bias.set_(torch.ones(4)).add_(1)  # type: ignore[call-overload]
    return model(x.sin())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [halved, turned], ids=lambda f: f.__name__)
def test_tensors_are_given_the_memory_of_others(function: Callable[..., Any], grad: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    models = nn.Linear(4, 4), nn.Linear(4, 4)
    models[1].load_state_dict(models[0].state_dict())
    inputs = torch.randn(4, 4), torch.empty(4, 4)
    inputs[1].copy_(inputs[0])
    made = []
    for f, model, x in zip((torch.compile(function, backend="mlcomp"), function), models, inputs, strict=True):
        with torch.set_grad_enabled(grad):
            made.append([f(model, x), f(model, x)])
        if grad:
            made[-1][1].sum().backward()
    for kind in (made, inputs, *zip(*(model.parameters() for model in models), strict=True)):
        torch.testing.assert_close(*kind, rtol=1e-4, atol=1e-5, check_stride=True)
    for mine, his in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine.grad, his.grad)


def test_what_is_negated_when_it_is_read_is_written() -> None:
    torch._dynamo.reset()
    z = torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(fresh_seed()))
    mine, his = z.clone(), z.clone()
    for f, x in ((torch.compile(lambda x: x.add_(1), backend="mlcomp"), mine), (lambda x: x.add_(1), his)):
        torch.testing.assert_close(f(x.conj().imag), x.conj().imag)
    torch.testing.assert_close(mine, his)


@pytest.mark.filterwarnings("ignore")
def test_memory_is_given_back_and_made_anew() -> None:
    def taken(x: Tensor, y: Tensor) -> Tensor:
        x.untyped_storage().resize_(y.nbytes)
        with torch.no_grad():
            x.copy_(y)
        return x.sin() + 1

    def freed(x: Tensor) -> Tensor:
        z: Tensor = torch.special.i0(x.exp() - 1).sin() * x + 1
        x.untyped_storage().resize_(0)
        return z

    torch._dynamo.reset()
    x, y = torch.zeros(6), torch.randn(6, generator=torch.Generator().manual_seed(fresh_seed()))
    torch.testing.assert_close(torch.compile(freed, backend="mlcomp")(x), torch.ones(6))
    assert x.untyped_storage().nbytes() == 0
    torch.testing.assert_close(torch.compile(taken, backend="mlcomp")(x, y), y.sin() + 1)
    assert torch.equal(x, y)


def test_what_inference_mode_made_is_updated_in_it_alone() -> None:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())

    def updated(x: Tensor) -> Tensor:
        return x.add_(1).sum()

    own = torch.compile(updated, backend="mlcomp")
    with torch.inference_mode():
        x, y = torch.randn(4, 3), torch.zeros(4, 3)
        y.copy_(x)
        own(y)
        assert torch.equal(y, x + 1)
    with pytest.raises(RuntimeError, match="inference mode"):
        own(y)
    assert torch.equal(y, x + 1)
