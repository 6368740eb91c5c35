"""CPU targets: vector width by feature, cache sizes by detection, and the fused-multiply-add panels as tensor instructions."""

from __future__ import annotations

from compiler.targets.target import Instruction, Target

KiB, MiB = 1024, 1024 * 1024

# Vector bytes by feature, widest first (x86 manuals: SSE 128, AVX2 256, AVX-512 512 bits).
_WIDTHS = (("avx512f", 64), ("avx2", 32), ("sse2", 16))


def panel(rows: int, vectors: int, lanes: int, dtype: str, feature: str) -> Instruction:
    """A register tile of `rows` x `vectors` vector accumulators, fed by any number of k."""
    n = vectors * lanes
    return Instruction(
        f"panel.{rows}x{n}.{dtype}",
        feature,
        rows,
        n,
        0,
        dtype,
        dtype,
        dtype,
        "local",
        "local",
        "local",
        (("km", "kn"), ("mk", "kn")),
        "mlc_fma_panel",
    )


def target(
    features: tuple[str, ...],
    *,
    cores: int = 1,
    l1: int = 32 * KiB,
    l2: int = 512 * KiB,
    l3: int = 32 * MiB,
    name: str = "cpu",
) -> Target:
    """A CPU with those features (names as in /proc/cpuinfo)."""
    feature, vector = next(((f, w) for f, w in _WIDTHS if f in features), ("", 16))
    rows: list[Instruction] = []
    for dtype, size in (("f32", 4), ("f64", 8)):
        lanes = vector // size
        rows += [panel(m, v, lanes, dtype, feature) for v in (2, 3) for m in (1, 2, 3, 4, 5, 6)]
    return Target(name, "cpu", features, vector, cores, l1, l2, l3, tuple(rows))


AVX2 = target(("avx2", "fma", "f16c", "sse2"), name="cpu:avx2")
AVX512 = target(("avx512f", "avx2", "fma", "f16c", "sse2"), name="cpu:avx512")
BASELINE = target(("sse2",), name="cpu:baseline")
