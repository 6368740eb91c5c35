"""Kernel IR for a CPU to C++ text: one static function per function of the program, and the entry that calls them.

The text includes the device functions of `render/cpp`. Integers wrap, so it must be compiled with -fwrapv.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Const, Expr, Op, Var
from compiler.ir.functions import FUNCTIONS
from compiler.ir.node import Node
from compiler.render import c, header
from compiler.render.c import Writer
from compiler.render.cpp_expression import (
    ANY_MASK,
    FAILURES,
    MASKS,
    TYPES,
    alias_definition,
    bounds_check,
    expression,
    is_short,
    mask_bits,
    memory_type,
    used_by_lane,
    variable_type,
)
from compiler.render.integer_ranges import data_variables, ranges_of

ENTRY = "mlc_entry"
FLAGS = ("-std=c++17", "-fopenmp", "-fwrapv")  # flags that the text requires, besides others
PART = 16_000  # characters; g++ compiles them in half a second
MAX_VECTOR_BITS = 128  # of vectors that are passed by value: all x86-64 CPUs have registers for these
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
                "store store_as store_owned store_as_owned store_past fence",
    "masks.h": "load_bools store_bools gather_bools load_strided_bools broadcast_mask",
    "gemm.h": "fma_block dot_block",
    "gemm_interleaved.h": "interleaved_block interleaved_block_store",
    "gemm_tiles.h": "tile_block tile_block_store",
    "copy.h": "copy_block",
    "order.h": "order",
}  # fmt: skip
_RETURN_IF_FAILED = f"if (*{c.FAILED}) return;"  # later statements may rely on what was then not computed
_ALIASES = frozenset(f"{name}x{2**n}" for name in (*TYPES, *(f"mask{b}" for b in MASKS)) for n in range(1, 9))
RESERVED = c.CPP_KEYWORDS | _ALIASES | {"from", "to", "threads", "buffers", "sizes", c.FAILED, FAILURES}


_FAILED_PARAMETER = f"int* __restrict {c.FAILED}"


def render(program: k.Program, *, target: str) -> str:
    """The C++ text of `program`. Raises ValueError for what a CPU cannot do.

    Functions that are equal up to names are rendered once.
    """
    spellings = c.spell_names([f.name for f in program.functions], RESERVED)
    names = {name: spellings[first] for name, first in isomorphism.firsts(program.functions).items()}
    called: set[str] = set()
    types: set[str] = set()
    taken = set(spellings.values())
    functions: list[str] = []
    for f in program.functions:
        if names[f.name] != spellings[f.name]:
            continue
        functions += ["", *_function(f, names[f.name], program, called, types, taken)]
    head = [*header.lines(program, target), f"// Compile with {' '.join(FLAGS)}."]
    headers = dict.fromkeys(c.header_of(HEADERS, name) for name in called)
    includes = [f'#include "{h}"' for h in sorted(headers, key=list(HEADERS).index)]
    aliases = [f"using {name} = {alias_definition(name)};" for name in sorted(types)]
    entry = ["", *_entry(program, names)]
    return "\n".join([*head, *includes, *([""] if aliases else []), *aliases, *functions, *entry]) + "\n"


_CALL = re.compile(r"^  (\w+)\(", re.MULTILINE)
_DEFINED = re.compile(r"^static void (\w+)(\([^{]*\)) \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^(?:#include|using ).*\n", re.MULTILINE)


def parts(text: str) -> list[str]:
    """Split a rendered text into parts that can be compiled in parallel and linked: groups of the functions that the
    entry calls, with their helpers, and the entry. A short text is not split."""
    body, separator, entry = text.partition('\nextern "C"')
    called = set(_CALL.findall(entry))
    functions_called = [f for f in _DEFINED.finditer(body) if f[1] in called]
    preamble_lines = list(_HEAD.finditer(body))
    if len(body) < 2 * PART or not preamble_lines or {f[1] for f in functions_called} != called:
        return [text]
    preamble = "".join(h[0] for h in preamble_lines)
    out, start = [""], preamble_lines[-1].end()
    for f in functions_called:
        if len(out[-1]) > PART:
            out.append("")
        out[-1] += body[start : f.start()] + f[0].removeprefix("static ")
        start = f.end()
    declarations = "".join(f"void {f[1]}{f[2]};\n" for f in functions_called)
    return [*(preamble + functions for functions in out), preamble + declarations + separator + entry]


def _function(
    f: k.Function, name: str, program: k.Program, called: set[str], types: set[str], taken: set[str]
) -> list[str]:
    if f.grid or f.block:
        raise ValueError(f"function {f.name} has a launch grid, which a CPU has not")
    names = c.spell_names([*c.bound_names(f), *(s.name for s in program.sizes)], RESERVED)
    w = Writer(LANGUAGE, name, names, {p.name: p.dtype for p in f.params}, c.reassigned_names(f))
    w.called, w.types, w.functions, w.by_lane = called, types, taken, used_by_lane(f.body)
    w.wrapping, w.ranges = data_variables(f), ranges_of(f)
    for p in f.params:
        _record_type(w, p.dtype)
    serial_statements = [s for s in f.body if not (isinstance(s, k.For) and _is_parallel(s))]
    lines = c.body(w, f.body)
    lines = _with_failure_report(
        w, serial_statements, lines[: len(lines) - lines[-1:].count(f"  {_RETURN_IF_FAILED}")]
    ) + _fence_lines(w, serial_statements)
    params = _buffer_parameters(w, f.body, [p.name for p in f.params], set(f.writes))
    params += [f"long {names[s]}" for s in _used_sizes(f, program)]
    params += [_FAILED_PARAMETER] * c.has_requirements(f.body) + ["int threads"] * _uses_threads(f)
    return [*w.helpers, *c.describe(f), *c.wrap_list(f"static void {name}(", params, ") {"), *lines, "}"]


def _buffer_parameters(w: Writer, body: tuple[k.Stmt, ...], buffers: Iterable[str], writes: set[str]) -> list[str]:
    """Parameters for buffers; names of unused ones are commented out."""
    used = c.accessed_buffers(body)
    shown = [w.names[b] if b in used else f"/* {w.names[b]} */" for b in buffers]
    kinds = [f"{'' if b in writes else 'const '}{memory_type(w.buffers[b])}* __restrict" for b in buffers]
    return [f"{kind} {name}" for kind, name in zip(kinds, shown, strict=True)]


def _used_sizes(f: k.Function, program: k.Program) -> list[str]:
    used = {n.name for s in f.body for n in s.walk() if isinstance(n, Var)}
    return [s.name for s in program.sizes if s.name in used]


def _uses_threads(f: k.Function) -> bool:
    return any(_is_parallel(n) for s in f.body for n in s.walk() if isinstance(n, k.For))


def _is_parallel(s: k.For) -> bool:
    """Whether a loop can occupy more than one thread."""
    match s:
        case k.For(_, Const(start), Const(stop), step):
            return s.mark == "parallel" and stop - start > step
    return s.mark == "parallel"


def _entry(program: k.Program, functions: dict[str, str]) -> list[str]:
    """The visible function: unpacks pointers and sizes, calls the others, returns 0 unless a requirement failed."""
    buffers = c.used_buffers(program)
    names = c.spell_names(
        [*(t.name for _, t in buffers), *(s.name for s in program.sizes)], RESERVED | frozenset(functions.values())
    )
    used_sizes = [
        (n, s.name)
        for n, s in enumerate(program.sizes)
        if any(s.name in _used_sizes(f, program) for f in program.functions)
    ]
    lines = [f"{memory_type(t.dtype)}* {names[t.name]} = ({memory_type(t.dtype)}*)buffers[{i}];" for i, t in buffers]
    lines += [f"const long {names[s]} = sizes[{n}];" for n, s in used_sizes]
    may_fail = any(c.has_requirements(f.body) for f in program.functions)
    lines += [f"int {c.FAILED} = 0;"] * may_fail
    for f in program.functions:
        args = [names[p.name] for p in f.params] + [names[s] for s in _used_sizes(f, program)]
        args += [f"&{c.FAILED}"] * c.has_requirements(f.body) + ["threads"] * _uses_threads(f)
        lines.append(f"{functions[f.name]}({', '.join(args)});")
        lines += [f"if ({c.FAILED}) return {c.FAILED};"] * (
            c.has_requirements(f.body) and f is not program.functions[-1]
        )
    parameters = (("void**", "buffers", bool(buffers)), ("const long long*", "sizes", bool(used_sizes)),
                  ("int", "threads", any(map(_uses_threads, program.functions))))  # fmt: skip
    parameter_list = ", ".join(f"{kind} {name}" if used else f"{kind} /* {name} */" for kind, name, used in parameters)
    buffer_names = ", ".join(t.name for t in (*program.inputs, *program.outputs, *program.temps))
    return [
        *c.comment("\n".join(c.wrap_list("buffers: ", [buffer_names or "none"], ""))),
        'extern "C" __attribute__((visibility("default")))',
        f"int {ENTRY}({parameter_list}) {{",
        *("  " + line for line in lines),
        f"  return {c.FAILED if may_fail else 0};",
        "}",
    ]


# ---- statements


def _record_type(w: Writer, dtype: DType) -> None:
    if is_short(dtype):
        w.called.add("mlc_bf16")


def _declare(w: Writer, s: k.Declare) -> str:
    w.masks.pop(s.name, None)
    if s.value.dtype.kind == "bool" and s.value.dtype.lanes > 1:
        w.masks[s.name] = mask_bits(w, s.value) or ANY_MASK
    return variable_type(w, s.name, s.value.dtype)


def _statement(w: Writer, s: k.Stmt) -> list[str] | None:
    match s:
        case k.For() if _is_parallel(s) and not w.in_parallel_loop:
            return _outline_parallel_loop(w, s)
        case k.Declare(value=value) if (limits := bounds_check(value)) is not None:
            index, limit = limits
            function = "mlc_each_outside" if _is_used_by_lane(w, index) else "mlc_any_outside"
            outside = w.call(function, w.text(index), w.text(limit)).text
            early_return = f"if ({outside}) return {w.call('mlc_fail', c.FAILED).text};"
            return [early_return, *c.statement(w, s.replace(value=index))]
        case k.If(Op("require", (valid, _)), then) if _returns_if_false(s):
            early_return = f"if (!{w.text(valid, c.UNARY)}) return {w.call('mlc_fail', c.FAILED).text};"
            return [early_return, "{", *c.body(w, then), "}"]
        case k.Assign(name, Op("add" | "sub" | "fma") as value) if value.dtype.is_float and value.dtype.lanes == 1:
            return [f"{w.names[name]} = {w.call('mlc_in_order', w.text(value)).text};"]
        case k.For(mark=mark, ahead=ahead) if mark == "past" or ahead:
            outer = w.past, w.ahead, w.owned
            w.past, w.ahead, w.owned = w.past or mark == "past", ahead or w.ahead, mark == "owned"
            lines = c.statement(w, s.replace(mark="" if mark in ("past", "owned") else mark, ahead=0))
            w.past, w.ahead, w.owned = outer
            return lines
        case k.Store(buffer, index, value, "set"):
            dtype = value.dtype
            pointer = w.pointer(buffer, index)
            owned, further = ("_owned", (f"{w.ahead}l",)) if w.owned and dtype.lanes > 1 else ("", ())
            match value:
                case Cast(arg) if is_short(dtype) and not is_short(arg.dtype) and arg.dtype.kind != "bool":
                    return [w.call(f"mlc_store_as{owned}", pointer, w.text(arg), *further).text + ";"]
            if is_short(dtype):
                pointer += ".bits"
            if dtype.lanes == 1:
                return [f"{pointer[1:]} = {w.plain(value)};"]
            if dtype.kind == "bool":
                return [w.call("mlc_store_bools", pointer, w.text(value)).text + ";"]
            store = "mlc_store_past" if w.past else f"mlc_store{owned}"
            return [w.call(store, pointer, w.text(value), *further).text + ";"]
    return None


def _outline_parallel_loop(w: Writer, s: k.For) -> list[str]:
    """Outline the loop as a function over part of its range, so that `__restrict` on the buffers is not lost."""
    nodes = [n for t in s.body for n in t.walk()]
    bound = {
        s.var,
        *(n.name for n in nodes if isinstance(n, k.Declare)),
        *(n.var for n in nodes if isinstance(n, k.For)),
    }
    free = {n.name: n.dtype for n in nodes if isinstance(n, Var) and n.name not in bound}
    buffers = [b for b in w.buffers if b in c.accessed_buffers(s.body)]
    params = _buffer_parameters(w, s.body, buffers, c.written_buffers(s.body))
    params += [f"const {_parameter_type(w, name, dtype)} {w.names[name]}" for name, dtype in free.items()]
    may_fail = c.has_requirements(s.body)
    params += [_FAILED_PARAMETER] * may_fail
    name, var = f"{w.function}_{w.names[s.var]}", w.names[s.var]
    while name in w.functions or name in w.names.values():
        name += "_"
    w.functions.add(name)
    head = c.wrap_list(
        f"static __attribute__((noinline, noclone)) void {name}(", [*params, "long from", "long to"], ") {"
    )
    w.in_parallel_loop = True
    body = c.body(w, s.body)
    increment = f"{var}++" if s.step == 1 else f"{var} += {s.step}"
    w.helpers += [
        *head,
        *_with_failure_report(
            w, s.body, [f"  for (long {var} = from; {var} < to; {increment}) {{", *("  " + x for x in body), "  }"]
        ),
        *_fence_lines(w, s.body),
        "}",
        "",
    ]
    w.in_parallel_loop = False
    arguments = [*(w.names[n] for n in (*buffers, *free)), *([c.FAILED] * may_fail)]
    argument_list = ", ".join([*arguments, *(_loop_value(w, s, end) for end in ("from", "to"))])
    count = w.plain((s.stop - s.start + (s.step - 1)) // s.step)
    start = w.call("mlc_parallel", "threads", count, f"[=](long from, long to) {{ {name}({argument_list}); }}").text
    return [start + ";", *[_RETURN_IF_FAILED] * may_fail]


def _parameter_type(w: Writer, name: str, dtype: DType) -> str:
    """The type of a variable that is passed to a function; large vectors are passed by reference.

    A vector that has no register is passed on the stack. Behind other parameters there, GCC 12 may align it in one of
    two calls only.
    """
    item_bits = w.masks[name] if dtype.kind == "bool" and dtype.lanes > 1 else dtype.bits
    is_large = dtype.lanes > 1 and dtype.lanes * item_bits > MAX_VECTOR_BITS
    return variable_type(w, name, dtype) + "&" * is_large


def _returns_if_false(s: k.If) -> bool:
    """Whether nothing remains to be done if a condition, which is required, is false."""
    match s:
        case k.If(Op("require", (Var() as valid, Var() as same)), _, ()):
            return valid is same
    return False


def _accumulates(n: Node) -> bool:
    """Whether a node has a requirement, right below it, that does not return at once."""
    match n:
        case k.Declare(_, value) if bounds_check(value) is not None:
            return False
        case k.If() if _returns_if_false(n):
            return False
    return any(isinstance(x, Op) and x.name == "require" for x in n.below)


def _is_used_by_lane(w: Writer, index: Expr) -> bool:
    return isinstance(index, Var) and index.name in w.by_lane


def _with_failure_report(w: Writer, body: Iterable[k.Stmt], lines: list[str]) -> list[str]:
    """The lines of a function; unless all of its requirements return at once, with code that reports failed ones."""
    if not any(_accumulates(n) for s in body for n in s.walk()):
        return lines
    report = w.call("mlc_tell_failures", c.FAILED, FAILURES).text
    return [f"  mlc_failures {FAILURES};", *lines, f"  {report};"]


def _fence_lines(w: Writer, body: Iterable[k.Stmt]) -> list[str]:
    """A fence if the body has non-temporal stores, to make them visible before the function returns."""
    has_streaming_stores = any(isinstance(n, k.For) and n.mark == "past" for s in body for n in s.walk())
    return [f"  {w.call('mlc_fence').text};"] if has_streaming_stores else []


def _loop_value(w: Writer, s: k.For, iteration: str) -> str:
    """The value of a loop's variable in its iteration number `iteration`."""
    scaled = iteration if s.step == 1 else f"{iteration} * {s.step}"
    return scaled if s.start is Const(0, s.start.dtype) else f"{w.plain(s.start, c.ADD)} + {scaled}"


def _array(w: Writer, s: k.Array) -> list[str]:
    """Declare an array. A large one is static, per thread, and used through a pointer."""
    _record_type(w, s.dtype)
    element_type, name = memory_type(s.dtype), w.names[s.name]
    if s.space != "local":
        raise ValueError(f"array {s.name} is in {s.space} memory, which a CPU has not")
    if s.size * s.dtype.bytes <= LARGE_ARRAY:
        return [f"alignas({s.align}) {element_type} {name}[{s.size}];"]
    return [
        f"alignas({s.align}) static thread_local {element_type} mlc_memory_{name}[{s.size}];",
        f"{element_type}* __restrict const {name} = mlc_memory_{name};",
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


_FUNCTIONS = c.FUNCTIONS | {"where": "mlc_where"}
LANGUAGE = c.Language(TYPES, _FUNCTIONS, RESERVED, expression, _statement, _declare, _array, _pragma, failures=FAILURES)

__all__ = ["ENTRY", "FLAGS", "HEADERS", "LANGUAGE", "render"]
