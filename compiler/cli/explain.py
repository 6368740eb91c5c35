"""`mlcomp explain`: what torch.compile makes of an expression: regions of its graphs, their kernels, what is eager."""

from __future__ import annotations

import argparse
from typing import Any

from compiler.cli import model
from compiler.cli.sources import expression_text, loading


def explain(options: argparse.Namespace) -> int:
    with loading():
        from compiler import backend  # noqa: PLC0415
        from compiler.execution import expression, models  # noqa: PLC0415

    if options.model is not None:
        function, inputs = models.program(model.wanted(options), model.device(options))
    else:
        function, inputs = expression.program(expression_text(options), options.seed)
    chosen: dict[str, Any] = {} if options.target is None else {"target": options.target}
    for number, report in enumerate(backend.explain(function, inputs, chosen)):
        left = report.calls - sum(calls for calls, _ in report.regions)
        print(f"graph {number}: {report.calls} calls, {left} in eager")
        for place, (calls, kernels) in enumerate(report.regions):
            print(f"  region {place}: {calls} calls, {', '.join(kernels)}")
        for reason, count in report.eager.items():
            print(f"  eager: {reason} ({count} call{'s' if count > 1 else ''})")
    return 0
