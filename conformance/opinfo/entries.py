"""The entries of PyTorch's `op_db`, and their sample calls in a dtype as functions of flat tensors."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

DTYPES = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "bool": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A call of an operator as a function of the tensors among its arguments; `needs`: which need gradients."""

    call: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    needs: tuple[bool, ...]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Call the operator and return the tensors among its results."""
        return [x for x in pytree.tree_leaves(self.call(tensors)) if isinstance(x, Tensor)]


@functools.cache
def database() -> dict[str, Any]:
    """Return all entries by name, or `name.variant` for variants."""
    # The module also serves torch's own tests and imports their package expecttest, which samples do not need.
    blank = types.ModuleType("expecttest")
    vars(blank).update(TestCase=__import__("unittest").TestCase, ACCEPT=False)
    sys.modules.setdefault("expecttest", blank)
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the module parses sys.argv
    try:
        from torch.testing._internal import common_methods_invocations as found  # noqa: PLC0415
    finally:
        sys.argv = arguments
    # Ops that may be random set torch's seed in each call, which Dynamo cannot trace.
    vars(found)["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {e.name + (f".{e.variant_test_name}" if e.variant_test_name else ""): e for e in found.op_db}


def list_entries() -> list[tuple[str, str]]:
    """Return all entries with each of their dtypes, and with `f32.grad` if they have gradients."""
    listed_entries = []
    for name, entry in sorted(database().items()):
        for word, dtype in DTYPES.items():
            if dtype in entry.dtypes:
                listed_entries.append((name, word))
            if word == "f32" and entry.supports_autograd and dtype in entry.backward_dtypes:
                listed_entries.append((name, "f32.grad"))
    return listed_entries


def samples(name: str, kind: str, count: int, device: str) -> list[Sample]:
    """Return up to `count` of the entry's sample calls, evenly spaced; all for 0."""
    entry = database()[name]
    word, _, backward = kind.partition(".")
    sample_inputs = list(entry.sample_inputs(device, DTYPES[word], requires_grad=bool(backward)))
    step = max(len(sample_inputs) / count, 1.0) if count else 1.0
    return [
        _sample(entry, sample_inputs[int(k * step)], bool(backward))
        for k in range(min(len(sample_inputs), count or len(sample_inputs)))
    ]


def _sample(entry: Any, sample: Any, backward: bool) -> Sample:
    leaves, structure = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    positions = [k for k, x in enumerate(leaves) if isinstance(x, Tensor)]
    rest = [None if isinstance(x, Tensor) else x for x in leaves]
    function = entry.get_op()

    def call(tensors: Iterable[Tensor]) -> Any:
        filled = list(rest)
        for position, x in zip(positions, tensors, strict=True):
            filled[position] = x
        first, args, kwargs = pytree.tree_unflatten(filled, structure)
        result = function(first, *args, **kwargs)
        return sample.output_process_fn_grad(result) if backward else result

    tensors = tuple(leaves[k] for k in positions)
    return Sample(call, tuple(x.detach() for x in tensors), tuple(backward and x.requires_grad for x in tensors))
