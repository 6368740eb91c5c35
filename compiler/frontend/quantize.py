"""Quantize the weights of captured programs to integers or 8-bit floats with scales, once, at compile time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from compiler.frontend.trace import Captured
from compiler.passes import quantize as rewriting
from compiler.passes.quantize import CHUNK, Quantized


def quantized(captured: Captured, mode: str, weights: Mapping[str, torch.Tensor] | None = None) -> Captured:
    """The program with its products by weights quantized, as `passes.quantize` specifies.

    `weights` are values of inputs by name, by default those of the constant ones. A weight that is no longer read is
    removed from inputs and arguments. Raises CompilerError for an unknown mode.
    """
    weight_values = dict(captured.constants if weights is None else weights)
    program, quantized_weights = rewriting.quantize(captured.program, mode, weight_values)
    values = dict(captured.constants)
    for w in quantized_weights:
        values[w.values], values[w.scales] = quantize_weight(weight_values[w.weight], w)
    read_names = {i.name for i in program.inputs}
    return replace(
        captured,
        program=program,
        constants={name: x for name, x in values.items() if name in read_names},
        arguments=tuple(name for name in captured.arguments if name in read_names),
    )


def quantize_weight(weight: torch.Tensor, scheme: Quantized) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest integers and their scales. The largest magnitude of a group maps to the largest integer."""
    wide = (weight.detach().t() if scheme.across else weight.detach()).to(torch.float64)
    grouped = wide.reshape(wide.shape[0], -1, scheme.group)
    largest = rewriting.MOST["f8e4m3"] if scheme.floats else 2 ** (scheme.bits - 1) - 1
    dtype = weight.dtype if scheme.bits == 4 or weight.dtype is torch.float64 else torch.float32
    scales = (grouped.abs().amax(-1) / largest).to(dtype)
    divisors = scales.double().masked_fill(scales == 0, 1.0)[..., None]
    if scheme.floats:
        return (grouped / divisors).reshape(wide.shape).float().to(torch.float8_e4m3fn), scales[:, 0].contiguous()
    codes = (grouped / divisors).round().clamp(-largest - (scheme.bits == 4), largest).reshape(wide.shape)
    if scheme.bits == 8:
        return codes.to(torch.int8), scales[:, 0].contiguous()
    low, high = (codes + 8).to(torch.uint8).reshape(len(wide), -1, 2, CHUNK // 2).unbind(2)
    return (low | high << 4).contiguous(), scales / 16


def rounded(x: torch.Tensor, mode: str, away: float = 0.0) -> torch.Tensor:
    """Activations after quantizing, in f64: per row, 8-bit numbers times a scale.

    Unchanged in a mode that quantizes only weights. Numbers are moved `away` from 0, in units of the integers, before
    they are rounded.
    """
    if mode not in rewriting.OF_ACTIVATIONS:
        return x.double()
    wide, largest = x.double(), rewriting.MOST[rewriting.OF_ACTIVATIONS[mode]]
    scales = (wide.abs().amax(-1, keepdim=True) / largest).clamp_min(rewriting.LEAST)
    scaled = wide / scales
    scaled = scaled + away * scaled.sign()
    if mode == "fp8":
        return scaled.float().to(torch.float8_e4m3fn).double() * scales
    return scaled.round().clamp(-largest, largest) * scales


def restored(weight: torch.Tensor, mode: str, across: bool = False) -> torch.Tensor:
    """A weight after quantizing, in f64: integers times scales; unchanged if it would not be quantized."""
    rows, depth = reversed(weight.shape) if across else weight.shape
    bits, group = rewriting.grouping(mode, depth)
    if bits == 4 and group < CHUNK:
        return weight.detach().double()
    values, scales = quantize_weight(weight, Quantized("", across, "", "", bits, group, mode == "fp8"))
    wide = values.double()
    if bits == 4:
        codes = torch.stack((values & 15, values >> 4), 2).reshape(rows, depth)
        wide = (codes.double() - 8).reshape(rows, -1, group) * scales.double()[..., None] * 16
    else:
        wide = wide * scales.double()[:, None]
    wide = wide.reshape(rows, depth)
    return wide.t() if across else wide
