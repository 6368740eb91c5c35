"""Blocks that sum in parts, in one launch: what they compute in any order, and that mistakes between them are found."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

import compiler
from compiler import pipeline
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.ir import kernel, kernel_text, tensor_text, tile_text
from compiler.pipeline import Lowering, from_tiles
from compiler.render import cuda
from compiler.runtime import device, gpu_native
from compiler.targets import legal, nvidia
from compiler.tests import run_threads
from compiler.tests.meaning import fresh_seed, random_arrays
from compiler.tests.schedule.test_matmul import Matmul, arrays

ORDERS = 4
CASES = Path(__file__).parents[2] / "cases" / "tile_to_threads"
TARGETS = {t.name: t for t in nvidia.TARGETS}


@functools.cache
def lowered(text: str, target: str) -> Lowering:
    return pipeline.lower(tensor_text.parse(text), TARGETS[target], source="tensor")


def check(text: str, target: str, marks: str) -> None:
    """One launch, with `marks` in its text, whose result is the same whichever block comes first."""
    made = lowered(text, target)
    given = arrays(made.stages["tensor"], seed := fresh_seed())
    want = tensor_interpreter.run(made.stages["tensor"], given)[0]
    assert np.array_equal(np.asarray(tile_interpreter.run(made.stages["tile"], given)[0]).reshape(want.shape), want)
    program: kernel.Program = made.stages["kernel"]
    assert len(program.functions) == 1 and marks in str(made.stages["cuda"])
    assert kernel_text.parse(kernel_text.show(program)) is program
    for order in (0, 1, seed):
        got = run_threads.run(program, list(given), seed=order)[0]
        assert np.array_equal(np.asarray(got).reshape(want.shape), want), f"seed {seed}, order {order}"


# Results contiguous along rows and along columns, sizes that tiles do not divide, other types and what follows the sum.
PRODUCTS = [
    Matmul(32, 64, 2048, right="nk", dtype="bf16"),
    Matmul(32, 64, 2048, right="kn", dtype="bf16", epilogue="relu"),
    Matmul(30, 60, 2048, right="nk", dtype="bf16"),
    Matmul(32, 64, 512, right="nk"),
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_the_last_of_some_blocks_adds_up_a_product(product: Matmul) -> None:
    check(product.text, "sm_80", "mlc_take_ticket")


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_blocks_of_a_cluster_add_up_a_product(product: Matmul) -> None:
    check(product.text, "sm_90a", "MLC_CLUSTER")


def test_a_cluster_needs_no_warps_that_copy() -> None:
    check(PRODUCTS[0].text, "sm_120", "MLC_CLUSTER")


def found(case: str, old: str, new: str) -> set[str]:
    """The kinds of reports about the text of a program of `CASES` in which the only `old` is `new`."""
    program = tile_text.parse((CASES / case).read_text(encoding="utf-8"))
    made = from_tiles(program, TARGETS["sm_90a"])
    source = cuda.render(made, target="sm_90a")
    assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
    given = random_arrays(program.inputs, seed := fresh_seed())
    planted = source.replace(old, new)
    # In one order in 35 a ticket of another group is drawn last by the last of its own.
    runs = [run_threads.run_text(planted, made, list(given), seed=seed + n)[1] for n in range(ORDERS)]
    return {r.kind for outcome in runs for r in outcome.reports}


BARRIER = "  mlc_cluster_barrier();\n"
MADE = "  }\n" + BARRIER + "  const int"
IN_A_CLUSTER = {
    "no wait until all parts are there": (MADE, MADE.replace(BARRIER, ""), "distributed shared memory"),
    "arrived and not waited": (MADE, MADE.replace("_barrier", "_arrive"), "cluster"),
    "threads of the block alone waited for": (MADE, MADE.replace("cluster", "block"), "distributed shared memory"),
    "no wait before a block ends": ("  mlc_cluster_leave();\n", "", "distributed shared memory"),
    "a part that is not there": ("(long)r_share_all", "r_share_all + 1L", "cluster"),
    "a part stored by every block": (
        "s_shares[i1] = s;",
        "*mlc_cluster_map(&s_shares[i1], 0) = s;",
        "distributed shared memory",
    ),
}


@pytest.mark.parametrize("bug", IN_A_CLUSTER)
def test_mistakes_in_a_cluster_are_reported(bug: str) -> None:
    old, new, kind = IN_A_CLUSTER[bug]
    assert kind in found("parts_in_a_cluster.tile", old, new)


FENCE = "    mlc_fence_device();\n"
TAKE = "    mlc_take_ticket(&last_block[0], &y_s_shares_tickets[i0], 4);\n"
FIRST = "  if ((int)threadIdx.x == 0) {\n"
MEET = "  mlc_block_barrier();\n"
GO_ON = "  if (last_block[0] != 0) {\n"
BY_TICKETS = {
    "no fence before the ticket": (FENCE + TAKE, TAKE, "race between blocks"),
    "no fence behind the ticket": (TAKE + FENCE, TAKE, "race between blocks"),
    "one block too many waited for": (TAKE, TAKE.replace("4)", "5)"), "not zero again"),
    "one block too few waited for": (TAKE, TAKE.replace("4)", "3)"), "uninitialised read"),
    "half of the blocks waited for": (TAKE, TAKE.replace("4)", "2)"), "uninitialised read"),
    "a ticket of another group": (TAKE, TAKE.replace("[i0]", "[0]"), "uninitialised read"),
    "a ticket before all have stored": (MEET + FIRST, FIRST, "race between blocks"),
    "the ticket not passed on": ("  }\n" + MEET + GO_ON, "  }\n" + GO_ON, "race"),
    "a ticket for every thread": (FIRST, "  {\n", "race"),
    "every block goes on": (GO_ON, GO_ON.replace("!= 0", "!= 2"), "uninitialised read"),
}


@pytest.mark.parametrize("bug", BY_TICKETS)
def test_mistakes_with_tickets_are_reported(bug: str) -> None:
    old, new, kind = BY_TICKETS[bug]
    assert kind in found("parts_by_tickets.tile", old, new)


@pytest.mark.parametrize("check", [False, True])
def test_tickets_begin_with_zero_and_end_with_it(check: bool) -> None:
    program = tile_text.parse((CASES / "parts_by_tickets.tile").read_text(encoding="utf-8"))
    made = from_tiles(program, TARGETS["sm_80"])
    text = cuda.render(made, target="sm_80").replace("y_s_shares_tickets[i0], 4)", "y_s_shares_tickets[i0], 9)")
    given = random_arrays(program.inputs, fresh_seed())
    _, outcome = run_threads.run_text(text, made, list(given), check)
    assert [(r.kind, r.buffer) for r in outcome.reports] == [("not zero again", "y_s_shares_tickets")]


REFUSED = {
    "no clusters there": ("sm_80", "s: f32", "s: f32", "of which the target knows nothing"),
    "too many blocks": ("sm_90a", "cluster(f32[4, 128])", "cluster(f32[16, 128])", "a cluster has at most 8"),
    "parts that nobody makes": ("sm_90a", "r_share in blocks(4)", "r_share in blocks(2)", "r_share makes 2"),
    "a part of another block": ("sm_90a", "s_shares[r_share, i1]", "s_shares[0, i1]", "another part of s_shares"),
    "not all blocks again": ("sm_90a", "i1_all0 in blocks(4)", "i1_all0 in blocks(2)", "the loop i1_all0 over blocks"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_blocks_cannot_share_is_refused(case: str) -> None:
    target, old, new, message = REFUSED[case]
    text = (CASES / "parts_in_a_cluster.tile").read_text(encoding="utf-8")
    assert old in text
    program = tile_text.parse(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        legal.verify(program, TARGETS[target])
        from_tiles(program, TARGETS[target])


@pytest.mark.skipif(bool(device.unavailable_reason()), reason="no GPU: " + device.unavailable_reason())
@pytest.mark.parametrize("native", [True, False])
def test_runs_at_once_do_not_share_tickets(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One executable in streams and in graphs of its calls, all at once: always the same bits."""
    if not native:
        monkeypatch.setattr(gpu_native, "await_build", lambda _: (None, None))
    torch.manual_seed(seed := fresh_seed())
    x = torch.randn(2000, 1000, device="cuda")
    call = compiler.compile(lambda x: x.sum(), [x.cpu()], "cuda")
    wanted = call(x)
    streams = [torch.cuda.Stream() for _ in range(4)]  # type: ignore[no-untyped-call]
    graphs = []
    for stream in streams[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            graphs.append((graph, [call(x) for _ in range(10)]))
    torch.cuda.synchronize()
    made = []
    for _ in range(50):
        for stream, number in zip(streams, (0, 1, None, None), strict=True):
            with torch.cuda.stream(stream):
                made += [call(x) for _ in range(3)]
                if number is not None:
                    graphs[1 - number][0].replay()
    torch.cuda.synchronize()
    for result in (*made, *(y for _, results in graphs for y in results)):
        assert torch.equal(result, wanted), f"seed {seed}: {result} is not {wanted}"
