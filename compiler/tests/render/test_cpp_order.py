"""The order of keys by the C++ device headers against a stable sort of torch, by each way that it is found."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, Array, build, call, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ORDER = """
extern "C" void TYPE_order(long falls, long n, long kept, const SOURCE* keys, long step, long* places, long apart) {
  if (falls) mlc_order<MLC_DESCENDING>(n, kept, keys, step, places, apart);
  else mlc_order<MLC_ASCENDING>(n, kept, keys, step, places, apart);
}
"""
# Counted; by digits; the first few, and the first hundreds, of many; more than the stack holds.
SIZES = ((1, 1), (17, 17), (64, 9), (65, 65), (300, 299), (300, 0), (999, 5), (3000, 500), (4100, 4100))


def keys(dtype: str, rng: np.random.Generator, count: int) -> Array:
    """Keys as memory holds them, of which many are equal, all special ones among them."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    kind = NUMPY[dtype]
    if np.issubdtype(kind, np.integer) and dtype != "bf16":
        wide = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, count, kind, endpoint=True)
        return np.where(rng.random(count) < 0.5, wide, rng.integers(0, 9, count).astype(kind))
    x = np.where(rng.random(count) < 0.5, rng.standard_normal(count), rng.integers(-4, 5, count) * -0.0)
    special = rng.random(count) < 0.2
    x[special] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 7.0], special.sum())
    if dtype == "bf16":
        return torch.from_numpy(x).bfloat16().view(torch.uint16).numpy().copy()
    return x.astype(kind)


@pytest.mark.parametrize("machine", MACHINES)
def test_order_is_stable_and_has_nan_last(machine: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    body = "".join(text(ORDER, TYPE=name, SOURCE=kind) for name, kind in CPP.items())
    library = build(tmp_path, ["order.h"], body, machine)
    for dtype in CPP:
        for n, kept in SIZES:
            falls, step, apart = (int(k) for k in rng.integers((0, 1, 1), (2, 4, 4)))
            x = keys(dtype, rng, n * step)
            if rng.random() < 0.3 and dtype != "bf16":
                x.sort()
            places = np.full(kept * apart, -1)
            call(getattr(library, f"{dtype}_order"), falls, n, kept, x, step, places, apart)
            held = torch.from_numpy(x[::step].copy())
            value = held.view(torch.bfloat16) if dtype == "bf16" else held
            wanted = value.sort(stable=True, descending=bool(falls)).indices[:kept].numpy()
            assert np.array_equal(places[::apart], wanted), f"{dtype}: {kept} of {n}, falls {falls}, seed {seed}"
