"""What a shape file asks for that PyTorch itself cannot do, as an error that says which file, line, case and key."""

from pathlib import Path

from conformance.shapes.cases import Case
from conformance.shapes.toml_values import line_below

BEYOND = 200  # characters of what PyTorch says


class CaseError(Exception):
    """The case is at fault, and nobody's compiler."""

    def __init__(self, case: Case, key: str, what: str) -> None:
        path, here = Path(case.file), Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        line = line_below(case.file, case.line, key)
        super().__init__(f"{shown}:{line}: case {case.id.partition('[')[0]!r}: {key}: {what}")


def briefly(error: BaseException) -> str:
    """The error on one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= BEYOND else text[: BEYOND - 1] + "…"
