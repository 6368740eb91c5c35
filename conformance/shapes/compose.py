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

GIVEN, TAKEN = "x", "p"  # the argument of a producer, and the name of its result in a consumer
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
    given = _checked(place, table, defaults)
    case = partial(_case, replace(place, case=given.name), given)
    smoke = set(_smoke(given))
    every = itertools.product(given.producers, given.consumers)
    pairs = sorted(every, key=lambda pair: ((pair[0].name, pair[1].name) not in smoke, _rank(given, pair)))
    full = len(pairs) if given.pairs is None else max(given.pairs, len(smoke))
    yield from _made(case, [("smoke", *pair) for pair in pairs[: len(smoke)]])
    if tier == "smoke":
        return
    yield from _made(case, [("full", *pair) for pair in pairs[len(smoke) : full]])
    between = [part for part in given.producers if len(part.args[GIVEN]["shape"]) == len(given.dims)]
    triples = itertools.product(given.producers, between, given.consumers) if given.triples else ()
    ranked = sorted(triples, key=lambda triple: _rank(given, triple))
    yield from itertools.islice(_made(case, (("full", *triple) for triple in ranked)), given.triples)
    if tier == "full":
        return
    yield from _made(case, [("nightly", *pair) for pair in pairs[full:]])


def _case(place: Place, table: Table, tier: str, first: Part, *others: Part) -> dict[str, Any] | None:
    """Return the case of a chain at the first suitable size, starting from one determined by its name; or None."""
    chain = first
    for k, part in enumerate(others, 1):
        chain = _composed(chain, part, table.dims, f"_{k}")
    label = f"{table.name}.{chain.name}"
    number, count = _number(label), len(table.sizes)
    turned = (dict(zip(table.dims, table.sizes[(number + k) % count], strict=True)) for k in range(count))
    sizes = next((sizes for sizes in turned if _suits(place, chain, sizes)), None)
    dtypes = [dtype for dtype in table.dtypes if chain.dtypes is None or dtype in chain.dtypes]
    if sizes is None or not dtypes:
        return None
    return {
        **table.kept, "name": label, "op": "compose", "expr": chain.expr, "args": chain.args, "tier": tier,
        "dims": {dim: [n] for dim, n in sizes.items()}, "dtypes": [dtypes[number // count % len(dtypes)]],
    }  # fmt: skip


def _made(case: Callable[..., dict[str, Any] | None], chains: Iterable[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    return (made for made in (case(*chain) for chain in chains) if made is not None)


def _rank(table: Table, chain: Sequence[Part]) -> int:
    return _number(table.name, *(part.name for part in chain))


def _checked(place: Place, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Table:
    table = closed_table(place, given, "a compose table", KEYS)
    name = text(place.at("name"), table.get("name"), "every compose table needs a `name`")
    here = replace(place, case=name)
    dims = strings(here.at("shape"), table.get("shape"), "names of sizes", some=True)
    dtypes = table.get("dtypes", defaults.get("dtypes", ["f32"]))
    made = Table(
        name, dims, _sizes(here.at("sizes"), table.get("sizes"), dims),
        strings(here.at("dtypes"), dtypes, "dtypes", some=True),
        _parts(here.at("producers"), table.get("producers", {}), dims),
        _parts(here.at("consumers"), table.get("consumers", {}), dims),
        _count(here, table, "pairs") if "pairs" in table else None, _count(here, table, "triples"),
        {key: table[key] for key in ("inputs", "targets", "timeout") if key in table},
    )  # fmt: skip
    for part in made.producers:
        if GIVEN not in part.args or TAKEN in _names(part.expr):
            here.at("producers", part.name).fail(f"a producer needs {GIVEN!r} among its `args`")
    for part in made.consumers:
        if GIVEN in part.args or TAKEN not in _names(part.expr):
            here.at("consumers", part.name).fail(
                f"a consumer must use {TAKEN!r} and must not have an argument {GIVEN!r}"
            )
    return made


def _count(place: Place, table: Mapping[str, Any], key: str) -> int:
    value = table.get(key, 0)
    if not is_kind(value, (int,)) or value < 0:
        place.at(key).fail(f"{value!r} is not a number of compositions")
    return int(value)


def _sizes(place: Place, value: Any, dims: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    rows = value if isinstance(value, list) else []
    good = [isinstance(row, list) and len(row) == len(dims) and all(is_kind(n, (int,)) and n > 0 for n in row)
            for row in rows]  # fmt: skip
    if not rows or not all(good):
        row = ", ".join("7" for _ in dims)
        place.fail(f"a list of rows such as [{row}] is needed, with a size above 0 for each of {', '.join(dims)}")
    return tuple(map(tuple, rows))


def _parts(place: Place, value: Any, dims: Sequence[str]) -> tuple[Part, ...]:
    found = tuple(_part(place.at(name), name, item, dims) for name, item in any_table(place, value))
    if not found:
        place.fail('there is none; for example flip = { expr = "x.flip(0)", args = { x = ["M", "N"] } }')
    return found


def _part(place: Place, name: str, value: Any, dims: Sequence[str]) -> Part:
    table = closed_table(place, value, "a part", PART_KEYS)
    expr = text(place.at("expr"), table.get("expr"), "`expr` is Python text")
    try:
        parse_program(expr)
    except ExpressionError as error:
        place.at("expr").fail(str(error))
    args: dict[str, dict[str, Any]] = {}
    for key, item in any_table(place.at("args"), table.get("args", {})):
        if key == TAKEN or key in dims:
            place.at("args", key).fail(f"{key!r} is reserved here; choose another name")
        args[key] = {"shape": item} if isinstance(item, list) else dict(any_table(place.at("args", key), item))
    where = optional_text(place.at("where"), table.get("where")) or "True"
    dtypes = strings(place.at("dtypes"), table["dtypes"], "dtypes", some=True) if "dtypes" in table else None
    return Part(name, expr, args, where, dtypes)


def _smoke(table: Table) -> Iterator[tuple[str, str]]:
    """Yield few pairs that contain every part: the n-th parts of both lists, repeating the shorter list."""
    producers, consumers = table.producers, table.consumers
    for k in range(max(len(producers), len(consumers))):
        yield producers[k % len(producers)].name, consumers[k % len(consumers)].name


def _composed(before: Part, part: Part, dims: Sequence[str], suffix: str) -> Part:
    """Compose two parts: sizes in the first are replaced by those of the second's operand; equal names get a suffix."""
    taken = GIVEN if GIVEN in part.args else TAKEN
    inner = part.args[GIVEN]["shape"] if taken == GIVEN else list(dims)
    there = {dim: f"({size})" for dim, size in zip(dims, inner, strict=True)}
    renamed = {name: f"{name}{suffix}" for name in part.args if name != taken and name in before.args}
    value = f"made{suffix}"
    lines = _with_last(_replaced(before.expr, there), value)
    args = {name: _shaped(arg, there) for name, arg in before.args.items()}
    args |= {renamed.get(name, name): arg for name, arg in part.args.items() if name != taken}
    dtypes = [x for x in (before.dtypes, part.dtypes) if x is not None]
    both = tuple(x for x in dtypes[0] if all(x in other for other in dtypes)) if dtypes else None
    return Part(
        f"{before.name}.{part.name}",
        f"{lines}\n{_replaced(part.expr, {**renamed, taken: value})}",
        args,
        f"({_replaced(before.where, there)}) and ({part.where})",
        both,
    )


def _shaped(arg: Mapping[str, Any], there: Mapping[str, str]) -> dict[str, Any]:
    """Return an argument with sizes in its shape and in limits of its data replaced by formulas."""

    def said(value: Any) -> Any:
        match value:
            case str():
                return _replaced(value, there)
            case list():
                return [said(item) for item in value]
        return value

    made = {**arg, "shape": said(arg["shape"])}
    if isinstance(made.get("inputs"), Mapping) and "below" in made["inputs"]:
        made["inputs"] = {**made["inputs"], "below": said(made["inputs"]["below"])}
    return made


def _replaced(source: str, names: Mapping[str, str]) -> str:
    """Replace names in Python text by expressions."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(names[node.id], mode="eval").body if node.id in names else node

    return ast.unparse(Replace().visit(ast.parse(source)))


def _with_last(source: str, name: str) -> str:
    """Assign the value of the last line to a name."""
    *lines, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "checked when the part was read"
    return "\n".join([*map(ast.unparse, lines), f"{name} = {ast.unparse(last.value)}"])


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def _suits(place: Place, chain: Part, sizes: Mapping[str, int]) -> bool:
    """Return whether a chain is valid at these sizes: its filter holds, and all sizes are at least 1."""
    try:
        shapes = [size for arg in chain.args.values() for size in arg["shape"]]
        values = [size if isinstance(size, int) else evaluate(formula(size, sizes)[0], sizes) for size in shapes]
        return min(values, default=1) > 0 and bool(evaluate(formula(chain.where, sizes)[0], sizes))
    except ExpressionError as error:
        place.fail(f"{chain.name}: {error}")


def _number(*words: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")
