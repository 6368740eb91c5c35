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
    freeze,
    kind_of,
    matches,
    token,
)
from conformance.shapes.combine import cross, pairwise
from conformance.shapes.distributions import fault, fits, for_dtype
from conformance.shapes.expressions import ExpressionError, evaluate, formula, quote
from conformance.shapes.specs import ArgSpec, CaseSpec, PerfSpec, ShapeFile, ShapeFileError, XfailSpec
from conformance.shapes.toml_values import line_below

NIGHTLY_LIMIT = 1000
CROSS_LIMIT = 5000
_EXTREME_DISTRIBUTIONS = frozenset({"specials", "extremes", "huge", "denormal"})  # distributions
ENLARGED_ELEMENTS = 1 << 17  # fewest elements of an enlarged row
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
    values = {name: choices[0] for name, choices in (*spec.dims.items(), *spec.params.items())}
    return {**values, "dtype": spec.dtypes[0], "layout": spec.layouts[0], "inputs": next(iter(spec.inputs))}


def _expand_case(spec: CaseSpec, tier: str, enlarged: bool) -> Iterator[Case]:
    seen: dict[str, Case] = {}
    for row_tier, choice in _choices(spec, tier):
        row = _build(spec, choice, row_tier)
        if enlarged and not any(row.enlarged for row in seen.values()):
            row = dataclasses.replace(row, enlarged=tuple(_enlarged_sizes(spec, choice)))
        if repr((row.dims, row.params)) != repr((seen.setdefault(row.id, row).dims, seen[row.id].params)):
            raise _error(spec, f"two rows have the id {row.id!r}; write their values so that they differ in letters")
    if not seen:
        raise _error(spec, "no row is left: every combination is excluded by `where`, a layout or a distribution")
    for row in _checks_of_benchmarks(spec):
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
    candidates = [
        row for row in rows if row.dtype in FLOATS and row.distribution not in _EXTREME_DISTRIBUTIONS and not row.large
    ]
    eligible = [row for row in candidates if any(arg.name in spec.grad and arg.dtype in FLOATS for arg in row.args)]
    if candidates and not eligible:
        raise _error(spec, "grad: no argument that is no weight is of a floating type", "grad")
    if not eligible:
        raise _error(spec, "grad: there is no row of a floating type and of ordinary data", "grad")
    for row in eligible:
        tier = row.tier if row is eligible[0] or row.tier != "smoke" else "full"
        yield dataclasses.replace(row, id=row.id.replace("[", ".grad[", 1), grad=spec.grad, tier=tier, enlarged=())


def _choices(spec: CaseSpec, tier: str) -> Iterator[tuple[str, Choice]]:
    """Yield every choice with its tier; the cross product is made only for the nightly tier."""
    factors = _factors(spec)
    counts = [len(values) for values in factors]

    def choice(row: tuple[int, ...]) -> Choice:
        return {key: value for values, index in zip(factors, row, strict=True) for key, value in values[index].items()}

    def valid(row: tuple[int, ...]) -> bool:
        return is_valid(spec, choice(row))

    if spec.combine == "cross":
        if (total := math.prod(counts)) > CROSS_LIMIT:
            raise _error(spec, f'the cross product has {total} rows; use combine = "pairwise" or shorter lists')
        choices = [choice(row) for row in cross(counts, valid, CROSS_LIMIT, spec.name)]
    else:
        if (fewest := math.prod(sorted(counts)[-2:])) > PAIRWISE_LIMIT:
            raise _error(spec, f"every pair of values in some row takes {fewest} rows or more; use shorter lists")
        choices = [choice(row) for row in pairwise(counts, valid)]
    _check_used(spec, choices)
    first, rest = (spec.tier, spec.tier) if spec.tier else ("smoke", "full")
    leading = {id(row) for row in {row["dtype"]: row for row in reversed(choices)}.values()}  # the first of each dtype
    yield from ((first if id(row) in leading else rest, row) for row in choices)
    yield from ((rest, _with_zero(spec, name, choices)) for name in spec.zero if choices)
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
        raise _error(spec, f'combine = "zip" needs lists of one length, {length} or 1; {quote(odd)} differ')
    rows: list[Choice] = [{name: values[row % len(values)] for name, values in lists.items()} for row in range(length)]
    return [rows, *tail]


def _tail(spec: CaseSpec) -> Mapping[str, tuple[str, ...]]:
    return {"dtype": spec.dtypes, "layout": spec.layouts, "inputs": tuple(spec.inputs)}


def _check_used(spec: CaseSpec, choices: list[Choice]) -> None:
    if spec.where is None and choices:
        for key, values in _tail(spec).items():
            if unused := [value for value in values if all(row[key] != value for row in choices)]:
                why = f"{key} {quote(unused)} fits no row: no argument has the rank or the element type for it"
                raise _error(spec, why)


def _enlarged_sizes(spec: CaseSpec, choice: Choice) -> Iterator[tuple[Choice, tuple[Arg, ...]]]:
    """Yield larger sizes, which give arguments ENLARGED_ELEMENTS to 64 times as many elements, and these arguments.

    The keys are names of dims and params or, for literal sizes in shapes, the old size. The expression may not be valid
    for all of them.
    """
    if spec.dynamic:
        return
    shapes = [arg.shape for arg in spec.args]
    names = [name for name in (*spec.dims, *spec.params) if name in spec.dims or name in shapes]
    literal_sizes = sorted({size for shape in shapes for size in shape if isinstance(size, int) and size > 1})
    for keys in dict.fromkeys([*((name,) for name in names), tuple(names), *((size,) for size in literal_sizes)]):
        for doublings in range(1, ENLARGED_ELEMENTS.bit_length()):
            sizes: dict[Value, Value] = {k: _double(choice.get(str(k), k), doublings) for k in keys}
            enlarged_choice: Choice = {**choice, **{str(k): size for k, size in sizes.items() if k in choice}}
            resized = dataclasses.replace(spec, args=tuple(_with_sizes(arg, sizes) for arg in spec.args))
            args = _arguments(resized, enlarged_choice) if _targets(spec, enlarged_choice) else None
            count = sum(math.prod(arg.shape) for arg in args or ())
            if count >= ENLARGED_ELEMENTS:
                if args is not None and count <= 64 * ENLARGED_ELEMENTS:
                    yield {str(key): size for key, size in sizes.items()}, args
                break


def _with_sizes(arg: ArgSpec, sizes: Mapping[Value, Value]) -> ArgSpec:
    """Return the argument with literal sizes of its shape replaced."""
    if isinstance(arg.shape, str):
        return arg
    return dataclasses.replace(arg, shape=tuple(sizes.get(n, n) if isinstance(n, int) else n for n in arg.shape))


def _double(size: Value, times: int) -> Value:
    """Return a size, or a list with its first size, doubled `times` times."""
    match size:
        case int():
            return size << times
        case (int() as first, *rest):
            return (first << times, *rest)
    return size


def _with_zero(spec: CaseSpec, name: str, choices: list[Choice]) -> Choice:
    candidates = ({**row, name: 0} for row in choices)
    valid = next((row for row in candidates if is_valid(spec, row)), None)
    if valid is None:
        why = f"dims.zero names {name!r}, but no row is valid with {name} = 0; change `where` or take it out"
        raise _error(spec, why, "dims", "zero")
    return valid


def is_valid(spec: CaseSpec, choice: Choice) -> bool:
    return bool(_targets(spec, choice)) and _arguments(spec, choice) is not None


def _targets(spec: CaseSpec, choice: Choice) -> tuple[str, ...]:
    """Return the target selectors for which `where` holds."""
    if spec.where is None:
        return spec.targets
    scope = {**_scope(spec, choice), **{key: choice[key] for key in ("dtype", "layout", "inputs")}}
    code, used = _formula(spec, ("where",), spec.where, {**scope, "target": ""})

    def holds(**target_names: Value) -> bool:
        return bool(_evaluate(spec, ("where",), str(spec.where), code, {**scope, **target_names}))

    if "target" not in used:
        return spec.targets if holds() else ()
    return tuple(target for target in spec.targets if holds(target=kind_of(target)))


def _scope(spec: CaseSpec, choice: Choice) -> dict[str, Value]:
    return {**spec.consts, **{name: choice[name] for name in (*spec.dims, *spec.params)}}


def _arguments(spec: CaseSpec, choice: Choice) -> tuple[Arg, ...] | None:
    """Return the arguments of a row; None if its layout suits no argument or its distribution does not apply."""
    scope = _scope(spec, choice)
    layout, layout_used = choice["layout"], choice["layout"] == "contig"
    arguments = []
    for arg in spec.args:
        shape = _shape(spec, arg, scope)
        dtype = _dtype(spec, arg, choice)
        has_layout = not arg.constant and layout in arg.layouts and fits(layout, shape)
        layout_used = layout_used or has_layout
        inputs = _inputs(spec, arg, choice, dtype, shape, scope)
        if inputs is None:
            return None
        axes = _axes(spec, arg, len(shape))
        arguments.append(Arg(arg.name, shape, dtype, layout if has_layout else "contig", inputs, arg.constant, axes))
    return tuple(arguments) if layout_used else None


def _shape(spec: CaseSpec, arg: ArgSpec, scope: Mapping[str, Value]) -> tuple[int, ...]:
    keys = ("args", arg.name, "shape")
    key_text = _key_text(keys)
    sizes = _number(spec, keys, arg.shape, scope) if isinstance(arg.shape, str) else arg.shape
    if not isinstance(sizes, tuple):
        why = f"{key_text} {arg.shape!r} is {sizes!r}; a shape that is one string must yield a list of sizes"
        raise _error(spec, why, *keys)
    shape = tuple(_number(spec, keys, size, scope) for size in sizes)
    if wrong := [size for size in shape if not isinstance(size, int) or isinstance(size, bool) or size < 0]:
        dims = {key: scope[key] for key in spec.dims}
        why = f"{key_text} {arg.shape} holds {wrong[0]!r} for {dims}; sizes are whole numbers >= 0 (add a `where`?)"
        raise _error(spec, why, *keys)
    return shape


def _axes(spec: CaseSpec, arg: ArgSpec, rank: int) -> tuple[str, ...]:
    """Return the formula of dynamic dims of each axis, or "" for fixed axes; () if all axes are fixed."""
    if not spec.dynamic:
        return ()
    if isinstance(arg.shape, str):
        why = f"args.{arg.name}: a shape in a dynamic case is a list of sizes, not one string"
        raise _error(spec, why, "args", arg.name)
    names = {name: 2 for name in spec.dynamic}
    scope = {**spec.consts, **dict.fromkeys((*spec.dims, *spec.params), 2), **names}
    texts = [s if isinstance(s, str) else "" for s in arg.shape]
    formulas = [
        t if t and _formula(spec, ("args", arg.name, "shape"), t, scope)[1] & names.keys() else "" for t in texts
    ]
    return tuple(formulas) if any(formulas) and len(formulas) == rank else ()


def _dynamic(spec: CaseSpec, choice: Choice) -> Dynamic | None:
    """Return the points to check: point k has the k-th value of each dynamic dim, with shorter lists repeated."""
    if not spec.dynamic:
        return None
    points = []
    for k in range(max(len(spec.dims[name]) for name in spec.dynamic)):
        sizes = {name: spec.dims[name][k % len(spec.dims[name])] for name in spec.dynamic}
        args = _arguments(spec, {**choice, **sizes}) if _targets(spec, {**choice, **sizes}) else None
        if args is not None:
            points.append((sizes, args))
    return Dynamic(spec.dynamic, tuple(points))


def _dtype(spec: CaseSpec, arg: ArgSpec, choice: Choice) -> str:
    name = choice["dtype"] if arg.dtype is None else choice.get(arg.dtype, spec.consts.get(arg.dtype, arg.dtype))
    if name not in DTYPES:
        why = f"args.{arg.name}: {name!r} is not a dtype; the dtypes are {quote(DTYPES)}"
        raise _error(spec, why, "args", arg.name, "dtype")
    return str(name)


def _inputs(
    spec: CaseSpec, arg: ArgSpec, choice: Choice, dtype: str, shape: tuple[int, ...], scope: Mapping[str, Value]
) -> Mapping[str, Value] | None:
    """Return an argument's distribution with evaluated options; None if it does not apply to its dtype or shape."""
    distribution: Mapping[str, Value] = spec.inputs[choice["inputs"]]
    keys: Keys = ("inputs",)
    if arg.inputs is not None:
        distribution, keys = arg.inputs, ("args", arg.name, "inputs")
    elif arg.low is not None or arg.high is not None:
        limits = {key: value for key, value in (("low", arg.low), ("high", arg.high)) if value is not None}
        distribution = {"kind": "uniform" if dtype in FLOATS else "integers", **limits}
        keys = ("args", arg.name)
    elif arg.dtype is not None and dtype not in FLOATS:
        distribution = {"kind": "bool" if dtype == "bool" else "integers"}
    options = {
        key: value if key == "kind" else _number(spec, (*keys, key), value, scope)
        for key, value in distribution.items()
    }
    if 0 not in shape and (wrong := fault(options)):
        keys = (*keys, wrong[0])
        raise _error(spec, f"{_key_text(keys)}: {wrong[1]}", *keys)
    adapted = for_dtype(options, dtype)
    if adapted is not None and adapted["kind"] == "index":
        axis = adapted.get("unique_along")
        fewest = shape[axis] if isinstance(axis, int) and -len(shape) <= axis < len(shape) else 1
        return adapted if 0 in shape or fewest <= adapted["below"] else None
    return adapted


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
    id_dims = {name: "dyn" if name in spec.dynamic else size for name, size in dims.items()}
    return Case(
        id=case_id(spec.name, id_dims, params, tail), file=spec.file, line=spec.line, suite=spec.suite, op=spec.op,
        expr=spec.expr, args=args, dims=dims, params=params, consts=spec.consts, dtype=choice["dtype"],
        layout=choice["layout"], distribution=choice["inputs"], targets=targets, tier=tier, tolerance=spec.tolerance,
        xfail=_xfail(spec, choice), timeout=spec.timeout, module=spec.module, init=spec.init,
        dynamic=_dynamic(spec, choice), mutates=spec.mutates, entry=spec.entry, raises=spec.raises,
        torch=spec.torch,
    )  # fmt: skip


def _xfail(spec: CaseSpec, choice: Choice) -> tuple[Xfail, ...]:
    scope = {**_scope(spec, choice), **{key: choice[key] for key in ("dtype", "layout", "inputs")}}

    def applies(entry: XfailSpec) -> bool:
        if entry.dtype not in ("*", choice["dtype"]):
            return False
        if entry.where is None:
            return True
        keys = ("xfail", f"{entry.target}.{entry.dtype}", "where")
        return bool(_evaluate(spec, keys, entry.where, _formula(spec, keys, entry.where, scope)[0], scope))

    return tuple(entry.expected for entry in spec.xfail if applies(entry))


def _bench_case(spec: CaseSpec, perf: PerfSpec) -> Iterator[BenchCase]:
    for choice, tier, targets in timed_choices(spec, perf):
        case = _build_unfiltered(spec, choice, tier, targets)
        values = {item.name: getattr(case, item.name) for item in dataclasses.fields(case)}
        yield BenchCase(**values, vs=perf.vs, budget=perf.budget, family=_family(spec, choice))


def timed_choices(spec: CaseSpec, perf: PerfSpec) -> Iterator[tuple[Choice, str, tuple[str, ...]]]:
    """Yield the benchmark rows, each in every dtype, with the tier and the targets that time that dtype."""
    for row in perf.rows:
        for dtype in dict.fromkeys(dtype for dtypes in perf.dtypes.values() for dtype in dtypes):
            choice = {**first_choice(spec), **row.values, "dtype": dtype, "layout": perf.layout, "inputs": perf.inputs}
            yield choice, row.tier, tuple(target for target, dtypes in perf.dtypes.items() if dtype in dtypes)


def _checks_of_benchmarks(spec: CaseSpec) -> Iterator[Case]:
    """Yield checks of the benchmark rows, at sizes around theirs."""
    if spec.perf is None or spec.perf.checked is None:
        return
    checked = spec.perf.checked
    for choice, _, targets in timed_choices(spec, spec.perf):
        for deltas in itertools.product(*checked.around.values()):
            sizes = {name: choice[name] + delta for name, delta in zip(checked.around, deltas, strict=True)}
            if row_targets := tuple(t for t in targets if any(matches(selector, t) for selector in checked.targets)):
                row = _build_unfiltered(spec, {**choice, **sizes}, checked.tier, row_targets)
                yield dataclasses.replace(row, large=True)


def _build_unfiltered(spec: CaseSpec, choice: Choice, tier: str, targets: tuple[str, ...]) -> Case:
    return dataclasses.replace(_build(dataclasses.replace(spec, where=None), choice, tier), targets=targets)


def _family(spec: CaseSpec, choice: Choice) -> str:
    """Return the family's name with names in braces replaced by their values; by default the file's name."""
    values = {name: token(choice[name]) for name in (*spec.dims, *spec.params, "dtype")}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            why = f"family {spec.family!r} names {match[1]!r}, no dim or param; known are {quote(values)}"
            raise _error(spec, why, "family")
        return values[match[1]]

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
        raise _error(spec, f"{_key_text(keys)}: {error}", *keys) from None


def _evaluate(spec: CaseSpec, keys: Keys, text: str, code: CodeType, scope: Mapping[str, Value]) -> Value:
    try:
        return freeze(evaluate(code, scope))
    except ExpressionError as error:
        raise _error(spec, f"{_key_text(keys)} {text!r}: {error}", *keys) from None


def _key_text(keys: Keys) -> str:
    *table, key = keys
    return f"{'.'.join(table)}: {key}" if table else key


def _error(spec: CaseSpec, message: str, *keys: str) -> ShapeFileError:
    """Return an error at the line of a key of the case."""
    return ShapeFileError(spec.file, line_below(spec.file, spec.line, *keys), f"case {spec.name!r}: {message}")
