"""Whole models of many layers compile without a break and are right; `python -m` of this file tries all of them."""

import copy
import random

import torch
from torch import Tensor, nn

from compiler.tests.backend.whole_models import MODELS, lively
from compiler.tests.meaning import fresh_seed


def results(model: nn.Module, call: object, given: Tensor, trained: bool) -> list[Tensor]:
    made: Tensor = call(given)  # type: ignore[operator]
    gradients = torch.autograd.grad(made, list(model.parameters())) if trained else ()
    return [made.detach(), *gradients]


def check(name: str, seed: int) -> None:
    """Within four times the distance of eager from f64, and some roundings of the largest element."""
    torch.manual_seed(seed)
    make, draw, trained = MODELS[name]
    given = draw()
    model = lively(make(), given)
    wide = copy.deepcopy(model).double()
    exact = results(wide, wide, given.double() if given.is_floating_point() else given, trained)
    eager = results(model, model, given, trained)
    compiled = torch.compile(model, backend="mlcomp", fullgraph=True, options={"fallback": False})
    with torch.set_grad_enabled(trained):
        ours = results(model, compiled, given, trained)
    largest = max(float(x.abs().max()) for x in exact)
    for k, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        far, spread, size = (float(x.abs().max()) for x in (a - c, b - c, c))
        assert far <= 4 * spread + 4e-6 * size + 1e-7 * largest, (name, seed, k, far, spread, size)


def test_a_whole_model_is_right() -> None:
    """One of them in each run."""
    check(random.choice(sorted(MODELS)), fresh_seed())


if __name__ == "__main__":
    for each in MODELS:
        check(each, fresh_seed())
