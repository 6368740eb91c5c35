"""A compiler from PyTorch programs to native code.

A program is lowered through six stages: torch, tensor, loop, tile, kernel, and text. Each stage can be printed and
executed.

```
fast = compile(function, inputs)                  # a compiled function for inputs of these shapes and dtypes
captured = capture(function, inputs)              # Torch IR, with the weights that the function uses
lowering = lower(captured.program, target("cpu")) # every stage: lowering.show("tile")
results = execute(lowering, "tile", inputs)       # execute one stage
```
Errors are subclasses of `CompilerError`; an unsupported op raises `Unsupported`, with its name and arguments. The
backend for `torch.compile` is named "mlcomp".

`__init__.pyi` lists all public names and their modules. A module is loaded when one of its names is first used, so that
the IRs can be imported without PyTorch.
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
