"""Models as deep as known ones, and as narrow as may be: what costs is how many calls they have, not how large."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dense(nn.Module):
    """DenseNet-121: 58 layers, each of which reads what all before it in its block have made."""

    def __init__(self, growth: int = 2, sizes: tuple[int, ...] = (6, 12, 24, 16)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks, self.between, width = nn.ModuleList(), nn.ModuleList(), 4
        for n, size in enumerate(sizes, 1):
            self.blocks.append(nn.ModuleList(self._layer(width + k * growth, growth) for k in range(size)))
            width += size * growth
            last = n == len(sizes)
            halved = nn.Sequential(nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2))
            self.between.append(nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Identity() if last else halved))
            width = width if last else width // 2
        self.head = nn.Linear(width, 5)

    @staticmethod
    def _layer(width: int, growth: int) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * growth, 1, bias=False),
            nn.BatchNorm2d(2 * growth), nn.ReLU(), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False),
        )  # fmt: skip

    def forward(self, picture: Tensor) -> Tensor:
        x = self.stem(picture)
        for block, after in zip(self.blocks, self.between, strict=True):
            made = [x]
            for layer in block:  # type: ignore[attr-defined]
                made.append(layer(torch.cat(made, 1)))
            x = after(torch.cat(made, 1))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """An expansion, a depthwise convolution, squeeze and excitation, a projection, with a shortcut where one fits."""

    def __init__(self, width: int, out: int, stride: int, window: int, grow: int) -> None:
        super().__init__()
        inner, self.short = width * grow, stride == 1 and width == out
        self.into = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        depthwise = nn.Conv2d(inner, inner, window, stride, window // 2, groups=inner, bias=False)
        self.along = nn.Sequential(depthwise, nn.BatchNorm2d(inner), nn.SiLU())
        squeeze = nn.Conv2d(inner, 1, 1), nn.SiLU(), nn.Conv2d(1, inner, 1), nn.Sigmoid()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze)
        self.out = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        made = self.along(self.into(x))
        made = self.out(made * self.gate(made))
        return x + made if self.short else made  # type: ignore[no-any-return]


def efficient() -> nn.Module:
    """EfficientNet-B0: 16 inverted bottlenecks in seven stages."""

    def layers() -> Iterator[nn.Module]:
        width = 4
        for grow, out, count, stride, window in (
            (1, 2, 1, 1, 3), (6, 3, 2, 2, 3), (6, 4, 2, 2, 5), (6, 6, 3, 2, 3), (6, 7, 3, 1, 5), (6, 9, 4, 2, 5),
            (6, 11, 1, 1, 3),
        ):  # fmt: skip
            for n in range(count):
                yield Inverted(width, out, stride if n == 0 else 1, window, grow)
                width = out

    stem = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.SiLU()
    end = nn.Conv2d(11, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*stem, *layers(), *end, nn.Dropout(0.2), nn.Linear(16, 5))


class Disentangled(nn.Module):
    """DeBERTa-v2's attention: contents with contents, contents with relative positions, and the other way round."""

    def __init__(self, width: int, heads: int, buckets: int) -> None:
        super().__init__()
        self.heads, self.buckets = heads, buckets
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def _split(self, x: Tensor) -> Tensor:
        apart = x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)
        return apart.reshape(-1, x.shape[1], apart.shape[-1])

    def forward(self, x: Tensor, keep: Tensor, relative: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        places = torch.arange(length)[:, None] - torch.arange(length)[None]
        near = torch.sign(places) * torch.log2(places.abs().clamp(min=1).float()).ceil().long() + self.buckets
        near = near.clamp(0, 2 * self.buckets - 1).expand(batch * self.heads, -1, -1)
        scale = 1 / math.sqrt(3 * query.shape[-1])
        ends = [self._split(part(relative[None])).repeat(batch, 1, 1) for part in (self.query, self.key)]
        scores = torch.bmm(query, key.transpose(1, 2) * scale)
        scores = scores + torch.gather(torch.bmm(query, ends[1].transpose(1, 2)), -1, near) * scale
        scores = scores + torch.gather(torch.bmm(key, ends[0].transpose(1, 2)), -1, near).transpose(1, 2) * scale
        seen = (keep[:, None, :, None] * keep[:, None, None, :]).bool()
        chances = (
            scores.view(batch, self.heads, length, length).masked_fill(~seen, torch.finfo(x.dtype).min).softmax(-1)
        )
        made = torch.bmm(chances.view(-1, length, length), value).view(batch, self.heads, length, -1)
        return self.out(made.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Deberta(nn.Module):
    """DeBERTa-v2: layers of disentangled attention, the first with a convolution beside it."""

    def __init__(self, width: int = 16, depth: int = 3, buckets: int = 4) -> None:
        super().__init__()
        self.words, self.relative = nn.Embedding(50, width), nn.Embedding(2 * buckets, width)
        self.norm, self.norm_relative, self.norm_conv = (nn.LayerNorm(width, 1e-7) for _ in range(3))
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.attention = nn.ModuleList(Disentangled(width, 2, buckets) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width, 1e-7) for _ in range(2 * depth))
        self.head = nn.Linear(width, 50)

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids > 4).long()
        first = x = self.norm(self.words(ids)) * keep[..., None]
        relative = self.norm_relative(self.relative.weight)
        for n, (attention, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
            x = self.norms[2 * n](x + attention(x, keep, relative))
            x = self.norms[2 * n + 1](x + feed(x))
            if n == 0:
                along = self.conv(first.transpose(1, 2)).transpose(1, 2).masked_fill(keep[..., None] == 0, 0.0)
                x = self.norm_conv(x + torch.tanh(along)) * keep[..., None]
        made: Tensor = F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())
        return made


def picture() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def tokens() -> Tensor:
    return torch.randint(0, 50, (2, 9))


def lively(model: nn.Module, given: Tensor) -> nn.Module:
    """The model, with statistics of its batch norms that keep numbers near 1 however deep it is."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.0
    model.train()(given)
    return model.eval()


# What makes a model, what it is given, and whether it is trained.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], bool]] = {
    "densenet121": (Dense, picture, False), "efficientnet": (efficient, picture, False),
    "deberta": (Deberta, tokens, True),
}  # fmt: skip
