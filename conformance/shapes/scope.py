"""Check the names of a case: each has one meaning, is defined where it is used, and is used."""

import keyword
from collections.abc import Collection

from conformance.shapes.cases import DTYPES
from conformance.shapes.expressions import FUNCTIONS, RESERVED, ExpressionError, formula, names_in_program
from conformance.shapes.specs import CaseSpec
from conformance.shapes.toml_values import Place, nearest, one_of

_ROW_NAMES = frozenset({"layout", "inputs", "target", "tier"})


def check_names(place: Place, spec: CaseSpec, constants: Collection[str]) -> None:
    """Raise ShapeFileError if a name has two meanings, is undefined, or is unused."""
    groups = {"args": [arg.name for arg in spec.args], "dims": spec.dims, "params": spec.params, "consts": spec.consts}
    owner: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            _check_name(place.at(group, name), name, group, owner)
    for key, listed in (("constants", constants), ("mutates", spec.mutates)):
        for name in listed:
            one_of(place.at(key), name, groups["args"], "an argument")
    if weights := [name for name in spec.mutates if name in constants]:
        place.at("mutates").fail(f"{weights[0]!r} is a weight; a program that writes to its weights cannot be checked")
    for name in spec.zero:
        one_of(place.at("dims", "zero"), name, spec.dims, "a dim")
    values = {*spec.dims, *spec.params, *spec.consts}
    used = set(_formula_names(place, spec, values))
    try:
        program = names_in_program(spec.expr, groups["args"], values)
    except ExpressionError as error:
        place.at("expr").fail(str(error))
    for arg in groups["args"]:
        if arg not in program:
            place.at("args", arg).fail("the expression does not use this argument; use it or remove it")
    for group in ("dims", "params"):
        for name in groups[group]:
            if name not in used | program:
                place.at(group, name).fail("this name is unused: no shape, expression, filter or option refers to it")


def _check_name(place: Place, name: str, group: str, owner: dict[str, str]) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        place.fail(f"{name!r} is not a valid name in expressions; use letters, digits and _")
    reserved = RESERVED | FUNCTIONS.keys() | (_ROW_NAMES if group != "args" else frozenset())
    if name in reserved:
        place.fail(f"{name!r} is reserved in expressions; choose another name")
    if name in owner:
        place.fail(f"{name!r} is already one of the {owner[name]}; choose another name")
    owner[name] = group


def _formula_names(place: Place, spec: CaseSpec, values: Collection[str]) -> set[str]:
    """Check the formulas of sizes, options and filters, and return the names that they use."""
    row = {*values, "dtype", "layout", "inputs"}
    used: set[str] = set()

    def check(at: Place, text: object, names: Collection[str]) -> None:
        if isinstance(text, str):
            try:
                used.update(formula(text, names)[1])
            except ExpressionError as error:
                at.fail(str(error))

    check(place.at("where"), spec.where, {*row, "target"})
    for entry in spec.xfail:
        check(place.at("xfail", f"{entry.target}.{entry.dtype}", "where"), entry.where, row)
    for arg in spec.args:
        here = place.at("args", arg.name)
        for size in (arg.shape,) if isinstance(arg.shape, str) else arg.shape:
            check(here.at("shape"), size, values)
        for key, option in (*(arg.inputs or {}).items(), ("low", arg.low), ("high", arg.high)):
            if key not in ("kind", "unique_along"):
                check(here.at(key), option, values)
        if arg.dtype is not None and arg.dtype not in DTYPES:
            if arg.dtype not in {*spec.params, *spec.consts}:
                hint = nearest(arg.dtype, (*DTYPES, *spec.params))
                here.at("dtype").fail(f"{arg.dtype!r} is neither a dtype nor a param;{hint}")
            used.add(arg.dtype)
    for options in spec.inputs.values():
        for key, option in options.items():
            if key not in ("kind", "unique_along"):
                check(place.at("inputs"), option, values)
    return used
