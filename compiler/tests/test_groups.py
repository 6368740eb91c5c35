"""Blocks that sum in parts, in one launch: what they compute in any order, and that mistakes between them are found."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from compiler import pipeline
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.ir import kernel, kernel_text, tensor_text
from compiler.pipeline import Lowering
from compiler.render import cuda
from compiler.targets import nvidia
from compiler.tests import run_threads
from compiler.tests.meaning import fresh_seed
from compiler.tests.test_contraction import Product, arrays

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
    Product(32, 128, 1024, right="nk", dtype="bf16"),
    Product(64, 128, 1024, right="kn", dtype="bf16", epilogue="relu"),
    Product(30, 120, 1024, right="nk", dtype="bf16"),
    Product(32, 64, 512, right="nk"),
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_blocks_of_a_cluster_add_up_a_product(product: Product) -> None:
    check(product.text, "sm_90a", "MLC_CLUSTER")


def found(text: str, target: str, old: str, new: str, **which: Any) -> set[str]:
    """The kinds of reports about the text of a program in which the only `old` is `new`."""
    made = lowered(text, target)
    program: kernel.Program = made.stages["kernel"]
    source = cuda.render(program, target=target)
    assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
    given = arrays(made.stages["tensor"], fresh_seed())
    _, outcome = run_threads.run_text(source.replace(old, new), program, list(given), **which)
    return {r.kind for r in outcome.reports}


IN_A_CLUSTER = {
    "no wait until all blocks have begun": ("    mlc_cluster_wait();\n    int slot", "    int slot", "cluster"),
    "no wait until all parts are there": ("    mlc_cluster_barrier();\n", "", "race"),
    "arrived and not waited": ("mlc_cluster_barrier();", "mlc_cluster_arrive();", "race"),
    "only threads of the own block waited for": ("mlc_cluster_barrier();", "mlc_named_barrier(1, 128);", "race"),
}


@pytest.mark.parametrize("bug", IN_A_CLUSTER)
def test_mistakes_in_a_cluster_are_reported(bug: str) -> None:
    old, new, kind = IN_A_CLUSTER[bug]
    assert kind in found(PRODUCTS[0].text, "sm_90a", old, new, seed=2)
