"""What users are told of graphs that are not compiled whole, or not for all sizes."""

from __future__ import annotations

import warnings

from compiler.backend.options import FallbackWarning, Report, SpecialisationWarning
from compiler.errors import CompilerError


def warn_of_eager(report: Report) -> None:
    if report.eager:
        count = report.calls - sum(r.calls for r in report.regions)
        reasons = "; ".join(f"{reason} ({n} calls)" if n > 1 else reason for reason, n in report.eager.items())
        warnings.warn(
            f"mlcomp runs {count} of {report.calls} calls of a graph in eager: {reasons}", FallbackWarning, stacklevel=2
        )


def describe_problem(problem: Exception) -> str:
    """The message of a refusal; for any other exception also its type and the pass that raised it."""
    if isinstance(problem, CompilerError):
        return str(problem)
    notes = "".join(f", {note}" for note in getattr(problem, "__notes__", ()))
    return f"{type(problem).__name__}: {problem}{notes}; this is a bug in mlcomp"


def warn_of_sizes(subject: str, problem: Exception) -> None:
    warnings.warn(
        f"mlcomp recompiles a graph for other {subject}: {describe_problem(problem)}",
        SpecialisationWarning,
        stacklevel=3,
    )
