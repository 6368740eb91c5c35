"""`mlcomp run --model`: run a model of transformers; and the options that it shares with `mlcomp explain --model`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from compiler.cli.sources import Senseless, loading

if TYPE_CHECKING:
    from compiler.execution.models import ModelRequest


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        metavar="NAME",
        help="instead of -c: a transformers model, a folder with config.json or a name on the hub",
    )
    command.add_argument(
        "--random-weights", action="store_true", help="use random weights for --model instead of stored ones"
    )
    command.add_argument("--layers", type=int, default=0, metavar="N", help="use only the first N layers of --model")
    command.add_argument(
        "--phase", choices=("prefill", "decode"), default="prefill", help="the call of --model to compile"
    )
    command.add_argument(
        "--tokens", type=int, default=128, metavar="N", help="tokens given to --model, or in its cache when decoding"
    )
    command.add_argument(
        "--dtype", choices=("f32", "bf16", "f16"), default="f32", help="dtype of --model (default: f32)"
    )


def wanted(given: argparse.Namespace) -> ModelRequest:
    with loading():
        from compiler.execution import models  # noqa: PLC0415

    if given.code is not None or getattr(given, "source", None) is not None:
        raise Senseless("--model cannot be combined with -c or --from")
    if given.tokens < 1 or given.layers < 0:
        raise Senseless("--tokens must be at least 1, and --layers must not be negative")
    return models.ModelRequest(
        given.model, given.random_weights, given.layers, given.phase, given.tokens, given.dtype, given.seed
    )


def device(given: argparse.Namespace) -> str:
    """The device for the model: the GPU for GPU targets."""
    from compiler.execution import named  # noqa: PLC0415

    return named.target(given.target or "cpu").kind


def run(given: argparse.Namespace) -> int:
    """Compile a call of the model, compare its error against f64 with eager's and, with --bench, time both."""
    chosen = wanted(given)
    with loading():
        from compiler import backend  # noqa: PLC0415
        from compiler.execution import models  # noqa: PLC0415

    ran = models.compare(chosen, device(given), backend.mlcomp, given.bench, given.quantize)
    right = ran.ours <= ran.allowed
    verdict = "ok" if right else "WRONG"
    print(f"largest error {ran.ours:.3g}, eager's {ran.eager:.3g}, allowed {ran.allowed:.3g}: {verdict}")
    if ran.quantization is not None:
        print(f"quantization changes results by at most {ran.quantization:.3g}")
    if given.bench:
        eager, ours = ran.times["eager"], ran.times["mlcomp"]
        print(f"eager {eager * 1e3:.3f} ms, mlcomp {ours * 1e3:.3f} ms: {eager / ours:.2f}x")
    return 0 if right else 1
