"""The errors that people see: each message says what was wrong, where, and what to do about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path


class CompilerError(Exception):
    """Anything that mlcomp refuses or cannot do; the command line prints it as one paragraph without a traceback."""


class Unsupported(CompilerError):
    """A program that is refused by name, before any code is generated.

    >>> print(Unsupported("aten.svd.default", ("f32[3, 4]",), "no lowering for this op"))
    unsupported: aten.svd.default(f32[3, 4]): no lowering for this op
    """

    def __init__(self, op: str, args: Sequence[object] = (), why: str = "", kwargs: Mapping[str, object] | None = None):
        self.op, self.args_text, self.why = op, call_text(args, kwargs or {}), why
        super().__init__(f"unsupported: {op}({self.args_text})" + (f": {why}" if why else ""))


class Undetermined(Unsupported):
    """A shape or the like that depends on inputs, by name, whose values have to be known when compiling."""

    def __init__(self, op: str, args: Sequence[object], what: str, inputs: Sequence[str]):
        self.inputs, self.what = tuple(inputs), what
        super().__init__(
            op, args, f"{what} depends on {', '.join(inputs) or 'data'}, and has to be known when compiling"
        )


class InvalidData(CompilerError, RuntimeError):
    """What a program was given has an index, a target or a divisor that it may not have; eager says which."""

    def __init__(self, when: str = "the data has") -> None:
        super().__init__(f"{when} an index or a target out of range, or an integer divisor of 0")


class MemoryLimitError(CompilerError):
    """The temporaries of a program take more than they may."""


class ToolchainError(CompilerError):
    """The C++ compiler is missing, or it refused the text that we gave it."""


class CacheError(CompilerError):
    """The folder of built kernels cannot be read or written, or others could have put code there."""

    def __init__(self, folder: Path, problem: str, remedy: str = "Free space there or make it writable"):
        self.folder, self.problem = folder, problem
        super().__init__(
            f"cannot use the kernel cache folder {folder}: {problem}. "
            f"{remedy}, or choose another folder: set MLCOMP_CACHE=DIR (or XDG_CACHE_HOME)."
        )


class UncheckedWarning(UserWarning):
    """Data is used unchecked: one bad index reads or writes any memory."""


def call_text(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Arguments as they would be written in a call, each shortened so that a message stays one line.

    >>> call_text(("x", [1, 2]), {"dim": -1})
    'x, [1, 2], dim=-1'
    """
    words = [str(argument) for argument in args] + [f"{name}={value}" for name, value in kwargs.items()]
    return ", ".join(word if len(word) <= 80 else word[:77] + "..." for word in words)
