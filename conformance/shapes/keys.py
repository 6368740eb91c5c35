"""The keys that each kind of table in a shape file may have; any other is an error at its line."""

from typing import Any

from conformance.shapes.toml_values import Place, closed_table

DEFAULTS = ("dtypes", "targets", "inputs", "layouts", "combine", "tier", "family", "timeout", "tolerance", "perf")
BUDGETS = ("min_speedup_eager", "min_speedup_compile", "min_speedup", "min_roofline", "max_compile_s", "max_kernels")
KEYS = {
    "the file": ("format", "defaults", "distributions", "case", "compose", "model"),
    "the defaults": DEFAULTS,
    "a case": (
        "name", "op", "ops", "expr", "module", "init", "args", "params", "consts", "constants", "mutates", "dims",
        "where", "xfail", "dynamic", "raises", "grad", "entry", *DEFAULTS,
    ),
    "an argument": ("shape", "dtype", "layout", "inputs", "low", "high"),
    "the tolerance": ("mode", "rtol", "atol", "reason", "specials", "deterministic"),
    "an xfail": ("stage", "reason", "strict", "where"),
    "a perf table": ("dims", "dtypes", "params", "tier", "layout", "inputs", "vs", "budget", "checked"),
    "a checked table": ("around", "targets", "tier"),
    "a dynamic dim": ("min", "max"),
    "a budget": BUDGETS,
}  # fmt: skip


def keyed(place: Place, value: Any, kind: str) -> dict[str, Any]:
    return closed_table(place, value, kind, KEYS[kind])
