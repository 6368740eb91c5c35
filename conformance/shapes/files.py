"""Find and read shape files; `shapes/README.md` documents the format, and violations are errors with their line.

>>> [path.name for path in find_shapes().glob("README.md")]
['README.md']
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from conformance.shapes.cases import TIERS
from conformance.shapes.expand import benches, expand
from conformance.shapes.schema import shape_file
from conformance.shapes.specs import ShapeFile, ShapeFileError

__all__ = ["ShapeFile", "ShapeFileError", "benches", "expand", "find_shapes", "load", "own_suite", "shape_files"]

# TOML files of other tools; all other TOML files in a folder given to pytest are shape files.
OTHER_TOOLS_FILES = frozenset({"pyproject.toml", "pytest.toml", "ruff.toml", "tox.toml", "pylock.toml", "Cargo.toml"})
HEAD = 1 << 16  # characters within which a shape file must have its line `format = `
DEEPEST = 50  # most parts of a dotted key


def find_shapes() -> Path:
    """Return the folder of our shape files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    folder = next((path for path in (package / "suite", package.parent / "shapes") if path.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"no shape files in {package} or beside it; install again, or name the files")
    return folder


def own_suite(folder: Path) -> list[Path]:
    """Return what a run without arguments collects: shape files in the folder and its `shapes`, or else our own."""
    beside = sorted(path for path in folder.glob("*.toml") if _looks_like_shape_file(path))
    below = folder / "shapes"
    has_some = below.is_dir() and any(_looks_like_shape_file(path) for path in below.rglob("*.toml"))
    return [*beside, *([below] if has_some else [])] or [find_shapes()]


def shape_files(paths: Iterable[Path]) -> list[Path]:
    """Return the shape files among these paths and below those that are folders."""
    files = [path for one in paths for path in (sorted(one.rglob("*.toml")) if one.is_dir() else [one])]
    return [path for path in files if path.name not in OTHER_TOOLS_FILES and not path.name.startswith(".")]


def _looks_like_shape_file(path: Path) -> bool:
    """Return whether a file looks like a shape file, even if it is invalid."""
    if path.name in OTHER_TOOLS_FILES or path.name.startswith("."):
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return re.search(r"^format\s*=\s*\d", file.read(HEAD), re.MULTILINE) is not None
    except OSError:
        return False


def load(path: Path | str, tier: str = TIERS[-1]) -> ShapeFile:
    """Read and check a shape file; compositions are limited to those of the tier. Raises ShapeFileError."""
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ShapeFileError(name, 1, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ShapeFileError(name, 1, f"is not UTF-8 text: {error.reason} at byte {error.start}") from None
    # The TOML parser and the search for lines take quadratic time for deep keys.
    if deep := re.search(rf"(?<![\w-])(?:[\w-]+\s*\.\s*){{{DEEPEST}}}", text):
        line = text.count("\n", 0, deep.start()) + 1
        raise ShapeFileError(name, line, f"a key has more than {DEEPEST} parts")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match[1]) if match else max(1, len(text.splitlines()))
        hint = "; an inline table { } is closed, so write dims, args and params as lines like dims.M = ..."
        is_inline_table = "immutable" in str(error) or "overwrite" in str(error)
        raise ShapeFileError(name, line, f"is not TOML: {error}{hint if is_inline_table else ''}") from None
    except (ValueError, RecursionError) as error:  # thousands of digits or of nested brackets
        lines = text.splitlines()
        line = 1 + max(range(len(lines)), key=lambda n: len(lines[n]))
        raise ShapeFileError(name, line, f"cannot be parsed: {type(error).__name__}: {error}") from None
    return shape_file(name, text, table, tier)
