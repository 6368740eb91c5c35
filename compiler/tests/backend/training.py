"""Small models trained on fixed data, compiled and in eager: the losses of every step, and how far apart they may be.

As a script it trains longer: python -m compiler.tests.backend.training --steps 200 [names of models]
"""

import argparse
import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """A layer of a transformer, normalised before its parts."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        after: Tensor = x + self.mlp(self.second(x))
        return after


class Transformer(nn.Module):
    """Tokens in; for each of them scores of all tokens out, of the one that follows or of the one that is there."""

    def __init__(self, causal: bool, layers: int, width: int = 16, tokens: int = 11, length: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Block(width, 2, causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return F.linear(self.norm(self.layers(x)), self.tokens.weight)


class Vision(nn.Module):
    """Patches of an image as the tokens of a transformer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.places = nn.Parameter(torch.randn(4, width) * 0.02)
        self.layers, self.head = Block(width, 2, causal=False), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        made: Tensor = self.head(self.layers(tokens).mean(1))
        return made


class Residual(nn.Module):
    """Convolutions around which what goes in is added, with half as many pixels and more channels where asked for."""

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


def residual_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(4, 4, 1), Residual(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class UNet(nn.Module):
    """Down to half as many pixels and up again, with what there was before beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.leave = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.silu(self.enter(x))
        inner = F.silu(self.norm(self.down(F.avg_pool2d(first, 2))))
        wide = F.interpolate(inner[:, :4], scale_factor=2.0, mode="nearest")
        made: Tensor = self.leave(torch.cat([first, self.up(inner), wide], 1))
        return made


def tokens() -> Batch:
    ids = torch.randint(0, 11, (4, 13))
    return ids[:, :-1], ids[:, 1:]


def masked_tokens() -> Batch:
    ids = torch.randint(0, 11, (4, 12))
    hidden = torch.rand(4, 12) < 0.3
    return ids.masked_fill(hidden, 0), ids.masked_fill(~hidden, -100)


def images() -> Batch:
    return torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))


def pictures() -> Batch:
    return torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)


def classes(scores: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), wanted.flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch], Callable[[Tensor, Tensor], Tensor]]] = {
    "gpt": (lambda: Transformer(True, 2), tokens, classes),
    "bert": (lambda: Transformer(False, 1), masked_tokens, classes),
    "resnet": (residual_network, images, classes),
    "vit": (Vision, images, classes),
    "unet": (UNet, pictures, F.mse_loss),
}


def losses(
    model: nn.Module, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor], steps: int, compiled: bool = False
) -> Tensor:
    """The loss of each step; compiled, with nothing left to eager."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def forward(x: Tensor, wanted: Tensor) -> Tensor:
        return loss(model(x), wanted)

    run = torch.compile(forward, backend="mlcomp", fullgraph=True, options={"fallback": False}) if compiled else forward
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        made = run(*batch)
        torch.autograd.backward(made)
        optimizer.step()
        found.append(made.detach().double())
    return torch.stack(found)


def compare(name: str, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The losses compiled, in eager and in f64, from the same weights on the same data."""
    torch.manual_seed(seed)
    torch.compiler.reset()
    make, data, loss = MODELS[name]
    model, batch = make(), data()
    exact = tuple(x.double() if x.is_floating_point() else x for x in batch)
    return (
        losses(copy.deepcopy(model), batch, loss, steps, compiled=True),
        losses(copy.deepcopy(model), batch, loss, steps),
        losses(copy.deepcopy(model).double(), (exact[0], exact[1]), loss, steps),
    )


def apart(ours: Tensor, eager: Tensor, exact: Tensor) -> tuple[float, float]:
    """How far we are from f64 at most, and how far eager is; at least the rounding of a loss."""
    rounding = 2.0**-22 * float(exact.abs().max())
    return float((ours - exact).abs().max()), max(float((eager - exact).abs().max()), rounding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in given.names or MODELS:
        ours, eager, exact = compare(name, given.steps, given.seed)
        far, spread = apart(ours, eager, exact)
        print(f"{name:8} loss {exact[0]:.4f} to {exact[-1]:.4f}, from f64: compiled {far:.2g}, eager {spread:.2g}")


if __name__ == "__main__":
    main()
