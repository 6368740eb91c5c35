"""Small models in the shapes of known ones."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Of queries `heads` and of keys `groups`; rotary positions if asked for."""

    def __init__(self, width: int, heads: int, groups: int, causal: bool, rotary: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.causal, self.rotary = causal, rotary
        self.into = nn.Linear(width, (heads + 2 * groups) * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        query, key, value = (
            part.view(batch, length, -1, self.size).transpose(1, 2) for part in self.into(x).split(split, dim=-1)
        )
        if self.rotary:
            query, key = rotated(query), rotated(key)
        made = F.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=self.groups != self.heads
        )
        joined: Tensor = self.out(made.transpose(1, 2).reshape(batch, length, width))
        return joined


def rotated(x: Tensor) -> Tensor:
    length, size = x.shape[-2:]
    step = torch.arange(0, size, 2, dtype=x.dtype) * (-math.log(10_000.0) / size)
    angle = torch.arange(length, dtype=x.dtype)[:, None] * step.exp()
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return made


class Block(nn.Module):
    """Attention and a feed-forward part around a residual stream; norms before or after each."""

    def __init__(self, attention: nn.Module, feed: nn.Module, norms: tuple[nn.Module, nn.Module], first: bool) -> None:
        super().__init__()
        self.attention, self.feed, self.first = attention, feed, first
        self.norm_1, self.norm_2 = norms

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attention(self.norm_1(x))
            after: Tensor = x + self.feed(self.norm_2(x))
            return after
        x = self.norm_1(x + self.attention(x))
        made: Tensor = self.norm_2(x + self.feed(x))
        return made


class Language(nn.Module):
    """Token and position embeddings, a block, a head."""

    def __init__(self, block: nn.Module, width: int, positions: bool, tied: bool) -> None:
        super().__init__()
        self.tokens, self.block, self.norm = nn.Embedding(50, width), block, nn.LayerNorm(width)
        self.positions = nn.Embedding(32, width) if positions else None
        self.head = nn.Linear(width, 50, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        logits: Tensor = self.head(self.norm(self.block(x)))
        return logits


def bert() -> nn.Module:
    feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.1))
    block = Block(Attention(16, 2, 2, False, False, True), feed, (nn.LayerNorm(16), nn.LayerNorm(16)), first=False)
    return Language(block, 16, positions=True, tied=False)


def gpt2() -> nn.Module:
    feed = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))
    block = Block(Attention(16, 2, 2, True, False, True), feed, (nn.LayerNorm(16), nn.LayerNorm(16)), first=True)
    return Language(block, 16, positions=True, tied=True)


def llama(width: int = 16, hidden: int = 40) -> nn.Module:
    norms = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
    block = Block(Attention(width, 4, 2, True, True, False), Gated(width, hidden), norms, True)
    return Language(block, width, False, False)


class Vision(nn.Module):
    """Patches of a picture, a class token, a block; the class token decides."""

    def __init__(self) -> None:
        super().__init__()
        feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.chosen, self.positions = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 10, 16))
        norms = nn.LayerNorm(16, eps=1e-6), nn.LayerNorm(16, eps=1e-6)
        self.block = Block(Attention(16, 2, 2, False, False, True), feed, norms, first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, picture: Tensor) -> Tensor:
        x = self.patches(picture).flatten(2).transpose(1, 2)
        x = torch.cat([self.chosen.expand(len(x), -1, -1), x], 1) + self.positions
        made: Tensor = self.head(self.block(x)[:, 0])
        return made


class Residual(nn.Module):
    """A stem, a bottleneck that halves the picture, a pool, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.body = nn.Sequential(
            nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, picture: Tensor) -> Tensor:
        x = self.stem(picture)
        made: Tensor = self.head(F.relu_(self.body(x) + self.short(x)))
        return made


def tokens() -> Tensor:
    return torch.randint(0, 50, (2, 7))


def picture() -> Tensor:
    return torch.randn(2, 3, 12, 12)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "bert": (bert, tokens), "gpt2": (gpt2, tokens), "llama": (llama, tokens), "vit": (Vision, picture),
    "resnet": (Residual, picture),
}  # fmt: skip
