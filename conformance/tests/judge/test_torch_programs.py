"""Programs as people write them in torch, through `torch.compile`: a few of them, others in each run."""

import random
import warnings

import pytest
from torch._dynamo.backends import registry

from conformance.tests import torch_programs, wrong_backends
from conformance.tests.torch_programs import Program

SEED = random.SystemRandom().randrange(2**31)
SOME = random.Random(SEED).sample(torch_programs.programs(), 24)


@pytest.mark.parametrize("number", range(len(SOME)))  # names are the same in every process
def test_a_program_is_what_it_is_in_eager(number: int) -> None:
    program: Program = SOME[number]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not torch_programs.difference(program, SEED), f"{program} (seed {SEED})"


@pytest.mark.parametrize("kind", ["off by one", "other strides", "another dtype", "last input written to"])
def test_a_wrong_compiler_is_told(kind: str) -> None:
    name = f"wrong in torch programs: {kind}"
    if name not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=wrong_backends.backend(kind), name=name)
    assert torch_programs.difference_of(name, Program("x * y", torch_programs.WAYS[0]), SEED)


def test_every_program_is_python() -> None:
    every = torch_programs.programs()
    assert len(every) >= 1500 and len(set(map(str, every))) == len(every)
    for program in every:
        torch_programs.function(program)
