"""Triton as a target: its own compiler knows the machine; a schedule states only blocks and tiles."""

from __future__ import annotations

from compiler.targets.target import Target

TRITON = Target("triton", "triton", ("triton",), vector=0, cores=132, l1=0, l2=0, l3=0, warp=32)
