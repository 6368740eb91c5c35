"""The plain autograd node does in each call what eager does, and leaves unusual graphs and calls to AOTAutograd's."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.backend import autograd_node
from compiler.tests.meaning import fresh_seed

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="mlcomp", options={"fallback": "error"}, dynamic=False)


def is_plain(x: Tensor) -> bool:
    return getattr(x.grad_fn, "_forward_cls", type(None)).__module__ == autograd_node.__name__


def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(fresh_seed())
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def linear(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh()


def warmed(function: Callable[..., Any], *given: Tensor) -> Callable[..., Any]:
    """The compiled function after its first call, which AOTAutograd's node made."""
    made = compiled(function)
    made(*given)
    return made


def test_gradients_are_those_of_eager_in_every_call() -> None:
    function = compiled(lambda x, w: (linear(x, w) ** 2).mean())
    for call in range(3):
        given = inputs((8, 5), (5, 7))
        loss = function(*given)
        assert is_plain(loss) == (call > 0)
        expected = torch.autograd.grad((linear(*given) ** 2).mean(), given)
        torch.testing.assert_close(torch.autograd.grad(loss, given), expected)


def test_of_several_results_some_are_unused_and_some_have_no_gradient() -> None:
    def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = linear(x, w)
        return y.exp(), y.argmax(-1), y.sum(), y * 2

    given = inputs((8, 5), (5, 7))
    a, k, b, c = warmed(several, *given)(*given)
    assert is_plain(a) and is_plain(b) and not k.requires_grad
    assert torch.equal(k, several(*given)[1])
    expected = several(*given)
    for chosen in ((a, expected[0]), (b, expected[2]), (c, expected[3])):
        gradients, references = (torch.autograd.grad(x.sum(), given, retain_graph=True) for x in chosen)
        torch.testing.assert_close(gradients, references)


def test_views_of_what_a_graph_computes_are_results_of_their_own() -> None:
    layer = nn.Linear(5, 6)
    x = torch.randn(2, 3, 5)
    function = warmed(layer, x)
    y = function(x)
    assert is_plain(y)
    y.mul_(2)
    torch.autograd.backward(y.sum())
    torch.testing.assert_close(layer.weight.grad, 2 * x.sum((0, 1)).expand(6, 5))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_tangents_of_other_strides_are_copied(order: tuple[int, int]) -> None:
    given = inputs((8, 5), (5, 7))
    y = warmed(linear, *given)(*given)
    tangent = torch.randn([y.shape[k] for k in order]).permute(order)
    expected = torch.autograd.grad(linear(*given), given, tangent)
    torch.testing.assert_close(torch.autograd.grad(y, given, tangent), expected)


def test_a_graph_may_be_kept_unless_it_is_differentiated_twice() -> None:
    given = inputs((8, 5), (5, 7))
    y = warmed(linear, *given)(*given).sum()
    first = torch.autograd.grad(y, given, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, given, retain_graph=True), first)
    gradients = torch.autograd.grad(y, given, create_graph=True)
    torch.testing.assert_close(gradients, first)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.backward(gradients[0].sum())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        for _ in range(2):
            torch.autograd.grad(y, given)


def test_hooks_see_what_is_saved_and_changes_of_it_are_noticed() -> None:
    given = inputs((8, 5), (5, 7))
    function = warmed(linear, *given)
    packed: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        packed.append(x)
        return x.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.clone()):
        y = function(*given)
    assert packed
    expected = torch.autograd.grad(linear(*given).sum(), given)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), given), expected)
    y = function(*given).sum()
    with torch.no_grad():
        given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_compiled_autograd_traces_it() -> None:
    given = inputs((8, 5), (5, 7))
    function = warmed(linear, *given)
    expected = torch.autograd.grad(linear(*given).sum(), given)
    for _ in range(2):
        for x in given:
            x.grad = None
        y = function(*given).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            y.backward()
        torch.testing.assert_close([x.grad for x in given], [*expected])


def test_autocast_of_the_forward_pass_is_off_in_both_programs() -> None:
    given = inputs((8, 5), (5, 7))
    function = compiled(lambda x, w: F.linear(x, w.t()).tanh().float().sum())
    for call in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(*given)
            expected = F.linear(given[0], given[1].t()).tanh().float().sum()
            assert is_plain(y) == (call > 0)
            gradients, references = (torch.autograd.grad(x, given) for x in (y, expected))
        torch.testing.assert_close(gradients, references, rtol=0.02, atol=0.02)


def test_calls_in_threads_and_without_gradients() -> None:
    given = inputs((8, 5), (5, 7))
    function = warmed(linear, *given)
    expected = torch.autograd.grad(linear(*given).sum(), given)
    gradients: list[Any] = []
    threads = [
        Thread(target=lambda: gradients.append(torch.autograd.grad(function(*given).sum(), given))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gradients) == 4
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected)
    with torch.no_grad():
        assert not function(*given).requires_grad


class Changing(nn.Module):
    """A module that counts its calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        product: Tensor = x.tanh() * self.calls
        return product


SCALE = nn.Parameter(torch.ones(3))
UNUSUAL: dict[str, Callable[..., Any]] = {
    "changed buffer": Changing(),
    "view of an input": lambda x: (x.t(), x.exp()),
    "results that share memory": lambda x: (lambda y: (y, y[1:]))(x.exp()),
    "no gradient of an input": lambda x: x.detach().exp() * SCALE,
}


@pytest.mark.parametrize("function", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_graphs_keep_the_general_node(function: Callable[..., Any]) -> None:
    made = compiled(function)
    (x,) = inputs((4, 3))
    for _ in range(3):
        results = made(x)
        results = results if isinstance(results, tuple) else (results,)
        assert not any(map(is_plain, results))


def test_a_function_may_turn_gradients_off() -> None:
    def last_of_all(x: Tensor) -> Tensor:
        y = x.exp()
        torch.set_grad_enabled(False)
        return y

    function = compiled(last_of_all)
    (x,) = inputs((4, 3))
    for _ in range(3):
        with torch.enable_grad():
            y = function(x)
            assert y.requires_grad and not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
