"""MLIR as a target: other toolchains compile for the machine."""

from __future__ import annotations

from compiler.targets.target import Target

LINALG = Target("mlir", "mlir", ("linalg",), vector=0, cores=1, l1=0, l2=0, l3=0)
TOSA = LINALG.replace(name="mlir:tosa", features=("tosa",))
DIALECTS = {"linalg": LINALG, "tosa": TOSA}
