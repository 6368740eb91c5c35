"""A target's name goes in, the target comes out: `cpu` and `cuda` are this machine's own, the others are described."""

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
OLDEST = 80  # compute capability that the compiler makes code for
# What the compiler may use of this machine; the rest of /proc/cpuinfo makes no difference to it.
_FEATURES = (
    "sse2", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16", "avx512_fp16",
)  # fmt: skip


def target(name: str = "cpu") -> Target:
    """The target of that name; raises CompilerError for one that is not among TARGETS.

    `cuda` is the GPU of this machine, and sm_90a where there is none. A name that ends in `:strict` is the same target
    without tensor instructions that round numbers of f32.
    """
    plain, _, how = name.partition(":")
    if how == "strict" and plain != "cpu":
        return nvidia.strict(target(plain))
    if name == "cpu":
        return _this_cpu()
    if name == "cuda":
        return _this_gpu()
    if name not in _DESCRIBED:
        raise CompilerError(f"unknown target {name!r}: the targets are {', '.join(TARGETS)}")
    return _DESCRIBED[name]


def cpus() -> tuple[str, ...]:
    """The CPUs that are described and that this machine can stand for, least capable first.

    >>> cpus()[0]
    'cpu:baseline'
    """
    return tuple(t.name for t in (cpu.BASELINE, cpu.AVX2, cpu.AVX512) if not missing(t))


def missing(wanted: Target) -> tuple[str, ...]:
    """The features of a target that this machine lacks: with any, its code would end in an illegal instruction."""
    return tuple(f for f in wanted.features if f not in _this_cpu().features)


@functools.cache
def _this_cpu() -> Target:
    found = detect.cpu()
    features = tuple(f for f in _FEATURES if f in found.features)
    return cpu.target(features, cores=found.cores, l1=found.l1d, l2=found.l2, l3=found.l3)


@functools.cache
def _this_gpu() -> Target:
    found = detect.gpu()
    if found is None:
        return nvidia.SM_90A
    major, minor = found.capability
    number = 10 * major + minor
    if number < OLDEST:
        raise CompilerError(f"this GPU has compute capability {major}.{minor}; code is made from {OLDEST / 10} on")
    # Only 9.0 has instructions that the compiler uses and that no later GPU keeps.
    return nvidia.target(f"sm_{number}{'a' if number == 90 else ''}", cores=found.cores, l2=found.l2)
