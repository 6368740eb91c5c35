"""A compiler from PyTorch programs to native code, through six intermediate representations, each of which runs.

```
captured = capture(function, inputs)              # Torch IR, with the weights found
lowering = lower(captured.program, target("cpu")) # every stage: lowering.show("tile")
execute(lowering, "tile", inputs)                 # run one stage by its own executor
compile(function, inputs)                         # the function, compiled
```
`__init__.pyi` names the module of each; it is loaded when first used, so that the IRs can be imported without PyTorch.
"""

import ast
from importlib import import_module
from pathlib import Path

_LISTED = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_WHERE = {a.asname: (s.module, a.name) for s in _LISTED if isinstance(s, ast.ImportFrom) for a in s.names}
__all__ = list(_WHERE)


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    module, called = _WHERE[name]
    value: object = getattr(import_module(module), called)
    globals()[name] = value
    return value
