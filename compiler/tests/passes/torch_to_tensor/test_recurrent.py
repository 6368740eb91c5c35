"""Recurrent networks: the Tensor program gives what eager gives, for every kind, direction and layout."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._decomp.decompositions import one_layer_lstm

from compiler import frontend
from compiler.errors import Unsupported
from compiler.passes.torch_to_tensor import lower
from compiler.tests.eager import agree

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")

MODULES: list[Callable[[], nn.Module]] = [
    lambda: nn.LSTM(3, 4, batch_first=True),
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, bias=False),
    lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
    lambda: nn.GRU(3, 4, num_layers=2, dropout=0.5),
    lambda: nn.RNN(3, 4),
    lambda: nn.RNN(3, 4, nonlinearity="relu", num_layers=2, bidirectional=True),
]


def traces_last_states() -> bool:
    """Whether torch's own definition of an LSTM keeps the shape of a batch's last states; that of 2.11 does not."""
    module, state = nn.LSTM(3, 4).requires_grad_(False), torch.zeros(2, 4)
    definition: Any = one_layer_lstm
    _, (hidden, _) = definition(torch.zeros(5, 2, 3), (state, state), list(module.parameters()), True)
    return bool(hidden.shape == state.shape)


@pytest.mark.parametrize(("kind", "shape"), [*((k, (2, 3, 3)) for k in range(len(MODULES))), (0, (1, 1, 3))])
def test_agrees_with_eager(kind: int, shape: tuple[int, ...]) -> None:
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    module = MODULES[kind]().eval().requires_grad_(False)
    if isinstance(module, nn.LSTM) and shape != (1, 1, 3) and not traces_last_states():
        with pytest.raises(Unsupported, match=r"lstm.*last states"):
            lower.lower(frontend.capture(module, (torch.randn(shape),)).program)
        return
    try:
        agree(module, torch.randn(shape))
    except AssertionError as problem:
        raise AssertionError(f"seed {seed}: {problem}") from problem


def test_a_projected_state_is_refused() -> None:
    module = nn.LSTM(3, 4, proj_size=2).eval().requires_grad_(False)
    with pytest.raises(Unsupported, match=r"lstm.*projected"):
        lower.lower(frontend.capture(module, (torch.randn(2, 5, 3),)).program)
