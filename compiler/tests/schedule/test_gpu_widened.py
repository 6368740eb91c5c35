"""Products of few rows by weights of small integers: every member is legal, and computes what eager does."""

from __future__ import annotations

import random

import pytest

from compiler import pipeline
from compiler.execution import executable
from compiler.schedule.steps import Bind, Schedule, ScheduleError, Stage
from compiler.targets import nvidia
from compiler.tests.meaning import fresh_seed
from compiler.tests.schedule.test_space import lowered

X = "torch.randn({}, 256, dtype=torch.bfloat16)"
INT8 = "torch.randint(-128, 128, (64, 256), dtype=torch.int8)"
INT4 = (
    "(lambda x, p, s: F.linear(x, ((((p[:, :, None] * torch.tensor([[16], [1]], dtype=torch.uint8)) & 240).bfloat16()"
    " - 128).reshape(64, 2, 128) * s[:, :, None]).reshape(64, 256)))"
    "({}, torch.randint(0, 256, (64, 8, 16), dtype=torch.uint8), torch.rand(64, 2, dtype=torch.bfloat16))"
)
CODES = {
    "vector.int8": f"F.linear({X.format(1)}, {INT8}.bfloat16()) * torch.rand(64)",
    "rows.int8": f"F.linear({X.format(5)}, {INT8}.bfloat16()) * torch.rand(64)",
    "rows.int4": INT4.format(X.format(11)),
}


@pytest.mark.parametrize("name", CODES)
def test_members_read_integers_by_the_pipeline(name: str) -> None:
    seed = fresh_seed()
    made, inputs, wanted = lowered(CODES[name], nvidia.SM_90A, seed)
    program = made.stages["loop"]
    (kernel,) = program.kernels
    found = [x.schedule for x in pipeline.space(program, kernel, nvidia.SM_90A)]
    mine = [x for x in found if any(isinstance(s, Stage) and s.how == "cp.async" for s in x.steps)]
    assert found[0] in mine and len(mine) > 2
    for chosen in random.Random(seed).sample(mine, 1):
        tried, _, _ = lowered(CODES[name], nvidia.SM_90A, seed, {kernel.name: chosen})
        assert "mlc_mma_sync" in tried.show("cuda")
        assert "mlc_widened<" in tried.show("cuda") or "mlc_scaled_halves<" in tried.show("cuda")
        for stage in ("tile", "kernel"):
            (got,) = executable.execute(tried, stage, inputs)
            difference = (got.reshape(wanted.shape).double() - wanted.double()).abs().max()
            assert difference <= 0.02 * wanted.double().abs().max(), (seed, stage, chosen)


@pytest.mark.parametrize("vector, said", [
    (32, "what does not lie side by side"),
    (64, "no 64 follow each other"),
    (3, "a power of two, not 3"),
])  # fmt: skip
def test_runs_of_registers_that_no_load_brings_are_refused(vector: int, said: str) -> None:
    made, _, _ = lowered(CODES["rows.int8"], nvidia.SM_90A, 0)
    (kernel,) = made.stages["loop"].kernels
    steps = made.schedules[kernel.name].steps
    runs = [s for s in steps if isinstance(s, Bind) and dict(s.args) == {"vector": 16}]
    wider = tuple(s.replace(args=(("vector", vector),)) if s in runs else s for s in steps)
    assert len(runs) == 1
    with pytest.raises(ScheduleError, match=said):
        lowered(CODES["rows.int8"], nvidia.SM_90A, 0, {kernel.name: Schedule(wider)})
