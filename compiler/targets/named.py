"""A target's name goes in, the target comes out: `cpu` is the machine that this runs on, the others are described."""

from __future__ import annotations

import functools

from compiler.errors import CompilerError
from compiler.runtime import detect
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target

_DESCRIBED = {t.name: t for t in (cpu.BASELINE, cpu.AVX2, cpu.AVX512, *nvidia.TARGETS)}
NAMES = ("cpu", *_DESCRIBED)
# What the compiler may use of this machine; the rest of /proc/cpuinfo makes no difference to it.
_FEATURES = (
    "sse2", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16", "avx512_fp16",
)  # fmt: skip


def target(name: str = "cpu") -> Target:
    """The target of that name; raises CompilerError for one that is not among NAMES."""
    if name == "cpu":
        return _this_cpu()
    if name not in _DESCRIBED:
        raise CompilerError(f"unknown target {name!r}: the targets are {', '.join(NAMES)}")
    return _DESCRIBED[name]


def missing(wanted: Target) -> tuple[str, ...]:
    """The features of a target that this machine lacks: with any, its code would end in an illegal instruction."""
    return tuple(f for f in wanted.features if f not in _this_cpu().features)


@functools.cache
def _this_cpu() -> Target:
    found = detect.cpu()
    features = tuple(f for f in _FEATURES if f in found.features)
    return cpu.target(features, cores=found.cores, l1=found.l1d, l2=found.l2, l3=found.l3)
