"""The device of a graph's program. Numbers on the CPU may be inputs of a program for a GPU.

Eager takes a CPU tensor without axes beside tensors of a GPU. Many graphs have such inputs: PyTorch passes a Python
float that varies from call to call as one, and so may a user pass a learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch

from compiler.errors import Unsupported
from compiler.execution import gpu_programs, named
from compiler.targets.target import Target

TARGETS = {"cpu": "cpu", "cuda": "cuda"}  # by device type


def is_number(x: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a CPU tensor without axes."""
    return isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dim() == 0


def common_device(inputs: Iterable[Any], results: Iterable[Any]) -> torch.device:
    """The device of all tensors of a graph, apart from numbers among the inputs; the CPU if there are no others.

    Raises Unsupported if there are several, or if there is no target for it.
    """
    tensors = [x for x in inputs if isinstance(x, torch.Tensor) and not is_number(x)]
    tensors += [x for x in results if isinstance(x, torch.Tensor)]
    devices = {x.device for x in tensors} or {torch.device("cpu")}
    if len(devices) > 1 or not {x.type for x in devices} <= TARGETS.keys():
        names = sorted(map(str, devices))
        raise Unsupported("device", names, "all tensors of a graph must be on the CPU or on one GPU")
    return devices.pop()


def target_for(device: torch.device) -> Target:
    """The target for a device of a type in TARGETS; raises Unsupported for a GPU that kernels cannot run on."""
    target = named.target(TARGETS[device.type])
    if target.kind == "cuda" and not gpu_programs.on_gpu(target):
        raise Unsupported(
            "device", [str(device)], "kernels cannot run on this GPU: CuPy is missing, or the GPU is too old"
        )
    return target


def moved_numbers(inputs: Sequence[Any], positions: Iterable[int], device: torch.device) -> list[Any]:
    """The inputs with those at `positions`, numbers on the CPU, on `device`.

    Fills a new tensor rather than copying, which would wait for the device and cannot be captured in a CUDA graph.
    """
    moved = list(inputs)
    for k in positions:
        moved[k] = torch.full((), moved[k].item(), dtype=moved[k].dtype, device=device)
    return moved
