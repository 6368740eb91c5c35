"""Pieces of networks at the sizes at which they are used: on a GPU no schedule of theirs is given up for a plainer one,
what kernels leave to each other lies in 16 bits, and attention is one kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compiler
from compiler.ir.dtype import f32
from compiler.ir.tensor import known_bytes
from compiler.passes.tensor.rematerialize import LEAST_BYTES
from compiler.targets.nvidia import SM_90A


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, which is a convolution where the number of channels changes."""

    def __init__(self, before: int, within: int, after: int) -> None:
        super().__init__()
        sizes = [(before, within, 1), (within, within, 3), (within, after, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, padding=k // 2, bias=False) for a, b, k in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in sizes)
        self.shortcut = nn.Conv2d(before, after, 1, bias=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for n, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = F.relu(y) if n < 2 else y
        return F.relu(y + self.shortcut(x))


class Layer(nn.Module):
    """A layer of a transformer, whose attention is written out in f32, as PyTorch decomposes it with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
        self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.norms = nn.ModuleList(nn.LayerNorm(768) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (12, 64)).transpose(1, 2).float() for t in self.qkv(x).chunk(3, 2))
        scores = torch.matmul(q * 0.125, k.mT) + mask
        y = torch.matmul(torch.softmax(scores, -1), v).to(x.dtype).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(y))
        made: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return made


def _lowered(network: nn.Module, *shapes: tuple[int, ...]) -> compiler.Lowering:
    given = [torch.empty(shape).bfloat16() for shape in shapes]
    lowering = compiler.lower(compiler.capture(network.bfloat16().eval(), given).program, SM_90A)
    assert not lowering.fallbacks
    return lowering


def test_images_lie_in_16_bits() -> None:
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    network = nn.Sequential(*stem, Bottleneck(64, 64, 256), Bottleneck(256, 64, 256))
    temps = _lowered(network, (8, 3, 224, 224)).stages["loop"].temps
    assert len(temps) > 8 and not [t for t in temps if t.dtype is f32 and known_bytes(t) >= LEAST_BYTES]


def test_attention_within_a_layer_is_one_kernel() -> None:
    kernels = _lowered(Layer(), (8, 128, 768), (8, 1, 128, 128)).stages["loop"].kernels
    assert len(kernels) <= 7 and any("matmul" in k.name and "softmax" in k.name for k in kernels)
