"""Data that a program cannot be run on in; the error that eager raises for it, with the place in the data, out.

Which call it is, eager finds: the program is run again, call by call, on copies in the CPU's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from compiler.errors import CompilerError
from compiler.frontend.run import execute, resolve
from compiler.ir.aten import Call, Program

# Ops whose negative indices count from the end.
_WRAPPING = {"index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl", "take", "put", "index_fill"}
_DIVIDING = {"div", "floor_divide", "remainder", "fmod"}
_ERRORS = (IndexError, RuntimeError, ValueError, NotImplementedError)


def refuse(program: Program, tensors: Sequence[torch.Tensor]) -> None:
    """Raise what eager raises for the program on this data: an error of the same class that says which op, which
    element and which range it is about. Raises CompilerError if eager has nothing against the data."""
    execute(program, [t.detach().cpu() for t in tensors], told=_told)
    raise CompilerError(
        f"{program.name}: the compiled code found an index, a target or a divisor out of range, and eager did not; "
        "this is a bug of mlcomp"
    )


def _told(call: Call, args: list[Any], kwargs: dict[str, Any], error: Exception) -> Exception:
    if not isinstance(error, _ERRORS):
        return error
    kind = next(k for k in _ERRORS if isinstance(error, k))
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    place = next(_places(call.op, args, kwargs), "")
    return kind(f"{call.op}: {place} ({said})" if place else f"{call.op}: {said}")


def _places(op: str, args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """What is out of range among the arguments of a call, told by their names."""
    names = [a.name for a in resolve(op)._schema.arguments]  # type: ignore[attr-defined]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    source: Any = given.get("weight" if "indices" in given and "weight" in given else "self")
    wraps = op.split(".")[1] in _WRAPPING
    match given:
        case {"target": torch.Tensor() as target} if not target.is_floating_point():
            classes = source.shape[min(1, source.ndim - 1)]
            counted = target[target != given.get("ignore_index", -100)]
            yield from _outside("target", counted, classes, f"of {classes} classes")
        case {"indices": list() as indices}:
            first = next(d for d, t in enumerate(indices) if t is not None)
            for d, t in enumerate(indices[first:], first):
                if t is not None and t.dtype is not torch.bool:
                    yield from _index(t, source, d, wraps)
        case {"indices": torch.Tensor() as index}:
            yield from _index(index, source, given.get("dim", 0), wraps)
        case {"index": torch.Tensor() as index, "dim": int(dim)}:
            yield from _index(index, source, dim, wraps)
        case {"index": torch.Tensor() as index}:
            yield from _outside("index", index, source.numel(), f"of {source.numel()} elements", wraps)
        case {"other": other} if op.split(".")[1] in _DIVIDING and not torch.as_tensor(other).all():
            where = torch.as_tensor(other).eq(0).nonzero()
            yield f"the divisor is 0 at {where[0].tolist()}" if where.shape[1] else "the divisor is 0"
        case {"num_classes": int(classes)} if source is not None:
            yield from _outside("class", source, classes, f"of {classes} classes")


def _index(index: torch.Tensor, source: torch.Tensor, dim: int | None, wraps: bool) -> Iterator[str]:
    if dim is None:
        yield from _outside("index", index, source.numel(), f"of {source.numel()} elements", wraps)
        return
    size = source.shape[dim] if source.ndim else 1
    yield from _outside("index", index, size, f"for dimension {dim % max(source.ndim, 1)} of size {size}", wraps)


def _outside(what: str, values: torch.Tensor, size: int, of: str, wraps: bool = False) -> Iterator[str]:
    """The first of the values that is none of 0 .. size - 1, nor, where they wrap, of -size .. -1."""
    bad = values[(values < (-size if wraps else 0)) | (values >= size)]
    if bad.numel():
        yield f"{what} {bad.flatten()[0].item()} is out of range {of}"
