"""What a command line names as the program, an expression or an edited text; the program out."""

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


class Senseless(Exception):
    """The command line asks for what cannot be."""


@contextmanager
def loading() -> Iterator[None]:
    """While PyTorch is imported, which swallows some interrupts, one ends the process at once: nothing is half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> None:
    os.write(2, b"mlcomp: interrupted\n")
    os._exit(130)


def program(options: argparse.Namespace) -> tuple[str, Any]:
    """The stage that it is of, and the program."""
    if options.source is not None:
        from compiler.execution import dumps  # noqa: PLC0415

        dump(options.source, "--from")
        return dumps.read(options.source)
    with loading():
        from compiler.execution import expression  # noqa: PLC0415
        from compiler.onnx import from_onnx  # noqa: PLC0415

    if options.onnx is not None:
        return "torch", from_onnx(options.onnx, dict(options.shapes)).program
    return "torch", expression.capture(expression_text(options), options.seed)[2].program


def dump(path: Path, what: str) -> None:
    """Refuse a file whose name says no stage."""
    from compiler.execution import dumps  # noqa: PLC0415

    if dumps.stage_of(path) is None:
        raise Senseless(f"{what} {path}: the suffix must name the stage: {', '.join(dumps.SUFFIXES)}")


def schedule_text(options: argparse.Namespace) -> str:
    """The text of the file that the option names, or nothing."""
    from compiler.execution import dumps  # noqa: PLC0415

    return dumps.read_text(options.schedule) if options.schedule is not None else ""


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> _shape("x=f32[33, 2048]")
    ('x', (33, 2048))
    """
    found = re.fullmatch(r"\s*([^\s=]+)\s*=\s*(?:\w+)?\[([\d,\s]*)\]\s*", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=[SIZES], for example x=[33, 2048]")
    return found[1], tuple(int(n) for n in found[2].split(",") if n.strip())


# Options of several commands: where a program and its inputs come from, and how its kernels are to run.
_SHARED: dict[str, dict[str, Any]] = {
    "-c": {"dest": "code", "metavar": "EXPRESSION",
           "help": "an expression over torch, F and nn; torch.randn(..) and its like are the inputs"},
    "--onnx": {"type": Path, "metavar": "FILE", "help": "instead of -c: an ONNX model"},
    "--arg": {"dest": "shapes", "type": _shape, "action": "append", "default": [], "metavar": "NAME=[SIZES]", "help":
              "the shape of an input whose sizes are left open, for example x=[33, 2048]; may be given several times"},
    "--schedule": {"type": Path, "metavar": "FILE",
                   "help": "steps for kernels instead of those that the heuristic chooses, as "
                           "--ir schedule of show prints them"},
    "--target": {"help": "cpu, the default, is this machine, cuda its GPU; `mlcomp targets` lists all"},
    "--seed": {"type": int, "default": 0, "help": "of the random inputs (default: 0)"},
}  # fmt: skip


def add_shared(command: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        command.add_argument(name, **_SHARED[name])


def expression_text(options: argparse.Namespace) -> str:
    if options.code is None:
        raise Senseless('say what to compile, for example: -c "F.rms_norm(torch.randn(1, 32, 2048), (2048,))"')
    return str(options.code)
