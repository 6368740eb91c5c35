"""Expand a `[[compose]]` table to compositions of its producers and consumers, as tables like `[[case]]`.

A producer computes a tensor of the table's shape from an argument `x` of a shape that it states; a consumer takes that
tensor as `p`. In a triple, the result of one producer is the `x` of another; sizes in the shapes of the first are then
replaced by those of the second's `x`. The sizes and dtype of a composition depend only on its name, so parts can be
added or removed without changing the ids of others.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.shapes.expressions import ExpressionError, evaluate, formula, parse_program
from conformance.shapes.toml_values import Place, any_table, closed_table, is_kind, optional_text, strings, text

PRODUCER_ARGUMENT, CONSUMER_ARGUMENT = "x", "p"  # the argument of a producer, and the name of its result in a consumer
KEYS = (
    "name", "shape", "sizes", "dtypes", "inputs", "targets", "producers", "consumers", "pairs", "triples", "timeout",
)  # fmt: skip
PART_KEYS = ("expr", "args", "where", "dtypes")


@dataclass(frozen=True)
class Part:
    """A producer or a consumer: `args` as in a case; `where` is the condition on sizes under which it is valid."""

    name: str
    expr: str
    args: Mapping[str, dict[str, Any]]
    where: str
    dtypes: tuple[str, ...] | None


@dataclass(frozen=True)
class Table:
    """A checked table; a case is named after the table and its parts."""

    name: str
    dims: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    producers: tuple[Part, ...]
    consumers: tuple[Part, ...]
    pairs: int | None  # number of pairs in the full tier (None: all); the rest is nightly
    triples: int
    kept: Mapping[str, Any]  # keys that are copied to its cases


def cases(place: Place, table: Mapping[str, Any], defaults: Mapping[str, Any], tier: str) -> Iterator[dict[str, Any]]:
    """Yield a table for each composition of the tier; those that no size suits are left out."""
    checked = _check_table(place, table, defaults)
    case = partial(_case, replace(place, case=checked.name), checked)
    smoke = set(_smoke_pairs(checked))
    all_pairs = itertools.product(checked.producers, checked.consumers)
    pairs = sorted(all_pairs, key=lambda pair: ((pair[0].name, pair[1].name) not in smoke, _rank(checked, pair)))
    full = len(pairs) if checked.pairs is None else max(checked.pairs, len(smoke))
    yield from _existing_cases(case, [("smoke", *pair) for pair in pairs[: len(smoke)]])
    if tier == "smoke":
        return
    yield from _existing_cases(case, [("full", *pair) for pair in pairs[len(smoke) : full]])
    middle_parts = [
        part for part in checked.producers if len(part.args[PRODUCER_ARGUMENT]["shape"]) == len(checked.dims)
    ]
    triples = itertools.product(checked.producers, middle_parts, checked.consumers) if checked.triples else ()
    ranked = sorted(triples, key=lambda triple: _rank(checked, triple))
    yield from itertools.islice(_existing_cases(case, (("full", *triple) for triple in ranked)), checked.triples)
    if tier == "full":
        return
    yield from _existing_cases(case, [("nightly", *pair) for pair in pairs[full:]])


def _case(place: Place, table: Table, tier: str, first: Part, *others: Part) -> dict[str, Any] | None:
    """Return the case of a chain at the first suitable size, starting from one determined by its name; or None."""
    chain = first
    for k, part in enumerate(others, 1):
        chain = _compose(chain, part, table.dims, f"_{k}")
    label = f"{table.name}.{chain.name}"
    number, count = _hash_number(label), len(table.sizes)
    rotated_sizes = (dict(zip(table.dims, table.sizes[(number + k) % count], strict=True)) for k in range(count))
    sizes = next((sizes for sizes in rotated_sizes if _is_valid_at(place, chain, sizes)), None)
    dtypes = [dtype for dtype in table.dtypes if chain.dtypes is None or dtype in chain.dtypes]
    if sizes is None or not dtypes:
        return None
    return {
        **table.kept, "name": label, "op": "compose", "expr": chain.expr, "args": chain.args, "tier": tier,
        "dims": {dim: [n] for dim, n in sizes.items()}, "dtypes": [dtypes[number // count % len(dtypes)]],
    }  # fmt: skip


def _existing_cases(
    case: Callable[..., dict[str, Any] | None], chains: Iterable[tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    return (case_table for case_table in (case(*chain) for chain in chains) if case_table is not None)


def _rank(table: Table, chain: Sequence[Part]) -> int:
    return _hash_number(table.name, *(part.name for part in chain))


def _check_table(place: Place, data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Table:
    table = closed_table(place, data, "a compose table", KEYS)
    name = text(place.at("name"), table.get("name"), "every compose table needs a `name`")
    here = replace(place, case=name)
    dims = strings(here.at("shape"), table.get("shape"), "names of sizes", nonempty=True)
    dtypes = table.get("dtypes", defaults.get("dtypes", ["f32"]))
    checked = Table(
        name, dims, _sizes(here.at("sizes"), table.get("sizes"), dims),
        strings(here.at("dtypes"), dtypes, "dtypes", nonempty=True),
        _parts(here.at("producers"), table.get("producers", {}), dims),
        _parts(here.at("consumers"), table.get("consumers", {}), dims),
        _count(here, table, "pairs") if "pairs" in table else None, _count(here, table, "triples"),
        {key: table[key] for key in ("inputs", "targets", "timeout") if key in table},
    )  # fmt: skip
    for part in checked.producers:
        if PRODUCER_ARGUMENT not in part.args or CONSUMER_ARGUMENT in _names(part.expr):
            here.at("producers", part.name).fail(f"a producer needs {PRODUCER_ARGUMENT!r} among its `args`")
    for part in checked.consumers:
        if PRODUCER_ARGUMENT in part.args or CONSUMER_ARGUMENT not in _names(part.expr):
            here.at("consumers", part.name).fail(
                f"a consumer must use {CONSUMER_ARGUMENT!r} and must not have an argument {PRODUCER_ARGUMENT!r}"
            )
    return checked


def _count(place: Place, table: Mapping[str, Any], key: str) -> int:
    value = table.get(key, 0)
    if not is_kind(value, (int,)) or value < 0:
        place.at(key).fail(f"{value!r} is not a number of compositions")
    return int(value)


def _sizes(place: Place, value: Any, dims: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    rows = value if isinstance(value, list) else []
    is_valid = [isinstance(row, list) and len(row) == len(dims) and all(is_kind(n, (int,)) and n > 0 for n in row)
            for row in rows]  # fmt: skip
    if not rows or not all(is_valid):
        row = ", ".join("7" for _ in dims)
        place.fail(f"a list of rows such as [{row}] is needed, with a size above 0 for each of {', '.join(dims)}")
    return tuple(map(tuple, rows))


def _parts(place: Place, value: Any, dims: Sequence[str]) -> tuple[Part, ...]:
    parts = tuple(_part(place.at(name), name, item, dims) for name, item in any_table(place, value))
    if not parts:
        place.fail('there is none; for example flip = { expr = "x.flip(0)", args = { x = ["M", "N"] } }')
    return parts


def _part(place: Place, name: str, value: Any, dims: Sequence[str]) -> Part:
    table = closed_table(place, value, "a part", PART_KEYS)
    expr = text(place.at("expr"), table.get("expr"), "`expr` is Python text")
    try:
        parse_program(expr)
    except ExpressionError as error:
        place.at("expr").fail(str(error))
    args: dict[str, dict[str, Any]] = {}
    for key, item in any_table(place.at("args"), table.get("args", {})):
        if key == CONSUMER_ARGUMENT or key in dims:
            place.at("args", key).fail(f"{key!r} is reserved here; choose another name")
        args[key] = {"shape": item} if isinstance(item, list) else dict(any_table(place.at("args", key), item))
    condition = optional_text(place.at("where"), table.get("where")) or "True"
    dtypes = strings(place.at("dtypes"), table["dtypes"], "dtypes", nonempty=True) if "dtypes" in table else None
    return Part(name, expr, args, condition, dtypes)


def _smoke_pairs(table: Table) -> Iterator[tuple[str, str]]:
    """Yield few pairs that contain every part: the n-th parts of both lists, repeating the shorter list."""
    producers, consumers = table.producers, table.consumers
    for k in range(max(len(producers), len(consumers))):
        yield producers[k % len(producers)].name, consumers[k % len(consumers)].name


def _compose(before: Part, part: Part, dims: Sequence[str], suffix: str) -> Part:
    """Compose two parts: sizes in the first are replaced by those of the second's operand; equal names get a suffix."""
    operand = PRODUCER_ARGUMENT if PRODUCER_ARGUMENT in part.args else CONSUMER_ARGUMENT
    inner = part.args[PRODUCER_ARGUMENT]["shape"] if operand == PRODUCER_ARGUMENT else list(dims)
    replacements = {dim: f"({size})" for dim, size in zip(dims, inner, strict=True)}
    renamed = {name: f"{name}{suffix}" for name in part.args if name != operand and name in before.args}
    value = f"made{suffix}"
    lines = _assign_last(_replace_names(before.expr, replacements), value)
    args = {name: _replace_sizes(arg, replacements) for name, arg in before.args.items()}
    args |= {renamed.get(name, name): arg for name, arg in part.args.items() if name != operand}
    dtypes = [x for x in (before.dtypes, part.dtypes) if x is not None]
    common_dtypes = tuple(x for x in dtypes[0] if all(x in other for other in dtypes)) if dtypes else None
    return Part(
        f"{before.name}.{part.name}",
        f"{lines}\n{_replace_names(part.expr, {**renamed, operand: value})}",
        args,
        f"({_replace_names(before.where, replacements)}) and ({part.where})",
        common_dtypes,
    )


def _replace_sizes(arg: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Return an argument with sizes in its shape and in limits of its data replaced by formulas."""

    def replaced(value: Any) -> Any:
        match value:
            case str():
                return _replace_names(value, replacements)
            case list():
                return [replaced(item) for item in value]
        return value

    result = {**arg, "shape": replaced(arg["shape"])}
    if isinstance(result.get("inputs"), Mapping) and "below" in result["inputs"]:
        result["inputs"] = {**result["inputs"], "below": replaced(result["inputs"]["below"])}
    return result


def _replace_names(source: str, names: Mapping[str, str]) -> str:
    """Replace names in Python text by expressions."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(names[node.id], mode="eval").body if node.id in names else node

    return ast.unparse(Replace().visit(ast.parse(source)))


def _assign_last(source: str, name: str) -> str:
    """Assign the value of the last line to a name."""
    *lines, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "checked when the part was read"
    return "\n".join([*map(ast.unparse, lines), f"{name} = {ast.unparse(last.value)}"])


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def _is_valid_at(place: Place, chain: Part, sizes: Mapping[str, int]) -> bool:
    """Return whether a chain is valid at these sizes: its filter holds, and all sizes are at least 1."""
    try:
        shapes = [size for arg in chain.args.values() for size in arg["shape"]]
        values = [size if isinstance(size, int) else evaluate(formula(size, sizes)[0], sizes) for size in shapes]
        return min(values, default=1) > 0 and bool(evaluate(formula(chain.where, sizes)[0], sizes))
    except ExpressionError as error:
        place.fail(f"{chain.name}: {error}")


def _hash_number(*words: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")
