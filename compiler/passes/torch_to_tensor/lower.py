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
from compiler.passes.torch_to_tensor.builder import Builder, Rule, Value, held
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
    program: aten.Program, *, round_every_call: bool = False, orders: bool = False, parts: bool = False
) -> Program:
    """The equivalent Tensor program; raises Unsupported.

    Two kinds of values are rounded to their own element type where they are computed: outputs that calls read too, so
    that readers see what the caller gets; and values read both by matmuls, which round them in any case, and by other
    calls, so that they are stored once. With `round_every_call`, the result of every call is rounded, as in eager. With
    `orders`, a sort is one `Order` equation. With `parts`, parts of a result that sum different terms are separate
    sums, for targets that do not need large kernels.
    """
    calls = [c for c in program.calls if any(t is not None for t in c.types)]
    check(program, calls)
    known = aten.types(program)
    b = Builder(known, [s.name for s in program.sizes], orders, parts)
    env = {i.name: Value(i.name, i.type.dtype, i.type.shape, i.type.dtype, i.type.strides) for i in program.inputs}
    groups: list[Group] = []
    read = {name for call in calls for name in _read(call)}
    rounded = set(known) if round_every_call else (read & set(program.outputs)) | _read_by_matmuls_and_others(calls)
    for call in calls:
        results = _lower_call(b, call, env)
        env |= {n: held(b, v) if n in rounded else v for n, v in results.items()}
        if b.equations:
            name = next(n for n, t in zip(call.outputs, call.types, strict=True) if t)
            source = f"{call.origin}/{call.op.split('.')[1]}" if call.origin else call.op
            groups.append(Group(name, tuple(b.equations), (source,)))
    groups += _asserted(b, program, env)
    outputs: list[Tensor] = []
    for name in program.outputs:
        made, group = _output(b, env[name], known[name], {i.name for i in program.inputs} | {o.name for o in outputs})
        groups += group
        outputs.append(made)
    inputs = tuple(Tensor(i.name, i.type.dtype, i.type.shape, i.type.strides, i.constant) for i in program.inputs)
    live = _live(groups, {o.name for o in outputs})
    return Program(program.name, inputs, live, tuple(outputs), program.sizes, program.into)


def check(program: aten.Program, calls: Sequence[Call]) -> None:
    """Check that every call has a rule that accepts its arguments; one Unsupported lists all calls without."""
    known = aten.types(program)
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
    texts = [_refused(call, known, why) for call, why in dict.fromkeys(problems)]
    first, *others = texts
    if others:
        more = "; ".join(dict.fromkeys(f"{e.op}({e.args_text}): {e.why}" for e in others))
        raise Unsupported(first.op, (first.args_text,), f"{first.why}; and {more}")
    raise first


def _refused(call: Call, known: dict[str, Type], why: str) -> Unsupported:
    return Unsupported(
        call.op, [_shown(a, known) for a in call.args], why, {k: _shown(v, known) for k, v in call.kwargs}
    )


def _shown(argument: object, known: dict[str, Type]) -> str:
    match argument:
        case Ref(name):
            t = known[name]
            return show_type(t.dtype, t.shape)
        case tuple():
            return f"[{call_text([_shown(a, known) for a in argument], {})}]"
    return str(argument)


def _lower_call(b: Builder, call: Call, env: dict[str, Value]) -> dict[str, Value]:
    args = tuple(_argument(a, env) for a in call.args)
    kwargs = {name: _argument(a, env) for name, a in call.kwargs}
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
    made = results if isinstance(results, tuple) else (results,)
    if len(made) != len(call.outputs):
        raise ValueError(f"the rule of {call.op} gives {len(made)} results, the call has {len(call.outputs)}")
    own = {e.name for e in b.equations}
    narrow: dict[str, dt.DType] = {}
    out: dict[str, Value] = {}
    renamed: dict[str, str] = {}
    for name, kind, value in zip(call.outputs, call.types, made, strict=True):
        if kind is None:
            continue
        if value is None:
            raise b.refuse(f"result {call.outputs.index(name)} of this op is not computed, but used")
        dtype = _agreed(call, name, kind, value)
        if value.name in own and value.name not in renamed:
            renamed[value.name] = name
        if value.name in own and value.stored is not kind.dtype and kind.dtype in dt.HALVES:
            narrow[value.name] = kind.dtype
        out[name] = Value(renamed.get(value.name, value.name), dtype, kind.shape, value.stored, kind.strides)
    b.equations = [_renamed(e.replace(narrow=narrow.get(e.name)), renamed) for e in b.equations]
    return out


def _asserted(b: Builder, program: aten.Program, env: dict[str, Value]) -> list[Group]:
    """The asserted conditions, as requirements on the first output that has elements."""
    asserting = [c for c in program.calls if c.op in ASSERTIONS]
    conditions = [env[x.name] for c in asserting for x in c.args[:1] if isinstance(x, Ref)]
    name = next((n for n in program.outputs if not is_empty(env[n].shape)), "")
    if not conditions:
        return []
    if not name:
        b.begin("", (), asserting[0].op, asserting[0].args, {})
        raise b.refuse("no result has an element with which it could be checked")
    value, every = env[name], both(*(cast(x.at([0] * x.rank), dt.boolean) for x in conditions))
    b.begin(name, (), "asserted", (), {})
    made = b.map(value.shape, lambda at: op("require", every, Load(value.name, at, value.stored)), "asserted")
    env[name] = replace(value, name=made.name)
    return [Group(made.name, tuple(b.equations), ("asserted",))]


def _read(call: Call) -> Iterator[str]:
    return (x.name for x in _leaves((call.args, tuple(v for _, v in call.kwargs))) if isinstance(x, Ref))


def _read_by_matmuls_and_others(calls: Sequence[Call]) -> set[str]:
    """Names read, directly or through views, both by matmuls, convolutions or attention and by other calls."""
    viewed: dict[str, str] = {}
    by_matmuls: set[str] = set()
    by_others: set[str] = set()
    for call in calls:
        names = [viewed.get(name, name) for name in _read(call)]
        if call.op in views.RULES and len(names) == 1:
            viewed |= dict.fromkeys(call.outputs, names[0])
        else:
            (by_matmuls if any(call.op in x.RULES for x in _MATMULS) else by_others).update(names)
    return by_matmuls & by_others


def _leaves(argument: object) -> list[object]:
    return [x for a in argument for x in _leaves(a)] if isinstance(argument, tuple) else [argument]


def _argument(argument: object, env: dict[str, Value]) -> object:
    match argument:
        case Ref(name):
            return env[name]
        case tuple():
            return tuple(_argument(a, env) for a in argument)
    return argument


def _agreed(call: Call, name: str, kind: Type, value: Value) -> dt.DType:
    """The element type of a result, as declared; f64 is kept where torch 2.11 declares f32, in attention."""
    if kind.dtype is dt.f32 and value.dtype is dt.f64 and kind.shape == value.shape:
        return value.dtype
    if dt.compute(kind.dtype) is not value.compute or kind.shape != value.shape:
        declared = show_type(kind.dtype, kind.shape)
        raise ValueError(f"the rule of {call.op} makes {name} a {value}, but it is declared {declared}")
    return kind.dtype


def _renamed(equation: Equation, table: dict[str, str]) -> Equation:
    def go(node: Node) -> Node:
        new = node.map(go) if node.below else node
        return new.replace(buffer=table[new.buffer]) if isinstance(new, Load) and new.buffer in table else new

    if not table.keys() & {equation.name, *reads(equation)}:
        return equation
    new: Equation = equation.map(go)
    return new.replace(name=table.get(new.name, new.name))


def _output(b: Builder, value: Value, kind: Type, taken: set[str]) -> tuple[Tensor, list[Group]]:
    """The output tensor; a conversion or copy unless the value already is one."""
    strides = result_strides(kind)
    if value.stored is kind.dtype and value.name not in taken:
        return Tensor(value.name, kind.dtype, kind.shape, strides), []
    b.begin(value.name, (kind,), "result", (), {})
    if value.dtype is not kind.dtype:
        raise b.refuse(f"{value.name} is declared {kind.dtype}, where eager makes it {value.dtype}")
    made = b.map(kind.shape, lambda at: cast(Load(value.name, at, value.stored), kind.dtype), "out")
    return Tensor(made.name, kind.dtype, kind.shape, strides), [Group(made.name, tuple(b.equations), ("result",))]


def _live(groups: list[Group], wanted: set[str]) -> tuple[Group, ...]:
    """The groups without equations that no output depends on."""
    wanted = set(wanted)
    out: list[Group] = []
    for group in reversed(groups):
        kept: list[Equation] = []
        for e in reversed(group.equations):
            if e.name in wanted:
                kept.append(e)
                wanted |= set(reads(e))
        if kept:
            out.append(group.replace(equations=tuple(reversed(kept))))
    return tuple(reversed(out))
