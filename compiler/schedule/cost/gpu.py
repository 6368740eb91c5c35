"""Estimated clocks of a GPU multiprocessor, from a few numbers of a kernel and the `costs` of the target.

A multiprocessor multiplies the tiles that it holds, reads their operands from shared memory, and copies operands into
shared memory. The slowest of these decides; those close to it add a share (`close`). A single tile waits for memory the
more, the shallower its pipeline is. Blocks run in waves, the last of which may be partly filled. The meaning of each
cost is documented beside the target's costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.gpu import matmul
from compiler.schedule.gpu.matmul import RESERVED, WARP, Matmul, Operand, Sizes
from compiler.targets.target import Instruction, Target, costs

BOUND = 6.0  # exponent of `close` for a kernel's time and its least memory traffic
FEWEST_COLUMNS = 32  # a matmul with an operand in registers takes the time of at least this many columns
WIDENED = 1 / 16  # clocks to convert an element: so many lanes per clock
COPYING = 4  # warps that copy operands and prepare them


@dataclass(frozen=True)
class Step:
    """One iteration of a block's pipeline of `depth` stages: it copies `brought` bytes, and multiplies m x n x k.

    `groups` warpgroups multiply, at `rate` multiply-adds per clock, `terms` times (3 for f32 as sums of two tf32
    numbers, which producer warps compute for `prepared` columns). If `parted` (split-k), blocks of one tile read
    different operands.
    """

    m: int
    n: int
    k: int
    groups: int
    terms: int
    rate: float
    brought: int
    depth: int
    prepared: int = 0
    parted: bool = False


@dataclass(frozen=True)
class Work:
    """A kernel of `blocks` blocks with `steps` pipeline iterations each, `resident` on a multiprocessor at once.

    At least `read` bytes come from memory, `boxed` bytes are copied as boxes of several axes. `parts` blocks share a
    tile of `tile` bytes (split-k), in a `cluster` or through memory. Persistent blocks `stay` for tile after tile.
    Starting a wave of blocks takes `begin` clocks, storing a tile `ending` clocks.
    """

    blocks: int
    steps: int
    resident: int
    read: int
    tile: int
    parts: int = 1
    cluster: bool = False
    stay: bool = False
    begin: float = 0.0
    ending: float = 0.0
    boxed: int = 0


def step(s: Step, resident: int, costs: Mapping[str, float], ending: float = 0.0) -> float:
    """Clocks of one pipeline step of `resident` blocks of a multiprocessor with producer warps and wgmma.

    `ending` is each block's share of storing its tile meanwhile: copies and the matmuls of other blocks overlap with
    it.
    """
    split = s.terms > 1
    columns = max(s.n, FEWEST_COLUMNS) if split else s.n
    multiplies = s.m * columns * s.k * s.terms / (s.rate * costs["reached.split" if split else "reached"])
    alone = multiplies / s.groups + costs["beside.split" if split else "beside"] + ending
    prepared = costs["prepare"] + costs["prepare.column"] * s.prepared if s.prepared else 0.0
    brought = resident * s.brought / costs["l2.parts" if s.parted else "l2.split" if split else "l2"]
    waited = costs["latency"] / max(s.depth - 1, 1)
    exponent = costs["close.split" if split else "close"]
    busy = resident * multiplies + (ending if resident == 1 else 0.0)
    clocks = close((busy, alone, prepared, brought, waited), exponent)
    if resident == 1 or split:
        return clocks
    return min(costs["together"] * clocks, resident * step(s, 1, costs, ending))  # never slower than taking turns


@functools.cache
def _cores(target: Target, parts: int, cluster: bool) -> int:
    """Multiprocessors that get blocks; with clusters, some get none, because all blocks of one start together."""
    together = dict(target.clusters).get(parts, target.cores // parts) * parts
    return max(together, parts) if cluster else target.cores


def total(w: Work, step_of: Callable[[int, float], float], target: Target) -> float:
    """Clocks of a kernel; `step_of(n, e)` are those of a step of n resident blocks with storing share e."""
    c = costs(target)
    cores = _cores(target, w.parts, w.cluster)
    full, rest = divmod(w.blocks, cores * w.resident)

    def wave(resident: int) -> float:
        if w.stay:
            made = w.steps * step_of(resident, w.ending / w.steps)
        else:
            made = w.steps * step_of(resident, 0.0) + w.ending + w.begin
        if w.cluster:
            made += c["cluster"] + c["cluster.byte"] * resident * w.tile
        elif w.parts > 1:
            made += c["store.byte"] * resident * w.tile
        return made

    out = c["start"] + full * wave(w.resident) + (wave(-(-rest // cores)) if rest else 0.0)
    if w.boxed:
        out = max(out, w.boxed / (c["l2.boxes"] * target.cores))
    if w.parts > 1 and not w.cluster:
        out += c["ticket.boxes" if w.boxed else "ticket"] + c["sum.byte"] * w.parts * w.tile
    return close((out, w.read / (c["dram"] * target.cores)), BOUND)


@dataclass(frozen=True)
class Block:
    """A block that computes an m x n `tile` in steps of k, by a `grid` of warps or warpgroups with `row`.

    Its pipeline has `depth` stages; the sum is split into `parts`.
    """

    row: Instruction
    tile: Sizes
    grid: tuple[int, int]
    depth: int
    parts: int

    @property
    def apart(self) -> bool:
        """Whether producer warps copy and instructions read operands from shared memory."""
        return self.row.threads > WARP


def matmul_clocks(p: Matmul, b: Block, target: Target) -> tuple[float, int]:
    """Clocks of a matmul, and the number of persistent blocks; 0 if each block computes one tile."""
    (m, n, k), parts, c = b.tile, b.parts, costs(target)
    down, across = (matmul.tiles(*x) for x in ((p.m, p.loops[0], m, p.near[0]), (p.n, p.loops[1], n, p.near[1])))
    tiles = down * across * p.batch * parts
    out = matmul.beside(p, b.row, (m, n), parts, target)
    fits = _resident(p, b, out, target)
    if not fits:
        return math.inf, 0
    steps = ceildiv(ceildiv(p.k, parts), k)
    read = p.read or p.batch * p.k * (p.m * p.a.bytes + p.n * p.b.bytes)
    cluster = parts > 1 and matmul.in_cluster(parts, (m, n), target)
    step_of = functools.partial(_step, p, b, target)
    ending = _ending(p, b, cluster, target)
    if parts == 1:
        ending += fits * (m * n * p.sectors * c["sector"] + _boxes(p, b, c))
    if "fill" in c and b.apart:
        # Operands that are split in two are stored from registers: persistent blocks gain nothing there. If memory is
        # the limit, blocks that start as others end share its bandwidth better.
        boxes = any(p.loops)
        busy = read / c["dram"] < p.m * p.n * p.k * p.batch / _rate("wgmma", b.row, target)
        stay = b.row.a_space == "shared" and parts == 1 and tiles > target.cores * fits and busy and not boxes
        begin = c["fill.split" if p.terms > 1 else "fill"] + (c["boxes"] if boxes and fits == 1 else 0.0)
        boxed = tiles * steps * k * (m * p.a.bytes + n * p.b.bytes) if p.step else 0
        work = Work(tiles, steps, fits, read, m * n * p.acc_bytes, parts, cluster, stay, begin, ending, boxed)
        return total(work, step_of, target), target.cores * fits if stay else 0
    cores = _cores(target, parts, cluster)
    resident = min(fits, ceildiv(tiles, cores))
    # Without a tile in shared memory, groups of lanes write scattered pieces of 16 or 32 bytes.
    stored = m * n * p.acc_bytes / c["sync.dram"] * (0.5 if out and p.across else 1 if out or p.across else 2)
    wave = c["sync.latency"] + steps * step_of(resident) + resident * stored + ending
    clocks = ceildiv(tiles, cores * fits) * wave + c["sync.start"]
    if parts > 1:
        passed = 2 * parts * p.m * p.n * p.batch * p.acc_bytes
        clocks += c["sync.cluster" if cluster else "sync.ticket"] + passed / (c["sync.l2"] * target.cores)
    return close((clocks, read / (c["sync.dram"] * target.cores)), BOUND), 0


def _ending(p: Matmul, b: Block, cluster: bool, target: Target) -> float:
    """Clocks of a thread's epilogue: its elements of a tile are combined with other operands and stored.

    In a tile that crosses the result's edge every element has a predicate. The loads of one element's operands, or of
    its partial sums, then wait for the store of the previous element, unless they were issued before the sum.
    """
    c = costs(target)
    (m, n, _), threads = b.tile, math.prod(b.grid) * b.row.threads
    each = m * n / threads / (b.parts if cluster else 1)
    whole = p.m % m == 0 and p.n % n == 0
    held, all_held = matmul.ahead(p, b.row, (m, n), b.grid, b.parts, target)
    joined = p.joined or (p.ahead and not all_held) or (any(p.vectors) and not held)
    if not joined and (whole or b.parts == 1):
        return each * c["store" if whole else "store.edge"]
    if not whole and (not joined or b.apart):
        return each * c["sum.join.edge" if joined else "sum.edge"] * (2 + b.parts) / 4
    return each * c[("join" if p.across else "join.down") + ("" if whole else ".edge")]


def _boxes(p: Matmul, b: Block, c: Mapping[str, float]) -> float:
    """Extra clocks of storing a tile through shared memory in boxes. Rows narrower than a cache line take as many
    requests for fewer bytes; the larger the tile, the fewer operands of the next tile arrive meanwhile."""
    m, n, _ = b.tile
    row = (n if p.across else m) * p.out_bytes
    if not row or b.row.a_space != "shared":
        return 0.0
    each = m * n / (math.prod(b.grid) * b.row.threads)
    narrow = 0.0 if row % 128 == 0 else c["store.64"] if row % 64 == 0 else c["store.32"]
    return each * (narrow + each * c["store.more"])


def _resident(p: Matmul, b: Block, out: int, target: Target) -> int:
    """Blocks that fit on a multiprocessor, with `out` bytes of shared memory each in addition to their pipeline."""
    (m, n, k), groups = b.tile, math.prod(b.grid)
    threads = groups * b.row.threads + (WARP * (1 if p.terms == 1 else COPYING) if b.apart else 0)
    return min(
        (target.shared + RESERVED) // (matmul.stage_bytes(p, b.row, m, n, k) * b.depth + out + RESERVED),
        target.threads // threads,
        max(target.registers // (matmul.up(matmul.registers(p, b.row, (m, n), b.grid), 8) * threads), 1),
        target.blocks,
    )


def _step(p: Matmul, b: Block, target: Target, resident: int, ending: float = 0.0) -> float:
    """Clocks of one pipeline step of `resident` blocks."""
    if not b.apart:
        return _by_warps(p, b, resident, target)
    m, n, k = b.tile
    rate, brought = _rate("wgmma", b.row, target), k * (m * p.a.bytes + n * p.b.bytes)
    s = Step(m, n, k, math.prod(b.grid), p.terms, rate, brought, b.depth, n if p.terms > 1 else 0, b.parts > 1)
    return step(s, resident, costs(target), ending)


@functools.cache
def _rate(unit: str, row: Instruction, target: Target) -> float:
    """Multiply-adds per clock of a unit's instruction."""
    return dict(target.rates).get(f"{unit}.{row.name.split('.')[2]}", 64)


def _by_warps(p: Matmul, b: Block, resident: int, target: Target) -> float:
    """Clocks of a step of `resident` blocks in which all warps copy, and multiply operands in registers."""
    (m, n, k), (down, across), c = b.tile, b.grid, costs(target)
    groups = down * across
    # Each scheduler needs a warp to keep its tensor core busy. A single block does one thing after the other.
    multiplied = m * n * k * p.terms / (c["sync.reached"] * _rate("mma", b.row, target))
    halved = c["sync.halves"] * groups * k * (m // down + n // across) / c["sync.lanes"] if p.terms > 1 else 0.0
    read = groups * k * (m // down * p.a.bytes + n // across * p.b.bytes) / c["sync.shared"]
    made = _computed(p.a) * m * k + _computed(p.b) * n * k + _moves(p.a, m * k) + _moves(p.b, n * k)
    moved = k * (m * p.a.bytes + n * p.b.bytes) / c["sync.l2"]
    waited = c["sync.latency"] / max(b.depth - 1, 1)
    # A thread issues its copies one after the other, however few threads there are.
    asked = sum(length * k * x.bytes / x.piece for x, length in ((p.a, m), (p.b, n)) if x.copied)
    alone = c["sync.alone"] * (multiplied + halved + read) / min(1.0, groups * b.row.threads / WARP / 4)
    alone += c["sync.piece"] * asked / (groups * b.row.threads)
    if p.a.widened or p.b.widened:  # loads are issued only where their values are used
        waited = c["sync.latency"] + alone + made
    together = resident * max(multiplied, halved, read, moved, made)
    return close((together, alone, waited), c["sync.close"]) + c["sync.step"]


def copying(copies: tuple[int, ...], target: Target) -> float:
    """Clocks of preparatory copies (separate kernels) that move so many bytes each."""
    c = costs(target)
    return sum(c["launch"] + n / (c["sync.dram"] * target.cores) for n in copies)


def _computed(x: Operand) -> float:
    """Clocks to compute an element: loaded on its own, or several widened side by side; 0 if it is copied."""
    return 0.0 if x.copied else WIDENED if x.widened else 0.375


def _moves(x: Operand, elements: int) -> float:
    """Clocks to issue copies of `elements` elements: 32 pieces, of 16 bytes or fewer, every four clocks."""
    return elements * x.bytes / x.piece / 8 if x.copied else 0.0


def close(clocks: tuple[float, ...], exponent: float) -> float:
    """A smooth maximum (p-norm): values close to the largest add to it, the more the smaller the exponent."""
    longest = max(clocks)
    if longest <= 0:
        return 0.0
    return longest * math.pow(sum(math.pow(c / longest, exponent) for c in clocks), 1 / exponent)


def waits(target: Target, elements: int, each: int, threads: int) -> float:
    """Clocks of a reduction of a row by `threads`, with `each` loads per thread in flight at once.

    Loads in flight arrive together; each level of the tree over threads is one exchange.
    """
    c = costs(target)
    turns = ceildiv(elements, each * threads)
    return turns * c["turn"] + c["exchange"] * math.log2(threads)


def filled(wanted: float, there: float) -> float:
    """The slowdown of a machine that needs `wanted` threads to be busy, and has `there`."""
    return max(1.0, wanted / there)


def blocks_of_rows(target: Target, rows: int, together: int) -> float:
    """The time of a multiprocessor whose blocks compute `together` rows each, in thirds of a row's time.

    Starting a block takes as long as 4/3 rows that are short enough for one warp each.
    """
    share = rows / target.cores
    return 4 * max(1.0, share / together) + 3 * max(float(together), share)


def updates(target: Target, count: int, owners: int, warps: int) -> float:
    """Clocks of `count` ordered updates by `owners` of `warps` warps each, which test 32 updates at once.

    A test takes the latency of its load, vote and branch, or the time to issue the tests of all warps. An update takes
    the latency of the element that it changes.
    """
    c = costs(target)
    tests = ceildiv(count, 32)
    beside = max(1.0, owners * warps / target.cores)
    return tests * max(c["vote"], beside * c["vote.issue"]) + count / owners * c["update"]


def voted_updates(target: Target, count: int, owners: int, warps: int, ahead: int) -> float:
    """Clocks of `count` ordered updates by `owners` of `warps` warps each, which test several vectors of 32 updates at
    once and apply their own in groups of `ahead`.

    A group takes the latency of the added values, an update that of the element that it changes.
    """
    c = costs(target)
    beside = max(1.0, owners * warps / target.cores)
    made = count / owners
    tested = ceildiv(count, 32) * max(c["vote.voted"], beside * c["vote.voted.issue"])
    return tested + max(1.0, made / ahead) * c["turn"] + made * c["update.voted"]


def updates_in_order(target: Target, count: int, rows: int) -> float:
    """Clocks of `count` updates of each row by a thread of its own."""
    return count * costs(target)["update"] * max(1.0, rows / (target.cores * target.threads))


def moved(side: int, vector: int) -> float:
    """Clocks per element of a tile with this side: its share of a vector's access, and of the cache lines that the ends
    of a row share with other rows."""
    return 1 / vector + 1 / side


def by_threads(target: Target, multiplies: int, blocks: int, shares: tuple[int, int, int], depth: int) -> float:
    """Clocks of a matmul without tensor cores; `shares` are rows and columns per thread, and parts of the sum.

    A multiprocessor serves 32 loads per clock. More rows and columns per thread need fewer loads per result; each part
    is stored and loaded once more. With fewer blocks than multiprocessors, latency is not hidden.
    """
    down, across, parts = shares
    loads = 1 / down + 1 / across + 2 * parts / depth
    if blocks < target.cores:
        loads = 2.0 * target.cores / blocks
    return multiplies * loads / (32 * target.cores)


def attention(target: Target, queries: int, batch: int, rows: int, fills: bool, keys: int, width: int) -> float:
    """Clocks of attention: `rows` queries per block pass over all keys, for a `batch` of heads.

    If blocks fill all multiprocessors (`fills`), these share the queries evenly; otherwise the time is that of one
    block.
    """
    each = batch * queries / target.cores if fills else float(rows)
    return each * keys * width / costs(target)["sync.lanes"]
