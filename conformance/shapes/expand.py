"""Expand a case of a shape file to its rows: choose sizes, params, dtype, layout and inputs, and evaluate shapes.

A row's id states all its choices, so rows can be added or removed without changing the ids or data of others.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from types import CodeType

from conformance.shapes.cases import (
    DTYPES,
    FLOATS,
    TIERS,
    Arg,
    BenchCase,
    Case,
    Dynamic,
    Value,
    Xfail,
    case_id,
    frozen,
    kind_of,
    matches,
    token,
)
from conformance.shapes.combine import cross, pairwise
from conformance.shapes.distributions import fits, for_dtype
from conformance.shapes.expressions import ExpressionError, evaluate, formula, quoted
from conformance.shapes.specs import ArgSpec, CaseSpec, PerfSpec, ShapeFile, ShapeFileError, XfailSpec
from conformance.shapes.toml_values import line_below

NIGHTLY_LIMIT = 1000
CROSS_LIMIT = 5000
_EXTREME = frozenset({"specials", "extremes", "huge", "denormal"})  # distributions
MANY = 1 << 17  # fewest elements of an enlarged row
PAIRWISE_LIMIT = 10_000


Keys = tuple[str, ...]  # path of a key within a case
Choice = Mapping[str, Value]  # a value for each dim and param, and for "dtype", "layout" and "inputs"


def expand(shape_file: ShapeFile, tier: str = "smoke", *, enlarged: bool = False) -> tuple[Case, ...]:
    """Return the rows of all cases that belong to the tier or a smaller one, smallest tier first within each case.

    With `enlarged`, the first row of each case that allows it lists larger sizes at which it may be called as well.
    """
    rows = tuple(row for spec in shape_file.cases for row in _expand_case(spec, tier, enlarged))
    _check_unique(shape_file.path, rows)
    return rows


def benches(shape_file: ShapeFile, tier: str = "smoke") -> tuple[BenchCase, ...]:
    """Return the benchmark rows that belong to the tier or a smaller one."""
    rows = tuple(row for spec in shape_file.cases if spec.perf for row in _bench_case(spec, spec.perf))
    _check_unique(shape_file.path, rows)
    return tuple(row for row in rows if TIERS.index(row.tier) <= TIERS.index(tier))


def first_choice(spec: CaseSpec) -> Choice:
    """Return the choice of all first values."""
    values = {name: listed[0] for name, listed in (*spec.dims.items(), *spec.params.items())}
    return {**values, "dtype": spec.dtypes[0], "layout": spec.layouts[0], "inputs": next(iter(spec.inputs))}


def _expand_case(spec: CaseSpec, tier: str, enlarged: bool) -> Iterator[Case]:
    seen: dict[str, Case] = {}
    for of_tier, choice in _choices(spec, tier):
        row = _build(spec, choice, of_tier)
        if enlarged and not any(row.enlarged for row in seen.values()):
            row = dataclasses.replace(row, enlarged=tuple(_enlarged(spec, choice)))
        if repr((row.dims, row.params)) != repr((seen.setdefault(row.id, row).dims, seen[row.id].params)):
            raise _error(spec, f"two rows have the id {row.id!r}; write their values so that they differ in letters")
    if not seen:
        raise _error(spec, "no row is left: every combination is excluded by `where`, a layout or a distribution")
    for row in _checked_as_timed(spec):
        seen.setdefault(row.id, row)
    for row in _gradients(spec, tuple(seen.values())):
        seen[row.id] = row
    yield from (row for row in seen.values() if TIERS.index(row.tier) <= TIERS.index(tier))


def _gradients(spec: CaseSpec, rows: tuple[Case, ...]) -> Iterator[Case]:
    """Yield the gradient rows of a case. The first keeps its tier; other smoke rows move to the full tier.

    Rows with extreme data are left out, since eager's gradients of infinite or tiny data are not well-defined.
    """
    if not spec.grad:
        return
    ordinary = [row for row in rows if row.dtype in FLOATS and row.distribution not in _EXTREME and not row.large]
    kept = [row for row in ordinary if any(arg.name in spec.grad and arg.dtype in FLOATS for arg in row.args)]
    if ordinary and not kept:
        raise _error(spec, "grad: no argument that is no weight is of a floating type", "grad")
    if not kept:
        raise _error(spec, "grad: there is no row of a floating type and of ordinary data", "grad")
    for row in kept:
        tier = row.tier if row is kept[0] or row.tier != "smoke" else "full"
        yield dataclasses.replace(row, id=row.id.replace("[", ".grad[", 1), grad=spec.grad, tier=tier, enlarged=())


def _choices(spec: CaseSpec, tier: str) -> Iterator[tuple[str, Choice]]:
    """Yield every choice with its tier; the cross product is made only for the nightly tier."""
    factors = _factors(spec)
    counts = [len(values) for values in factors]

    def choice(row: tuple[int, ...]) -> Choice:
        return {key: value for values, index in zip(factors, row, strict=True) for key, value in values[index].items()}

    def valid(row: tuple[int, ...]) -> bool:
        return _valid(spec, choice(row))

    if spec.combine == "cross":
        if (total := math.prod(counts)) > CROSS_LIMIT:
            raise _error(spec, f'the cross product has {total} rows; use combine = "pairwise" or shorter lists')
        chosen = [choice(row) for row in cross(counts, valid, CROSS_LIMIT, spec.name)]
    else:
        if (least := math.prod(sorted(counts)[-2:])) > PAIRWISE_LIMIT:
            raise _error(spec, f"every pair of values in some row takes {least} rows or more; use shorter lists")
        chosen = [choice(row) for row in pairwise(counts, valid)]
    _check_used(spec, chosen)
    first, rest = (spec.tier, spec.tier) if spec.tier else ("smoke", "full")
    leading = {id(row) for row in {row["dtype"]: row for row in reversed(chosen)}.values()}  # the first of each dtype
    yield from ((first if id(row) in leading else rest, row) for row in chosen)
    yield from ((rest, _with_zero(spec, name, chosen)) for name in spec.zero if chosen)
    if tier == "nightly":
        yield from (("nightly", choice(row)) for row in cross(counts, valid, NIGHTLY_LIMIT, spec.name))


def _factors(spec: CaseSpec) -> list[list[Choice]]:
    """Return the factors: lists of alternative values; a row takes one of each list."""
    lists = {**{name: values[:1] if name in spec.dynamic else values for name, values in spec.dims.items()},
             **spec.params}  # fmt: skip
    tail: list[list[Choice]] = [[{key: value} for value in values] for key, values in _tail(spec).items()]
    if spec.combine != "zip":
        heads: list[list[Choice]] = [[{name: value} for value in values] for name, values in lists.items()]
        return heads + tail
    length = max((len(values) for values in lists.values()), default=1)
    if odd := [name for name, values in lists.items() if len(values) not in (1, length)]:
        raise _error(spec, f'combine = "zip" needs lists of one length, {length} or 1; {quoted(odd)} differ')
    rows: list[Choice] = [{name: values[row % len(values)] for name, values in lists.items()} for row in range(length)]
    return [rows, *tail]


def _tail(spec: CaseSpec) -> Mapping[str, tuple[str, ...]]:
    return {"dtype": spec.dtypes, "layout": spec.layouts, "inputs": tuple(spec.inputs)}


def _check_used(spec: CaseSpec, chosen: list[Choice]) -> None:
    if spec.where is None and chosen:
        for key, values in _tail(spec).items():
            if lost := [value for value in values if all(row[key] != value for row in chosen)]:
                why = f"{key} {quoted(lost)} fits no row: no argument has the rank or the element type for it"
                raise _error(spec, why)


def _enlarged(spec: CaseSpec, choice: Choice) -> Iterator[tuple[Choice, tuple[Arg, ...]]]:
    """Yield larger sizes with which the arguments have between MANY and 64 * MANY elements, and these arguments.

    The keys are names of dims and params or, for literal sizes in shapes, the old size. The expression may not be valid
    for all of them.
    """
    if spec.dynamic:
        return
    shapes = [arg.shape for arg in spec.args]
    names = [name for name in (*spec.dims, *spec.params) if name in spec.dims or name in shapes]
    plain = sorted({size for shape in shapes for size in shape if isinstance(size, int) and size > 1})
    for grown in dict.fromkeys([*((name,) for name in names), tuple(names), *((size,) for size in plain)]):
        for doublings in range(1, MANY.bit_length()):
            sizes: dict[Value, Value] = {k: _doubled(choice.get(str(k), k), doublings) for k in grown}
            there: Choice = {**choice, **{str(k): size for k, size in sizes.items() if k in choice}}
            resized = dataclasses.replace(spec, args=tuple(_resized(arg, sizes) for arg in spec.args))
            args = _arguments(resized, there) if _targets(spec, there) else None
            count = sum(math.prod(arg.shape) for arg in args or ())
            if count >= MANY:
                if args is not None and count <= 64 * MANY:
                    yield {str(key): size for key, size in sizes.items()}, args
                break


def _resized(arg: ArgSpec, sizes: Mapping[Value, Value]) -> ArgSpec:
    """Return the argument with literal sizes of its shape replaced."""
    if isinstance(arg.shape, str):
        return arg
    return dataclasses.replace(arg, shape=tuple(sizes.get(n, n) if isinstance(n, int) else n for n in arg.shape))


def _doubled(size: Value, times: int) -> Value:
    """Return a size, or a list with its first size, doubled `times` times."""
    match size:
        case int():
            return size << times
        case (int() as first, *rest):
            return (first << times, *rest)
    return size


def _with_zero(spec: CaseSpec, name: str, chosen: list[Choice]) -> Choice:
    emptied = ({**row, name: 0} for row in chosen)
    found = next((row for row in emptied if _valid(spec, row)), None)
    if found is None:
        why = f"dims.zero names {name!r}, but no row is valid with {name} = 0; change `where` or take it out"
        raise _error(spec, why, "dims", "zero")
    return found


def _valid(spec: CaseSpec, choice: Choice) -> bool:
    return bool(_targets(spec, choice)) and _arguments(spec, choice) is not None


def _targets(spec: CaseSpec, choice: Choice) -> tuple[str, ...]:
    """Return the target selectors for which `where` holds."""
    if spec.where is None:
        return spec.targets
    scope = {**_scope(spec, choice), **{key: choice[key] for key in ("dtype", "layout", "inputs")}}
    code, used = _formula(spec, ("where",), spec.where, {**scope, "target": ""})

    def holds(**known: Value) -> bool:
        return bool(_evaluate(spec, ("where",), str(spec.where), code, {**scope, **known}))

    if "target" not in used:
        return spec.targets if holds() else ()
    return tuple(target for target in spec.targets if holds(target=kind_of(target)))


def _scope(spec: CaseSpec, choice: Choice) -> dict[str, Value]:
    return {**spec.consts, **{name: choice[name] for name in (*spec.dims, *spec.params)}}


def _arguments(spec: CaseSpec, choice: Choice) -> tuple[Arg, ...] | None:
    """Return the arguments of a row; None if its layout suits no argument or its distribution does not apply."""
    scope = _scope(spec, choice)
    layout, taken = choice["layout"], choice["layout"] == "contig"
    made = []
    for arg in spec.args:
        shape = _shape(spec, arg, scope)
        dtype = _dtype(spec, arg, choice)
        takes = not arg.constant and layout in arg.layouts and fits(layout, shape)
        taken = taken or takes
        inputs = _inputs(spec, arg, choice, dtype, shape, scope)
        if inputs is None:
            return None
        axes = _axes(spec, arg, len(shape))
        made.append(Arg(arg.name, shape, dtype, layout if takes else "contig", inputs, arg.constant, axes))
    return tuple(made) if taken else None


def _shape(spec: CaseSpec, arg: ArgSpec, scope: Mapping[str, Value]) -> tuple[int, ...]:
    at = ("args", arg.name, "shape")
    what = _shown(at)
    sizes = _number(spec, at, arg.shape, scope) if isinstance(arg.shape, str) else arg.shape
    if not isinstance(sizes, tuple):
        why = f"{what} {arg.shape!r} is {sizes!r}; a shape that is one string must yield a list of sizes"
        raise _error(spec, why, *at)
    shape = tuple(_number(spec, at, size, scope) for size in sizes)
    if wrong := [size for size in shape if not isinstance(size, int) or isinstance(size, bool) or size < 0]:
        named = {key: scope[key] for key in spec.dims}
        why = f"{what} {arg.shape} holds {wrong[0]!r} for {named}; sizes are whole numbers >= 0 (add a `where`?)"
        raise _error(spec, why, *at)
    return shape


def _axes(spec: CaseSpec, arg: ArgSpec, rank: int) -> tuple[str, ...]:
    """Return the formula of dynamic dims of each axis, or "" for fixed axes; () if all axes are fixed."""
    if not spec.dynamic:
        return ()
    if isinstance(arg.shape, str):
        why = f"args.{arg.name}: a shape in a dynamic case is a list of sizes, not one string"
        raise _error(spec, why, "args", arg.name)
    names = {name: 2 for name in spec.dynamic}
    known = {**spec.consts, **dict.fromkeys((*spec.dims, *spec.params), 2), **names}
    texts = [s if isinstance(s, str) else "" for s in arg.shape]
    made = [t if t and _formula(spec, ("args", arg.name, "shape"), t, known)[1] & names.keys() else "" for t in texts]
    return tuple(made) if any(made) and len(made) == rank else ()


def _dynamic(spec: CaseSpec, choice: Choice) -> Dynamic | None:
    """Return the points to check: point k has the k-th value of each dynamic dim, with shorter lists repeated."""
    if not spec.dynamic:
        return None
    points = []
    for k in range(max(len(spec.dims[name]) for name in spec.dynamic)):
        moved = {name: spec.dims[name][k % len(spec.dims[name])] for name in spec.dynamic}
        args = _arguments(spec, {**choice, **moved}) if _targets(spec, {**choice, **moved}) else None
        if args is not None:
            points.append((moved, args))
    return Dynamic(spec.dynamic, tuple(points))


def _dtype(spec: CaseSpec, arg: ArgSpec, choice: Choice) -> str:
    name = choice["dtype"] if arg.dtype is None else choice.get(arg.dtype, spec.consts.get(arg.dtype, arg.dtype))
    if name not in DTYPES:
        why = f"args.{arg.name}: {name!r} is not a dtype; the dtypes are {quoted(DTYPES)}"
        raise _error(spec, why, "args", arg.name, "dtype")
    return str(name)


def _inputs(
    spec: CaseSpec, arg: ArgSpec, choice: Choice, dtype: str, shape: tuple[int, ...], scope: Mapping[str, Value]
) -> Mapping[str, Value] | None:
    """Return an argument's distribution with evaluated options; None if it does not apply to its dtype or shape."""
    given: Mapping[str, Value] = spec.inputs[choice["inputs"]]
    if arg.inputs is not None:
        given = arg.inputs
    elif arg.low is not None or arg.high is not None:
        limits = {key: value for key, value in (("low", arg.low), ("high", arg.high)) if value is not None}
        given = {"kind": "uniform" if dtype in FLOATS else "integers", **limits}
    elif arg.dtype is not None and dtype not in FLOATS:
        given = {"kind": "bool" if dtype == "bool" else "integers"}
    at = ("args", arg.name, "inputs")
    options = {key: value if key == "kind" else _number(spec, at, value, scope) for key, value in given.items()}
    worked = for_dtype(options, dtype)
    if worked is not None and worked["kind"] == "index":
        axis = worked.get("unique_along")
        needed = shape[axis] if isinstance(axis, int) and -len(shape) <= axis < len(shape) else 1
        return worked if 0 in shape or needed <= worked["below"] else None
    return worked


def _number(spec: CaseSpec, keys: Keys, value: Value, scope: Mapping[str, Value]) -> Value:
    if not isinstance(value, str):
        return value
    return _evaluate(spec, keys, value, _formula(spec, keys, value, scope)[0], scope)


def _build(spec: CaseSpec, choice: Choice, tier: str) -> Case:
    args, targets = _arguments(spec, choice), _targets(spec, choice)
    if args is None:
        why = f"the row {dict(choice)} has no argument for its layout, or inputs that do not suit its dtype"
        raise _error(spec, why)
    tail = (choice["dtype"], choice["layout"], choice["inputs"])
    dims = {name: choice[name] for name in spec.dims}
    params = {name: choice[name] for name in spec.params}
    shown = {name: "dyn" if name in spec.dynamic else size for name, size in dims.items()}
    return Case(
        id=case_id(spec.name, shown, params, tail), file=spec.file, line=spec.line, suite=spec.suite, op=spec.op,
        expr=spec.expr, args=args, dims=dims, params=params, consts=spec.consts, dtype=choice["dtype"],
        layout=choice["layout"], distribution=choice["inputs"], targets=targets, tier=tier, tolerance=spec.tolerance,
        xfail=_xfail(spec, choice), timeout=spec.timeout, module=spec.module, init=spec.init,
        dynamic=_dynamic(spec, choice), mutates=spec.mutates, entry=spec.entry, raises=spec.raises,
        torch=spec.torch,
    )  # fmt: skip


def _xfail(spec: CaseSpec, choice: Choice) -> tuple[Xfail, ...]:
    scope = {**_scope(spec, choice), **{key: choice[key] for key in ("dtype", "layout", "inputs")}}

    def applies(listed: XfailSpec) -> bool:
        if listed.dtype not in ("*", choice["dtype"]):
            return False
        if listed.where is None:
            return True
        at = ("xfail", f"{listed.target}.{listed.dtype}", "where")
        return bool(_evaluate(spec, at, listed.where, _formula(spec, at, listed.where, scope)[0], scope))

    return tuple(listed.expected for listed in spec.xfail if applies(listed))


def _bench_case(spec: CaseSpec, perf: PerfSpec) -> Iterator[BenchCase]:
    for choice, tier, targets in _timed(spec, perf):
        case = _build_unfiltered(spec, choice, tier, targets)
        values = {item.name: getattr(case, item.name) for item in dataclasses.fields(case)}
        yield BenchCase(**values, vs=perf.vs, budget=perf.budget, family=_family(spec, choice))


def _timed(spec: CaseSpec, perf: PerfSpec) -> Iterator[tuple[Choice, str, tuple[str, ...]]]:
    """Yield the benchmark rows, each in every dtype, with the tier and the targets that time that dtype."""
    for row in perf.rows:
        for dtype in dict.fromkeys(dtype for dtypes in perf.dtypes.values() for dtype in dtypes):
            choice = {**first_choice(spec), **row.values, "dtype": dtype, "layout": perf.layout, "inputs": perf.inputs}
            yield choice, row.tier, tuple(target for target, dtypes in perf.dtypes.items() if dtype in dtypes)


def _checked_as_timed(spec: CaseSpec) -> Iterator[Case]:
    """Yield checks of the benchmark rows, at sizes around theirs."""
    if spec.perf is None or spec.perf.checked is None:
        return
    checked = spec.perf.checked
    for choice, _, targets in _timed(spec, spec.perf):
        for deltas in itertools.product(*checked.around.values()):
            moved = {name: choice[name] + delta for name, delta in zip(checked.around, deltas, strict=True)}
            if kept := tuple(t for t in targets if any(matches(wanted, t) for wanted in checked.targets)):
                row = _build_unfiltered(spec, {**choice, **moved}, checked.tier, kept)
                yield dataclasses.replace(row, large=True)


def _build_unfiltered(spec: CaseSpec, choice: Choice, tier: str, targets: tuple[str, ...]) -> Case:
    return dataclasses.replace(_build(dataclasses.replace(spec, where=None), choice, tier), targets=targets)


def _family(spec: CaseSpec, choice: Choice) -> str:
    """Return the family's name with names in braces replaced by their values; by default the file's name."""
    known = {name: token(choice[name]) for name in (*spec.dims, *spec.params, "dtype")}

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            why = f"family {spec.family!r} names {found[1]!r}, no dim or param; known are {quoted(known)}"
            raise _error(spec, why, "family")
        return known[found[1]]

    return re.sub(r"\{(\w+)\}", value, spec.family or spec.suite)


def _check_unique(path: str, rows: tuple[Case, ...]) -> None:
    seen: dict[str, Case] = {}
    for row in rows:
        if row.id in seen:
            raise ShapeFileError(path, row.line, f"two rows have the id {row.id!r}; write each value once per list")
        seen[row.id] = row


def _formula(spec: CaseSpec, keys: Keys, text: str, names: Mapping[str, Value]) -> tuple[CodeType, frozenset[str]]:
    try:
        return formula(text, names.keys())
    except ExpressionError as error:
        raise _error(spec, f"{_shown(keys)}: {error}", *keys) from None


def _evaluate(spec: CaseSpec, keys: Keys, text: str, code: CodeType, scope: Mapping[str, Value]) -> Value:
    try:
        return frozen(evaluate(code, scope))
    except ExpressionError as error:
        raise _error(spec, f"{_shown(keys)} {text!r}: {error}", *keys) from None


def _shown(keys: Keys) -> str:
    *table, key = keys
    return f"{'.'.join(table)}: {key}" if table else key


def _error(spec: CaseSpec, message: str, *keys: str) -> ShapeFileError:
    """Return an error at the line of a key of the case."""
    return ShapeFileError(spec.file, line_below(spec.file, spec.line, *keys), f"case {spec.name!r}: {message}")
