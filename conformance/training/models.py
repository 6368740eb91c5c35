"""Models to train, in small and usual sizes, with data: a GPT, a BERT, a ResNet-18, a ViT and a UNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
RATE = 3e-4  # learning rate of full sizes


@dataclass(frozen=True)
class Size:
    """Sizes of a model and its batch: `width` in channels or features, `length` in tokens of a vocabulary of `words`
    (for images: classes), `pixels` and `patch` as side lengths; and the learning rate."""

    width: int
    heads: int = 1
    layers: int = 1
    batch: int = 4
    length: int = 0
    words: int = 0
    pixels: int = 0
    patch: int = 0
    rate: float = 3e-3


class Block(nn.Module):
    """A transformer layer with pre-normalisation."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        after: Tensor = x + self.mlp(self.second(x))
        return after


class Transformer(nn.Module):
    """A transformer that maps token ids to logits; `causal` as in a GPT, else bidirectional as in a BERT."""

    def __init__(self, s: Size, causal: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(s.words, s.width), nn.Embedding(s.length, s.width)
        self.layers = nn.Sequential(*(Block(s.width, s.heads, causal) for _ in range(s.layers)))
        self.norm = nn.LayerNorm(s.width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return F.linear(self.norm(self.layers(x)), self.tokens.weight)


class Vision(nn.Module):
    """A vision transformer: patches of an image are its tokens."""

    def __init__(self, s: Size) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, s.patch, stride=s.patch)
        self.places = nn.Parameter(torch.randn((s.pixels // s.patch) ** 2, s.width) * 0.02)
        self.layers = nn.Sequential(*(Block(s.width, s.heads, causal=False) for _ in range(s.layers)))
        self.head = nn.Linear(s.width, s.words)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        made: Tensor = self.head(self.layers(tokens).mean(1))
        return made


class Residual(nn.Module):
    """A residual block of a ResNet; with a stride above 1 its shortcut is a convolution."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Sequential()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(made + self.short(x))


def residual_network(s: Size) -> nn.Module:
    """Return a ResNet with `layers` stages of two blocks each; four stages of width 64 are ResNet-18."""
    widths = [s.width * 2**n for n in range(s.layers)]
    steps = [
        nn.Sequential(Residual(before, after, 2 if after > before else 1), Residual(after, after, 1))
        for before, after in zip([s.width, *widths], widths, strict=False)
    ]
    return nn.Sequential(
        nn.Conv2d(3, s.width, 7, 2, 3, bias=False), nn.BatchNorm2d(s.width), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *steps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], s.words),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net with one downsampling step and a skip connection."""

    def __init__(self, s: Size) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, s.width, 3, padding=1), nn.Conv2d(s.width, 2 * s.width, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 2 * s.width), nn.ConvTranspose2d(2 * s.width, s.width, 2, stride=2)
        self.leave = nn.Conv2d(3 * s.width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.silu(self.enter(x))
        inner = F.silu(self.norm(self.down(F.avg_pool2d(first, 2))))
        wide = F.interpolate(inner[:, : first.shape[1]], scale_factor=2.0, mode="nearest")
        made: Tensor = self.leave(torch.cat([first, self.up(inner), wide], 1))
        return made


@dataclass(frozen=True)
class Kind:
    """A kind of model: functions that make the model and a batch of inputs and targets, the loss, and two sizes."""

    make: Callable[[Size], nn.Module]
    batch: Callable[[Size], Batch]
    loss: Loss
    small: Size
    full: Size


def next_tokens(s: Size) -> Batch:
    ids = torch.randint(0, s.words, (s.batch, s.length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def masked_tokens(s: Size) -> Batch:
    ids = torch.randint(0, s.words, (s.batch, s.length))
    hidden = torch.rand(s.batch, s.length) < 0.3
    return ids.masked_fill(hidden, 0), ids.masked_fill(~hidden, -100)


def labelled_images(s: Size) -> Batch:
    return torch.randn(s.batch, 3, s.pixels, s.pixels), torch.randint(0, s.words, (s.batch,))


def image_pairs(s: Size) -> Batch:
    return torch.randn(s.batch, 3, s.pixels, s.pixels), torch.randn(s.batch, 3, s.pixels, s.pixels)


def class_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


MODELS: Mapping[str, Kind] = {
    "gpt": Kind(
        lambda s: Transformer(s, causal=True), next_tokens, class_loss,
        Size(16, 2, 2, length=12, words=11), Size(768, 12, 2, batch=8, length=512, words=50257, rate=RATE),
    ),
    "bert": Kind(
        lambda s: Transformer(s, causal=False), masked_tokens, class_loss,
        Size(16, 2, 1, length=12, words=11), Size(768, 12, 2, batch=32, length=128, words=30522, rate=RATE),
    ),
    "resnet": Kind(
        residual_network, labelled_images, class_loss,
        Size(4, layers=2, batch=6, words=5, pixels=16), Size(64, layers=4, batch=32, words=1000, pixels=224, rate=RATE),
    ),
    "vit": Kind(
        Vision, labelled_images, class_loss,
        Size(16, 2, 1, batch=6, words=5, pixels=8, patch=4),
        Size(768, 12, 2, batch=16, words=1000, pixels=224, patch=16, rate=RATE),
    ),
    "unet": Kind(UNet, image_pairs, F.mse_loss, Size(4, batch=2, pixels=8), Size(64, batch=4, pixels=128, rate=RATE)),
}  # fmt: skip
