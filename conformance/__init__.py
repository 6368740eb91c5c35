"""The conformance suite: compiles and checks the cases of shape files, times them, and writes reports.

`plugin` declares the pytest options, `run` collects and runs the items, `shapes` expands shape files into cases and
their tensors, and `judge` checks a case. The suite uses only the compiler's public interface, `import compiler`.
"""

import os as _os
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

__version__ = "0.1.0"
COMPILER = "MLCOMP_COMPILER"  # environment variable: folder of the compiler package to use instead of the one here


def _check_sibling() -> None:
    """Raise ImportError if `import compiler` would find a package other than ours or the one in $MLCOMP_COMPILER.

    `compiler` is a common folder name, so an unrelated package may shadow ours.
    """
    spec = _find_spec("compiler")
    here = _Path(__file__).resolve().parent.parent
    meant = _Path(_os.environ.get(COMPILER) or here / "compiler").resolve()
    found = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if spec is not None and not any(_Path(place).resolve() == meant for place in found):
        raise ImportError(
            f"`import compiler` finds {found[0] or spec.name}, but this copy of mlcomp lives in {here}; "
            "run plain `pytest` instead of `python -m pytest`, or rename the other `compiler` folder"
        )


_check_sibling()
