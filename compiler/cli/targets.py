"""`mlcomp passes`: the passes with their invariants; `mlcomp targets`: the targets with caches and instructions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def passes(_: argparse.Namespace) -> int:
    from compiler.pipeline import pass_table  # noqa: PLC0415

    print(pass_table())
    return 0


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-v", action="store_true", dest="verbose", help="list every tensor instruction by name")


def targets(options: argparse.Namespace) -> int:
    from compiler.execution import named  # noqa: PLC0415  (detects the machine)

    for t in dict.fromkeys(map(named.target, named.TARGETS)):  # `cuda` may be one of the others
        if t.kind == "mlir":
            print(f"{t.name}: text of MLIR for other toolchains; {' '.join(t.features)}")
            continue
        if t.kind == "triton":
            print(f"{t.name}: kernels for Triton, whose compiler knows the GPU")
            continue
        caches = ", ".join(f"{size >> 10} KiB" for size in (t.l1, t.l2, t.l3) if size)
        cores = f"{t.cores} core{'s' if t.cores != 1 else ''}"
        width = f"warps of {t.warp}, {t.shared >> 10} KiB shared" if t.warp else f"{t.vector * 8}-bit vectors"
        print(f"{t.name}: {width}, {cores}, caches {caches}; {' '.join(t.features)}")
        names = [i.name for i in t.instructions]
        for line in names if options.verbose else _families(names):
            print(f"  {line}")
    return 0


def _families(names: Sequence[str]) -> list[str]:
    """Tensor instructions, one line per kind and dtype.

    >>> _families(["panel.1x8.f32", "panel.2x8.f32", "dot.1x1.f32"])
    ['panel.*.f32: 2 sizes, 1x8 to 2x8', 'dot.*.f32: 1 size, 1x1']
    """
    sizes_of: dict[str, list[str]] = {}
    for kind, size, *rest in (name.split(".") for name in names):
        sizes_of.setdefault(".".join([kind, "*", *rest]), []).append(size)
    return [
        f"{family}: {len(sizes)} sizes, {sizes[0]} to {sizes[-1]}" if sizes[1:] else f"{family}: 1 size, {sizes[0]}"
        for family, sizes in sizes_of.items()
    ]
