"""Convert parsed TOML to checked case specifications; anything outside of the format is an error at its line."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.shapes import compose, models
from conformance.shapes.cases import DTYPES, KINDS, STAGES, TIERS, Tolerance, Value, Xfail, freeze, kind_of, token
from conformance.shapes.distributions import LAYOUTS, OPTIONS, fault, parse
from conformance.shapes.expressions import quote
from conformance.shapes.scope import check_names
from conformance.shapes.specs import ArgSpec, CaseSpec, CheckedSpec, PerfRow, PerfSpec, ShapeFile, XfailSpec
from conformance.shapes.toml_values import (
    Place,
    any_table,
    contestants,
    flag,
    is_kind,
    known_table,
    nearest,
    one_of,
    optional_number,
    optional_text,
    strings,
    text,
    versions,
    word,
)  # fmt: skip

COMBINE = ("pairwise", "cross", "zip")
ENTRIES = ("export", "compile")
RAISES = ("IndexError", "RuntimeError", "ValueError")
_NUMBER = (int, float)
VALUES_LIMIT = 1_000  # most values of a dim or param


def shape_file(path: str, text: str, data: Mapping[str, Any], tier: str) -> ShapeFile:
    """Check the contents of a file; compositions are limited to those of the tier."""
    place = Place(path, text)
    known_table(place, data, "the file")
    if not is_kind(data.get("format"), (int,)) or data["format"] != 1:
        actual = f"this one has {data['format']!r}" if "format" in data else "this one has none"
        place.at("format").fail(f"a shape file starts with `format = 1`; {actual}")
    defaults = known_table(place.at("defaults"), data.get("defaults", {}), "the defaults")
    perf_defaults = known_table(place.at("defaults", "perf"), defaults.pop("perf", {}), "a perf table")
    distributions = _distributions(place.at("distributions"), data.get("distributions", {}))
    entries = data.get("case", [])
    compose_tables, model_tables = data.get("compose", []), data.get("model", [])
    if (
        not all(isinstance(x, list) for x in (entries, compose_tables, model_tables))
        or not entries + compose_tables + model_tables
    ):
        place.at("case").fail("there is no [[case]]; add one")
    cases: dict[str, CaseSpec] = {}
    case_tables = _expand_tables(place, "case", entries, lambda here, entry: [known_table(here, entry, "a case")])
    composed = _expand_tables(
        place, "compose", compose_tables, lambda here, table: compose.cases(here, table, defaults, tier)
    )
    for here, entry in (*case_tables, *composed, *_expand_tables(place, "model", model_tables, models.cases)):
        merged = {**defaults, **entry}
        inherited: set[tuple[str | int, ...]] = {(key,) for key in defaults.keys() - entry.keys()}
        if isinstance(own := merged.get("perf"), dict):
            merged["perf"] = {**perf_defaults, **own}
            inherited |= {("perf", key) for key in perf_defaults.keys() - own.keys()}
        for spec in _case(replace(here, inherited=frozenset(inherited)), merged, distributions):
            if (earlier := cases.setdefault(spec.name, spec)) is not spec:
                here.at("name").fail(f"the case in line {earlier.line} has the same name {spec.name!r}; choose another")
    return ShapeFile(path, Path(path).stem, tuple(cases.values()))


def _expand_tables(
    place: Place, kind: str, tables: list[Any], cases: Callable[[Place, Any], Iterable[dict[str, Any]]]
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the cases of all tables of a kind, each with the place of its table for errors."""
    for index, table in enumerate(tables):
        here = place.at(kind, index)
        yield from ((here, case) for case in cases(here, table))


def _case(place: Place, data: Mapping[str, Any], distributions: Mapping[str, Mapping[str, Value]]) -> list[CaseSpec]:
    """Return the cases of an entry: one, or one per word of `ops`."""
    if "ops" not in data:
        return [_one_case(place, data, "", distributions)]
    words = strings(place.at("ops"), data["ops"], "words for {op}", nonempty=True)
    if "{op}" not in str(data.get("expr", "{op}" if "module" not in data else "")):
        place.at("ops").fail("there is no {op} in `expr`: every word would repeat the same program; write it there")
    if "op" in data:
        place.at("op").fail("`op` and `ops` exclude each other; `ops` names the op of each repetition")
    return [_one_case(place, {"name": "{op}", **data}, word, distributions) for word in words]


def _one_case(
    place: Place, data: Mapping[str, Any], op: str, distributions: Mapping[str, Mapping[str, Value]]
) -> CaseSpec:
    name = text(place.at("name"), data.get("name"), "every case needs a `name`").replace("{op}", op)
    if not re.fullmatch(r"[\w.+-]+", name, re.ASCII):
        place.at("name").fail(
            f"{name!r} may contain only letters, digits and _ . + -, so that `pytest -k` can select it"
        )
    here = replace(place, case=name)
    layouts = _layouts(here.at("layouts"), data["layouts"]) if "layouts" in data else None
    params = _params(here.at("params"), data.get("params", {}))
    consts = _values(here.at("consts"), data.get("consts", {}))
    dims, zero = _dims(here.at("dims"), data.get("dims", {}))
    constants = strings(here.at("constants"), data.get("constants", []), "names of args")
    args = tuple(
        _arg(here.at("args", key), key, item, layouts, key in constants, distributions)
        for key, item in any_table(here.at("args"), data.get("args", {}))
    )
    spec = CaseSpec(
        file=place.file, suite=Path(place.file).stem, line=place.line, name=name,
        op=op or text(here.at("op"), data.get("op", name.partition(".")[0]), "`op` is a word"),
        expr=_expr(here, data, args).replace("{op}", op), module=_module(here.at("module"), data.get("module")),
        init=_values(here.at("init"), data.get("init", {})),
        args=args, params=params, consts=consts, dims=dims, zero=zero,
        where=optional_text(here.at("where"), data.get("where")),
        combine=word(here, data, "combine", COMBINE) or "pairwise",
        dtypes=_dtypes(here.at("dtypes"), data.get("dtypes", ["f32"])),
        layouts=layouts or tuple(dict.fromkeys(item for arg in args for item in arg.layouts)) or ("contig",),
        inputs=_inputs(here.at("inputs"), data.get("inputs", ["normal"]), distributions),
        targets=_targets(here.at("targets"), data.get("targets", list(KINDS))), tier=word(here, data, "tier", TIERS),
        family=_family(here.at("family"), data.get("family"), op),
        tolerance=_tolerance(here.at("tolerance"), data.get("tolerance", {})),
        xfail=_xfail(here.at("xfail"), data.get("xfail", {})), perf=None,
        dynamic=_dynamic(here.at("dynamic"), data.get("dynamic", {}), dims),
        timeout=optional_number(here.at("timeout"), data.get("timeout"), positive=True),
        mutates=strings(here.at("mutates"), data.get("mutates", []), "names of args"),
        entry=word(here, data, "entry", ENTRIES) or "export",
        raises=word(here, data, "raises", RAISES), grad=_grad(here.at("grad"), data.get("grad", False), args),
        torch=versions(here.at("torch"), data.get("torch")),
    )  # fmt: skip
    if spec.init and spec.module is None:
        here.at("init").fail("these are arguments for the constructor of a `module`, and there is none; name one")
    if spec.raises and (spec.dynamic or "perf" in data):
        here.at("raises").fail("`raises` cannot be combined with `dynamic` or `perf`; use a separate case")
    if spec.grad and (spec.raises or spec.dynamic or spec.mutates):
        here.at("grad").fail("`grad` cannot be combined with `raises`, `dynamic` or `mutates`")
    if spec.raises and spec.entry == "compile":
        here.at("raises").fail("exceptions are checked at each stage; remove `entry`")
    if spec.dynamic and "perf" in data:
        here.at("perf").fail("`dynamic` cannot be combined with `perf`; put `perf` into a separate case")
    spec = replace(spec, perf=_perf(here.at("perf"), data["perf"], spec, distributions) if "perf" in data else None)
    check_names(here, spec, constants)
    return spec


def _arg(
    place: Place,
    name: str,
    data: Any,
    layouts: tuple[str, ...] | None,
    constant: bool,
    distributions: Mapping[str, Mapping[str, Value]],
) -> ArgSpec:
    table = known_table(place, data, "an argument")
    shape = table.get("shape")
    if not isinstance(shape, str) and not (
        isinstance(shape, list) and all(is_kind(size, (int, str)) for size in shape)
    ):
        place.at("shape").fail('a `shape` is needed: a list of ints, dim names or arithmetic such as ["B", "2*N", 1]')
    own_layouts = _layouts(place.at("layout"), table["layout"]) if "layout" in table else None
    inputs = None
    if "inputs" in table:
        inputs = _distribution(place.at("inputs"), table["inputs"], distributions)
        if "low" in table or "high" in table:
            place.at("inputs").fail("`low` and `high` already choose a distribution; put them into `inputs`")
    limits = {key: table[key] for key in ("low", "high") if key in table}
    for key, limit in limits.items():
        if not is_kind(limit, (*_NUMBER, str)):
            place.at(key).fail(f"{limit!r} is not a number or an arithmetic expression")
    return ArgSpec(
        name=name, shape=freeze(shape), dtype=optional_text(place.at("dtype"), table.get("dtype")),
        layouts=() if constant else own_layouts or layouts or (), inputs=inputs, low=limits.get("low"),
        high=limits.get("high"), constant=constant,
    )  # fmt: skip


def _grad(place: Place, value: Any, args: tuple[ArgSpec, ...]) -> tuple[str, ...]:
    """Return the arguments whose gradients are compared: for `true` all except weights, or those in a list."""
    if isinstance(value, bool):
        return tuple(arg.name for arg in args if value and not arg.constant)
    names = strings(place, value, "names of args, or true for all", nonempty=True)
    free = [arg.name for arg in args if not arg.constant]
    return tuple(one_of(place, name, free, "an argument, or is a weight") for name in names)


def _expr(place: Place, data: Mapping[str, Any], args: tuple[ArgSpec, ...]) -> str:
    if "expr" in data:
        return text(place.at("expr"), data["expr"], "`expr` is Python text")
    if "module" not in data:
        place.at("expr").fail("every case needs an `expr` (or a `module`)")
    return f"module({', '.join(arg.name for arg in args)})"


def _module(place: Place, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value)):
        place.fail(f'{value!r} must name a class as "package.module:Class"')
    return value if isinstance(value, str) else None


def _params(place: Place, data: Any) -> Mapping[str, tuple[Value, ...]]:
    params = {}
    for key, values in any_table(place, data):
        if not isinstance(values, list) or not values:
            place.at(key).fail(f"a param is a non-empty list of values, not {values!r}")
        _check_count(place.at(key), len(values))
        params[key] = tuple(_value(place.at(key), value) for value in values)
    return params


def _values(place: Place, data: Any) -> Mapping[str, Value]:
    return {key: _value(place.at(key), value) for key, value in any_table(place, data)}


def _value(place: Place, value: Any) -> Value:
    """Convert a literal; the string "None" means None, since TOML has no null."""
    if isinstance(value, list):
        return tuple(_value(place, item) for item in value)
    if not is_kind(value, (bool, int, float, str)):
        place.fail(f"{value!r} is not a number, boolean, string or list")
    return None if value == "None" else value


def _dims(place: Place, data: Any) -> tuple[Mapping[str, tuple[int, ...]], tuple[str, ...]]:
    dims = {key: _sizes(place.at(key), value) for key, value in any_table(place, data) if key != "zero"}
    zero = data.get("zero", [])
    return dims, strings(place.at("zero"), zero, "names of dims")


def _sizes(place: Place, value: Any) -> tuple[int, ...]:
    sizes: Iterable[int]
    match value:
        case int() if not isinstance(value, bool):
            sizes = [value]
        case list() if value and all(is_kind(size, (int,)) for size in value):
            _check_count(place, len(value))
            sizes = value
        case {"range": [int(first), int(last)], **rest} if rest.keys() <= {"step"}:
            step = rest.get("step", 1)
            if not isinstance(step, int) or step < 1:
                place.at("step").fail(f"{step!r} is not a step; a step is an int of at least 1")
            _check_count(place, (last - first) // step + 1)
            sizes = range(first, last + 1, step)
        case {"around": list(middles), "delta": list(deltas), **rest} if not rest:
            if not all(is_kind(number, (int,)) for number in middles + deltas):
                place.fail("`around` and `delta` are lists of ints")
            _check_count(place, len(middles) * len(deltas))
            sizes = [middle + delta for middle in middles for delta in deltas]
        case _:
            forms = "{ range = [a, b], step = n } or { around = [..], delta = [..] }"
            place.fail(f"{value!r} is not an int, a list of ints, or {forms}")
    if min(sizes, default=-1) < 0:
        place.fail(f"{value!r} gives {min(sizes, default='no size')}; sizes are 0 or more")
    return tuple(dict.fromkeys(sizes))


def _check_count(place: Place, count: int) -> None:
    if count > VALUES_LIMIT:
        place.fail(f"{count} values exceed the limit of {VALUES_LIMIT}: each makes a row; choose the important ones")


def _dynamic(place: Place, data: Any, dims: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, int | None]]:
    """Return the ranges of dynamic dims; the default minimum is 2, since PyTorch specialises on sizes 0 and 1."""
    ranges = {}
    for key, value in any_table(place, data):
        here = place.at(key)
        one_of(here, key, dims, "a dim")
        table = known_table(here, value, "a dynamic dim")
        low, high = table.get("min", 2), table.get("max")
        if not is_kind(low, (int,)) or low < 1 or not (high is None or (is_kind(high, (int,)) and high > low)):
            here.fail("`min` is at least 1, and `max` more than that")
        if dims[key][0] < 2:
            here.fail(f"the first value, {dims[key][0]}, is the size to compile with and must be at least 2")
        if outside := [n for n in dims[key] if n < low or (high is not None and n > high)]:
            here.fail(f"{outside[0]} is not between {low} and {high}")
        ranges[key] = (low, high)
    return ranges


def _distributions(place: Place, data: Any) -> Mapping[str, Mapping[str, Value]]:
    known: dict[str, Mapping[str, Value]] = {kind: {"kind": kind} for kind in OPTIONS}
    for name, value in any_table(place, data):
        here = place.at(name)
        if name in OPTIONS or not name.isidentifier():
            here.fail(f"{name!r} is a built-in distribution or not an identifier; choose another name")
        known[name] = _distribution(here, value, known)
    return known


def _distribution(place: Place, value: Any, distributions: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Value]:
    if isinstance(value, str):
        value = distributions[one_of(place, value, distributions, "a distribution")]
    table = dict(any_table(place, value))
    kind = one_of(place, str(table.get("kind")), OPTIONS, "a kind of distribution")
    options = OPTIONS[kind]
    for key in table.keys() - {"kind"} - options.keys():
        place.at(key).fail(f"{kind!r} has no option {key!r};{nearest(key, options)}")
    if missing := [key for key, default in options.items() if default is None and key not in table]:
        place.fail(f"{kind!r} needs {quote(missing)}")
    if wrong := fault(table):
        place.at(wrong[0]).fail(wrong[1])
    return {key: freeze(item) for key, item in table.items()}


def _inputs(
    place: Place, value: Any, distributions: Mapping[str, Mapping[str, Value]]
) -> Mapping[str, Mapping[str, Value]]:
    """Return the distributions by their words in ids; the word of an inline table is made from its options."""
    if not isinstance(value, list) or not value:
        place.fail(f"a list of distributions is needed, not {value!r}")
    checked = [(item, _distribution(place, item, distributions)) for item in value]
    distribution_of = {
        item if isinstance(item, str) else _distribution_word(options): options for item, options in checked
    }
    if len(distribution_of) != len(value):
        place.fail(f"{value!r} names something twice; write each once")
    return distribution_of


def _distribution_word(options: Mapping[str, Value]) -> str:
    return "_".join([options["kind"], *(f"{key}{token(item)}" for key, item in options.items() if key != "kind")])


def _tolerance(place: Place, data: Any) -> Tolerance:
    table = known_table(place, data, "the tolerance")
    word(place, table, "mode", ("bound", "fixed"))
    word(place, table, "specials", ("ieee", "same-class", "any-if-eager-nan"))
    for key in ("rtol", "atol"):
        optional_number(place.at(key), table.get(key))
    flag(place.at("deterministic"), table.get("deterministic", True))
    optional_text(place.at("reason"), table.get("reason"))
    tolerance = Tolerance(**table)
    fixed = tolerance.mode == "fixed"
    if fixed and (tolerance.rtol is None or tolerance.atol is None or not tolerance.reason.strip()):
        place.fail('mode = "fixed" needs rtol, atol and a reason why the derived bound is not used')
    if not fixed and (tolerance.rtol is not None or tolerance.atol is not None):
        place.fail('rtol and atol are only for mode = "fixed"')
    return tolerance


def _xfail(place: Place, data: Any) -> tuple[XfailSpec, ...]:
    entries = []
    for key, value in any_table(place, data):
        here = place.at(key)
        target, _, dtype = key.rpartition(".")
        if not target or dtype not in (*DTYPES, "*"):
            here.fail(f'{key!r} must be "TARGET.DTYPE", as in "cpu.bf16" or "*.f16", in quotes')
        _target(here, target)
        table = known_table(here, value, "an xfail")
        reason = text(here.at("reason"), table.get("reason"), "an expected failure needs a `reason`")
        strict = flag(here.at("strict"), table.get("strict", True))
        expected = Xfail(target, word(here, table, "stage", STAGES), reason, strict)
        entries.append(XfailSpec(target, dtype, optional_text(here.at("where"), table.get("where")), expected))
    return tuple(entries)


def _perf(place: Place, data: Any, spec: CaseSpec, distributions: Mapping[str, Mapping[str, Value]]) -> PerfSpec:
    table = known_table(place, data, "a perf table")
    rows = table.get("dims", [{}])
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        place.at("dims").fail("`dims` is a list of tables such as [{ M = 4096, N = 4096 }]")
    shared = dict(any_table(place.at("params"), table.get("params", {})))
    tier = word(place, table, "tier", TIERS)
    tiers = [tier or ("full" if index else "smoke") for index in range(len(rows))]
    perf_rows = [
        _perf_row(place.at("dims"), {**shared, **row}, row_tier, spec)
        for row, row_tier in zip(rows, tiers, strict=True)
    ]
    layout = _layouts(place.at("layout"), [table.get("layout", spec.layouts[0])])[0]
    inputs = text(place.at("inputs"), table.get("inputs", next(iter(spec.inputs))), "`inputs` is one distribution")
    one_of(place.at("inputs"), inputs, spec.inputs, "among the case's inputs")
    budget = {
        target: known_table(place.at("budget", _target(place.at("budget"), target)), limits, "a budget")
        for target, limits in any_table(place.at("budget"), table.get("budget", {}))
    }
    for target, limits in budget.items():
        for key, limit in limits.items():
            optional_number(place.at("budget", target, key), limit)
    dtypes = _perf_dtypes(place.at("dtypes"), table.get("dtypes", [spec.dtypes[0]]), spec)
    vs = contestants(place.at("vs"), table.get("vs", ["eager", "compile"]))
    checked = _checked_spec(place.at("checked"), table["checked"], spec) if "checked" in table else None
    return PerfSpec(tuple(perf_rows), dtypes, layout, inputs, vs, budget, checked)


def _checked_spec(place: Place, data: Any, spec: CaseSpec) -> CheckedSpec:
    table = known_table(place, data, "a checked table")
    deltas = dict(any_table(place.at("around"), table.get("around", {})))
    for key, steps in deltas.items():
        here = place.at("around", key)
        one_of(here, key, spec.dims, "a dim")
        if not isinstance(steps, list) or not steps or not all(is_kind(step, (int,)) for step in steps):
            here.fail(f"a list of whole numbers to add to {key} is needed, such as [-1, 0, 1], not {steps!r}")
    targets = _targets(place.at("targets"), table.get("targets", list(spec.targets)))
    tier = word(place, table, "tier", TIERS) or "nightly"
    return CheckedSpec({key: tuple(steps) for key, steps in deltas.items()}, targets, tier)


def _perf_dtypes(place: Place, value: Any, spec: CaseSpec) -> Mapping[str, tuple[str, ...]]:
    """Return the dtypes to time on each target of the case."""
    if not isinstance(value, Mapping):
        listed = _dtypes(place, value)
        return dict.fromkeys(spec.targets, listed)
    kinds = {key: _dtypes(place.at(key), item) for key, item in value.items()}
    for key in kinds:
        one_of(place.at(key), key, (*KINDS, "*"), "a kind of target")
    targets = [target for t in spec.targets for target in (KINDS if t == "*" else (t,))]
    for target in targets:
        if kind_of(target) not in kinds and "*" not in kinds:
            place.fail(
                f'there is no list for {kind_of(target)!r}; add one, or one for "*", which means every other kind'
            )
    return {target: kinds.get(kind_of(target), kinds.get("*", ())) for target in targets}


def _perf_row(place: Place, row: Mapping[str, Any], tier: str, spec: CaseSpec) -> PerfRow:
    values = {key: value for key, value in row.items() if key != "tier"}
    for key, value in values.items():
        one_of(place.at(key), key, (*spec.dims, *spec.params), "a dim or param")
        if key in spec.dims and not (is_kind(value, (int,)) and value >= 0):
            place.at(key).fail(f"{value!r} is not a size; sizes are ints of at least 0")
    own_tier = word(place, row, "tier", TIERS)
    return PerfRow({key: _value(place.at(key), value) for key, value in values.items()}, own_tier or tier)


def _family(place: Place, value: Any, op: str) -> str | None:
    name = optional_text(place, value)
    if name is not None and not re.fullmatch(r"(?:[\w.+-]|\{[^\W\d]\w*\})+", name, re.ASCII):
        place.fail(f"{name!r} may contain only letters, digits, _ . + - and names of dims or params in braces")
    return name.replace("{op}", op) if name is not None and op else name


def _layouts(place: Place, value: Any) -> tuple[str, ...]:
    layouts = strings(place, value, "layouts", nonempty=True)
    for layout in layouts:
        if parse(layout) is None:
            forms = [f"{name}({','.join('n' * count)})" if count else name for name, (count, _, _) in LAYOUTS.items()]
            place.fail(f"{layout!r} is not a layout; the layouts are {', '.join(forms)}")
    return tuple(layout.replace(" ", "") for layout in layouts)


def _dtypes(place: Place, value: Any) -> tuple[str, ...]:
    return tuple(one_of(place, name, DTYPES, "a dtype") for name in strings(place, value, "dtypes", nonempty=True))


def _targets(place: Place, value: Any) -> tuple[str, ...]:
    return tuple(_target(place, target) for target in strings(place, value, "targets"))


def _target(place: Place, value: str) -> str:
    if kind_of(value) not in (*KINDS, "*"):
        place.fail(f'{value!r} is not a target;{nearest(value, KINDS)}, with a feature as in "cpu:avx2"')
    return value
