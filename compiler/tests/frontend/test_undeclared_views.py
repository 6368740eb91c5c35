"""What is written to a result that is an argument itself, or a view of it, reaches the argument, and the reverse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from compiler import frontend
from compiler.errors import Unsupported
from compiler.tests.frontend.test_frontend import run


def _after_a_loss(loss: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Losses broadcast their arguments to each other, and the call after them takes what that returned."""

    def f(x: torch.Tensor) -> torch.Tensor:
        row = x.select(0, 1)
        total = loss(row, row)
        row[row > 0] = -2
        return torch.add(total, x)

    return f


def _after_a_broadcast(x: torch.Tensor) -> torch.Tensor:
    whole, row = torch.broadcast_tensors(x, x[0])  # type: ignore[no-untyped-call]
    x[0].mul_(3)
    return torch.cat([whole, row])


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(_after_a_loss(F.mse_loss), id="mse_loss"),
        pytest.param(_after_a_loss(F.smooth_l1_loss), id="smooth_l1_loss"),
        pytest.param(_after_a_broadcast, id="broadcast"),
        pytest.param(lambda x: (F.dropout(x, 0.5, False).mul_(3), x * 1)[1], id="dropout that is off"),
        pytest.param(lambda x: (torch.einsum("ij->ji", x)[0].mul_(3), x * 1)[1], id="einsum"),
        pytest.param(lambda x: (torch.einsum("...j->j...", x)[0].mul_(3), x * 1)[1], id="einsum of all axes"),
        pytest.param(lambda x: (torch.einsum("ji", x), x.mul_(3))[0] * 1, id="einsum, whose operand changes"),
        pytest.param(lambda x: (torch.einsum("ij->i", x), x.mul_(3))[0] * 1, id="einsum that sums"),
    ],
)
def test_writes_are_seen(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 3)
    captured = frontend.capture(lambda x: function(x * 2), [x])
    torch.testing.assert_close(run(captured, x), function(x * 2))


def test_an_einsum_that_takes_a_diagonal_is_refused_beside_writes() -> None:
    with pytest.raises(Unsupported, match=r"aten\.einsum\.default.*may be a view of its operand"):
        frontend.capture(lambda x: torch.einsum("ii->i", x * 2).mul_(3), [torch.ones(3, 3)])
    frontend.capture(lambda x: torch.einsum("ii->i", x), [torch.ones(3, 3)])
