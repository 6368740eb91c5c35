"""Torch IR: the captured graph as a list of ATen calls on typed values, one to one.

```
def f(x: f32[32, 2048], w: f32[2048]):
    y: f32[32, 2048] = aten.mul.Tensor(x, w)
    return y
```
The calls that an op was decomposed into are in a block that names the op: `with
decomposed("aten.gelu_backward.default"):`.
"""

from __future__ import annotations

from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, Size
from compiler.ir.node import Node


class Type(Node):
    """The type of a tensor: element type, sizes, and strides in elements."""

    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


class Ref(Node):
    """A value used as an argument."""

    name: str


class Call(Node):
    """`outputs` = `op(args, kwargs)`.

    An argument is a Ref, a literal (number, bool, str, None), a DType, an Expr or a tuple of these. An output that
    nothing reads may have the type None: it is not computed. `origin` is the op whose decomposition contains this call,
    or "".
    """

    outputs: tuple[str, ...]
    types: tuple[Type | None, ...]
    op: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    origin: str = ""


class Input(Node):
    """An input; `constant` inputs are weights, known when compiling and never changed."""

    name: str
    type: Type
    constant: bool = False


class Program(Node):
    """A program; `sizes` are its symbolic sizes, and `outputs` names values, inputs, or both.

    `into`, if not empty, has for each output an input whose memory may hold the output, because its old value is dead
    after the run, or "".
    """

    name: str
    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    into: tuple[str, ...] = ()


def types(program: Program) -> dict[str, Type]:
    """The type of every value that has one."""
    out = {i.name: i.type for i in program.inputs}
    for call in program.calls:
        out |= {n: t for n, t in zip(call.outputs, call.types, strict=True) if t is not None}
    return out


def refs(argument: object) -> list[str]:
    """Names of the values in an argument, in order."""
    match argument:
        case Ref(name):
            return [name]
        case tuple():
            return [n for a in argument for n in refs(a)]
    return []


def reads(call: Call) -> list[str]:
    return refs(call.args) + [n for _, v in call.kwargs for n in refs(v)]


def verify(program: Program) -> None:
    """Check that names are bound once and before use, and outputs exist; raises ValueError with the offending call."""
    known = {i.name for i in program.inputs}
    if len(known) != len(program.inputs):
        raise ValueError(f"{program.name}: two inputs share a name")
    for call in program.calls:
        for name in reads(call):
            if name not in known:
                raise ValueError(f"{program.name}: {name} is used before it is defined, in {call.op}")
        for name in call.outputs:
            if name in known:
                raise ValueError(f"{program.name}: {name} is defined twice, in {call.op}")
        if len(call.types) != len(call.outputs):
            raise ValueError(f"{program.name}: {call.op} has {len(call.outputs)} outputs but {len(call.types)} types")
        known |= {n for n, t in zip(call.outputs, call.types, strict=True) if t is not None}
    for name in program.outputs:
        if name not in known:
            raise ValueError(f"{program.name}: output {name} is never defined")
    _verify_into(program)


def _verify_into(program: Program) -> None:
    places = {i.name: i.type for i in program.inputs if not i.constant}
    known, given = types(program), [name for name in program.into if name]
    if (program.into and len(program.into) != len(program.outputs)) or len(given) != len(set(given)):
        raise ValueError(f"{program.name}: each output goes into an input of its own, or into none")
    for name, output in zip(program.into, program.outputs, strict=False):
        if name and (
            name not in places or (places[name].dtype, places[name].shape) != (known[output].dtype, known[output].shape)
        ):
            raise ValueError(f"{program.name}: {name} is no input that output {output} can go into")
