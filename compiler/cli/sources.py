"""The program that a command line names: an expression, an ONNX model or a text."""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class UsageError(Exception):
    """Invalid usage of the command line; exit status 2."""


@contextmanager
def interruptible_import() -> Iterator[None]:
    """During the import of PyTorch, which swallows some interrupts, let an interrupt end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, _exit_on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit_on_interrupt(number: int, frame: object) -> None:
    os.write(2, b"mlcomp: interrupted\n")
    os._exit(130)


def program(options: argparse.Namespace) -> tuple[str, Any]:
    """The stage and the program."""
    if options.source is not None:
        from compiler.execution import dumps  # noqa: PLC0415

        check_suffix(options.source, "--from")
        return dumps.read(options.source)
    with interruptible_import():
        from compiler.execution import expression  # noqa: PLC0415
        from compiler.onnx import from_onnx  # noqa: PLC0415

    if options.onnx is not None:
        return "torch", from_onnx(options.onnx, dict(options.shapes)).program
    return "torch", expression.capture(expression_text(options), options.seed)[2].program


def check_suffix(path: Path, what: str) -> None:
    """Refuse a file whose suffix does not name a stage."""
    from compiler.execution import dumps  # noqa: PLC0415

    if dumps.stage_of(path) is None:
        raise UsageError(f"{what} {path}: the suffix must name the stage: {', '.join(dumps.SUFFIXES)}")


def schedule_text(options: argparse.Namespace) -> str:
    """The text of the file given by --schedule, or an empty string."""
    from compiler.execution import dumps  # noqa: PLC0415

    return dumps.read_text(options.schedule) if options.schedule is not None else ""


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> _parse_shape("x=f32[33, 2048]")
    ('x', (33, 2048))
    """
    match = re.fullmatch(r"\s*([^\s=]+)\s*=\s*(?:\w+)?\[([\d,\s]*)\]\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=[SIZES], for example x=[33, 2048]")
    return match[1], tuple(int(n) for n in match[2].split(",") if n.strip())


# Options shared by several commands: the program, its inputs, and the schedules of its kernels.
_SHARED: dict[str, dict[str, Any]] = {
    "-c": {"dest": "code", "metavar": "EXPRESSION",
           "help": "the program, an expression over torch, F and nn; calls such as torch.randn(..) are its inputs"},
    "--onnx": {"type": Path, "metavar": "FILE", "help": "instead of -c: an ONNX model"},
    "--arg": {"dest": "shapes", "type": _parse_shape, "action": "append", "default": [], "metavar": "NAME=[SIZES]",
              "help": "shape of an input whose sizes are not fixed, for example x=[33, 2048]; may be repeated"},
    "--schedule": {"type": Path, "metavar": "FILE",
                   "help": "schedules that replace the heuristic's, in the format of `mlcomp show --ir schedule`"},
    "--target": {"help": "cpu (default) is this machine, cuda its GPU; `mlcomp targets` lists all"},
    "--seed": {"type": int, "default": 0, "help": "seed of the random inputs (default: 0)"},
}  # fmt: skip


def add_shared(command: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        command.add_argument(name, **_SHARED[name])


def check_above_zero(option: str, number: int | None, remedy: str) -> None:
    """Refuse a number of an option that is given and not above 0; `remedy` says what to do instead."""
    if number is not None and number < 1:
        raise UsageError(f"{option}: {number} is not a number above 0; {remedy}")


def expression_text(options: argparse.Namespace) -> str:
    if options.code is None:
        raise UsageError('no program given; for example: -c "F.rms_norm(torch.randn(1, 32, 2048), (2048,))"')
    return str(options.code)
