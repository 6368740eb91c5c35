"""Quantized models: each mode is near what its own integers mean in f64; what cannot be quantized is an error."""

import pytest
import torch
from torch import nn

import compiler
from compiler import frontend
from compiler.backend import mlcomp
from compiler.errors import CompilerError
from compiler.execution import models
from compiler.passes.quantize import MODES
from compiler.tests.backend.models import llama, tokens
from compiler.tests.meaning import fresh_seed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("entry", ["compile", "torch.compile"])
def test_a_model_is_what_its_integers_are(mode: str, entry: str) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 32, bias=False)).eval().requires_grad_(False)
    x = torch.randn(3, 96)
    captured = frontend.quantized(frontend.capture(model, [x]), mode)
    known = dict(zip(captured.arguments, [x], strict=True)) | captured.constants
    assert {t.dtype for t in known.values()} & {torch.int8, torch.uint8, torch.float8_e4m3fn}
    (exact,) = compiler.reference(captured.program, [known[i.name] for i in captured.program.inputs])
    if entry == "compile":
        made = compiler.compile(model, [x], quantize=mode)(x)
    else:
        torch._dynamo.reset()
        made = torch.compile(model, backend=mlcomp, options={"quantize": mode, "fallback": "error"})(x)
    # Rounding to the other of two integers moves a result by one of them, and f64 may round otherwise.
    near = {"int8-dynamic": 2e-2, "fp8": 5e-2}.get(mode, 1e-5)  # f64 does not round activations to 8 bits at all
    torch.testing.assert_close(made.double(), exact, rtol=0, atol=near, msg=lambda text: f"{text}\nseed {seed}")
    bound = {"int4-weight-only": 0.3, "fp8": 0.1}.get(mode, 0.05)
    torch.testing.assert_close(made, model(x), rtol=0, atol=bound, msg=lambda text: f"{text}\nseed {seed}")


@pytest.mark.parametrize("mode", MODES)
def test_a_decoders_logits_are_as_near_as_the_same_quantization_in_f64(mode: str) -> None:
    """What ours differs from f64 of the same integers by comes on top of what quantizing itself changes."""
    seed = fresh_seed()
    torch.manual_seed(seed)
    model, ids = llama(32, 64).eval().requires_grad_(False), tokens()
    made = models.ModelCall(model, lambda m: m(ids), lambda: None, lambda m: [])
    ran = models.compare_call(made, mlcomp, quantize=mode)
    assert ran.ours <= ran.allowed, (seed, ran)
    assert ran.quantization, (seed, ran)


def test_what_cannot_be_quantized_is_an_error() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(CompilerError, match="no matmul with a weight"):
        compiler.compile(torch.relu, [x], quantize="int8-weight-only")
    for mode, message in (("int3", "not 'int3'"), ("int8-weight-only", "for inference")):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(nn.Linear(4, 4), backend=mlcomp, options={"quantize": mode})(x)
