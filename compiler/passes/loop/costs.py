"""Costs of joining kernels row by row. They decide where kernels end, independently of the schedules chosen later.

Two cases are weighed. A sum weighted by a softmax, in one kernel with the softmax and its matmuls, keeps its scores out
of memory, if tensor instructions, or vectors of a CPU, can compute the matmuls within a block of rows. And short
kernels take less time one after the other on one block per row than each launch takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from compiler.analysis import chained_products, online_softmax
from compiler.analysis.chained_products import Chained
from compiler.analysis.guarded_factors import unwidened
from compiler.analysis.nests import iterations, loop_ranges
from compiler.analysis.online_softmax import KEY, Online, Scores
from compiler.analysis.size_hints import regular
from compiler.ir import loop
from compiler.ir.dtype import f32
from compiler.ir.expr import Const, Load, loads, names, static
from compiler.ir.statement import Accum, Kernel, Stmt
from compiler.ir.tensor import Tensor
from compiler.schedule.gpu import matmul, matmul_axes
from compiler.targets.target import Target

LOADS_PER_CLOCK = 32  # loads that a multiprocessor serves per clock
OPERATIONS_PER_ELEMENT = 8  # scalar operations of an element made from several products, an exponential among them
LAUNCH_CLOCKS = 4000  # clocks from the end of a kernel until the next one has started

# For GPUs; measured on an H200 unless stated otherwise. With fewer queries, the matmuls are of a matrix and few rows:
# they are bound by memory, whatever multiplies them.
LEAST_QUERIES = 9
# Few queries: keys of a block, parts that are combined one after the other, elements of depth and features of blocks
# that share a multiprocessor, and keys that a block passes over in the time of a launch. Blocks of one warp, which the
# latency of its instructions bounds, wait less for each other if they are narrow.
PART_KEYS, MOST_PARTS, SHARED_WIDTH, LAUNCH_KEYS = 64, 64, 512, 128
WARP_FEATURES = 128  # features for which a single warp has registers; groups of four warps have for more
# f32 matmuls by four warps each, with scores passed through the L2, compared with single warps that keep scores in
# registers: 1.0 to 1.9 times faster for heads of 128 features, 1.1 to 1.4 times slower for heads of 64.
NARROW_F32, FEW_KEYS_F32 = 64, 32
# Queries and keys of a warpgroup's smallest block, blocks of keys in flight, the depth of a matmul.
GROUP_ROWS, STAGES, STEP = 64, 2, 16
RESERVED = 1024  # bytes of shared memory reserved in each block besides its own (CUDA C++ Programming Guide 13)


def scores_stay_on_chip(kernel: Kernel, private: Iterable[str], target: Target) -> bool:
    """Whether a kernel is such a sum and takes less time than separate kernels that pass the scores through memory.

    `private` names the temporaries that no other kernel uses. All sizes must be known.
    """
    found = online_softmax.attention(kernel, private)
    if found is None:
        return False
    tensors = {p.name: p for p in kernel.params}
    return _stay_in_vectors(*found, target) if target.kind == "cpu" else _stay_in_registers(*found, tensors, target)


def holds_for_all_sizes(kernel: Kernel, target: Target) -> bool:
    """Whether this holds for all values of the symbolic sizes.

    It does if depth and features are constant, and rows of buffers start where tiles may. On a GPU, it does not for few
    queries, whose keys must be split.
    """
    found = online_softmax.recognise(kernel)
    if found is None or found.scores is None:
        return False
    queries = found.query.extent
    if target.kind != "cpu" and isinstance(queries, Const) and static(queries) < LEAST_QUERIES:
        return False
    return isinstance(found.scores.depth.extent, Const) and isinstance(found.feature.extent, Const) and regular(kernel)


def _stay_in_vectors(f: Online, scores: Scores, target: Target) -> bool:
    """Whether scores stay out of memory on a CPU, where queries are the lanes of vectors.

    The queries must fill a vector. If a load other than of a mask depends on the query, they must fill whole vectors:
    tiles are padded to whole vectors, buffers are not.
    """
    dtype, queries = f.accumulator.dtype, static(f.query.extent)
    lanes = target.lanes(dtype.bytes)
    masks = {x.buffer for x in online_softmax.masks(f.score, f.query.var)}
    read = any(x.buffer not in masks and f.query.var in names(x) for x in loads(f.score))
    multiplied = any(r.function == "mlc_fma_block" and r.acc_type == dtype.name for r in target.instructions)
    return multiplied and queries >= lanes and scores.name.dtype is dtype and not (read and queries % lanes)


def _stay_in_registers(f: Online, scores: Scores, tensors: dict[str, Tensor], target: Target) -> bool:
    """Whether scores stay in registers on a GPU: tensor cores multiply blocks of queries, keys and values."""
    queries, keys, depth = static(f.query.extent), static(f.keys), static(scores.depth.extent)
    widest = max(depth, static(f.feature.extent))
    kinds = {unwidened(x).dtype for x in (scores.left, scores.right, f.value)} | {f.weight}
    if not depth:  # there is no tile of it
        return False
    if len(kinds) != 1 or {scores.name.dtype, f.accumulator.dtype} != {f32}:
        return False
    if queries < LEAST_QUERIES and not _few_queries_pay(f, scores, target):
        return False
    (kind,) = kinds
    types = kind.name, kind.name, f32.name
    functions = {r.function for r in target.instructions if (r.a_type, r.b_type, r.acc_type) == types}
    if widest > WARP_FEATURES:
        return kind is not f32 and _fits_warpgroup(f, scores, tensors, target)
    if kind is f32 and "mlc_wgmma_rs" in functions and widest > NARROW_F32 and keys > FEW_KEYS_F32:
        handed_over = math.prod(static(r.extent) for r in f.batch) * queries * keys * f32.bytes
        return "mlc_mma_sync" in functions and handed_over > target.l2
    return "mlc_mma_sync" in functions


def _few_queries_pay(f: Online, scores: Scores, target: Target) -> bool:
    """Whether few queries make enough blocks, or short ones, if their keys are split."""
    parts = key_parts(f, scores, target)
    blocks = math.prod(static(r.extent) for r in f.batch) * parts
    return target.kind == "cuda" and (blocks >= target.cores or static(f.keys) // parts <= LAUNCH_KEYS)


def key_parts(f: Online, scores: Scores, target: Target) -> int:
    """The number of parts of equal size of a sum over keys, each for blocks of its own; 1 if it is not split.

    Only sums for few queries are, into about as many parts as keep the multiprocessors busy.
    """
    if static(f.query.extent) >= LEAST_QUERIES or f.row_after or static(f.keys) % PART_KEYS:
        return 1
    heads, pieces = math.prod(static(r.extent) for r in f.batch), static(f.keys) // PART_KEYS
    blocks = target.cores * SHARED_WIDTH / (static(scores.depth.extent) + static(f.feature.extent))
    divisors = (n for n in range(1, min(MOST_PARTS, pieces) + 1) if pieces % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n * heads / blocks)))


def _fits_warpgroup(f: Online, scores: Scores, tensors: dict[str, Tensor], target: Target) -> bool:
    """Whether a warpgroup can do it: it has an instruction for the features, TMA loads operands, and tiles fit."""
    features, depth, kind = static(f.feature.extent), static(scores.depth.extent), f.weight
    wide = [r for r in target.instructions if r.function == "mlc_wgmma_rs" and r.n == features]
    if depth % STEP or "tma" not in target.features or not any(r.a_type == r.b_type == kind.name for r in wide):
        return False
    key = loop.For(KEY.name, f.keys, "parallel", ())
    q, k, d, v = (
        matmul_axes.axis([loop.For(x.var, x.extent, x.kind, ())]) for x in (f.query, key, scores.depth, f.feature)
    )
    every = (*f.rows, f.feature, scores.depth, key)
    ranges = loop_ranges(every)
    operands = ((scores.left, q, d), (scores.right, k, d), (f.value, v, k))
    if not all(matmul_axes.factor(x, own, along, tensors, ranges).even for x, own, along in operands):
        return False
    masks = (tensors[x.buffer] for x in online_softmax.masks(f.score, f.query.var))
    bits = sum(
        t.dtype.bytes for t in masks if GROUP_ROWS * t.dtype.bytes % matmul_axes.ROW == 0 and matmul_axes.even(t)
    )
    tiles = kind.bytes * GROUP_ROWS * (depth + STAGES * (depth + matmul.up(features, STEP)))
    return tiles + bits * STAGES * GROUP_ROWS**2 + RESERVED <= target.shared


def recomputation_pays(
    replaced: Iterable[Kernel], recomputing: Iterable[Kernel], elements: int, target: Target
) -> bool:
    """Whether the kernels `recomputing`, which recompute products, take less time than those `replaced` by them.

    The replaced kernels store and load so many `elements`. The estimate counts products by tensor instructions and
    scalar operations on them.
    """
    costs, rates = dict(target.costs), dict(target.rates)
    clocks = 0.0
    kinds = set()
    for k in recomputing:
        found = chained_products.recognise(k)
        if found is None or not _has_tensor_instruction(found, target):
            return False
        kinds.add(found.kind)
        weights = math.prod(static(e) for e in (found.columns, *(f.extent for f in found.rows)))
        clocks += (
            weights * OPERATIONS_PER_ELEMENT / costs["sync.lanes"]
            + _count_terms(k.body) / rates[f"mma.{found.kind.name}"]
        )
    if len(kinds) != 1:
        return False
    (kind,) = kinds
    clocks -= sum(_count_terms(k.body) for k in replaced) / rates[f"mma.{kind.name}"]
    return clocks < elements * kind.bytes / costs["stream"]


def _has_tensor_instruction(f: Chained, target: Target) -> bool:
    """Whether tensor cores can multiply blocks of rows and columns, and what is computed from them with the values."""
    factors = (f.value, *(x for p in f.products for x in (p.left, p.right)))
    widest = max(static(x.extent) for x in (f.feature, *(p.depth for p in f.products)))
    if {unwidened(x).dtype for x in factors} != {f.kind} or widest > WARP_FEATURES or f.kind is f32:
        return False
    if static(f.row.extent) < LEAST_QUERIES or {f.accumulator.dtype, *(p.name.dtype for p in f.products)} != {f32}:
        return False
    types = f.kind.name, f.kind.name, f32.name
    return any(r.function == "mlc_mma_sync" and (r.a_type, r.b_type, r.acc_type) == types for r in target.instructions)


def _count_terms(body: tuple[Stmt, ...]) -> int:
    """The number of terms that statements accumulate."""
    return sum(
        static(s.extent) * _count_terms(s.body) if isinstance(s, loop.For) else isinstance(s, Accum) for s in body
    )


def launch_costs_more(kernel: Kernel, rows: int, target: Target) -> bool:
    """Whether running a kernel on one block per row costs less extra time than a launch."""
    clocks = sum(map(_count_loads, kernel.body)) / LOADS_PER_CLOCK
    return clocks / rows * -(-rows // target.cores) - clocks / target.cores < LAUNCH_CLOCKS


def _count_loads(s: Stmt) -> int:
    """The number of elements that a statement loads."""
    if isinstance(s, loop.For):
        return iterations(s) * sum(map(_count_loads, s.body))
    return sum(isinstance(n, Load) for n in s.walk())
