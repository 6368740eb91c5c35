"""`mlcomp run --model`: run a model of transformers; and the options that it shares with `mlcomp explain --model`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from compiler.cli.sources import UsageError, interruptible_import

if TYPE_CHECKING:
    from compiler.execution.models import ModelRequest


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        metavar="NAME",
        help="instead of -c: a transformers model, a folder with config.json or a name on the hub",
    )
    command.add_argument(
        "--random-weights",
        action="store_true",
        default=None,
        help="use random weights for --model instead of stored ones",
    )
    command.add_argument("--layers", type=int, metavar="N", help="use only the first N layers of --model")
    command.add_argument(
        "--phase", choices=("prefill", "decode"), help="the call of --model to compile (default: prefill)"
    )
    command.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="tokens given to --model, or in its cache when decoding (default: 128)",
    )
    command.add_argument("--dtype", choices=("f32", "bf16", "f16"), help="dtype of --model (default: f32)")


_ONLY_OF_MODELS = ("random_weights", "layers", "phase", "tokens", "dtype")  # None if not given


def _given(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in _ONLY_OF_MODELS if (value := getattr(options, name)) is not None}


def check_no_model_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options of --model where there is none."""
    given = [f"--{name.replace('_', '-')}" for name in _given(options)]
    if given:
        raise UsageError(f"{', '.join(given)} {'works' if len(given) == 1 else 'work'} only with --model")


def model_request(options: argparse.Namespace) -> ModelRequest:
    with interruptible_import():
        from compiler.execution import models  # noqa: PLC0415

    if options.code is not None or getattr(options, "source", None) is not None:
        raise UsageError("--model cannot be combined with -c or --from")
    given = _given(options)
    if given.get("tokens", 1) < 1 or given.get("layers", 0) < 0:
        raise UsageError("--tokens must be at least 1, and --layers must not be negative")
    return models.ModelRequest(options.model, seed=options.seed, **given)


def device(options: argparse.Namespace) -> str:
    """The device for the model: the GPU for GPU targets, if there is one."""
    from compiler.execution import gpu_programs, named  # noqa: PLC0415

    machine = named.target(options.target or "cpu")
    return gpu_programs.tensors_on(machine) if machine.kind == "cuda" else machine.kind


def run(options: argparse.Namespace) -> int:
    """Compile a call of the model, compare its error against f64 with eager's and, with --bench, time both."""
    request = model_request(options)
    with interruptible_import():
        from compiler import backend  # noqa: PLC0415
        from compiler.execution import models, named  # noqa: PLC0415
        from compiler.runtime.device import unavailable_reason  # noqa: PLC0415

    place = device(options)
    if named.target(options.target or "cpu").kind == "cuda" and place == "cpu":
        reason = unavailable_reason()
        raise UsageError(f"models are not run emulated, and there is no GPU: {reason}; explain --model needs none")
    errors = models.compare(request, place, backend.mlcomp, options.bench, options.quantize)
    is_correct = errors.ours <= errors.allowed
    verdict = "ok" if is_correct else "WRONG"
    print(f"largest error {errors.ours:.3g}, eager's {errors.eager:.3g}, allowed {errors.allowed:.3g}: {verdict}")
    if errors.quantization is not None:
        print(f"quantization changes results by at most {errors.quantization:.3g}")
    if options.bench:
        eager, ours = errors.times["eager"], errors.times["mlcomp"]
        print(f"eager {eager * 1e3:.3f} ms, mlcomp {ours * 1e3:.3f} ms: {eager / ours:.2f}x")
    return 0 if is_correct else 1
