"""The IRs in order of lowering, with their printers, parsers and verifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.ir import aten, aten_text, kernel, kernel_text, loop, loop_text, tensor, tensor_text, tile, tile_text


@dataclass(frozen=True)
class Stage:
    """Operations on programs of a stage: print, parse, verify."""

    show: Callable[[Any], str]
    parse: Callable[[str], Any]
    verify: Callable[[Any], None]


IRS: dict[str, Stage] = {
    "torch": Stage(aten_text.show, aten_text.parse, aten.verify),
    "tensor": Stage(tensor_text.show, tensor_text.parse, tensor.verify),
    "loop": Stage(loop_text.show, loop_text.parse, loop.verify),
    "tile": Stage(tile_text.show, tile_text.parse, tile.verify),
    "kernel": Stage(kernel_text.show, kernel_text.parse, kernel.verify),
}
