"""Integration with Dynamo: it does not trace our backward passes, and the backend may be registered twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends import registry

from compiler.backend.input_writes import Boxed

_disable: Any = torch._dynamo.disable


def hide_backward(compile_part: Callable[..., Boxed]) -> Callable[..., Boxed]:
    """Hide the compilation of backward passes and its results from Dynamo.

    Both may be called from a function that Dynamo runs as several graphs.
    """
    reason = "mlcomp compiles and runs a backward pass"
    compile_hidden: Callable[..., Boxed] = _disable(
        lambda *given: _disable(compile_part(*given), reason=reason), reason=reason
    )
    return compile_hidden


class _BackendTable(dict[str, Any]):
    """Torch's table of backends, except that one of them may be registered twice.

    Two threads that look up a backend of another package at the same time both load and register it, which torch
    refuses as two backends with one name.
    """

    reregistrable: Any = None

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) and self[str(name)] is not self.reregistrable


def allow_reregistration(backend: Callable[..., Any]) -> None:
    """Allow threads to register the backend concurrently."""
    if hasattr(registry, "_COMPILER_FNS"):
        registry._COMPILER_FNS = _BackendTable(registry._COMPILER_FNS)
        registry._COMPILER_FNS.reregistrable = backend
