"""Steps of optimizers through `torch.compile`, and ops over lists, against eager."""

import secrets
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compiler.frontend import decompositions

SHAPES = ((5, 3), (5, 3), ())
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda params, compiled: torch.optim.SGD(params, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params, compiled: torch.optim.Adam(params, 0.01, amsgrad=True),
    # Eager has no `capturable` on CPUs.
    "adamw": lambda params, compiled: torch.optim.AdamW(params, 0.01, foreach=True, capturable=compiled),
}


def steps(make: Callable[..., Any], seed: int, compiled: bool) -> list[torch.Tensor]:
    """Parameters and state after some steps with random gradients."""
    draws = torch.Generator().manual_seed(seed)
    params = [torch.randn(s, generator=draws, requires_grad=True) for s in SHAPES]
    optimizer = make(params, compiled)
    torch.compiler.reset()
    step = optimizer.step
    if compiled:
        step = torch.compile(step, backend="mlcomp", options={"fallback": "error"})
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape, generator=draws)
        step()
    kept = [x for p in params for _, x in sorted(optimizer.state[p].items()) if isinstance(x, torch.Tensor)]
    return [x.detach() for x in (*params, *kept)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_are_those_of_eager(name: str) -> None:
    seed = secrets.randbelow(2**31)
    print("seed", seed)
    ours, eager = (steps(OPTIMIZERS[name], seed, compiled) for compiled in (True, False))
    assert len(ours) == len(eager) > 0
    for got, want in zip(ours, eager, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_ops_over_lists_are_decomposed_into_what_eager_makes_of_them() -> None:
    lists = [[torch.rand(3, 2) + 0.1, torch.rand(4) + 0.1] for _ in range(3)]
    given: dict[str, list[Any]] = {
        "Tensor[]": lists,
        "Scalar[]": [[0.5, 2.0]] * 4,
        "Tensor": [torch.tensor(0.75)] * 4,
        "Scalar": [0.75] * 4,
    }
    seen = set()
    for op, how in decompositions().items():
        if not str(op).startswith("aten._foreach_"):
            continue
        kinds = [str(a.type) for a in op._schema.arguments if not a.has_default_value() or str(a.name) == "value"]
        words = {"List[Tensor]": "Tensor[]", "List[number]": "Scalar[]", "number": "Scalar"}
        args = [given[words.get(kind, kind)][k] for k, kind in enumerate(kinds)]
        if str(op) in ("aten._foreach_addcmul.Tensor", "aten._foreach_addcdiv.Tensor"):
            args[-1] = torch.tensor([0.5, 2.0])
        if str(op) == "aten._foreach_mm.default":
            args = [[x @ x.mT if x.dim() == 2 else x.outer(x) for x in some] for some in lists[:2]]
        want, got = op(*args), how(*args)
        assert len(want) == len(got) == 2
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
        seen.add(str(op))
    assert {
        "aten._foreach_addcdiv.ScalarList",
        "aten._foreach_pow.ScalarAndTensor",
        "aten._foreach_norm.Scalar",
    } <= seen
