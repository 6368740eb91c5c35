"""What this machine needs to run the code of a target."""

from importlib import import_module

from compiler.execution import named


def missing_requirement(name: str) -> str:
    """What a target needs to run and this machine has not: tools to install, or instructions; "" if it can run.

    The toolchain of C++ and GPUs, which can be emulated, are not looked for.
    """
    target = named.target(name)
    if target.kind in ("mlir", "triton"):
        # Only now, since that of Triton imports PyTorch.
        return str(import_module(f"compiler.runtime.{target.kind}").missing())
    if target.kind == "cpu" and (features := named.missing(target)):
        return (
            f"this machine cannot run code for {name}: it has no {', '.join(features)}; use {', '.join(named.cpus())}"
        )
    return ""
