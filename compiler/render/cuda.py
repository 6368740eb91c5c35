"""Kernel IR for threads to CUDA C++ text: one `__global__` function per function of the program.

The text includes the device functions of `render/cuda/mlc`, which have a body for nvcc and one for a CPU, so that the
same text runs on both.
"""

from __future__ import annotations

import math
import re
from typing import Any

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.dtype import DType, boolean, f32, i32, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, loads
from compiler.ir.functions import FUNCTIONS
from compiler.ir.rewrite import nodes
from compiler.passes.gpu.dependent_launch import overlaps
from compiler.render import c, header
from compiler.render.c import SHIFT, UNARY, Code, Writer
from compiler.render.cpp_expression import TYPES, is_short, lane_type, literal, memory_type
from compiler.render.cuda_integer import WRAPPING, comparison, integer
from compiler.render.integer_ranges import data_variables, int32_names, ranges_of

FOLDER = "mlc"  # of the headers, inside the include folder

# header: the functions that it declares, without their prefix, as far as the text calls them.
HEADERS = {
    "numbers": "infinity nan",
    "convert": "from_bf16 to_bf16 from_f16 to_f16 convert",
    "float8": "from_f8e4m3 to_f8e4m3 from_f8e5m2 to_f8e5m2",
    "halves": "scaled_halves widened",
    "arithmetic": "add sub mul mul_plain div div_large isnan signbit max min negated abs sign shl shr ones floordiv "
    "remainder index_floordiv index_mod quotient rest truncdiv fmod gcd round",
    "rounding": "tf32",
    "require": "require",
    "mathematics": " ".join(("sqrt fma floor ceil trunc", *FUNCTIONS)),
    "memory": "reread prefetch load load_where store store_global",
    "streaming": "load_once load_keep store_once",
    "reduce": "lanes_reduce warp_reduce block_reduce columns_reduce sum prod maximum minimum all any",
    "scan": "scan_before",
    "places": "lane_index warp_index",
    "registers": "registers_decrease registers_increase",
    "async": "cp_async cp_async_zero cp_async_commit cp_async_wait",
    "mbarrier": "mbarrier_init mbarrier_fence_init mbarrier_arrive mbarrier_expect mbarrier_wait fence_async "
    "mbarrier_arrive_at "
    "named_barrier",
    "tma": "tma_prefetch tma_load tma_load_multicast tma_store bulk_commit bulk_wait_read bulk_wait",
    "wgmma": "wgmma wgmma_rs wgmma_hold wgmma_fence wgmma_commit wgmma_wait wgmma_idle",
    "matrix": "ldmatrix ldmatrix_transposed stmatrix stmatrix_transposed mma_sync",
    "atomics": "atomic fence_device take_ticket",
    "cluster": "cluster_barrier cluster_leave cluster_load cluster_get cluster_get_where",
    "launch": "wait_dependencies launch_dependents prefetch_l2",
}
_COMBINERS = {"sum": "sum", "prod": "prod", "max": "maximum", "min": "minimum", "and": "all", "or": "any"}
_BARRIERS = {"block": "mlc_block_barrier", "warp": "mlc_warp_barrier", "cluster": "mlc_cluster_barrier"}
# Names that CUDA's headers declare as functions, variables or macros.
_CUDA_NAMES = frozenset(
    """
    threadIdx blockIdx blockDim gridDim warpSize dim3 half half2 signbit isinf isnan abs acos acosh asin asinh
    atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs
    fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2
    logb lrint lround max min modf nan nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow rcbrt
    remainder remquo rhypot rint rnorm round rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt tan tanh
    tgamma trunc y0 y1 yn clock clock64 assert printf malloc free memcpy memset index select signal time read
    write div exit abort gamma link accept bind connect listen send
    """.split()  # noqa: SIM905
)
RESERVED = c.CPP_KEYWORDS | _CUDA_NAMES | {c.FAILED}
_REGISTER_REALLOCATION = ("mlc_registers_decrease", "mlc_registers_increase")
PART = 16_000  # characters per part: some tenths of a second to compile, of which the headers take 0.05 s
_KERNEL = re.compile(r'^(?://.*\n)*extern "C" __global__[^\0]*?^}\n', re.MULTILINE)
_CONSTANT_LOADS = frozenset({"mlc_load_once", "mlc_load_where"})  # with an argument of the template they are plain
_MEMORY = "mlc_memory"  # dynamic shared memory; no name of a program has this prefix


def render(program: k.Program, *, target: str) -> str:
    """The CUDA text of `program`. Raises ValueError for what cannot be expressed.

    Functions that are equal up to names are rendered once.
    """
    called: set[str] = set()
    functions: list[str] = []
    emitted: set[str] = set()
    every_name = names(program)
    made_before = _made_before(program, every_name)
    for f, name in zip(program.functions, every_name, strict=True):
        if name not in emitted:
            earlier = frozenset(f.params[n].name for n in made_before[name])
            functions += ["", *_function(f, name, program, called, earlier)]
        emitted.add(name)
    headers = sorted({c.header_of(HEADERS, name) for name in called}, key=list(HEADERS).index)
    includes = [f'#include "{FOLDER}/{h}.cuh"' for h in ("prelude", *headers)]
    return "\n".join([*header.lines(program, target), *includes, *functions]) + "\n"


def parts(text: str) -> list[str]:
    """Split a rendered text into parts that can be compiled in parallel: groups of kernels, each with the includes.

    A short text is not split. Programs that have the same kernels have parts in common.
    """
    includes = "".join(line + "\n" for line in text.splitlines() if line.startswith("#include"))
    kernels = _KERNEL.findall(text)
    if len(text) < 2 * PART or len(kernels) < 2:
        return [text]
    out = [includes]
    for kernel in kernels:
        if len(out[-1]) > PART:
            out.append(includes)
        out[-1] += "\n" + kernel
    return out


def names(program: k.Program) -> list[str]:
    """The name in the text for each function of a program; equal functions share one, unless their text is unknown."""
    spellings = c.spell_names([f.name for f in program.functions], RESERVED)
    shared_names = isomorphism.firsts(f for f in program.functions if not header.is_launch(f))
    return [spellings[shared_names.get(f.name, f.name)] for f in program.functions]


def _made_before(program: k.Program, every_name: list[str]) -> dict[str, set[int]]:
    """The parameters that functions only read, and another function of the program writes, by name in the text.

    Where functions overlap, another one may still write them when a kernel starts. They are not constant while it runs,
    and must not be loaded as such: a compiler moves those loads before the wait.
    """
    made = {name for f in program.functions for name in f.writes}
    found: dict[str, set[int]] = {}
    for f, name in zip(program.functions, every_name, strict=True):
        read = {n for n, p in enumerate(f.params) if p.name in made and p.name not in f.writes}
        found.setdefault(name, set()).update(read if overlaps(f) else ())
    return found


def _function(f: k.Function, name: str, program: k.Program, called: set[str], made_before: frozenset[str]) -> list[str]:
    if not f.block:
        raise ValueError(f"function {f.name} has no threads")
    spellings = c.spell_names(
        [*c.bound_names(f), *(s.name for s in program.sizes), *(m.name for m in f.maps)], RESERVED
    )
    w = Writer(LANGUAGE, name, spellings, {p.name: p.dtype for p in f.params}, c.reassigned_names(f))
    w.called, w.ranges, w.written = called, ranges_of(f), frozenset(f.writes) | _selected_from(f, made_before)
    w.narrow, w.wrapping = int32_names(w.ranges), data_variables(f)
    w.offsets, dynamic = k.dynamic_shared(f)
    body = _without_constant_loads(f.body, made_before) if made_before else f.body
    lines = [*([f"  MLC_DYNAMIC_SHARED({_MEMORY});"] if dynamic else []), *c.body(w, body)]
    accessed = c.accessed_buffers(f.body)
    params = []
    for p in f.params:
        parameter = spellings[p.name] if p.name in accessed else f"/* {spellings[p.name]} */"
        # The compiler must not move loads of what other blocks or kernels write across fences, or before the wait.
        restrict = "" if p.name in f.exchanged or p.name in made_before else "__restrict__ "
        params.append(f"{'' if p.name in f.writes else 'const '}{memory_type(p.dtype)}* {restrict}{parameter}")
    params += [f"const long {spellings[s.name]}" for s in program.sizes]
    params += [f"MLC_TENSOR_MAP({spellings[m.name]})" for m in f.maps]
    params += [f"int* __restrict__ {c.FAILED}"] * c.has_requirements(f.body)
    threads = f.block[0] * f.block[1] * f.block[2]
    # Kernels that reallocate registers need a fixed number at entry: request one block per multiprocessor.
    reallocates = any(isinstance(n, k.Call) and n.function in _REGISTER_REALLOCATION for s in f.body for n in s.walk())
    bounds = f"{threads}, 1" if reallocates else f"{threads}"
    cluster = f"MLC_CLUSTER({f.cluster}, 1, 1) " if f.cluster > 1 else ""
    start = f'extern "C" __global__ void {cluster}__launch_bounds__({bounds}) {name}('
    return [*c.describe(f), *c.wrap_list(start, params, ") {"), *lines, "}"]


def _selected_from(f: k.Function, buffers: frozenset[str]) -> frozenset[str]:
    """Those of the buffers of which a select chooses between an element and one of a constant buffer."""
    constant = {p.name for p in f.params} - buffers - set(f.writes)
    selected = ({x.buffer for x in loads(n)} for n in f.walk() if buffers and isinstance(n, Select))
    return buffers & set().union(*(read for read in selected if read & constant))


def _without_constant_loads(body: tuple[k.Stmt, ...], buffers: frozenset[str]) -> tuple[k.Stmt, ...]:
    """The statements with plain loads of these buffers where calls load what is constant."""

    def plain(n: Any) -> Any:
        match n:
            case k.Call(function, (width,), (_, k.Address(buffer), *_)) if buffer in buffers:
                return n.replace(template=(width, 0)) if function in _CONSTANT_LOADS else None
        return None

    return nodes(body, plain)


# ---- expressions


def _branchless_guard(w: Writer, cond: Expr) -> Code:
    """The guard of a load, without branches, so that consecutive loads are issued together."""
    match cond:
        case Op("and", (a, b)) if a.dtype is boolean:
            return Code(f"{_branchless_guard(w, a).at(c.AND)} & {_branchless_guard(w, b).at(UNARY)}", c.AND)
    return Code(w.text(cond, UNARY), UNARY)


def _expression(w: Writer, e: Expr, bits: int) -> Code | None:
    if e.dtype.lanes > 1:
        raise ValueError(f"{e.dtype}: a thread computes with one element at a time")
    match e:
        case Const(value, dtype) if is_short(dtype):
            return literal(float(value), dtype)
        case Const(value, dtype) if dtype.is_float and not math.isfinite(value):
            code = w.call("mlc_nan" if math.isnan(value) else "mlc_infinity", template=(TYPES[dtype.name],))
            return Code(f"-{code.text}", UNARY) if value < 0 else code
        case Load(buffer, (index,), dtype):
            element = w.element(buffer, index) + (".bits" if is_short(dtype) else "")
            if buffer in w.written:
                element = w.call("mlc_reread", f"&{element}").text
            return Code(f"{element} != 0", c.EQUAL) if dtype is boolean else Code(element)
        case Select(Op("and") as cond, then, other) if loads(then) and not loads(cond) and not e.dtype.is_integer:
            guard = _branchless_guard(w, cond).at(c.LOR)
            return Code(f"{guard} ? {w.text(then, c.LOR, bits)} : {w.text(other, c.TERNARY, bits)}", c.TERNARY)
        case Cast(arg, dtype):
            return _cast(w, arg, dtype)
        case k.Peer(buffer, index, rank):
            return w.call("mlc_cluster_load", w.pointer(buffer, index), w.text(rank))
        case k.Ones(arg):
            return w.call("mlc_ones", w.text(arg))
        case k.Together(reduction, arg, threads, scratch, stride):
            combine = f"mlc_{_COMBINERS[reduction]}"
            w.called.add(combine)
            if stride > 1:
                return w.call("mlc_columns_reduce", w.text(arg), w.names[scratch], template=(combine, threads))
            if threads < 32:
                return w.call("mlc_lanes_reduce", w.text(arg), template=(combine, threads))
            if threads == 32:
                return w.call("mlc_warp_reduce", w.text(arg), template=(combine,))
            return w.call("mlc_block_reduce", w.text(arg), w.names[scratch], template=(combine, threads))
        case Op(name, (a, b)) if name in c.COMPARISONS and a.dtype is i64:
            return comparison(w, name, a, b)
        case Op("mul", (a, b)) if e.dtype is i32 and all(map(_may_be_nonnegative, (a, b))):
            return w.call("mlc_mul_plain", w.text(a), w.text(b))
        case Op(name, (a, b)) if name in WRAPPING and e.dtype.is_integer and e.dtype.bits <= 32:
            return w.call(f"mlc_{name}", w.text(a), w.text(b))
        case Op("neg", (a,)) if e.dtype.is_integer and e.dtype.bits <= 32:
            return w.call("mlc_negated", w.text(a))
        case Op("div", (a, b)) if not _has_exact_reciprocal(b):
            return w.call("mlc_div_large" if _is_at_least_one(b) else "mlc_div", w.text(a), w.text(b))
        case Op("shl" | "shr" as name, (a, Const(int() as count))) if 0 <= count < e.dtype.bits:
            code = Code(f"{w.text(a, UNARY)} {'<<' if name == 'shl' else '>>'} {count}", SHIFT)
            return c.convert_back(w, code, e.dtype)
    return None


def _may_be_nonnegative(e: Expr) -> bool:
    """Whether the compiler cannot know that a number is negative."""
    return e.value >= 0 if isinstance(e, Const) else bool(loads(e))


def _has_exact_reciprocal(e: Expr) -> bool:
    """Whether it is a constant with an exact reciprocal, so that the compiler multiplies."""
    return isinstance(e, Const) and math.isfinite(e.value) and abs(math.frexp(e.value)[0]) == 0.5


def _is_at_least_one(e: Expr) -> bool:
    """Whether it is certainly at least 1, or NaN."""
    match e:
        case Const(value):
            return value >= 1
        case Op("add", (a, b)):
            return (_is_at_least_one(a) and _is_nonnegative(b)) or (_is_at_least_one(b) and _is_nonnegative(a))
    return False


def _is_nonnegative(e: Expr) -> bool:
    match e:
        case Const(value):
            return value >= 0
        case Op("exp" | "exp2" | "abs" | "sqrt"):
            return True
        case Op("mul", (a, b)):
            return a is b
        case Op("add", (a, b)):
            return _is_nonnegative(a) and _is_nonnegative(b)
    return False


def _cast(w: Writer, arg: Expr, dtype: DType) -> Code:
    source = arg.dtype
    if is_short(dtype):
        inner = arg
        if source is not f32:
            if is_short(source):
                return w.call(f"mlc_to_{dtype.name}", _cast(w, arg, f32).text)
            inner = Cast(arg, f32)
        return w.call(f"mlc_to_{dtype.name}", w.text(inner))
    if is_short(source):
        wide = w.call(f"mlc_from_{source.name}", w.text(arg))
        if dtype is f32:
            return wide
        if dtype is boolean:
            return Code(f"{wide.text} != 0", c.EQUAL)
        return w.call("mlc_convert", wide.text, template=(TYPES[dtype.name],)) if dtype.is_integer else Code(
            f"({TYPES[dtype.name]}){wide.text}", UNARY)  # fmt: skip
    if dtype is boolean:
        return Code(f"{w.plain(arg, SHIFT)} != 0", c.EQUAL)
    if source.is_float and dtype.is_integer:
        return w.call("mlc_convert", w.text(arg), template=(TYPES[dtype.name],))
    return Code(f"({TYPES[dtype.name]}){w.plain(arg, UNARY)}", UNARY)


# ---- statements


def _declare(w: Writer, s: k.Declare) -> str:
    return "int" if s.name in w.narrow else lane_type(s.value.dtype)


def _statement(w: Writer, s: k.Stmt) -> list[str] | None:
    match s:
        case k.Barrier(scope):
            if scope == "cluster":
                w.called.add(_BARRIERS[scope])
            return [_BARRIERS[scope] + "();"]
        case k.Store(buffer, index, value, "set"):
            element = w.element(buffer, index) + (".bits" if is_short(value.dtype) else "")
            return [f"{element} = {w.plain(value)};"]
        case k.Call(function, template, args):
            arguments = [_argument(w, a) for a in args]
            return [w.call(function, *arguments, template=template).text + ";"]
    return None


def _argument(w: Writer, a: Expr | k.Address | k.Map) -> str:
    match a:
        case k.Address(buffer, index):
            return w.pointer(buffer, index)
        case k.Map(name):
            return w.names[name]
    return w.plain(a)


def _array(w: Writer, s: k.Array) -> list[str]:
    element_type, name = memory_type(s.dtype), w.names[s.name]
    if s.name in w.offsets:
        return [f"{element_type}* const {name} = ({element_type}*)({_MEMORY} + {w.offsets[s.name]});"]
    if s.space == "shared":
        return [f"MLC_SHARED({element_type}, {name}, {s.size}, {s.align});"]
    return [f"alignas({s.align}) {element_type} {name}[{s.size}];"]


def _pragma(w: Writer, s: k.For) -> list[str]:
    return {"unroll": ["#pragma unroll"], "rolled": ["#pragma unroll 1"]}.get(s.mark, [])


LANGUAGE = c.Language(TYPES, c.FUNCTIONS, RESERVED, _expression, _statement, _declare, _array, _pragma, integer)

__all__ = ["HEADERS", "LANGUAGE", "names", "render"]
