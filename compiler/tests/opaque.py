"""An op that no rule is for, nor will be: what is compiled around it is what tests of regions ask."""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("tests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    made: Tensor = torch.special.bessel_j0(x)
    return made


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    made: Tensor = -gradient * torch.special.bessel_j1(x)
    return made


opaque.register_fake(torch.empty_like)
opaque.register_autograd(_backward, setup_context=_keep)
