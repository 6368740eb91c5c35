"""Forward-mode derivatives through what `torch.compile(f, backend="mlcomp")` has compiled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from compiler.tests.meaning import fresh_seed


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())


def network() -> Callable[..., Any]:
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 4)).requires_grad_(False)
    return lambda x, y: net(x) * y


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x, y: x.sin() * y + 1,
    "rows": lambda x, y: torch.softmax(x @ y.mT, -1).logsumexp(0),
    "network": network(),
    "update": lambda x, y: (y.mul_(x), x.sin() * y)[1],
    "cut": lambda x, y: torch.special.i0(F.dropout(x * y + 1, 0.5).sin()) * 2,
}


def derived(f: Callable[..., Any], x: Tensor, y: Tensor) -> list[Any]:
    torch.manual_seed(3)
    with forward_ad.dual_level():
        dual: Any = forward_ad.make_dual
        first, second = dual(x.clone(), torch.ones_like(x)), y.clone()
        parts: Any = forward_ad.unpack_dual
        return [part for made in (f(first, second), second, first) for part in parts(made)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents_are_those_of_eager(name: str) -> None:
    """In a first call, between others, and where a process before has compiled the graph."""
    f, x, y = FUNCTIONS[name], torch.randn(3, 4), torch.randn(3, 4)
    wanted = derived(f, x, y)
    assert wanted[1] is not None
    for first in (True, False, False):
        torch._dynamo.reset()
        own = torch.compile(f, backend="mlcomp")
        for dual in (first, not first, first):
            torch.manual_seed(3)
            if dual:
                torch.testing.assert_close(derived(own, x, y), wanted, rtol=1e-4, atol=1e-5)
            else:
                torch.testing.assert_close(own(x, y.clone()), wanted[0], rtol=1e-4, atol=1e-5)


def test_batches_of_tangents_run_in_eager(recwarn: pytest.WarningsRecorder) -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() * x.exp()

    x = torch.randn(3, requires_grad=True)
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    jacobian: Any = torch.autograd.functional.jacobian
    found, wanted = (jacobian(f, x, vectorize=True) for f in (compiled, function))
    torch.testing.assert_close(found, wanted)
    (batched,) = torch.autograd.grad(compiled(x), x, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(batched, wanted)
    assert not [w for w in recwarn if "mlcomp" in str(w.message)]
