"""The repository's own shape: files short enough for one sitting, each opened by a docstring, none tied to a home."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE_LINES = 400
FUNCTION_LINES = 60
HOME = re.compile(r"/(?:home|Users|root)/[\w.]+")

PYTHON = sorted(path for folder in ("compiler", "conformance") for path in (ROOT / folder).rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "compiler").rglob("*") if path.suffix in {".h", ".cuh", ".c", ".cpp"})
TEXT = [
    *PYTHON,
    *NATIVE,
    *sorted((ROOT / "shapes").rglob("*.toml")),
    *sorted(path for path in ROOT.iterdir() if path.suffix in {".md", ".py", ".toml", ".txt"}),
    ROOT / "Makefile",
    ROOT / ".ci" / "run",
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _code_lines(path: Path) -> int:
    """Count lines that are neither blank nor a line comment."""
    comment = "#" if path.suffix == ".py" else "//"
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line and not line.startswith(comment))


@pytest.mark.parametrize("path", PYTHON + NATIVE, ids=_name)
def test_file_is_readable_in_a_sitting(path: Path) -> None:
    assert _code_lines(path) <= CODE_LINES, f"{_name(path)} is too long: it is probably two ideas, make it two files"


def _function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count lines that are neither blank, nor a comment, nor of the docstring."""
    first, last = function.lineno - 1, function.end_lineno or function.lineno
    said = range(0)
    if ast.get_docstring(function) is not None:
        said = range(function.body[0].lineno - 1, function.body[0].end_lineno or 0)
    code = (lines[n].strip() for n in range(first, last) if n not in said)
    return sum(1 for line in code if line and not line.startswith("#"))


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {n.name: count for n in found if (count := _function_lines(n, text.splitlines())) > FUNCTION_LINES}
    assert not long, f"{_name(path)} has functions of more than {FUNCTION_LINES} lines of code: {long}"


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{_name(path)} has no docstring at its top"


@pytest.mark.parametrize("folder", sorted({path.parent for path in PYTHON}), ids=_name)
def test_folder_is_a_package(folder: Path) -> None:
    assert (folder / "__init__.py").is_file(), f"{_name(folder)} holds modules but no __init__.py"


def test_no_file_names_somebodys_home_folder() -> None:
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in TEXT
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if HOME.search(line)
    ]
    assert not found, "absolute home paths:\n" + "\n".join(found)
