"""What `mlcomp run --model` and `mlcomp explain --model` are asked of a model of the transformers package."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from compiler.cli.sources import Senseless, loading

if TYPE_CHECKING:
    from compiler.execution.models import Wanted


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", metavar="NAME", help="instead of -c: a folder with config.json, or a name on the hub"
    )
    command.add_argument("--random-weights", action="store_true", help="of the model, instead of those stored")
    command.add_argument("--layers", type=int, default=0, metavar="N", help="so many of the model's layers")
    command.add_argument("--phase", choices=("prefill", "decode"), default="prefill", help="of a model that decodes")
    command.add_argument("--tokens", type=int, default=128, metavar="N", help="given, or in the cache when decoding")
    command.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32", help="of the model")


def wanted(given: argparse.Namespace) -> Wanted:
    with loading():
        from compiler.execution import models  # noqa: PLC0415

    if given.code is not None or getattr(given, "source", None) is not None:
        raise Senseless("--model takes the place of -c and --from")
    if given.tokens < 1 or given.layers < 0:
        raise Senseless("--tokens and --layers count from 1")
    return models.Wanted(
        given.model, given.random_weights, given.layers, given.phase, given.tokens, given.dtype, given.seed
    )


def device(given: argparse.Namespace) -> str:
    """Where the model is to be: on the GPU for its targets."""
    from compiler.execution import named  # noqa: PLC0415

    return named.target(given.target or "cpu").kind


def run(given: argparse.Namespace) -> int:
    """Compile a call, compare it with eager's and f64's, and time both if told to."""
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
