"""Models that torchao has quantized arrive as plain ATen calls: they compile whole, and their values are right."""

import pytest
import torch
from torch import nn

from compiler.backend import mlcomp
from compiler.tests.meaning import fresh_seed

# Beside torch a package of its own, which is no dependency: `pip install torchao`.
quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")

INT4: torch.dtype = vars(torch)["int4"]
HOW = {
    "int8": lambda: quantization.Int8WeightOnlyConfig(),
    "int8-dynamic": lambda: quantization.Int8DynamicActivationInt8WeightConfig(),
    "int4": lambda: quantization.IntxWeightOnlyConfig(INT4),
    "float8": lambda: quantization.Float8WeightOnlyConfig(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", HOW)
def test_a_quantized_model_compiles_whole(how: str, dtype: torch.dtype) -> None:
    torch.manual_seed(fresh_seed())
    model = nn.Sequential(nn.Linear(96, 64, bias=False), nn.Tanh(), nn.Linear(64, 32)).eval().to(dtype)
    quantization.quantize_(model, HOW[how]())
    x = torch.randn(3, 96, dtype=dtype)
    torch._dynamo.reset()
    with torch.no_grad():
        made, eager = torch.compile(model, backend=mlcomp, options={"fallback": "error"})(x), model(x)
    # Of dynamic activations one may become the next integer, a 127th of the largest.
    allowed = 2e-2 if how == "int8-dynamic" or dtype is torch.bfloat16 else 1e-5
    assert (made - eager).abs().max() <= allowed * eager.abs().max()
