"""What tests of saved tensors share: gradients of a function, and the buffers of a program."""

from __future__ import annotations

from torch import Tensor

from compiler.backend.options import CompiledRegion
from compiler.ir.tensor import Tensor as Buffer


def gradients(f: object, *inputs: Tensor) -> tuple[Tensor, ...]:
    own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    loss = f(*own)  # type: ignore[operator]
    loss.backward()
    return (loss.detach(), *(x.grad for x in own if x.grad is not None))


def buffers(found: CompiledRegion) -> list[Buffer]:
    program = found.code.stages["loop"]
    return [*program.inputs, *program.outputs]
