"""The device of a program, and numbers on the CPU beside tensors of a GPU."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.backend import FallbackWarning, devices, explain, mlcomp
from compiler.errors import Unsupported

CPU, META = torch.device("cpu"), torch.device("meta")
has_gpu = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not has_gpu, reason="needs a GPU")


def test_numbers_among_inputs_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    number, row, far = torch.tensor(2.0), torch.ones(1), torch.ones(3, device="meta")
    assert [devices.is_number(x) for x in (number, row, far, far.sum(), 2.0)] == [True, False, False, False, False]
    assert devices.common_device([number, 3], [row]) == CPU == devices.common_device([], [])
    with pytest.raises(Unsupported, match="meta"):
        devices.common_device([far], [])
    monkeypatch.setitem(devices.TARGETS, "meta", "sm_90a")
    assert devices.common_device([number, far, 3], [far.sum()]) == META
    for inputs, results in (([far, row], [far]), ([far, number], [number]), ([number], [far, row])):
        with pytest.raises(Unsupported, match="cpu, meta"):
            devices.common_device(inputs, results)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_numbers_move_in_their_type(dtype: torch.dtype) -> None:
    inputs = [torch.ones(2), (number := torch.tensor(-0.1, dtype=torch.float64).to(dtype)), 7]
    moved = devices.moved_numbers(inputs, [1], CPU)
    assert moved[0] is inputs[0] and moved[2] == 7 and moved[1] is not number
    torch.testing.assert_close(moved[1], number, rtol=0, atol=0)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "scaled": lambda x, c: (x * c).relu() + c,
    "number made in between": lambda x, c: torch.where(x > c * 2 - 1, x, c.neg()).sum(0),
    "compared and counted": lambda x, c: (x < c).sum(1),
    "filled": lambda x, c: torch.full_like(x, 2.0) * c + x.sum(),
    "number as a result": lambda x, c: (x.sin() * c, c * 2, c),
}


@needs_gpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["float", "f64", "f32", "i64"])
def test_numbers_beside_a_gpu(name: str, kind: str) -> None:
    function = PROGRAMS[name]

    def f(x: Tensor, c: Any) -> Any:
        return function(x, c if isinstance(c, Tensor) else torch.tensor(1.0, dtype=torch.float64) * c)

    def number(value: float) -> Any:
        types = {"f64": torch.float64, "f32": torch.float32, "i64": torch.int64}
        return value if kind == "float" else torch.tensor(value, dtype=torch.float64).to(types[kind])

    compiled = torch.compile(f, backend=mlcomp)
    x = torch.randn(5, 6, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error" if name != "number as a result" else "ignore", FallbackWarning)
        for value in (1.5, 2.5, -3.25, 0.0):
            torch.testing.assert_close(compiled(x, number(value)), f(x, number(value)))


@needs_gpu
def test_only_results_on_the_cpu_run_in_eager() -> None:
    c = torch.tensor(1.5)
    (report,) = explain(lambda x, c: ((x * c).sin() + c, c + 1), [torch.randn(5, 6, device="cuda"), c], {})
    assert [r.calls for r in report.regions] == [3] and sum(report.eager.values()) == 1


@needs_gpu
@pytest.mark.parametrize("mode", ["reduce-overhead", "captured by the user"])
def test_numbers_in_cuda_graphs(mode: str) -> None:
    def f(x: Tensor, c: float) -> Tensor:
        return (x * c).sin() @ x + c

    compiled = torch.compile(f, backend=mlcomp, mode=mode if mode == "reduce-overhead" else None)
    x = torch.randn(8, 8, device="cuda")
    for value in (1.5, 2.5, -3.25, 0.0, 4.0, 1.5):
        torch.testing.assert_close(compiled(x, value), f(x, value), rtol=1e-4, atol=1e-4)
    if mode != "reduce-overhead":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = compiled(x, 0.75)
        x.copy_(torch.randn(8, 8))
        graph.replay()
        torch.testing.assert_close(made, f(x, 0.75), rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_learning_rates_may_change(name: str, as_tensor: bool) -> None:
    """Of one compiled step of an optimizer, against eager."""
    models = [nn.Linear(6, 7, device="cuda") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    extra = {"capturable": True} if name == "AdamW" else {"foreach": False}  # what takes a rate that is a tensor
    rate = torch.tensor(0.01) if as_tensor else 0.01
    optimizers = [getattr(torch.optim, name)(m.parameters(), lr=rate, **extra) for m in models]
    steps = [torch.compile(optimizers[0].step, backend=mlcomp), optimizers[1].step]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for factor in (1.0, 0.5, 0.25, 0.2):
            x = torch.randn(4, 6, device="cuda")
            for model, optimizer, step in zip(models, optimizers, steps, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate * factor
                optimizer.zero_grad()
                model(x).square().sum().backward()
                step()
    torch.testing.assert_close(models[0].weight, models[1].weight)
