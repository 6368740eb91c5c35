"""Models that `torch.onnx.export` writes, compiled from their files, beside eager and f64: `python -m` this, and names.

ResNet-50 is written out here; BERT and GPT-2 are those of the transformers package, with random weights.
"""

from __future__ import annotations

import copy
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import compiler
from conformance.judge import oracle

Made = tuple[nn.Module, tuple[Tensor, ...]]


class _Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *_conv(inside, width, 1), nn.ReLU(), *_conv(width, width, 3, stride), nn.ReLU(), *_conv(width, out, 1)
        )
        self.beside = nn.Sequential(*_conv(inside, out, 1, stride) if stride > 1 or inside != out else ())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.beside(x))


def _conv(inside: int, out: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    norm = nn.BatchNorm2d(out)
    nn.init.normal_(norm.running_mean, std=0.1)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return nn.Conv2d(inside, out, kernel, stride, kernel // 2, bias=False), norm


def resnet50() -> Made:
    layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for n in range(count):
            layers.append(_Bottleneck(inside, width, 2 if n == 0 and width > 64 else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000)]
    return nn.Sequential(*layers), (torch.randn(1, 3, 224, 224),)


class _States(nn.Module):
    """A model of transformers by its last hidden states alone."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        made: Tensor = self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]
        return made


def bert() -> Made:
    transformers: Any = importlib.import_module("transformers")
    tokens, mask = torch.randint(0, 30522, (1, 128)), torch.ones(1, 128, dtype=torch.int64)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return _States(transformers.BertModel(transformers.BertConfig()), names), (tokens, mask, mask * 0)


def gpt2() -> Made:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.GPT2Config(n_layer=1, use_cache=False)
    return _States(transformers.GPT2Model(config), ("input_ids",)), (torch.randint(0, 50257, (1, 64)),)


MODELS: dict[str, Callable[[], Made]] = {"resnet50": resnet50, "bert": bert, "gpt2": gpt2}


def main(names: list[str]) -> int:
    wrong = 0
    for name in names or list(MODELS):
        module, inputs = MODELS[name]()
        module.eval()
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            torch.onnx.export(module, inputs, Path(folder, "model.onnx"), dynamo=True, verbose=False)
            start = time.perf_counter()
            captured = compiler.from_onnx(Path(folder, "model.onnx"))
            between = time.perf_counter()
            fast = compiler.compile(captured)
            end = time.perf_counter()
            ours, eager = fast(*inputs)[0], module(*inputs)
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            exact = copy.deepcopy(module).double()(*wide)
        right, error, said = oracle.quick_compare(ours, eager, exact)
        far = [float((x.double() - exact).abs().max()) for x in (ours, eager)]
        print(f"{name}: {len(captured.program.calls)} calls in {between - start:.1f} s, ", end="")
        print(f"{fast.kernels} kernels in {end - between:.1f} s; ", end="")
        print(f"error {far[0]:.2g}, eager's {far[1]:.2g}, {error:.2f} of the tolerance: {said or 'ok'}", flush=True)
        wrong += not right
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
