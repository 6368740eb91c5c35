"""C++ text to a shared object: source, flags and compiler in; the path of a .so in a cache keyed by all of them out.

What a new kernel costs: g++ 12.2, Zen 3, wall ms, least of 15 interleaved, `relu(x*y+1)` / a row softmax, no headers:
    -O3, linked as g++ does by default   42 / 66     -O2  34 / 60     -S, neither assembler nor linker  25 / 49
    -O3, LIBRARIES instead               35 / 60     -O2  28 / 52     -E, two processes starting         8 / 8
    the link by itself, on a Xeon        11 with LIBRARIES, 4 with libgomp alone: ld reads all symbols of each library
    -pipe, -fuse-ld=gold, -Wl,-O0, -fno-rtti, no unwind tables: no gain, so left out
    1,300 lines of our own inline functions +6, of which a precompiled header (4.6 MB for each set of flags) saves 4
    #include <math.h> or <stdlib.h> in C++ +250, so kernels include neither and use __builtin_ functions
"""

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from compiler.errors import CacheError, ToolchainError
from compiler.runtime import detect, process, store

# By default g++ links libstdc++ and start files, 3-7 ms that no kernel needs. These four resolve what GCC emits by
# itself (memcpy, GOMP_parallel, scalar libm calls, 16-bit float conversions); --no-undefined turns any other call into
# an error here, with its name, instead of one at load time.
LIBRARIES = ("-nostdlib", "-Wl,--no-undefined", "-lgomp", "-lm", "-lc", "-lgcc")
# What any process has that runs Python: most objects need nothing else but OpenMP, and the first link tries with that.
_EVERYWHERE = ("memcpy", "memmove", "memset", "memcmp", "__tls_get_addr")
_FEW_LIBRARIES = (
    "-shared", "-nostdlib", "-Wl,--no-undefined", *(f"-Wl,--ignore-unresolved-symbol={x}" for x in _EVERYWHERE),
    "-Wl,--as-needed", "-lgomp",
)  # fmt: skip
_LINKING = ("-l", "-Wl,", "-shared", "-nostdlib")  # how flags begin that only the linker needs
# Where rows and columns meet, as in x + x.t(), GCC 12 counts one address in steps of another and writes the access as
# one of base 0. Analysis after that takes it for an access to nothing, and drops the function or the call of it.
# Predictive commoning puts stores of several rounds off to the end of a loop; after fewer rounds it writes back what it
# has read before, over what another thread has written meanwhile.
SOUND = ("-fno-delete-null-pointer-checks", "-fno-predictive-commoning")


def kernel_flags(*, optimise: str = "-O3", contract: bool = True, machine: str = "native") -> tuple[str, ...]:
    """Flags for a kernel; never -ffast-math, which reassociates the rounding inside exp (error 6e-3 in a softmax).

    Loops run in the order of the schedule, which GCC does not exchange: it takes rows read backwards column by column.
    GCC 12 makes masked vectors of scalar loops with branches, and takes the wrong mask where short rows that it has
    unrolled, of two or three elements, are guarded from some row on, as padding them does.
    """
    return (
        optimise,
        f"-march={machine}",
        "-std=c++17",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-tree-loop-if-convert",
        "-fno-loop-interchange",
        *SOUND,
        f"-ffp-contract={'fast' if contract else 'off'}",
        "-fopenmp",
        "-fno-exceptions",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        *LIBRARIES,
    )


KERNEL_FLAGS = kernel_flags()

# Entries that this process has verified or written: asking again costs microseconds.
_seen: dict[tuple[object, ...], Path] = {}


def build(
    source: str,
    flags: tuple[str, ...] = KERNEL_FLAGS,
    compiler: str = "g++",
    cache: Path | None = None,
    include: tuple[Path, ...] = (),
    split: Callable[[str], list[str]] | None = None,
) -> Path:
    """The shared object of `source`, compiled unless `cache` has it; without `cache`, in a folder of this process.

    `split` makes texts of it that can be compiled side by side, on all cores, and linked. `include` folders are
    searched for headers, whose content is part of the key. A header that changes while the process runs goes unnoticed
    by it.
    """
    request = (source, flags, compiler, cache, include)
    known = _seen.get(request)
    if known is not None and os.path.exists(known):
        return known
    path = store.entry(cache, key(source, flags, compiler, include), ".so")
    if not store.intact(path, path.with_suffix(".cpp")):
        _compile(source, flags, compiler, include, path, split)
    _seen[request] = path
    return path


def assembly(
    source: str, flags: tuple[str, ...] = KERNEL_FLAGS, compiler: str = "g++", include: tuple[Path, ...] = ()
) -> str:
    """The assembly text that the compiler makes of `source`, without directives."""
    tool = detect.toolchain(compiler)
    with tempfile.TemporaryDirectory(prefix="mlcomp-") as folder:
        text, product = Path(folder) / "kernel.cpp", Path(folder) / "kernel.s"
        text.write_text(source)
        options = [flag for flag in flags if not flag.startswith(_LINKING)]
        command = [tool.path, *options, *(f"-I{path}" for path in include), "-S", str(text), "-o", str(product)]
        code, messages = _run(command, Path(folder))
        if code != 0:
            raise ToolchainError(f"{compiler} cannot translate the kernel to assembly:\n{messages[:2000]}")
        lines = product.read_text().splitlines()
    return "\n".join(x for x in lines if not re.match(r"\s+\.(?!long|quad|zero)", x)) + "\n"


def key(source: str, flags: tuple[str, ...], compiler: str = "g++", include: tuple[Path, ...] = ()) -> str:
    """Hex digest of all that decides what the compiler writes."""
    parts = (source, *flags, compiler, *(headers_digest(folder) for folder in include), _machine(compiler))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def headers_digest(folder: Path) -> str:
    """Digest of the names and contents of all headers in `folder` and below."""
    digest = hashlib.sha256()
    for header in sorted(path for path in folder.rglob("*") if path.suffix in {".h", ".hpp", ".cuh"}):
        digest.update(f"{header.relative_to(folder)}\0{header.stat().st_size}\0".encode() + header.read_bytes())
    return digest.hexdigest()


@functools.cache
def _machine(compiler: str) -> str:
    """What -march=native resolves to depends on the processor's features, and the cache may be on a shared disk."""
    processor = detect.cpu()
    return f"{detect.toolchain(compiler).version}\0{processor.model}\0{' '.join(sorted(processor.features))}"


def _compile(
    source: str,
    flags: tuple[str, ...],
    compiler: str,
    include: tuple[Path, ...],
    path: Path,
    split: Callable[[str], list[str]] | None = None,
) -> None:
    """Run the compiler in a fresh folder beside the entry, then publish source and object by rename."""
    tool = detect.toolchain(compiler)
    with store.workshop(path) as work:
        text, product = work / "kernel.cpp", work / "kernel.so"
        text.write_text(source)
        options = [*(flag for flag in flags if not flag.startswith(_LINKING)), *(f"-I{folder}" for folder in include)]
        # Libraries come after the text that needs them, or linkers that keep only what is needed so far drop them.
        linking = [flag for flag in flags if flag.startswith(_LINKING)]
        command = [tool.path, *options, str(text), "-o", str(product), *linking]
        if {*LIBRARIES} <= {*linking}:
            texts = split(source) if split is not None else [source]
            code, messages = _in_steps([tool.path, *options], texts, work, product, linking)
            if code != 0 and len(texts) > 1:  # to be told of the text as it is
                code, messages = _in_steps([tool.path, *options], [source], work, product, linking)
        else:
            code, messages = _run(command, work)
        if code != 0:
            kept, said = kept_at(path, ".cpp"), re.sub(r"\S*/\.build-\w+/", "", messages)
            raise refusal(command[0], "a kernel", code, said, source, kept, _again(command, kept))
        store.publish(text, path.with_suffix(".cpp"))
        store.publish(product, path)


def _in_steps(compiler: list[str], texts: list[str], work: Path, product: Path, linking: list[str]) -> tuple[int, str]:
    """Compile, as many texts at once as there are cores, then link with as few libraries as will do."""
    commands = []
    for n, text in enumerate(texts):
        source = work / (f"part{n}.cpp" if len(texts) > 1 else "kernel.cpp")
        source.write_text(text)
        commands.append([*compiler, "-c", str(source), "-o", str(source.with_suffix(".o"))])
    for code, messages in _run_all(commands, work):
        if code != 0:
            return code, messages
    link = [*compiler, *(command[-1] for command in commands), "-o", str(product)]
    code, _ = _run([*link, *_FEW_LIBRARIES], work)
    return (code, "") if code == 0 else _run([*link, *linking], work)


def _run_all(commands: list[list[str]], work: Path) -> list[tuple[int, str]]:
    try:
        return process.run_all(commands, work, detect.usable_cores())
    except OSError as error:
        problem = f"cannot run the C++ compiler {commands[0][0]}: {error.strerror}"
        raise ToolchainError(f"{problem}; {detect.INSTALL_COMPILER}.") from error


def _run(command: list[str], work: Path) -> tuple[int, str]:
    return _run_all([command], work)[0]


def _again(command: list[str], kept: Path) -> str:
    words = [str(kept) if word.endswith("/kernel.cpp") else word for word in command]
    words[words.index("-o") + 1] = os.devnull
    return f"try again: {' '.join(words)}"


def refusal(
    who: str, what: str, code: int, messages: str, source: str, kept: Path, again: str
) -> CacheError | ToolchainError:
    """The error that a failed compilation becomes; the text is `kept` in the cache for a look at it."""
    if "No space left on device" in messages or "Disk quota exceeded" in messages:
        return CacheError(kept.parents[1], "no space left on its disk")
    lines = [line for line in messages.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.search(r"error|fatal|undefined reference", line)]
    first = errors[0] if errors else 0
    with contextlib.suppress(OSError):  # the compiler's message matters more than this copy
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(source)
    how = f"ended by signal {-code}" if code < 0 else f"exit status {code}"
    return ToolchainError(
        f"{who} refused {what} ({how}); a bug in mlcomp, unless the text was edited, or the compiler is broken or out "
        "of memory.\n" + "".join(f"  {line}\n" for line in lines[first : first + 8] or ["(no message)"]) + f"  {again}"
    )


def kept_at(path: Path, suffix: str) -> Path:
    """Where the text is kept of which `path` was to be made."""
    return store.cache_of(path) / "refused" / f"{path.parent.name}{path.stem}{suffix}"
