"""A compiler from PyTorch programs to native code, through six intermediate representations, each of which runs.

```
captured = capture(function, inputs)              # Torch IR, with the weights found
lowering = lower(captured.program, target("cpu")) # every stage: lowering.show("tile")
execute(lowering, "tile", inputs)                 # run one stage by its own executor
compile(function, inputs)                         # the function, compiled
```
Names are loaded when first used, so that the IRs can be imported without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from compiler.errors import (
    CacheError,
    CompilerError,
    InvalidData,
    ToolchainError,
    UncheckedWarning,
    Undetermined,
    Unsupported,
)

if TYPE_CHECKING:
    from compiler.checks.inspection import inspect
    from compiler.checks.instructions.checks import NotRun, instruction_checks
    from compiler.checks.mutation import mutants
    from compiler.execution.buffers import memory_schedule
    from compiler.execution.dumps import load
    from compiler.execution.executable import (
        Executable,
        accuracy,
        compile,
        eager_equations,
        execute,
        execute_guarded,
        headers,
        rebuild,
        reference,
    )
    from compiler.execution.gpu_programs import architecture, on_gpu
    from compiler.execution.mlir import to_mlir
    from compiler.execution.named import TARGETS, cpus, target
    from compiler.execution.tuning.command import Wish, limits, tune
    from compiler.frontend import (
        Captured,
        FirstOfEqual,
        capture,
        capture_gradient,
        decompositions,
        from_graph,
        gradient,
        specialised,
        with_results,
    )
    from compiler.interpret.accumulated import Moments, moments
    from compiler.interpret.bounded import Accuracy
    from compiler.interpret.bounds import bounds
    from compiler.ir.stages import IRS
    from compiler.onnx import from_onnx
    from compiler.passes.applications import Application
    from compiler.pipeline import PIPELINE, STAGES, Lowering, lower, passes_for, read_schedules, space, stages
    from compiler.runtime.folders import locked_folder, sweep_folders
    from compiler.schedule.files import show as show_schedules
    from compiler.schedule.space.members import Planned
    from compiler.schedule.steps import Schedule
    from compiler.targets.target import Target

_HOME = {
    "compiler.execution.buffers": ("memory_schedule",),
    "compiler.execution.dumps": ("load",),
    "compiler.execution.executable": (
        "Executable", "accuracy", "compile", "eager_equations", "execute", "execute_guarded", "headers",
        "rebuild", "reference",
    ),
    "compiler.execution.tuning.command": ("Wish", "limits", "tune"),
    "compiler.execution.gpu_programs": ("architecture", "on_gpu"),
    "compiler.execution.mlir": ("to_mlir",),
    "compiler.execution.named": ("TARGETS", "cpus", "target"),
    "compiler.frontend": (
        "Captured", "FirstOfEqual", "capture", "capture_gradient", "decompositions", "from_graph", "gradient",
        "specialised", "with_results",
    ),
    "compiler.checks.instructions.checks": ("NotRun", "instruction_checks"),
    "compiler.checks.inspection": ("inspect",),
    "compiler.interpret.accumulated": ("Moments", "moments"),
    "compiler.interpret.bounded": ("Accuracy",),
    "compiler.interpret.bounds": ("bounds",),
    "compiler.checks.mutation": ("mutants",),
    "compiler.ir.stages": ("IRS",),
    "compiler.onnx": ("from_onnx",),
    "compiler.pipeline": (
        "PIPELINE", "STAGES", "Lowering", "lower", "passes_for", "read_schedules", "space", "stages",
    ),
    "compiler.schedule.space.members": ("Planned",),
    "compiler.passes.applications": ("Application",),
    "compiler.runtime.folders": ("locked_folder", "sweep_folders"),
    "compiler.schedule.steps": ("Schedule",),
    "compiler.targets.target": ("Target",),
}  # fmt: skip
_WHERE = {name: (module, name) for module, names in _HOME.items() for name in names}
_WHERE["show_schedules"] = ("compiler.schedule.files", "show")  # which is called `show` among its own


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    value: object = getattr(import_module(_WHERE[name][0]), _WHERE[name][1])
    globals()[name] = value
    return value


__all__ = [
    "IRS",
    "PIPELINE",
    "STAGES",
    "TARGETS",
    "Accuracy",
    "Application",
    "CacheError",
    "Captured",
    "CompilerError",
    "Executable",
    "FirstOfEqual",
    "InvalidData",
    "Lowering",
    "Moments",
    "NotRun",
    "Planned",
    "Schedule",
    "Target",
    "ToolchainError",
    "UncheckedWarning",
    "Undetermined",
    "Unsupported",
    "Wish",
    "accuracy",
    "architecture",
    "bounds",
    "capture",
    "capture_gradient",
    "compile",
    "cpus",
    "decompositions",
    "eager_equations",
    "execute",
    "execute_guarded",
    "from_graph",
    "from_onnx",
    "gradient",
    "headers",
    "inspect",
    "instruction_checks",
    "limits",
    "load",
    "locked_folder",
    "lower",
    "memory_schedule",
    "moments",
    "mutants",
    "on_gpu",
    "passes_for",
    "read_schedules",
    "rebuild",
    "reference",
    "show_schedules",
    "space",
    "specialised",
    "stages",
    "sweep_folders",
    "target",
    "to_mlir",
    "tune",
    "with_results",
]
