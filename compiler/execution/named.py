"""Targets by name: `cpu` and `cuda` are detected on this machine, the others are fixed descriptions."""

from __future__ import annotations

import functools

from compiler.errors import CompilerError
from compiler.runtime import detect
from compiler.targets import cpu, mlir, nvidia, triton
from compiler.targets.target import Target

_DESCRIBED = {
    t.name: t for t in (cpu.BASELINE, cpu.AVX2, cpu.AVX512, *nvidia.TARGETS, mlir.LINALG, mlir.TOSA, triton.TRITON)
}
TARGETS = ("cpu", "cuda", *_DESCRIBED)
OLDEST = 80  # the lowest supported compute capability
# The CPU features that the compiler uses; it ignores the others in /proc/cpuinfo.
_FEATURES = (
    "sse2", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16", "avx512_fp16",
    "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", detect.FAST_GATHER,
)  # fmt: skip


def target(name: str = "cpu") -> Target:
    """The target with this name; raises CompilerError for a name that is not in TARGETS.

    `cuda` is the GPU of this machine, or sm_90a if there is none. With the suffix `:strict`, the target has no tensor
    instructions that round f32 operands.
    """
    plain, _, variant = name.partition(":")
    if variant == "strict" and plain != "cpu":
        return nvidia.strict(target(plain))
    if name == "cpu":
        return _this_cpu()
    if name == "cuda":
        return _this_gpu()
    if name not in _DESCRIBED:
        raise CompilerError(f"unknown target {name!r}: the targets are {', '.join(TARGETS)}")
    return _DESCRIBED[name]


def cpus() -> tuple[str, ...]:
    """The names of the CPU targets whose code this machine can run, least capable first.

    >>> cpus()[0]
    'cpu:baseline'
    """
    return tuple(t.name for t in (cpu.BASELINE, cpu.AVX2, cpu.AVX512) if not missing(t))


def missing(wanted: Target) -> tuple[str, ...]:
    """The features of a CPU target that this machine lacks; code for it would use illegal instructions."""
    return tuple(f for f in wanted.features if f not in _this_cpu().features)


@functools.cache
def _this_cpu() -> Target:
    d = detect.cpu()
    features = tuple(f for f in _FEATURES if f in d.features)
    return cpu.target(features, cores=d.cores, l1=d.l1d, l2=d.l2, l3=d.l3, vendor=d.vendor)


@functools.cache
def _this_gpu() -> Target:
    detected = detect.gpu()
    if detected is None:
        return nvidia.SM_90A
    major, minor = detected.capability
    number = 10 * major + minor
    if number < OLDEST:
        raise CompilerError(f"this GPU has compute capability {major}.{minor}; mlcomp needs at least {OLDEST / 10}")
    # Only 9.0 has instructions that the compiler uses and that no later GPU keeps.
    return nvidia.target(f"sm_{number}{'a' if number == 90 else ''}", cores=detected.cores, l2=detected.l2)
