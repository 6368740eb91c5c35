"""A function compiled for a target and called with tensors of the CPU, wherever the target's code runs here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import compiler
from compiler import Target


def placed(tensors: Sequence[torch.Tensor], target: Target) -> list[torch.Tensor]:
    """The tensors on the device on which code for the target runs: the GPU, if there is one that can."""
    return [x.cuda() for x in tensors] if compiler.on_gpu(target) else [*tensors]


def called(function: Callable[..., Any], inputs: Sequence[torch.Tensor], target: str) -> Any:
    """What the compiled function gives, as tensors of the CPU."""
    where = compiler.target(target)
    own = placed(inputs, where)
    made = compiler.compile(function, own, where)(*own)
    return made.cpu() if isinstance(made, torch.Tensor) else [x.cpu() for x in made]
