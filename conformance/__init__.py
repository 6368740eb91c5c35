"""The suite that keeps the compiler honest: shape files in, verdicts, timings and tables out.

`plugin` is the pytest side, `shapes` reads shape files into cases, `inputs` makes their tensors. The compiler is
reached through its public surface alone: `import compiler`.
"""

import os as _os
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

__version__ = "0.1.0"
COMPILER = "MLCOMP_COMPILER"  # the environment variable that says which other compiler this copy is to ask


def _check_sibling() -> None:
    """Refuse a foreign package that shadows ours: `compiler` is a common folder name; but for one that is meant."""
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
