"""What a command line names as the program, an expression or an edited text; the program out."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError


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
    if options.source is not None:
        return read(options.source)
    with loading():
        from compiler import expression  # noqa: PLC0415

    return "torch", expression.capture(expression_text(options), options.seed)[2].program


def read(path: Path) -> tuple[str, Any]:
    """The stage and the program that a file holds."""
    from compiler.pipeline import IRS  # noqa: PLC0415

    stage = path.suffix.lstrip(".")
    if stage not in IRS:
        raise Senseless(f"--from {path}: the suffix must name the stage: {', '.join('.' + s for s in IRS)}")
    try:
        program = IRS[stage].parse(read_text(path))
        IRS[stage].verify(program)
    except KeyError as problem:
        raise CompilerError(f"{path}: unknown name {problem}") from problem
    except ValueError as problem:
        first, *more = str(problem).splitlines()  # what was read wrong may be a loop with all that is in it
        raise CompilerError(f"{path}: {first}{' …' if more else ''}") from problem
    return stage, program


def read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"not a text: byte {problem.start + 1} is not UTF-8") from problem
    if "\0" in text:
        raise ValueError(f"not a text: it has a zero byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
    return text


def expression_text(options: argparse.Namespace) -> str:
    if options.code is None:
        raise Senseless('say what to compile, for example: -c "F.rms_norm(torch.randn(1, 32, 2048), (2048,))"')
    return str(options.code)
