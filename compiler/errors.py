"""The exceptions and warnings that users see. Each message states the problem, its place and a remedy."""

from collections.abc import Mapping, Sequence
from pathlib import Path


class CompilerError(Exception):
    """The base class of errors raised by mlcomp; the command line prints them as one paragraph without a traceback."""


class Unsupported(CompilerError):
    """A program contains an op, with these arguments, that mlcomp does not support; raised before code generation.

    >>> print(Unsupported("aten.svd.default", ("f32[3, 4]",), "no lowering for this op"))
    unsupported: aten.svd.default(f32[3, 4]): no lowering for this op
    """

    def __init__(self, op: str, args: Sequence[object] = (), why: str = "", kwargs: Mapping[str, object] | None = None):
        self.op, self.args_text, self.why = op, call_text(args, kwargs or {}), why
        super().__init__(f"unsupported: {op}({self.args_text})" + (f": {why}" if why else ""))


class Undetermined(Unsupported):
    """A shape or attribute of a program depends on the values of `inputs`, which must be known at compile time."""

    def __init__(self, op: str, args: Sequence[object], what: str, inputs: Sequence[str]):
        self.inputs, self.what = tuple(inputs), what
        super().__init__(
            op, args, f"{what} depends on {', '.join(inputs) or 'data'}, and must be known at compile time"
        )


class InvalidData(CompilerError, RuntimeError):
    """The inputs of a program contain an invalid index, target or divisor. Running eager reports which one."""

    def __init__(self, when: str = "the data has") -> None:
        super().__init__(f"{when} an index or a target out of range, or an integer divisor of 0")


class MemoryLimitError(CompilerError):
    """The temporaries of a program exceed the memory limit in every order of its kernels that was found."""


class ToolchainError(CompilerError):
    """The C++ or CUDA compiler is missing, or it rejected the emitted text."""


class CacheError(CompilerError):
    """The kernel cache folder cannot be read or written, or other users can write to it."""

    def __init__(self, folder: Path, problem: str, remedy: str = "Free space there or make it writable"):
        self.folder, self.problem = folder, problem
        super().__init__(
            f"cannot use the kernel cache folder {folder}: {problem}. "
            f"{remedy}, or choose another folder: set MLCOMP_CACHE=DIR (or XDG_CACHE_HOME)."
        )


class UncheckedWarning(UserWarning):
    """Data checks are off: an invalid index reads or writes arbitrary memory."""


def call_text(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Arguments as in a call, each shortened to 80 characters.

    >>> call_text(("x", [1, 2]), {"dim": -1})
    'x, [1, 2], dim=-1'
    """
    words = [str(argument) for argument in args] + [f"{name}={value}" for name, value in kwargs.items()]
    return ", ".join(word if len(word) <= 80 else word[:77] + "..." for word in words)
