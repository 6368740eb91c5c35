"""Lower Torch IR to Tensor IR: each ATen call becomes the equations that its rule writes, in a group of its own.

Element types, broadcasting, promotion and argument defaults become explicit. Calls without a rule are refused before
anything is lowered, all of them in one error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.errors import Unsupported, call_text
from compiler.ir import aten
from compiler.ir import dtype as dt
from compiler.ir.aten import Call, Ref, Type
from compiler.ir.expr import Expr, IllTyped, Load, SymbolicError, both, cast, op
from compiler.ir.node import Node
from compiler.ir.tensor import Equation, Group, Program, Tensor, reads
from compiler.ir.text import show_type
from compiler.passes.torch_to_tensor import (
    attention,
    attention_backward,
    contract,
    create,
    demands,
    indexing,
    join,
    loss,
    normalize,
    order,
    pointwise,
    pool,
    pool_backward,
    power,
    recurrent,
    reduce,
    scan,
    special,
    strided,
    upsample,
    views,
)
from compiler.passes.torch_to_tensor.builder import Builder, Rule, Value, ensure_stored_dtype
from compiler.passes.torch_to_tensor.positions import NoElement, is_empty, result_strides

_FAMILIES = (
    pointwise, power, special, reduce, order, normalize, scan, contract, attention, attention_backward, recurrent,
    views, strided, join, create, indexing, pool, pool_backward, upsample, loss,
)  # fmt: skip
_MATMULS = (contract, attention, attention_backward)  # these round their operands
# Calls without results that assert a condition.
ASSERTIONS = {"aten._assert_async.default", "aten._assert_async.msg"}
RULES: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.RULES.items()}


def lower(
    program: aten.Program, *, round_every_call: bool = False, order_equations: bool = False, split_sums: bool = False
) -> Program:
    """The equivalent Tensor program; raises Unsupported.

    Three kinds of values are rounded to their own element type where they are computed: outputs that calls read too, so
    that readers see what the caller gets; values read both by matmuls, which round them in any case, and by other
    calls, so that they are stored once; and inputs of norms whose statistics are results of 16 bits, because the
    gradient subtracts the rounded mean from the rounded input. With `round_every_call`, the result of every call is
    rounded, as in eager. With `order_equations`, a sort is one `Order` equation. With `split_sums`, parts of a result
    that sum different terms are separate sums, for targets that do not need large kernels.
    """
    calls = [c for c in program.calls if any(t is not None for t in c.types)]
    check(program, calls)
    types = aten.types(program)
    b = Builder(types, [s.name for s in program.sizes], order_equations, split_sums)
    env = {i.name: Value(i.name, i.type.dtype, i.type.shape, i.type.dtype, i.type.strides) for i in program.inputs}
    groups: list[Group] = []
    read_names = {name for call in calls for name in _read_names(call)}
    rounded = (
        set(types)
        if round_every_call
        else (read_names & set(program.outputs)) | _read_by_matmuls_and_others(calls) | _read_with_statistics(calls)
    )
    for call in calls:
        results = _lower_call(b, call, env)
        env |= {n: ensure_stored_dtype(b, v) if n in rounded else v for n, v in results.items()}
        if b.equations:
            name = next(n for n, t in zip(call.outputs, call.types, strict=True) if t)
            source = f"{call.origin}/{call.op.split('.')[1]}" if call.origin else call.op
            groups.append(Group(name, tuple(b.equations), (source,)))
    groups += _assertion_group(b, program, env)
    outputs: list[Tensor] = []
    for name in program.outputs:
        output, group = _make_output(
            b, env[name], types[name], {i.name for i in program.inputs} | {o.name for o in outputs}
        )
        groups += group
        outputs.append(output)
    inputs = tuple(Tensor(i.name, i.type.dtype, i.type.shape, i.type.strides, i.constant) for i in program.inputs)
    live = _live_groups(groups, {o.name for o in outputs})
    return Program(program.name, inputs, live, tuple(outputs), program.sizes, program.into)


def check(program: aten.Program, calls: Sequence[Call]) -> None:
    """Check that every call has a rule that accepts its arguments; one Unsupported lists all calls without."""
    types = aten.types(program)
    problems: list[tuple[Call, str]] = []
    for call in calls:
        if call.op not in RULES:
            problems.append((call, "no lowering for this op"))
            continue
        try:
            inspect.signature(RULES[call.op]).bind(None, *call.args, **dict(call.kwargs))
        except TypeError as problem:
            problems.append((call, f"{problem}"))
    if not problems:
        return
    errors = [_unsupported(call, types, why) for call, why in dict.fromkeys(problems)]
    first, *others = errors
    if others:
        other_texts = "; ".join(dict.fromkeys(f"{e.op}({e.args_text}): {e.why}" for e in others))
        raise Unsupported(first.op, (first.args_text,), f"{first.why}; and {other_texts}")
    raise first


def _unsupported(call: Call, types: dict[str, Type], why: str) -> Unsupported:
    return Unsupported(
        call.op,
        [_argument_text(a, types) for a in call.args],
        why,
        {k: _argument_text(v, types) for k, v in call.kwargs},
    )


def _argument_text(argument: object, types: dict[str, Type]) -> str:
    match argument:
        case Ref(name):
            declared = types[name]
            return show_type(declared.dtype, declared.shape)
        case tuple():
            return f"[{call_text([_argument_text(a, types) for a in argument], {})}]"
    return str(argument)


def _lower_call(b: Builder, call: Call, env: dict[str, Value]) -> dict[str, Value]:
    args = tuple(_rule_argument(a, env) for a in call.args)
    kwargs = {name: _rule_argument(a, env) for name, a in call.kwargs}
    prefix = next(n for n, t in zip(call.outputs, call.types, strict=True) if t is not None)
    b.begin(prefix, call.types, call.op, args, kwargs)
    demands.check(b, call.op, args)
    try:
        results = RULES[call.op](b, *args, **kwargs)
    except (SymbolicError, IllTyped, NoElement) as problem:
        raise b.refuse(str(problem)) from problem
    except (TypeError, ValueError) as problem:
        if not any(isinstance(x, Expr) for x in _leaves((args, tuple(kwargs.values())))):
            raise
        raise b.refuse(f"a size among its arguments is symbolic: {problem}") from problem
    values = results if isinstance(results, tuple) else (results,)
    if len(values) != len(call.outputs):
        raise ValueError(f"the rule of {call.op} gives {len(values)} results, the call has {len(call.outputs)}")
    defined = {e.name for e in b.equations}
    narrow_dtypes: dict[str, dt.DType] = {}
    results_by_name: dict[str, Value] = {}
    renamed: dict[str, str] = {}
    for name, declared, value in zip(call.outputs, call.types, values, strict=True):
        if declared is None:
            continue
        if value is None:
            raise b.refuse(f"result {call.outputs.index(name)} of this op is not computed, but used")
        dtype = _result_dtype(call, name, declared, value)
        if value.name in defined and value.name not in renamed:
            renamed[value.name] = name
        if value.name in defined and value.stored is not declared.dtype and declared.dtype in dt.HALVES:
            narrow_dtypes[value.name] = declared.dtype
        results_by_name[name] = Value(
            renamed.get(value.name, value.name), dtype, declared.shape, value.stored, declared.strides
        )
    b.equations = [_rename(e.replace(narrow=narrow_dtypes.get(e.name)), renamed) for e in b.equations]
    return results_by_name


def _assertion_group(b: Builder, program: aten.Program, env: dict[str, Value]) -> list[Group]:
    """The asserted conditions, as requirements on the first output that has elements."""
    assertions = [c for c in program.calls if c.op in ASSERTIONS]
    conditions = [env[x.name] for c in assertions for x in c.args[:1] if isinstance(x, Ref)]
    name = next((n for n in program.outputs if not is_empty(env[n].shape)), "")
    if not conditions:
        return []
    if not name:
        b.begin("", (), assertions[0].op, assertions[0].args, {})
        raise b.refuse("no result has an element with which it could be checked")
    value, all_hold = env[name], both(*(cast(x.at([0] * x.rank), dt.boolean) for x in conditions))
    b.begin(name, (), "asserted", (), {})
    checked = b.map(value.shape, lambda at: op("require", all_hold, Load(value.name, at, value.stored)), "asserted")
    env[name] = replace(value, name=checked.name)
    return [Group(checked.name, tuple(b.equations), ("asserted",))]


def _read_names(call: Call) -> Iterator[str]:
    return (x.name for x in _leaves((call.args, tuple(v for _, v in call.kwargs))) if isinstance(x, Ref))


def _read_by_matmuls_and_others(calls: Sequence[Call]) -> set[str]:
    """Names read, directly or through views, both by matmuls, convolutions or attention and by other calls."""
    view_source: dict[str, str] = {}
    by_matmuls: set[str] = set()
    by_others: set[str] = set()
    for call in calls:
        names = [view_source.get(name, name) for name in _read_names(call)]
        if call.op in views.RULES and len(names) == 1:
            view_source |= dict.fromkeys(call.outputs, names[0])
        else:
            (by_matmuls if any(call.op in x.RULES for x in _MATMULS) else by_others).update(names)
    return by_matmuls & by_others


def _read_with_statistics(calls: Sequence[Call]) -> set[str]:
    """The inputs of norms whose mean and scale, results beside the first, are of a storage-only type."""
    norms = (c for c in calls if c.op in normalize.RULES and any(t and t.dtype in dt.STORAGE_ONLY for t in c.types[1:]))
    return {next(iter(_read_names(call))) for call in norms}


def _leaves(argument: object) -> list[object]:
    return [x for a in argument for x in _leaves(a)] if isinstance(argument, tuple) else [argument]


def _rule_argument(argument: object, env: dict[str, Value]) -> object:
    match argument:
        case Ref(name):
            return env[name]
        case tuple():
            return tuple(_rule_argument(a, env) for a in argument)
    return argument


def _result_dtype(call: Call, name: str, declared: Type, value: Value) -> dt.DType:
    """The element type of a result, as declared; f64 is kept where torch 2.11 declares f32, in attention."""
    if declared.dtype is dt.f32 and value.dtype is dt.f64 and declared.shape == value.shape:
        return value.dtype
    if dt.compute(declared.dtype) is not value.compute or declared.shape != value.shape:
        declared_text = show_type(declared.dtype, declared.shape)
        raise ValueError(f"the rule of {call.op} makes {name} a {value}, but it is declared {declared_text}")
    return declared.dtype


def _rename(equation: Equation, table: dict[str, str]) -> Equation:
    def rename(node: Node) -> Node:
        new = node.map(rename) if node.below else node
        return new.replace(buffer=table[new.buffer]) if isinstance(new, Load) and new.buffer in table else new

    if not table.keys() & {equation.name, *reads(equation)}:
        return equation
    new: Equation = equation.map(rename)
    return new.replace(name=table.get(new.name, new.name))


def _make_output(b: Builder, value: Value, declared: Type, used_names: set[str]) -> tuple[Tensor, list[Group]]:
    """The output tensor; a conversion or copy unless the value already is one."""
    strides = result_strides(declared)
    if value.stored is declared.dtype and value.name not in used_names:
        return Tensor(value.name, declared.dtype, declared.shape, strides), []
    b.begin(value.name, (declared,), "result", (), {})
    if value.dtype is not declared.dtype:
        raise b.refuse(f"{value.name} is declared {declared.dtype}, where eager makes it {value.dtype}")
    copy = b.map(declared.shape, lambda at: cast(Load(value.name, at, value.stored), declared.dtype), "out")
    return Tensor(copy.name, declared.dtype, declared.shape, strides), [
        Group(copy.name, tuple(b.equations), ("result",))
    ]


def _live_groups(groups: list[Group], live: set[str]) -> tuple[Group, ...]:
    """The groups without equations that no output depends on."""
    live = set(live)
    out: list[Group] = []
    for group in reversed(groups):
        kept: list[Equation] = []
        for e in reversed(group.equations):
            if e.name in live:
                kept.append(e)
                live |= set(reads(e))
        if kept:
            out.append(group.replace(equations=tuple(reversed(kept))))
    return tuple(reversed(out))
