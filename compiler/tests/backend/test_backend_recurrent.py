"""Recurrent layers through `torch.compile`, when Dynamo is asked not to leave them out."""

from typing import Any

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [{}, {"bidirectional": True}, {"num_layers": 2, "bias": False}, {"batch_first": True}])
def test_layers_of_an_lstm_are_compiled(kind: dict[str, Any], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    layer, x = nn.LSTM(33, 8, **kind).to(dtype).eval(), torch.randn(5, 3, 33, dtype=dtype)
    compiled = torch.compile(layer.forward, backend="mlcomp", fullgraph=True, options={"fallback": "error"})
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=4 * torch.finfo(dtype).eps)  # of values below 1
