"""`mlcomp explain`: the compiled regions, kernels and eager calls of an expression under torch.compile."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli import model, suite
from compiler.cli.sources import UsageError, check_above_zero, expression_text, interruptible_import

if TYPE_CHECKING:
    from compiler.pipeline import Lowering


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="shape files: show the memory of their benchmarks"
    )
    model.options(command)
    command.add_argument("--memory-limit", type=int, metavar="BYTES", help="limit for the temporaries of a program")
    command.add_argument(
        "-v", dest="verbose", action="store_true", help="list the offset and live range of each temporary"
    )


def explain(options: argparse.Namespace) -> int:
    check_above_zero("--memory-limit", options.memory_limit, "remove the option for no limit")
    if options.model is None:
        model.check_no_model_options(options)
    if options.files:
        if options.code is not None or options.model is not None or options.verbose:
            raise UsageError("for shape files explain shows the memory of their benchmarks: remove -c, --model and -v")
        return suite.run("conformance.judge.memory", _suite_arguments(options))
    with interruptible_import():
        from compiler import backend  # noqa: PLC0415
        from compiler.execution import expression, models  # noqa: PLC0415

    if options.model is not None:
        function, inputs = models.program(model.model_request(options), model.device(options))
    else:
        function, inputs = expression.program(expression_text(options), options.seed)
    settings = {"target": options.target, "memory_limit": options.memory_limit}
    backend_options: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    for number, report in enumerate(backend.explain(function, inputs, backend_options)):
        eager_calls = report.calls - sum(region.calls for region in report.regions)
        print(f"graph {number}: {report.calls} calls, {eager_calls} in eager")
        for position, region in enumerate(report.regions):
            print(f"  region {position}: {region.calls} calls, {', '.join(region.kernels)}")
            for line in temporaries(region.code, options.verbose):
                print(f"    {line}")
        for reason, count in report.eager.items():
            print(f"  eager: {reason} ({count} call{'s' if count > 1 else ''})")
    return 0


def _suite_arguments(options: argparse.Namespace) -> list[str]:
    arguments = {"--target": options.target, "--memory-limit": options.memory_limit}
    return [*map(str, options.files), *(w for name, x in arguments.items() if x is not None for w in (name, str(x)))]


def temporaries(code: Lowering, verbose: bool) -> Iterator[str]:
    """The arena of a program's temporaries in bytes, and the most bytes that are alive at one kernel."""
    from compiler.execution import buffers  # noqa: PLC0415

    if next(iter(code.stages.values())).sizes:
        yield "temporaries: their sizes depend on those of the inputs"
        return
    plan = buffers.memory_schedule(code, {})
    if not plan.names:
        yield "no temporaries"
        return
    ratio = plan.arena.size / plan.least if plan.least else 1.0
    sizes = f"{plan.arena.size} bytes, {plan.least} alive at once: {ratio:.2f}x"
    yield f"temporaries: {sizes}; {plan.unavoidable} in any order"
    if verbose:
        for name, t, offset in zip(plan.names, plan.lifetimes, plan.arena.offsets, strict=True):
            yield f"  {name}: {t.size} bytes at {offset}, kernels {t.first} to {t.last}"
