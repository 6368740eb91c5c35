"""The options of the backend, and reports of how graphs were compiled with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compiler.backend import graph_cache
from compiler.errors import CompilerError
from compiler.execution import executable, named
from compiler.passes import quantize
from compiler.pipeline import Lowering
from compiler.runtime import gpu_memory
from compiler.targets.target import Target

_OPTIONS = {
    "fallback": "eager", "target": None, "check_indices": "async", "quantize": None, "memory_limit": None, "mode": None,
}  # fmt: skip
_FALLBACKS = {"eager": True, True: True, "error": False, False: False}
TUNED = "max-autotune"
# GPU programs are replayed as CUDA graphs in all modes. In the last two they own their memory, which guarantees that
# addresses repeat. The last one also tunes schedules.
_MODES = ("default", "reduce-overhead", TUNED)
_ATTEMPTS = 8  # number of bisections of failing regions per graph


class FallbackWarning(UserWarning):
    """Part of a model runs in eager."""


class SpecialisationWarning(UserWarning):
    """Part of a model is compiled once per set of sizes or strides."""


class CacheWarning(UserWarning):
    """The kernel cache folder cannot be used; kernels are built in a temporary folder."""


class TuningWarning(UserWarning):
    """A kernel could not be tuned and uses the heuristic's schedule."""


@dataclass(frozen=True)
class CompiledRegion:
    """A compiled region of a graph: its number of calls, the names of its kernels and its lowering.

    `cacheable` is what a later process needs to run it, if the region can be cached.
    """

    calls: int
    kernels: tuple[str, ...]
    code: Lowering
    cacheable: graph_cache.CachedGraph | None = None


@dataclass
class Report:
    """How a graph was compiled: its number of calls, the compiled regions, and the number of calls in eager by reason.

    `attempts` is how many more bisections of failing regions are allowed. `cacheable` is set if the whole Dynamo graph
    became one cacheable program.
    """

    calls: int
    regions: list[CompiledRegion] = field(default_factory=list)
    eager: Counter[str] = field(default_factory=Counter)
    attempts: int = _ATTEMPTS
    cacheable: graph_cache.CachedGraph | None = None


@dataclass(frozen=True)
class Options:
    """Checked options of the backend; `on_report` is called with the report of each graph, `memory_limit` is a limit in
    bytes."""

    fallback: bool
    target: Target | None
    check_indices: str
    on_report: Callable[[Report], None]
    tuned: bool = False
    quantize: str | None = None
    memory_limit: int | None = None
    memory_pool: gpu_memory.MemoryPools | None = None  # of the GPU programs of one Dynamo graph


def parse_options(options: dict[str, Any], mode: str | None, on_report: Callable[[Report], None]) -> Options:
    """Check options and mode, and fill in defaults; CompilerError names an unknown one or an invalid value."""
    unknown = sorted(set(options) - set(_OPTIONS))
    mode = options.get("mode") if mode is None else mode  # torch.compile takes options or a mode
    if unknown or mode not in (None, *_MODES):
        what = f"option {', '.join(unknown)}" if unknown else f"mode {mode!r}"
        raise CompilerError(
            f"backend mlcomp has no {what}: the options with defaults are {_OPTIONS}, the modes {', '.join(_MODES)}"
        )
    values = _OPTIONS | options
    target = None if values["target"] is None else named.target(str(values["target"]))
    if target is not None and target.kind == "cpu":
        executable.check_runnable(target)
    checks = str(values["check_indices"])
    if checks not in executable.CHECKS:
        raise CompilerError(f"check_indices must be one of {', '.join(executable.CHECKS)}, not {checks!r}")
    if values["fallback"] not in _FALLBACKS:
        raise CompilerError(f"fallback must be 'eager' or 'error', not {values['fallback']!r}")
    if values["quantize"] is not None:
        quantize.check(values["quantize"])
    memory_limit = values["memory_limit"]
    executable.with_memory_limit(target or named.target("cpu"), memory_limit)
    memory_pool = None if mode in (None, "default") else gpu_memory.MemoryPools()
    return Options(
        _FALLBACKS[values["fallback"]],
        target,
        checks,
        on_report,
        mode == TUNED,
        values["quantize"],
        memory_limit,
        memory_pool,
    )


def identity_of(options: Options) -> str:
    """A text that is equal for options with which a graph compiles to the same program."""
    return repr((options.fallback, options.target, options.check_indices, options.memory_limit))
