"""Estimated clocks of a GPU multiprocessor, from a few numbers of a kernel and the `costs` of the target.

A multiprocessor multiplies the tiles that it holds, reads their operands from shared memory, and copies operands into
shared memory. The slowest of these decides; those close to it add a share (`smooth_max`). A single tile waits for
memory the more, the shallower its pipeline is. Blocks run in waves, the last of which may be partly filled. The meaning
of each cost is documented beside the target's costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.gpu import matmul
from compiler.schedule.gpu.matmul import CACHE_LINE, RESERVED, SECTOR, WARP, Matmul, Operand, Sizes
from compiler.targets.target import Instruction, Target, costs

BOUND_EXPONENT = 6.0  # exponent of `smooth_max` for a kernel's time and its least memory traffic
FEWEST_COLUMNS = 32  # a matmul with an operand in registers takes the time of at least this many columns
WIDEN_CLOCKS = 1 / 16  # clocks to convert an element: so many lanes per clock
COPY_WARPS = 4  # warps that copy operands and prepare them


@dataclass(frozen=True)
class Step:
    """One iteration of a block's pipeline of `depth` stages: it copies `copied_bytes` and multiplies m x n x k.

    `groups` warpgroups multiply, at `rate` multiply-adds per clock, `terms` times (3 for f32 as sums of two tf32
    numbers, which producer warps compute for `prepared` columns). If `split_k`, blocks of one tile read
    different operands.
    """

    m: int
    n: int
    k: int
    groups: int
    terms: int
    rate: float
    copied_bytes: float
    depth: int
    prepared: int = 0
    split_k: bool = False


@dataclass(frozen=True)
class Work:
    """A kernel of `blocks` blocks with `steps` pipeline iterations each, `resident` on a multiprocessor at once.

    At least `read_bytes` come from memory, `copied_bytes` are copied to shared memory, `boxed_bytes` as boxes of
    several axes. `parts` blocks share a tile of `tile` bytes (split-k), in a `cluster` or through memory. `persistent`
    blocks compute tile after tile. `sharing` blocks share copies, and start together. Starting a wave of blocks takes
    `start_clocks`, storing a tile `epilogue_clocks`.
    """

    blocks: int
    steps: int
    resident: int
    read_bytes: int
    tile: int
    parts: int = 1
    cluster: bool = False
    persistent: bool = False
    sharing: int = 1
    start_clocks: float = 0.0
    epilogue_clocks: float = 0.0
    boxed_bytes: int = 0
    copied_bytes: float = 0.0


def step(s: Step, resident: int, costs: Mapping[str, float], epilogue_clocks: float = 0.0) -> float:
    """Clocks of one pipeline step of `resident` blocks of a multiprocessor with producer warps and wgmma.

    `epilogue_clocks` is each block's share of storing its tile meanwhile: copies and the matmuls of other blocks
    overlap with it.
    """
    split = s.terms > 1
    columns = max(s.n, FEWEST_COLUMNS) if split else s.n
    mma_clocks = s.m * columns * s.k * s.terms / (s.rate * costs["reached.split" if split else "reached"])
    serial = mma_clocks / s.groups + costs["beside.split" if split else "beside"] + epilogue_clocks
    prepare_clocks = costs["prepare"] + costs["prepare.column"] * s.prepared if s.prepared else 0.0
    copy_clocks = resident * s.copied_bytes / costs["l2.parts" if s.split_k else "l2.split" if split else "l2"]
    latency = costs["latency"] / max(s.depth - 1, 1)
    exponent = costs["close.split" if split else "close"]
    busy = resident * mma_clocks + (epilogue_clocks if resident == 1 else 0.0)
    clocks = smooth_max((busy, serial, prepare_clocks, copy_clocks, latency), exponent)
    if resident == 1 or split:
        return clocks
    return min(
        costs["together"] * clocks, resident * step(s, 1, costs, epilogue_clocks)
    )  # never slower than taking turns


@functools.cache
def _usable_cores(target: Target, blocks: int) -> int:
    """Multiprocessors that get blocks in clusters of so many; some get none, because all of one start together."""
    blocks_at_once = dict(target.clusters).get(blocks, target.cores // blocks) * blocks
    return max(min(blocks_at_once, target.cores), blocks)


def kernel_clocks(w: Work, step_of: Callable[[int, float], float], target: Target) -> float:
    """Clocks of a kernel; `step_of(n, e)` are those of a step of n resident blocks with storing share e."""
    c = costs(target)
    cores = _usable_cores(target, w.parts if w.cluster else w.sharing)
    full, rest = divmod(w.blocks, cores * w.resident)

    def wave(resident: int) -> float:
        if w.persistent:
            clocks = w.steps * step_of(resident, w.epilogue_clocks / w.steps)
        else:
            clocks = w.steps * step_of(resident, 0.0) + w.epilogue_clocks + w.start_clocks
        if w.cluster:
            clocks += c["cluster"] + c["cluster.byte"] * resident * w.tile
        elif w.parts > 1:
            clocks += c["store.byte"] * resident * w.tile
        return clocks

    clocks = c["start"] + full * wave(w.resident) + (wave(-(-rest // cores)) if rest else 0.0)
    if w.sharing > 1:
        clocks += c["share"]
    if w.boxed_bytes:
        clocks = max(clocks, w.boxed_bytes / (c["l2.boxes"] * target.cores))
    if w.parts > 1 and not w.cluster:
        clocks += c["ticket.boxes" if w.boxed_bytes else "ticket"] + c["sum.byte"] * w.parts * w.tile
    clocks = smooth_max((clocks, w.copied_bytes / (c["l2.all"] * target.cores)), c["close.all"])
    return smooth_max((clocks, w.read_bytes / (c["dram"] * target.cores)), BOUND_EXPONENT)


@dataclass(frozen=True)
class Block:
    """A block that computes an m x n `tile` in steps of k, by a `grid` of warps or warpgroups with `row`.

    Its pipeline has `depth` stages; the sum is split into `parts`. Blocks of a `cluster` along m share the copies of b,
    those along n the copies of a.
    """

    row: Instruction
    tile: Sizes
    grid: tuple[int, int]
    depth: int
    parts: int
    cluster: tuple[int, int] = (1, 1)

    @property
    def sharing(self) -> int:
        """Blocks that share copies."""
        return math.prod(self.cluster)

    @property
    def has_producers(self) -> bool:
        """Whether producer warps copy and instructions read operands from shared memory."""
        return self.row.threads > WARP


def matmul_clocks(p: Matmul, b: Block, target: Target) -> tuple[float, int]:
    """Clocks of a matmul, and the number of persistent blocks; 0 if each block computes one tile."""
    (m, n, k), parts, c = b.tile, b.parts, costs(target)
    down, across = (matmul.tiles(*x) for x in ((p.m, p.loops[0], m, p.near[0]), (p.n, p.loops[1], n, p.near[1])))
    tiles = down * across * p.batch * parts
    result_bytes = matmul.result_bytes(p, b.row, (m, n), parts, target)
    max_resident = _max_resident(p, b, result_bytes, target)
    if not max_resident:
        return math.inf, 0
    steps = ceildiv(ceildiv(p.k, parts), k)
    read_bytes = p.read or p.batch * p.k * (p.m * p.a.bytes + p.n * p.b.bytes)
    cluster = parts > 1 and matmul.fits_cluster(parts, (m, n), target)
    step_of = functools.partial(_step_clocks, p, b, target)
    epilogue = _epilogue_clocks(p, b, cluster, target)
    if parts == 1:
        epilogue += max_resident * (m * n * p.sectors * c["sector"] + _box_store_clocks(p, b, c))
    if "fill" in c and b.has_producers:
        # Operands that are split in two are stored from registers: persistent blocks gain nothing there. If memory is
        # the limit, blocks that start as others end share its bandwidth better.
        boxes, cores = any(p.loops), _usable_cores(target, b.sharing)
        is_compute_bound = read_bytes / c["dram"] < p.m * p.n * p.k * p.batch / _mma_rate("wgmma", b.row, target)
        persistent = (
            b.row.a_space == "shared" and parts == 1 and tiles > cores * max_resident and is_compute_bound and not boxes
        )
        start_clocks = c["fill.split" if p.terms > 1 else "fill"] + (c["boxes"] if boxes and max_resident == 1 else 0.0)
        boxed_bytes = tiles * steps * k * (m * p.a.bytes + n * p.b.bytes) if p.step else 0
        work = Work(
            tiles,
            steps,
            max_resident,
            read_bytes,
            m * n * p.acc_bytes,
            parts,
            cluster,
            persistent,
            b.sharing,
            start_clocks,
            epilogue,
            boxed_bytes,
            tiles * steps * _line_bytes(p, b, c),
        )
        return kernel_clocks(work, step_of, target), cores * max_resident if persistent else 0
    cores = _usable_cores(target, parts if cluster else 1)
    resident = min(max_resident, ceildiv(tiles, cores))
    # Without a tile in shared memory, groups of lanes write scattered pieces of 16 or 32 bytes.
    store_clocks = (
        m
        * n
        * p.acc_bytes
        / c["sync.dram"]
        * (0.5 if result_bytes and p.across else 1 if result_bytes or p.across else 2)
    )
    wave = c["sync.latency"] + steps * step_of(resident) + resident * store_clocks + epilogue
    clocks = ceildiv(tiles, cores * max_resident) * wave + c["sync.start"]
    if parts > 1:
        exchanged_bytes = 2 * parts * p.m * p.n * p.batch * p.acc_bytes
        clocks += c["sync.cluster" if cluster else "sync.ticket"] + exchanged_bytes / (c["sync.l2"] * target.cores)
    return smooth_max((clocks, read_bytes / (c["sync.dram"] * target.cores)), BOUND_EXPONENT), 0


def _epilogue_clocks(p: Matmul, b: Block, cluster: bool, target: Target) -> float:
    """Clocks of a thread's epilogue: its elements of a tile are combined with other operands and stored.

    In a tile that crosses the result's edge every element has a predicate, or every vector of a partial sum, unless a
    tensor copy stores the tile. The loads of one element's operands then wait for the store of the previous element,
    unless they were issued before the sum.
    """
    c = costs(target)
    (m, n, _), threads = b.tile, math.prod(b.grid) * b.row.threads
    per_thread = m * n / threads / (b.parts if cluster else 1)
    divides = p.m % m == 0 and p.n % n == 0
    divides = divides or (b.parts > 1 and matmul.neighbours(p.n if p.across else p.m) > 1)
    registers_ahead, has_all_ahead = matmul.epilogue_registers(p, b.row, (m, n), b.grid, b.parts, target)
    ahead = matmul.ahead_bytes(p, b.row, b.parts)
    loads_late = p.joined or (ahead and not has_all_ahead) or (any(p.vectors) and not registers_ahead)
    if not loads_late and (divides or b.parts == 1):
        return per_thread * c["store" if divides else "store.edge"]
    if not divides and (not loads_late or b.has_producers):
        return per_thread * c["sum.join.edge" if loads_late else "sum.edge"] * (2 + b.parts) / 4
    return per_thread * c[("join" if p.across else "join.down") + ("" if divides else ".edge")]


def _box_store_clocks(p: Matmul, b: Block, c: Mapping[str, float]) -> float:
    """Extra clocks of storing a tile through shared memory in boxes. Rows narrower than a cache line take as many
    requests for fewer bytes; the larger the tile, the fewer operands of the next tile arrive meanwhile."""
    m, n, _ = b.tile
    row = (n if p.across else m) * p.out_bytes
    if not row or b.row.a_space != "shared":
        return 0.0
    per_thread = m * n / (math.prod(b.grid) * b.row.threads)
    narrow_penalty = 0.0 if row % 128 == 0 else c["store.64"] if row % 64 == 0 else c["store.32"]
    return per_thread * (narrow_penalty + per_thread * c["store.more"])


def _max_resident(p: Matmul, b: Block, result_bytes: int, target: Target) -> int:
    """Blocks that fit on a multiprocessor, with `result_bytes` of shared memory each in addition to their pipeline."""
    (m, n, k), groups = b.tile, math.prod(b.grid)
    threads = groups * b.row.threads + (WARP * (1 if p.terms == 1 else COPY_WARPS) if b.has_producers else 0)
    return min(
        (target.shared + RESERVED) // (matmul.stage_bytes(p, b.row, m, n, k) * b.depth + result_bytes + RESERVED),
        target.threads // threads,
        max(target.registers // (matmul.up(matmul.registers(p, b.row, (m, n), b.grid), 8) * threads), 1),
        target.blocks,
    )


def _step_clocks(p: Matmul, b: Block, target: Target, resident: int, epilogue_clocks: float = 0.0) -> float:
    """Clocks of one pipeline step of `resident` blocks."""
    if not b.has_producers:
        return _warp_step_clocks(p, b, resident, target)
    m, n, k = b.tile
    rate, copied_bytes = _mma_rate("wgmma", b.row, target), _line_bytes(p, b, costs(target))
    s = Step(m, n, k, math.prod(b.grid), p.terms, rate, copied_bytes, b.depth, n if p.terms > 1 else 0, b.parts > 1)
    clocks = step(s, resident, costs(target), epilogue_clocks)
    return clocks + costs(target)["share.step"] if b.sharing > 1 else clocks


def _line_bytes(p: Matmul, b: Block, c: Mapping[str, float]) -> float:
    """Bytes that a block copies in a step, with a share of the further requests for rows that begin between two cache
    lines or sectors; of a tile that blocks of a cluster share, each copies a part."""
    (m, n, k), (down, across) = b.tile, b.cluster
    requested = 0.0
    for x, length, blocks in ((p.a, m, across), (p.b, n, down)):
        further = c["l2.line"] * (1 - x.aligned / CACHE_LINE) * (1 if x.aligned % SECTOR == 0 else c["l2.sector"])
        requested += length * x.bytes * (1 + further) / blocks
    return k * requested


@functools.cache
def _mma_rate(unit: str, row: Instruction, target: Target) -> float:
    """Multiply-adds per clock of a unit's instruction."""
    return dict(target.rates).get(f"{unit}.{row.name.split('.')[2]}", 64)


def _warp_step_clocks(p: Matmul, b: Block, resident: int, target: Target) -> float:
    """Clocks of a step of `resident` blocks in which all warps copy, and multiply operands in registers."""
    (m, n, k), (down, across), c = b.tile, b.grid, costs(target)
    groups = down * across
    # Each scheduler needs a warp to keep its tensor core busy. A single block does one thing after the other.
    mma_clocks = m * n * k * p.terms / (c["sync.reached"] * _mma_rate("mma", b.row, target))
    split_clocks = c["sync.halves"] * groups * k * (m // down + n // across) / c["sync.lanes"] if p.terms > 1 else 0.0
    load_clocks = groups * k * (m // down * p.a.bytes + n // across * p.b.bytes) / c["sync.shared"]
    produce_clocks = (
        _compute_clocks(p.a) * m * k
        + _compute_clocks(p.b) * n * k
        + _copy_clocks(p.a, m * k)
        + _copy_clocks(p.b, n * k)
    )
    copy_clocks = k * (m * p.a.bytes + n * p.b.bytes) / c["sync.l2"]
    latency = c["sync.latency"] / max(b.depth - 1, 1)
    # A thread issues its copies one after the other, however few threads there are.
    copy_pieces = sum(length * k * x.bytes / x.piece for x, length in ((p.a, m), (p.b, n)) if x.copied)
    serial = c["sync.alone"] * (mma_clocks + split_clocks + load_clocks) / min(1.0, groups * b.row.threads / WARP / 4)
    serial += c["sync.piece"] * copy_pieces / (groups * b.row.threads)
    if p.a.widened or p.b.widened:  # loads are issued only where their values are used
        latency = c["sync.latency"] + serial + produce_clocks
    throughput = resident * max(mma_clocks, split_clocks, load_clocks, copy_clocks, produce_clocks)
    return smooth_max((throughput, serial, latency), c["sync.close"]) + c["sync.step"]


def preparation_clocks(copies: tuple[int, ...], target: Target) -> float:
    """Clocks of preparatory copies (separate kernels) that move so many bytes each."""
    c = costs(target)
    return sum(c["launch"] + n / (c["sync.dram"] * target.cores) for n in copies)


def _compute_clocks(x: Operand) -> float:
    """Clocks to compute an element: loaded on its own, or several widened side by side; 0 if it is copied."""
    return 0.0 if x.copied else WIDEN_CLOCKS if x.widened else 0.375


def _copy_clocks(x: Operand, elements: int) -> float:
    """Clocks to issue copies of `elements` elements: 32 pieces, of 16 bytes or fewer, every four clocks."""
    return elements * x.bytes / x.piece / 8 if x.copied else 0.0


def smooth_max(clocks: tuple[float, ...], exponent: float) -> float:
    """A smooth maximum (p-norm): values close to the largest add to it, the more the smaller the exponent."""
    longest = max(clocks)
    if longest <= 0:
        return 0.0
    return longest * math.pow(sum(math.pow(c / longest, exponent) for c in clocks), 1 / exponent)


def reduction_clocks(target: Target, elements: int, in_flight: int, threads: int) -> float:
    """Clocks of a reduction of a row by `threads`, with `in_flight` loads per thread at once.

    Loads in flight arrive together; each level of the tree over threads is one exchange.
    """
    c = costs(target)
    rounds = ceildiv(elements, in_flight * threads)
    return rounds * c["turn"] + c["exchange"] * math.log2(threads)


def column_clocks(target: Target, reductions: Sequence[int], stored: Sequence[int], count: int, warps: int) -> float:
    """Clocks of `count` columns, each shared by one lane of each of the `warps` of its block.

    `reductions` are the lengths of loops whose results the warps then merge one by one, `stored` those of loops that
    store their values.
    """
    c = costs(target)
    own = sum(ceildiv(n, warps) for n in reductions) * c["column.turn"]
    own += sum(ceildiv(n, warps) for n in stored) * c["column.store"]
    waves = max(1.0, count * warps / (target.cores * target.threads))
    return waves * (own + warps * len(reductions) * c["column.merge"])


def underfill_slowdown(needed: float, available: float) -> float:
    """The slowdown of a machine that needs `needed` threads to be busy and has `available`."""
    return max(1.0, needed / available)


def row_blocks_time(target: Target, rows: int, rows_per_block: int) -> float:
    """The time of a multiprocessor whose blocks compute `rows_per_block` each, in thirds of a row's time.

    Starting a block takes as long as 4/3 rows that are short enough for one warp each.
    """
    rows_per_core = rows / target.cores
    return 4 * max(1.0, rows_per_core / rows_per_block) + 3 * max(float(rows_per_block), rows_per_core)


def update_clocks(target: Target, count: int, owners: int, warps: int) -> float:
    """Clocks of `count` ordered updates by `owners` of `warps` warps each, which test 32 updates at once.

    A test takes the latency of its load, vote and branch, or the time to issue the tests of all warps. An update takes
    the latency of the element that it changes.
    """
    c = costs(target)
    tests = ceildiv(count, 32)
    warps_per_core = max(1.0, owners * warps / target.cores)
    return tests * max(c["vote"], warps_per_core * c["vote.issue"]) + count / owners * c["update"]


def voted_update_clocks(target: Target, count: int, owners: int, warps: int, ahead: int) -> float:
    """Clocks of `count` ordered updates by `owners` of `warps` warps each, which test several vectors of 32 updates at
    once and apply their own in groups of `ahead`.

    A group takes the latency of the added values, an update that of the element that it changes.
    """
    c = costs(target)
    warps_per_core = max(1.0, owners * warps / target.cores)
    updates_per_owner = count / owners
    test_clocks = ceildiv(count, 32) * max(c["vote.voted"], warps_per_core * c["vote.voted.issue"])
    return test_clocks + max(1.0, updates_per_owner / ahead) * c["turn"] + updates_per_owner * c["update.voted"]


def sequential_update_clocks(target: Target, count: int, rows: int) -> float:
    """Clocks of `count` updates of each row by a thread of its own."""
    return count * costs(target)["update"] * max(1.0, rows / (target.cores * target.threads))


def tile_access_clocks(side: int, vector: int) -> float:
    """Clocks per element of a tile with this side: its share of a vector's access, and of the cache lines that the ends
    of a row share with other rows."""
    return 1 / vector + 1 / side


def simt_matmul_clocks(target: Target, multiplies: int, blocks: int, shares: tuple[int, int, int], depth: int) -> float:
    """Clocks of a matmul without tensor cores; `shares` are rows and columns per thread, and parts of the sum.

    A multiprocessor serves 32 loads per clock. More rows and columns per thread need fewer loads per result; each part
    is stored and loaded once more. With fewer blocks than multiprocessors, latency is not hidden.
    """
    down, across, parts = shares
    loads = 1 / down + 1 / across + 2 * parts / depth
    if blocks < target.cores:
        loads = 2.0 * target.cores / blocks
    return multiplies * loads / (32 * target.cores)


def attention_clocks(
    target: Target, queries: int, batch: int, rows: int, fills_cores: bool, keys: int, width: int
) -> float:
    """Clocks of attention: `rows` queries per block pass over all keys, for a `batch` of heads.

    If blocks fill all multiprocessors (`fills_cores`), these share the queries evenly; otherwise the time is that of
    one block.
    """
    rows_per_core = batch * queries / target.cores if fills_cores else float(rows)
    return rows_per_core * keys * width / costs(target)["sync.lanes"]
