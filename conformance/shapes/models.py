"""Expand a `[[model]]` table to a case for each phase of the model, as tables like `[[case]]`.

Prefill takes tokens. Decode takes one token, its position, and the keys and values of each layer, which it updates; the
updated caches are compared as well as the logits.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.shapes.toml_values import Place, closed_table, strings, text

KEYS = ("name", "config", "layers", "phases", "sizes", "dtypes", "targets", "tier", "perf", "timeout", "tolerance")
PHASES = ("prefill", "decode")
SIZES = {"B": 1, "S": 7, "L": 9}  # defaults: batch, tokens of a prefill, positions of a cache
MODULE = "conformance.shapes.language:Model"
_COPIED_KEYS = ("dtypes", "targets", "tier", "timeout", "tolerance")


def cases(place: Place, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a table for each phase; none if the package transformers is not installed."""
    checked = closed_table(place, table, "a model table", KEYS)
    name = text(place.at("name"), checked.get("name"), "every model needs a `name`")
    here = replace(place, case=name)
    phases = strings(here.at("phases"), checked.get("phases", list(PHASES)), "phases of a model", nonempty=True)
    for phase in phases:
        if phase not in PHASES:
            here.at("phases").fail(f"{phase!r} is not a phase of a model; the phases are {' and '.join(PHASES)}")
    config, layers = checked.get("config"), checked.get("layers", 0)
    if not config or not isinstance(config, str | dict):
        here.at("config").fail(
            "`config` must be a table with `model_type`, a folder with config.json, or a name on the hub"
        )
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 0:
        here.at("layers").fail("`layers` is a number of layers, 0 for all")
    closed_table(here.at("sizes"), checked.get("sizes", {}), "the sizes of a model", tuple(SIZES))
    if importlib.util.find_spec("transformers") is None:
        return
    source = config if isinstance(config, str) else json.dumps(config)
    try:
        configuration = _configuration(source, layers)
    except Exception as problem:  # the library may raise anything for a configuration
        here.at("config").fail(f"transformers cannot build a model from it: {' '.join(str(problem).split())[:300]}")
    for phase in phases:
        yield {
            **{key: checked[key] for key in _COPIED_KEYS if key in checked},
            **({"perf": checked["perf"]} if phase == "prefill" and "perf" in checked else {}),
            "name": f"{name}.{phase}", "op": "model", "entry": "compile", "module": MODULE,
            "init": {"config": source, "layers": layers},
            **(_prefill(configuration, checked) if phase == "prefill" else _decode(configuration, checked)),
        }  # fmt: skip


def _configuration(source: str, layers: int) -> Any:
    from conformance.shapes import language  # noqa: PLC0415  # imports torch

    return language.make_configuration(source, layers)


def _prefill(config: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    return {"expr": "module(tokens)", "args": {"tokens": _tokens(config, "S")}, "dims": _sizes(table, "B", "S")}


def _decode(config: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decode case: a token at any position of a cache of `L` positions; later ones are masked."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    caches = [f"{kind}{n}" for n in range(config.num_hidden_layers) for kind in ("keys", "values")]
    position = {"shape": [1], "dtype": "i64", "inputs": {"kind": "index", "below": "L"}}
    cache_args = {name: {"shape": ["B", heads, "L", size]} for name in caches}
    return {
        "expr": f"module(token, at, {', '.join(caches)})", "mutates": caches,
        "args": {"token": _tokens(config, 1), "at": position, **cache_args}, "dims": _sizes(table, "B", "L"),
    }  # fmt: skip


def _tokens(config: Any, count: str | int) -> dict[str, Any]:
    return {"shape": ["B", count], "dtype": "i64", "inputs": {"kind": "index", "below": config.vocab_size}}


def _sizes(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: {**SIZES, **table.get("sizes", {})}[name] for name in names}
