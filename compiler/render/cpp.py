"""Kernel IR for a CPU to C++ text: one static function per function of the program, and the entry that calls them.

The text includes the device functions of `render/cpp`. Integers wrap, so it must be compiled with -fwrapv.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Const, Expr, Op, Var
from compiler.ir.functions import FUNCTIONS
from compiler.render import c, header
from compiler.render.c import Writer
from compiler.render.cpp_expression import (
    ANY_MASK,
    FAILURES,
    MASKS,
    TYPES,
    below,
    expression,
    is_short,
    kind,
    mask_bits,
    memory,
    spelled_out,
    used_by_lane,
)
from compiler.render.integer_ranges import data_of, ranges_of

ENTRY = "mlc_entry"
FLAGS = ("-std=c++17", "-fopenmp", "-fwrapv")  # flags that the text requires, besides others
PART = 16_000  # characters; g++ compiles them in half a second
LARGE_ARRAY = 32 * 1024  # bytes; larger arrays do not go on the stack, which is small in threads

# header: the functions that it declares, as far as the text calls them.
HEADERS = {
    "parallel.h": "parallel",
    "vector.h": "vec broadcast iota where isnan signbit max min sqrt fma in_order "
    "reduce_add reduce_mul reduce_max reduce_min reduce_and reduce_or any all",
    "require.h": "require require_below require_nonzero tell_failures any_outside each_outside all_below fail",
    "indices.h": "floordiv_by mod_by",
    "arithmetic.h": "neg add sub mul abs sign floor ceil round tf32 trunc rsqrt shl shr",
    "convert.h": "bf16 f16 f8e4m3 f8e5m2 convert from_raw to_raw from_mask to_mask resize_mask "
    + " ".join(f"from_{t} to_{t}" for t in STORAGE_ONLY),
    "division.h": "floordiv remainder truncdiv fmod gcd",
    **{f.header: " ".join(g.name for g in FUNCTIONS.values() if g.header == f.header)
       for f in FUNCTIONS.values() if f.header},
    "memory.h": "load load_as load_ahead load_as_ahead load_strided load_at load_masked gather "
                "store store_as store_past fence",
    "masks.h": "load_bools store_bools gather_bools load_strided_bools broadcast_mask",
    "gemm.h": "fma_block dot_block",
    "gemm_bf16.h": "pair_block",
    "copy.h": "copy_block",
    "order.h": "order",
}  # fmt: skip
_STOP = f"if (*{c.FAILED}) return;"  # later statements may rely on what was then not computed
_ALIASES = frozenset(f"{name}x{2**n}" for name in (*TYPES, *(f"mask{b}" for b in MASKS)) for n in range(1, 9))
RESERVED = c.CPP_KEYWORDS | _ALIASES | {"from", "to", "threads", "buffers", "sizes", c.FAILED, FAILURES}


_FAILED = f"int* __restrict {c.FAILED}"


def render(program: k.Program, *, target: str) -> str:
    """The C++ text of `program`. Raises ValueError for what a CPU cannot do.

    Functions that are equal up to names are rendered once.
    """
    spelled = c.spelled([f.name for f in program.functions], RESERVED)
    names = {name: spelled[first] for name, first in isomorphism.firsts(program.functions).items()}
    called: set[str] = set()
    types: set[str] = set()
    taken = set(spelled.values())
    functions: list[str] = []
    for f in program.functions:
        if names[f.name] != spelled[f.name]:
            continue
        functions += ["", *_function(f, names[f.name], program, called, types, taken)]
    head = [*header.lines(program, target), f"// Compile with {' '.join(FLAGS)}."]
    headers = dict.fromkeys(c.header_of(HEADERS, name) for name in called)
    includes = [f'#include "{h}"' for h in sorted(headers, key=list(HEADERS).index)]
    aliases = [f"using {name} = {spelled_out(name)};" for name in sorted(types)]
    entry = ["", *_entry(program, names)]
    return "\n".join([*head, *includes, *([""] if aliases else []), *aliases, *functions, *entry]) + "\n"


_CALL = re.compile(r"^  (\w+)\(", re.MULTILINE)
_DEFINED = re.compile(r"^static void (\w+)(\([^{]*\)) \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^(?:#include|using ).*\n", re.MULTILINE)


def parts(text: str) -> list[str]:
    """Split a rendered text into parts that can be compiled in parallel and linked: groups of the functions that the
    entry calls, with their helpers, and the entry. A short text is not split."""
    body, mark, entry = text.partition('\nextern "C"')
    called = set(_CALL.findall(entry))
    found = [f for f in _DEFINED.finditer(body) if f[1] in called]
    heads = list(_HEAD.finditer(body))
    if len(body) < 2 * PART or not heads or {f[1] for f in found} != called:
        return [text]
    head = "".join(h[0] for h in heads)
    out, start = [""], heads[-1].end()
    for f in found:
        if len(out[-1]) > PART:
            out.append("")
        out[-1] += body[start : f.start()] + f[0].removeprefix("static ")
        start = f.end()
    declared = "".join(f"void {f[1]}{f[2]};\n" for f in found)
    return [*(head + functions for functions in out), head + declared + mark + entry]


def _function(
    f: k.Function, name: str, program: k.Program, called: set[str], types: set[str], taken: set[str]
) -> list[str]:
    if f.grid or f.block:
        raise ValueError(f"function {f.name} has a launch grid, which a CPU has not")
    names = c.spelled([*c.bound(f), *(s.name for s in program.sizes)], RESERVED)
    w = Writer(LANGUAGE, name, names, {p.name: p.dtype for p in f.params}, c.assigned(f))
    w.called, w.types, w.functions, w.by_lane = called, types, taken, used_by_lane(f.body)
    w.data, w.ranges = data_of(f), ranges_of(f)
    for p in f.params:
        _type(w, p.dtype)
    own = [s for s in f.body if not (isinstance(s, k.For) and _spread(s))]
    lines = c.body(w, f.body)
    lines = _telling(w, own, lines[: len(lines) - lines[-1:].count(f"  {_STOP}")]) + _fence(w, own)
    params = _buffers(w, f.body, [p.name for p in f.params], set(f.writes))
    params += [f"long {names[s]}" for s in _sizes(f, program)]
    params += [_FAILED] * c.fails(f.body) + ["int threads"] * _threaded(f)
    return [*w.before, *c.about(f), *c.filled(f"static void {name}(", params, ") {"), *lines, "}"]


def _buffers(w: Writer, body: tuple[k.Stmt, ...], buffers: Iterable[str], writes: set[str]) -> list[str]:
    """Parameters for buffers; names of unused ones are commented out."""
    used = c.touched(body)
    shown = [w.names[b] if b in used else f"/* {w.names[b]} */" for b in buffers]
    kinds = [f"{'' if b in writes else 'const '}{memory(w.buffers[b])}* __restrict" for b in buffers]
    return [f"{kind} {name}" for kind, name in zip(kinds, shown, strict=True)]


def _sizes(f: k.Function, program: k.Program) -> list[str]:
    used = {n.name for s in f.body for n in s.walk() if isinstance(n, Var)}
    return [s.name for s in program.sizes if s.name in used]


def _threaded(f: k.Function) -> bool:
    return any(_spread(n) for s in f.body for n in s.walk() if isinstance(n, k.For))


def _spread(s: k.For) -> bool:
    """Whether a loop can occupy more than one thread."""
    match s:
        case k.For(_, Const(start), Const(stop), step):
            return s.mark == "parallel" and stop - start > step
    return s.mark == "parallel"


def _entry(program: k.Program, functions: dict[str, str]) -> list[str]:
    """The visible function: unpacks pointers and sizes, calls the others, returns 0 unless a requirement failed."""
    places = c.used_buffers(program)
    names = c.spelled(
        [*(t.name for _, t in places), *(s.name for s in program.sizes)], RESERVED | frozenset(functions.values())
    )
    used_sizes = [
        (n, s.name) for n, s in enumerate(program.sizes) if any(s.name in _sizes(f, program) for f in program.functions)
    ]
    lines = [f"{memory(t.dtype)}* {names[t.name]} = ({memory(t.dtype)}*)buffers[{i}];" for i, t in places]
    lines += [f"const long {names[s]} = sizes[{n}];" for n, s in used_sizes]
    may_fail = any(c.fails(f.body) for f in program.functions)
    lines += [f"int {c.FAILED} = 0;"] * may_fail
    for f in program.functions:
        args = [names[p.name] for p in f.params] + [names[s] for s in _sizes(f, program)]
        args += [f"&{c.FAILED}"] * c.fails(f.body) + ["threads"] * _threaded(f)
        lines.append(f"{functions[f.name]}({', '.join(args)});")
        lines += [f"if ({c.FAILED}) return {c.FAILED};"] * (c.fails(f.body) and f is not program.functions[-1])
    parameters = (("void**", "buffers", bool(places)), ("const long long*", "sizes", bool(used_sizes)),
                  ("int", "threads", any(map(_threaded, program.functions))))  # fmt: skip
    shown = ", ".join(f"{kind} {name}" if used else f"{kind} /* {name} */" for kind, name, used in parameters)
    every = ", ".join(t.name for t in (*program.inputs, *program.outputs, *program.temps))
    return [
        *c.comment("\n".join(c.filled("buffers: ", [every or "none"], ""))),
        'extern "C" __attribute__((visibility("default")))',
        f"int {ENTRY}({shown}) {{",
        *("  " + line for line in lines),
        f"  return {c.FAILED if may_fail else 0};",
        "}",
    ]


# ---- statements


def _type(w: Writer, dtype: DType) -> None:
    if is_short(dtype):
        w.called.add("mlc_bf16")


def _declare(w: Writer, s: k.Declare) -> str:
    w.masks.pop(s.name, None)
    if s.value.dtype.kind == "bool" and s.value.dtype.lanes > 1:
        w.masks[s.name] = mask_bits(w, s.value) or ANY_MASK
    return kind(w, s.name, s.value.dtype)


def _statement(w: Writer, s: k.Stmt) -> list[str] | None:
    match s:
        case k.For() if _spread(s) and not w.inside:
            return _parallel(w, s)
        case k.Declare(value=value) if (limits := below(value)) is not None:
            index, limit = limits
            function = "mlc_each_outside" if _by_lane(w, index) else "mlc_any_outside"
            outside = w.call(function, w.of(index), w.of(limit)).text
            leave = f"if ({outside}) return {w.call('mlc_fail', c.FAILED).text};"
            return [leave, *c.statement(w, s.replace(value=index))]
        case k.If(Op("require", (valid, _)), then) if _leaves(s):
            leave = f"if (!{w.of(valid, c.UNARY)}) return {w.call('mlc_fail', c.FAILED).text};"
            return [leave, "{", *c.body(w, then), "}"]
        case k.Assign(name, Op("add" | "sub" | "fma") as value) if value.dtype.is_float and value.dtype.lanes == 1:
            return [f"{w.names[name]} = {w.call('mlc_in_order', w.of(value)).text};"]
        case k.For(mark=mark, ahead=ahead) if mark == "past" or ahead:
            around = w.mark, w.ahead
            w.mark, w.ahead = "past" if mark == "past" else w.mark, ahead or w.ahead
            lines = c.statement(w, s.replace(mark="" if mark == "past" else mark, ahead=0))
            w.mark, w.ahead = around
            return lines
        case k.Store(buffer, index, value, "set"):
            dtype = value.dtype
            at = w.pointer(buffer, index)
            match value:
                case Cast(arg) if is_short(dtype) and not is_short(arg.dtype) and arg.dtype.kind != "bool":
                    return [w.call("mlc_store_as", at, w.of(arg)).text + ";"]
            if is_short(dtype):
                at += ".bits"
            if dtype.lanes == 1:
                return [f"{at[1:]} = {w.plain(value)};"]
            store = "mlc_store_bools" if dtype.kind == "bool" else "mlc_store_past" if w.mark == "past" else "mlc_store"
            return [w.call(store, at, w.of(value)).text + ";"]
    return None


def _parallel(w: Writer, s: k.For) -> list[str]:
    """Outline the loop as a function over part of its range, so that `__restrict` on the buffers is not lost."""
    nodes = [n for t in s.body for n in t.walk()]
    bound = {
        s.var,
        *(n.name for n in nodes if isinstance(n, k.Declare)),
        *(n.var for n in nodes if isinstance(n, k.For)),
    }
    free = {n.name: n.dtype for n in nodes if isinstance(n, Var) and n.name not in bound}
    buffers = [b for b in w.buffers if b in c.touched(s.body)]
    params = _buffers(w, s.body, buffers, c.written(s.body))
    params += [f"const {kind(w, name, dtype)} {w.names[name]}" for name, dtype in free.items()]
    fails = c.fails(s.body)
    params += [_FAILED] * fails
    name, var = f"{w.function}_{w.names[s.var]}", w.names[s.var]
    while name in w.functions or name in w.names.values():
        name += "_"
    w.functions.add(name)
    head = c.filled(f"static __attribute__((noinline, noclone)) void {name}(", [*params, "long from", "long to"], ") {")
    w.inside = True
    body = c.body(w, s.body)
    by = f"{var}++" if s.step == 1 else f"{var} += {s.step}"
    w.before += [
        *head,
        *_telling(w, s.body, [f"  for (long {var} = from; {var} < to; {by}) {{", *("  " + x for x in body), "  }"]),
        *_fence(w, s.body),
        "}",
        "",
    ]
    w.inside = False
    passed = [*(w.names[n] for n in (*buffers, *free)), *([c.FAILED] * fails)]
    args = ", ".join([*passed, *(_at(w, s, end) for end in ("from", "to"))])
    count = w.plain((s.stop - s.start + (s.step - 1)) // s.step)
    start = w.call("mlc_parallel", "threads", count, f"[=](long from, long to) {{ {name}({args}); }}").text
    return [start + ";", *[_STOP] * fails]


def _leaves(s: k.If) -> bool:
    """Whether nothing remains to be done if a condition, which is required, is false."""
    match s:
        case k.If(Op("require", (Var() as valid, Var() as same)), _, ()):
            return valid is same
    return False


def _by_lane(w: Writer, index: Expr) -> bool:
    return isinstance(index, Var) and index.name in w.by_lane


def _telling(w: Writer, body: Iterable[k.Stmt], lines: list[str]) -> list[str]:
    """The lines of a function; unless all of its requirements return at once, with code that reports failed ones."""
    nodes = [n for s in body for n in s.walk()]
    leaving = Counter(n.value for n in nodes if isinstance(n, k.Declare) and below(n.value) is not None)
    leaving += Counter(n.cond for n in nodes if isinstance(n, k.If) and _leaves(n))
    if Counter(n for n in nodes if isinstance(n, Op) and n.name == "require") <= leaving:  # it may also occur elsewhere
        return lines
    tell = w.call("mlc_tell_failures", c.FAILED, FAILURES).text
    return [f"  mlc_failures {FAILURES};", *lines, f"  {tell};"]


def _fence(w: Writer, body: Iterable[k.Stmt]) -> list[str]:
    """A fence if the body has non-temporal stores, to make them visible before the function returns."""
    past = any(isinstance(n, k.For) and n.mark == "past" for s in body for n in s.walk())
    return [f"  {w.call('mlc_fence').text};"] if past else []


def _at(w: Writer, s: k.For, turn: str) -> str:
    """The value of a loop's variable in its iteration number `turn`."""
    scaled = turn if s.step == 1 else f"{turn} * {s.step}"
    return scaled if s.start is Const(0, s.start.dtype) else f"{w.plain(s.start, c.ADD)} + {scaled}"


def _array(w: Writer, s: k.Array) -> list[str]:
    """Declare an array. A large one is static, per thread, and used through a pointer."""
    _type(w, s.dtype)
    kind, name = memory(s.dtype), w.names[s.name]
    if s.space != "local":
        raise ValueError(f"array {s.name} is in {s.space} memory, which a CPU has not")
    if s.size * s.dtype.bytes <= LARGE_ARRAY:
        return [f"alignas({s.align}) {kind} {name}[{s.size}];"]
    return [
        f"alignas({s.align}) static thread_local {kind} mlc_memory_{name}[{s.size}];",
        f"{kind}* __restrict const {name} = mlc_memory_{name};",
    ]


def _pragma(w: Writer, s: k.For) -> list[str]:
    match s:
        case k.For(_, Const(start), Const(stop), step, _, "unroll") if 1 < -(-(stop - start) // step) < 65535:
            return [f"#pragma GCC unroll {-(-(stop - start) // step)}"]
        case k.For(mark="unroll"):
            return ["#pragma GCC unroll 4"]
        case k.For(mark="rolled"):  # so GCC unrolls in its last passes, instead of completely in its first
            return ["#pragma GCC unroll 4"]
    return []


_NAMES = c.FUNCTIONS | {"where": "mlc_where"}
LANGUAGE = c.Language(TYPES, _NAMES, RESERVED, expression, _statement, _declare, _array, _pragma, failures=FAILURES)

__all__ = ["ENTRY", "FLAGS", "HEADERS", "LANGUAGE", "render"]
