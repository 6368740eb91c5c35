"""Parsed TOML in, checked case specifications out; whatever the format does not know is an error at its line."""

import difflib
import keyword
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from conformance.cases import DTYPES, STAGES, TIERS, Tolerance, Value, Xfail, frozen, token
from conformance.distributions import OPTIONS
from conformance.expressions import FUNCTIONS, RESERVED, ExpressionError, formula, names_in_program, quoted
from conformance.layouts import LAYOUTS, parse
from conformance.specs import ArgSpec, CaseSpec, PerfSpec, ShapeFile, ShapeFileError, XfailSpec
from conformance.toml_lines import line_of

KINDS = ("cpu", "cuda")
_DEFAULTS = ("dtypes", "targets", "inputs", "layouts", "combine", "tier", "timeout", "tolerance")
_KEYS = {
    "shape file": ("format", "defaults", "distributions", "case"),
    "defaults": _DEFAULTS,
    "case": (
        "name", "op", "ops", "expr", "module", "init", "args", "params", "consts", "constants", "dims", "where",
        "xfail", "perf", *_DEFAULTS,
    ),
    "argument": ("shape", "dtype", "layout", "inputs", "low", "high"),
    "tolerance": ("mode", "rtol", "atol", "reason", "specials", "deterministic"),
    "xfail": ("stage", "reason", "strict", "where"),
    "perf": ("dims", "dtypes", "params", "layout", "inputs", "vs", "budget"),
    "budget": (
        "min_speedup_eager", "min_speedup_compile", "min_speedup", "min_roofline", "max_slowdown_baseline",
        "max_compile_s", "max_kernels",
    ),
}  # fmt: skip
_WORDS = {
    "combine": ("pairwise", "cross", "zip"),
    "tier": TIERS,
    "mode": ("bound", "fixed"),
    "specials": ("ieee", "same-class", "any-if-eager-nan"),
    "stage": (*STAGES, "cuda"),
}
_ROW_NAMES = frozenset({"layout", "inputs", "target"})
_NUMBER = (int, float)


@dataclass(frozen=True)
class Place:
    """A key of one file, to be named in an error."""

    file: str
    text: str
    path: tuple[str | int, ...] = ()
    case: str = ""

    def at(self, *keys: str | int) -> "Place":
        """The place of a key below."""
        return replace(self, path=(*self.path, *keys))

    @property
    def line(self) -> int:
        """The line of the key."""
        return line_of(self.text, self.path)

    def fail(self, message: str) -> NoReturn:
        """Raise the error that names file, line, case and key."""
        key = ".".join(str(word) for word in self.path[2:] if not isinstance(word, int))
        where = f"case {self.case!r}: " if self.case else ""
        raise ShapeFileError(self.file, self.line, where + (f"{key}: " if key else "") + message)


def shape_file(path: str, text: str, data: Mapping[str, Any]) -> ShapeFile:
    """The checked content of a file."""
    place = Place(path, text)
    _table(place, data, "shape file")
    if data.get("format") != 1:
        place.at("format").fail(f"a shape file starts with `format = 1`, not {data.get('format', 'without it')!r}")
    defaults = _table(place.at("defaults"), data.get("defaults", {}), "defaults")
    known = _distributions(place.at("distributions"), data.get("distributions", {}))
    entries = data.get("case", [])
    if not isinstance(entries, list) or not entries:
        place.at("case").fail("there is no [[case]]; add one")
    cases: list[CaseSpec] = []
    for index, entry in enumerate(entries):
        here = place.at("case", index)
        for spec in _case(here, {**defaults, **_table(here, entry, "case")}, known):
            if earlier := next((case for case in cases if case.name == spec.name), None):
                here.at("name").fail(
                    f"the name {spec.name!r} is taken by the case in line {earlier.line}; choose another"
                )
            cases.append(spec)
    return ShapeFile(path, Path(path).stem, tuple(cases))


def _case(place: Place, data: Mapping[str, Any], known: Mapping[str, Mapping[str, Value]]) -> list[CaseSpec]:
    """The cases of one entry: one, or one per word of `ops`."""
    if "ops" not in data:
        return [_one_case(place, data, "", known)]
    words = _strings(place.at("ops"), data["ops"], "words for {op}")
    if "op" in data:
        place.at("op").fail("`op` and `ops` exclude each other; `ops` names the op of each repetition")
    return [_one_case(place, {"name": "{op}", **data}, word, known) for word in words]


def _one_case(place: Place, data: Mapping[str, Any], op: str, known: Mapping[str, Mapping[str, Value]]) -> CaseSpec:
    name = _text(place.at("name"), data.get("name"), "every case needs a `name`").replace("{op}", op)
    if not re.fullmatch(r"[\w.+-]+", name, re.ASCII):
        place.at("name").fail(f"{name!r} may hold letters, digits and _ . + - only, so that `pytest -k` can name it")
    here = replace(place, case=name)
    layouts = _layouts(here.at("layouts"), data["layouts"]) if "layouts" in data else None
    params = _params(here.at("params"), data.get("params", {}))
    consts = _values(here.at("consts"), data.get("consts", {}))
    dims, zero = _dims(here.at("dims"), data.get("dims", {}))
    constants = _strings(here.at("constants"), data.get("constants", []), "names of args")
    args = tuple(
        _arg(here.at("args", key), key, item, layouts, key in constants, known)
        for key, item in _any_table(here.at("args"), data.get("args", {}))
    )
    spec = CaseSpec(
        file=place.file, suite=Path(place.file).stem, line=place.line, name=name,
        op=op or _text(here.at("op"), data.get("op", name.partition(".")[0]), "`op` is a word"),
        expr=_expr(here, data, args).replace("{op}", op), module=_module(here.at("module"), data.get("module")),
        init=_values(here.at("init"), data.get("init", {})),
        args=args, params=params, consts=consts, dims=dims, zero=zero,
        where=_optional_text(here.at("where"), data.get("where")), combine=_word(here, data, "combine") or "pairwise",
        dtypes=_dtypes(here.at("dtypes"), data.get("dtypes", ["f32"])),
        layouts=layouts or tuple(dict.fromkeys(item for arg in args for item in arg.layouts)) or ("contig",),
        inputs=_inputs(here.at("inputs"), data.get("inputs", ["normal"]), known),
        targets=_targets(here.at("targets"), data.get("targets", list(KINDS))), tier=_word(here, data, "tier"),
        tolerance=_tolerance(here.at("tolerance"), data.get("tolerance", {})),
        xfail=_xfail(here.at("xfail"), data.get("xfail", {})), perf=None,
        timeout=_optional_number(here.at("timeout"), data.get("timeout")),
    )  # fmt: skip
    spec = replace(spec, perf=_perf(here.at("perf"), data["perf"], spec, known) if "perf" in data else None)
    _check_names(here, spec, constants)
    return spec


def _check_names(place: Place, spec: CaseSpec, constants: Collection[str]) -> None:
    """Every name means one thing, is known where it is used, and is used."""
    groups = {"args": [arg.name for arg in spec.args], "dims": spec.dims, "params": spec.params, "consts": spec.consts}
    owner: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            _check_name(place.at(group, name), name, group, owner)
    for name in constants:
        if name not in groups["args"]:
            place.at("constants").fail(f"{name!r} is no argument;{_nearest(name, groups['args'])}")
    for name in spec.zero:
        if name not in spec.dims:
            place.at("dims", "zero").fail(f"{name!r} is no dim;{_nearest(name, spec.dims)}")
    values = {*spec.dims, *spec.params, *spec.consts}
    used = set(_formula_names(place, spec, values))
    try:
        program = names_in_program(spec.expr, groups["args"], values)
    except ExpressionError as error:
        place.at("expr").fail(str(error))
    for arg in groups["args"]:
        if arg not in program:
            place.at("args", arg).fail("the expression never uses this argument; use it or take it out")
    for group in ("dims", "params"):
        for name in groups[group]:
            if name not in used | program:
                place.at(group, name).fail("nothing uses this name: no shape, expression, filter or option")


def _check_name(place: Place, name: str, group: str, owner: dict[str, str]) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        place.fail(f"{name!r} is no name that an expression can use; take letters, digits and _")
    reserved = RESERVED | FUNCTIONS.keys() | (_ROW_NAMES if group != "args" else frozenset())
    if name in reserved:
        place.fail(f"{name!r} has a meaning of its own in expressions; choose another name")
    if name in owner:
        place.fail(f"{name!r} is already one of the {owner[name]}; choose another name")
    owner[name] = group


def _formula_names(place: Place, spec: CaseSpec, values: Collection[str]) -> set[str]:
    """The names that sizes, options and filters use, each formula checked on the way."""
    row = {*values, "dtype", "layout", "inputs"}
    found: set[str] = set()

    def check(at: Place, text: object, names: Collection[str]) -> None:
        if isinstance(text, str):
            try:
                found.update(formula(text, names)[1])
            except ExpressionError as error:
                at.fail(str(error))

    check(place.at("where"), spec.where, {*row, "target"})
    for listed in spec.xfail:
        check(place.at("xfail", f"{listed.target}.{listed.dtype}", "where"), listed.where, row)
    for arg in spec.args:
        here = place.at("args", arg.name)
        for size in (arg.shape,) if isinstance(arg.shape, str) else arg.shape:
            check(here.at("shape"), size, values)
        for key, option in (*(arg.inputs or {}).items(), ("low", arg.low), ("high", arg.high)):
            if key not in ("kind", "unique_along"):
                check(here.at(key), option, values)
        if arg.dtype is not None and arg.dtype not in DTYPES:
            if arg.dtype not in {*spec.params, *spec.consts}:
                here.at("dtype").fail(
                    f"{arg.dtype!r} is no dtype and no param;{_nearest(arg.dtype, (*DTYPES, *spec.params))}"
                )
            found.add(arg.dtype)
    for options in spec.inputs.values():
        for key, option in options.items():
            if key not in ("kind", "unique_along"):
                check(place.at("inputs"), option, values)
    return found


def _arg(
    place: Place,
    name: str,
    data: Any,
    layouts: tuple[str, ...] | None,
    constant: bool,
    known: Mapping[str, Mapping[str, Value]],
) -> ArgSpec:
    table = _table(place, data, "argument")
    shape = table.get("shape")
    if not isinstance(shape, str) and not (isinstance(shape, list) and all(_is(size, (int, str)) for size in shape)):
        place.at("shape").fail('a `shape` is needed: a list of ints, dim names or arithmetic such as ["B", "2*N", 1]')
    own = _layouts(place.at("layout"), table["layout"]) if "layout" in table else None
    inputs = None
    if "inputs" in table:
        inputs = _distribution(place.at("inputs"), table["inputs"], known)
        if "low" in table or "high" in table:
            place.at("inputs").fail("`low` and `high` choose a distribution of their own; put them into `inputs`")
    limits = {key: table[key] for key in ("low", "high") if key in table}
    for key, limit in limits.items():
        if not _is(limit, (*_NUMBER, str)):
            place.at(key).fail(f"{limit!r} is no number or arithmetic")
    return ArgSpec(
        name=name, shape=frozen(shape), dtype=_optional_text(place.at("dtype"), table.get("dtype")),
        layouts=() if constant else own or layouts or (), inputs=inputs, low=limits.get("low"), high=limits.get("high"),
        constant=constant,
    )  # fmt: skip


def _expr(place: Place, data: Mapping[str, Any], args: tuple[ArgSpec, ...]) -> str:
    if "expr" in data:
        return _text(place.at("expr"), data["expr"], "`expr` is Python text")
    if "module" not in data:
        place.at("expr").fail("every case needs an `expr` (or a `module`)")
    return f"module({', '.join(arg.name for arg in args)})"


def _module(place: Place, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value)):
        place.fail(f'{value!r} must name a class as "package.module:Class"')
    return value if isinstance(value, str) else None


def _params(place: Place, data: Any) -> Mapping[str, tuple[Value, ...]]:
    params = {}
    for key, values in _any_table(place, data):
        if not isinstance(values, list) or not values:
            place.at(key).fail(f"a param is a non-empty list of values, not {values!r}")
        params[key] = tuple(_value(place.at(key), value) for value in values)
    return params


def _values(place: Place, data: Any) -> Mapping[str, Value]:
    return {key: _value(place.at(key), value) for key, value in _any_table(place, data)}


def _value(place: Place, value: Any) -> Value:
    """A literal: TOML has no null, so the string "None" stands for it."""
    if isinstance(value, list):
        return tuple(_value(place, item) for item in value)
    if not _is(value, (bool, int, float, str)):
        place.fail(f"{value!r} is no number, boolean, string or list")
    return None if value == "None" else value


def _dims(place: Place, data: Any) -> tuple[Mapping[str, tuple[int, ...]], tuple[str, ...]]:
    dims = {key: _sizes(place.at(key), value) for key, value in _any_table(place, data) if key != "zero"}
    zero = data.get("zero", [])
    return dims, _strings(place.at("zero"), zero, "names of dims")


def _sizes(place: Place, value: Any) -> tuple[int, ...]:
    sizes: list[int]
    match value:
        case int() if not isinstance(value, bool):
            sizes = [value]
        case list() if value and all(_is(size, (int,)) for size in value):
            sizes = value
        case {"range": [int(first), int(last)], **rest} if rest.keys() <= {"step"}:
            step = rest.get("step", 1)
            if not isinstance(step, int) or step < 1:
                place.at("step").fail(f"{step!r} is no step; it is a whole number of at least 1")
            sizes = list(range(first, last + 1, step))
        case {"around": list(middles), "delta": list(deltas), **rest} if not rest:
            if not all(_is(number, (int,)) for number in middles + deltas):
                place.fail("`around` and `delta` are lists of ints")
            sizes = [middle + delta for middle in middles for delta in deltas]
        case _:
            forms = "{ range = [a, b], step = n } or { around = [..], delta = [..] }"
            place.fail(f"{value!r} is no int, no list of ints, and not {forms}")
    if not sizes or min(sizes) < 0:
        place.fail(f"{value!r} gives {min(sizes, default='no size')}; sizes are 0 or more")
    return tuple(dict.fromkeys(sizes))


def _distributions(place: Place, data: Any) -> Mapping[str, Mapping[str, Value]]:
    known: dict[str, Mapping[str, Value]] = {kind: {"kind": kind} for kind in OPTIONS}
    for name, value in _any_table(place, data):
        here = place.at(name)
        if name in OPTIONS or not name.isidentifier():
            here.fail(f"{name!r} is a built-in distribution or no plain word; choose another name")
        known[name] = _distribution(here, value, known)
    return known


def _distribution(place: Place, value: Any, known: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Value]:
    if isinstance(value, str):
        if value not in known:
            place.fail(f"{value!r} is no distribution;{_nearest(value, known)}")
        value = known[value]
    table = dict(_any_table(place, value))
    kind = str(table.get("kind"))
    if kind not in OPTIONS:
        place.fail(f"{kind!r} is no kind of distribution;{_nearest(kind, OPTIONS)}")
    options = OPTIONS[kind]
    for key in table.keys() - {"kind"} - options.keys():
        place.at(key).fail(f"{kind!r} has no option {key!r};{_nearest(key, options)}")
    if missing := [key for key, default in options.items() if default is None and key not in table]:
        place.fail(f"{kind!r} needs {quoted(missing)}")
    return {key: frozen(item) for key, item in table.items()}


def _inputs(place: Place, value: Any, known: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Mapping[str, Value]]:
    """Distributions by the word that stands for them in ids, which for an inline table spells its options."""
    if not isinstance(value, list) or not value:
        place.fail(f"a list of distributions is needed, not {value!r}")
    checked = [(item, _distribution(place, item, known)) for item in value]
    named = {item if isinstance(item, str) else _spelled(options): options for item, options in checked}
    if len(named) != len(value):
        place.fail(f"{value!r} names something twice; write each once")
    return named


def _spelled(options: Mapping[str, Value]) -> str:
    return "_".join([options["kind"], *(f"{key}{token(item)}" for key, item in options.items() if key != "kind")])


def _tolerance(place: Place, data: Any) -> Tolerance:
    table = _table(place, data, "tolerance")
    for key in ("mode", "specials"):
        _word(place, table, key)
    for key in ("rtol", "atol"):
        _optional_number(place.at(key), table.get(key))
    _flag(place.at("deterministic"), table.get("deterministic", True))
    _optional_text(place.at("reason"), table.get("reason"))
    tolerance = Tolerance(**table)
    fixed = tolerance.mode == "fixed"
    if fixed and (tolerance.rtol is None or tolerance.atol is None or not tolerance.reason.strip()):
        place.fail('mode = "fixed" needs rtol, atol and a reason why the derived bound does not do')
    if not fixed and (tolerance.rtol is not None or tolerance.atol is not None):
        place.fail('rtol and atol belong to mode = "fixed"')
    return tolerance


def _xfail(place: Place, data: Any) -> tuple[XfailSpec, ...]:
    listed = []
    for key, value in _any_table(place, data):
        here = place.at(key)
        target, _, dtype = key.rpartition(".")
        if not target or dtype not in (*DTYPES, "*"):
            here.fail(f'{key!r} must be "TARGET.DTYPE", as in "cpu.bf16" or "*.f16", in quotes')
        _target(here, target)
        table = _table(here, value, "xfail")
        reason = _text(here.at("reason"), table.get("reason"), "an expected failure needs a `reason`")
        strict = _flag(here.at("strict"), table.get("strict", True))
        expected = Xfail(target, _word(here, table, "stage"), reason, strict)
        listed.append(XfailSpec(target, dtype, _optional_text(here.at("where"), table.get("where")), expected))
    return tuple(listed)


def _perf(place: Place, data: Any, spec: CaseSpec, known: Mapping[str, Mapping[str, Value]]) -> PerfSpec:
    table = _table(place, data, "perf")
    rows = table.get("dims", [{}])
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        place.at("dims").fail("`dims` is a list of tables such as [{ M = 4096, N = 4096 }]")
    shared = table.get("params", {})
    made = [_perf_row(place.at("dims"), {**dict(_any_table(place.at("params"), shared)), **row}, spec) for row in rows]
    layout = _layouts(place.at("layout"), [table.get("layout", spec.layouts[0])])[0]
    inputs = _text(place.at("inputs"), table.get("inputs", next(iter(spec.inputs))), "`inputs` is one distribution")
    if inputs not in spec.inputs:
        place.at("inputs").fail(f"{inputs!r} is not among the case's inputs;{_nearest(inputs, spec.inputs)}")
    budget = {
        target: _table(place.at("budget", _target(place.at("budget"), target)), limits, "budget")
        for target, limits in _any_table(place.at("budget"), table.get("budget", {}))
    }
    for target, limits in budget.items():
        for key, limit in limits.items():
            _optional_number(place.at("budget", target, key), limit)
    dtypes = _dtypes(place.at("dtypes"), table.get("dtypes", [spec.dtypes[0]]))
    vs = _strings(place.at("vs"), table.get("vs", ["eager", "compile"]), "contestants")
    return PerfSpec(tuple(made), dtypes, layout, inputs, vs, budget)


def _perf_row(place: Place, row: Mapping[str, Any], spec: CaseSpec) -> Mapping[str, Value]:
    for key, value in row.items():
        if key not in (*spec.dims, *spec.params):
            place.at(key).fail(f"{key!r} is no dim or param;{_nearest(key, (*spec.dims, *spec.params))}")
        if key in spec.dims and not (_is(value, (int,)) and value >= 0):
            place.at(key).fail(f"{value!r} is no size of 0 or more")
    return {key: _value(place.at(key), value) for key, value in row.items()}


def _layouts(place: Place, value: Any) -> tuple[str, ...]:
    layouts = _strings(place, value, "layouts")
    for layout in layouts:
        if parse(layout) is None:
            forms = [f"{name}({','.join('n' * count)})" if count else name for name, (count, _, _) in LAYOUTS.items()]
            place.fail(f"{layout!r} is no layout; there are {', '.join(forms)}")
    return tuple(layout.replace(" ", "") for layout in layouts)


def _dtypes(place: Place, value: Any) -> tuple[str, ...]:
    dtypes = _strings(place, value, "dtypes")
    for dtype in dtypes:
        if dtype not in DTYPES:
            place.fail(f"{dtype!r} is no dtype;{_nearest(dtype, DTYPES)}")
    return dtypes


def _targets(place: Place, value: Any) -> tuple[str, ...]:
    return tuple(_target(place, target) for target in _strings(place, value, "targets"))


def _target(place: Place, value: str) -> str:
    if value.partition(":")[0] not in (*KINDS, "*"):
        place.fail(f'{value!r} is no target;{_nearest(value, KINDS)}, with a feature as in "cpu:avx2"')
    return value


def _table(place: Place, value: Any, kind: str) -> dict[str, Any]:
    """A table with known keys only."""
    table = dict(_any_table(place, value))
    for key in table:
        if key not in _KEYS[kind]:
            place.at(key).fail(f"a {kind} has no key {key!r};{_nearest(key, _KEYS[kind])}")
    return table


def _any_table(place: Place, value: Any) -> Collection[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        place.fail(f"a table is needed here, not {value!r}")
    return value.items()


def _strings(place: Place, value: Any, what: str) -> tuple[str, ...]:
    """A list of words, each once."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        place.fail(f"a list of {what} is needed, not {value!r}")
    if len(set(value)) != len(value):
        place.fail(f"{value!r} names something twice; write each once")
    return tuple(value)


def _word(place: Place, table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and value not in _WORDS[key]:
        place.at(key).fail(f"{value!r} is none of {quoted(_WORDS[key])};{_nearest(str(value), _WORDS[key])}")
    return value


def _text(place: Place, value: Any, message: str) -> str:
    if not isinstance(value, str) or not value.strip():
        place.fail(message)
    return value


def _optional_text(place: Place, value: Any) -> str | None:
    return None if value is None else _text(place, value, f"a text is needed here, not {value!r}")


def _optional_number(place: Place, value: Any) -> float | None:
    if value is not None and not (_is(value, _NUMBER) and value >= 0):
        place.fail(f"{value!r} is no number of 0 or more")
    return None if value is None else float(value)


def _flag(place: Place, value: Any) -> bool:
    if not isinstance(value, bool):
        place.fail(f"{value!r} is neither true nor false")
    return value


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """Like isinstance, but a boolean is no number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _nearest(word: str, known: Collection[str]) -> str:
    """A hint after a message: the nearest known word, or all of them."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else f" known are {quoted(sorted(known))}"
