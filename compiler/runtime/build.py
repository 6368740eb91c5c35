"""Compile C++ text to a shared object, in a cache keyed by source, flags, compiler, headers and processor.

Time to build a new kernel: g++ 12.2, Zen 3, wall ms, minimum of 15 interleaved runs, `relu(x*y+1)` / a row softmax,
no headers:
    -O3, linked as g++ does by default   42 / 66     -O2  34 / 60     -S, neither assembler nor linker  25 / 49
    -O3, LIBRARIES instead               35 / 60     -O2  28 / 52     -E, start of two processes           8 / 8
    linking alone, on a Xeon             11 with LIBRARIES, 4 with libgomp alone: ld reads all symbols of each library
    -pipe, -fuse-ld=gold, -Wl,-O0, -fno-rtti, no unwind tables: no gain, so left out
    1,300 lines of our own inline functions +6, of which a precompiled header (4.6 MB per set of flags) saves 4
    #include <math.h> or <stdlib.h> in C++ +250, so kernels include neither and use __builtin_ functions
"""

import contextlib
import functools
import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from compiler.errors import CacheError, ToolchainError
from compiler.runtime import detect, process, store

# By default g++ links libstdc++ and start files, 3-7 ms that no kernel needs. These four libraries resolve the calls
# that GCC emits itself (memcpy, GOMP_parallel, scalar libm calls, 16-bit float conversions). --no-undefined turns any
# other call into a link error here, with its name, instead of one at load time.
LIBRARIES = ("-nostdlib", "-Wl,--no-undefined", "-lgomp", "-lm", "-lc", "-lgcc")
# Symbols that every Python process provides. Most objects need only these and OpenMP, so the first link tries that.
_PROCESS_SYMBOLS = ("memcpy", "memmove", "memset", "memcmp", "__tls_get_addr")
_FEW_LIBRARIES = (
    "-shared", "-nostdlib", "-Wl,--no-undefined", *(f"-Wl,--ignore-unresolved-symbol={x}" for x in _PROCESS_SYMBOLS),
    "-Wl,--as-needed", "-lgomp",
)  # fmt: skip
_LINKER_PREFIXES = ("-l", "-Wl,", "-shared", "-nostdlib")  # prefixes of the flags that only the linker needs
# If row and column indices coincide, as in x + x.t(), GCC 12 expresses one address as an offset from another and
# rewrites the access with base 0. Later passes take it for a null access and drop the function or the call. Predictive
# commoning sinks stores of several iterations to the end of a loop; after fewer iterations it writes back values read
# earlier, over what another thread has stored meanwhile.
SOUNDNESS_FLAGS = ("-fno-delete-null-pointer-checks", "-fno-predictive-commoning")


def kernel_flags(*, optimise: str = "-O3", contract: bool = True, machine: str = "native") -> tuple[str, ...]:
    """Flags for a kernel; never -ffast-math, which reassociates the rounding inside exp (error 6e-3 in a softmax).

    No loop interchange: the schedule fixes the loop order, and GCC would traverse reversed rows column by column. No
    if-conversion: GCC 12 vectorises branches of scalar loops with masks, and picks the wrong mask if unrolled short
    rows of two or three elements are guarded from some row on, as padding guards them.
    """
    return (
        optimise,
        f"-march={machine}",
        "-std=c++17",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-tree-loop-if-convert",
        "-fno-loop-interchange",
        *SOUNDNESS_FLAGS,
        f"-ffp-contract={'fast' if contract else 'off'}",
        "-fopenmp",
        "-fno-exceptions",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        *LIBRARIES,
    )


KERNEL_FLAGS = kernel_flags()

# In messages of GCC. Most often one of its optimisations fails, of which -O1 has few and -O0 none.
_CRASH = "internal compiler error"
_SAFER_LEVELS = ("-O1", "-O0")

# Entries that this process has verified or written: checking again costs microseconds.
_built: dict[tuple[object, ...], Path] = {}


def build(
    source: str,
    flags: tuple[str, ...] = KERNEL_FLAGS,
    compiler: str = "g++",
    cache: Path | None = None,
    include: tuple[Path, ...] = (),
    split: Callable[[str], list[str]] | None = None,
) -> Path:
    """Return the path of the shared object of `source`, compiled unless `cache` has it.

    Without `cache` it is built in a folder of this process. `split` divides the text into parts that are compiled in
    parallel and linked. `include` folders are searched for headers, whose content is part of the key. A header that
    changes while the process runs goes unnoticed.
    """
    request = (source, flags, compiler, cache, include)
    built = _built.get(request)
    if built is not None and os.path.exists(built):
        return built
    path = store.entry(cache, key(source, flags, compiler, include), ".so")
    if not store.is_intact(path, path.with_suffix(".cpp")):
        _compile(source, flags, compiler, include, path, split)
    _built[request] = path
    return path


def assembly(
    source: str, flags: tuple[str, ...] = KERNEL_FLAGS, compiler: str = "g++", include: tuple[Path, ...] = ()
) -> str:
    """The assembly text that the compiler generates for `source`, without directives other than data."""
    tool = detect.toolchain(compiler)
    with tempfile.TemporaryDirectory(prefix="mlcomp-") as folder:
        text, product = Path(folder) / "kernel.cpp", Path(folder) / "kernel.s"
        text.write_text(source)
        options = [flag for flag in flags if not flag.startswith(_LINKER_PREFIXES)]
        command = [tool.path, *options, *(f"-I{path}" for path in include), "-S", str(text), "-o", str(product)]
        code, messages = _run(command, Path(folder))
        if code != 0:
            raise ToolchainError(f"{compiler} cannot translate the kernel to assembly:\n{messages[:2000]}")
        lines = product.read_text().splitlines()
    return "\n".join(x for x in lines if not re.match(r"\s+\.(?!long|quad|zero)", x)) + "\n"


def key(source: str, flags: tuple[str, ...], compiler: str = "g++", include: tuple[Path, ...] = ()) -> str:
    """Hex digest of everything that determines the compiler's output."""
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
    """Compiler version and processor: -march=native depends on its features, and the cache may be on a shared disk."""
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
    """Run the compiler in a temporary folder beside the entry, then publish source and object by rename."""
    tool = detect.toolchain(compiler)
    with store.build_folder(path) as work:
        text, product = work / "kernel.cpp", work / "kernel.so"
        text.write_text(source)
        options = [
            *(flag for flag in flags if not flag.startswith(_LINKER_PREFIXES)),
            *(f"-I{folder}" for folder in include),
        ]
        linker_flags = [flag for flag in flags if flag.startswith(_LINKER_PREFIXES)]
        called = [tool.path, *options]
        code, messages = _compile_texts(called, source, split, work, linker_flags)
        if code != 0 and _CRASH in messages:
            for level in _SAFER_LEVELS:
                code, _ = _compile_texts([*called, level], source, split, work, linker_flags)
                if code == 0:
                    crash = f"{tool.path} failed by a bug of its own; a kernel is compiled with {level}"
                    warnings.warn(crash, stacklevel=2)
                    break
        if code != 0:
            saved, cleaned = refused_path(path, ".cpp"), re.sub(r"\S*/\.build-\w+/", "", messages)
            command = [*called, str(text), "-o", str(product), *linker_flags]
            raise refusal(tool.path, "a kernel", code, cleaned, source, saved, _retry_advice(command, saved))
        store.publish(text, path.with_suffix(".cpp"))
        store.publish(product, path)


def _compile_texts(
    compiler: list[str], source: str, split: Callable[[str], list[str]] | None, folder: Path, linker_flags: list[str]
) -> tuple[int, str]:
    """Compile the text, in parts if it can be split, to kernel.so. Returns exit status and messages."""
    text, product = folder / "kernel.cpp", folder / "kernel.so"
    if not {*LIBRARIES} <= {*linker_flags}:
        # Libraries follow the text that needs them: linkers with --as-needed drop those not needed so far.
        return _run([*compiler, str(text), "-o", str(product), *linker_flags], folder)
    texts = split(source) if split is not None else [source]
    code, messages = _compile_and_link(compiler, texts, folder, product, linker_flags)
    if code != 0 and len(texts) > 1:  # for messages about the text as it is
        code, messages = _compile_and_link(compiler, [source], folder, product, linker_flags)
    return code, messages


def _compile_and_link(
    compiler: list[str], texts: list[str], folder: Path, product: Path, linker_flags: list[str]
) -> tuple[int, str]:
    """Compile the texts in parallel, one per core, and link with few libraries. Returns exit status and messages."""
    commands = []
    for n, text in enumerate(texts):
        source = folder / (f"part{n}.cpp" if len(texts) > 1 else "kernel.cpp")
        source.write_text(text)
        commands.append([*compiler, "-c", str(source), "-o", str(source.with_suffix(".o"))])
    for code, messages in _run_all(commands, folder):
        if code != 0:
            return code, messages
    link = [*compiler, *(command[-1] for command in commands), "-o", str(product)]
    code, _ = _run([*link, *_FEW_LIBRARIES], folder)
    return (code, "") if code == 0 else _run([*link, *linker_flags], folder)


def _run_all(commands: list[list[str]], work: Path) -> list[tuple[int, str]]:
    try:
        return process.run_all(commands, work, detect.usable_cores())
    except OSError as error:
        problem = f"cannot run the C++ compiler {commands[0][0]}: {error.strerror}"
        raise ToolchainError(f"{problem}; {detect.INSTALL_COMPILER}.") from error


def _run(command: list[str], work: Path) -> tuple[int, str]:
    return _run_all([command], work)[0]


def _retry_advice(command: list[str], saved: Path) -> str:
    arguments = [str(saved) if word.endswith("/kernel.cpp") else word for word in command]
    arguments[arguments.index("-o") + 1] = os.devnull
    return f"try again: {' '.join(arguments)}"


def refusal(
    compiler: str, subject: str, code: int, messages: str, source: str, saved: Path, advice: str
) -> CacheError | ToolchainError:
    """The error for a failed compilation. The source is saved as `saved`, in the cache, for inspection."""
    if "No space left on device" in messages or "Disk quota exceeded" in messages:
        return CacheError(saved.parents[1], "no space left on its disk")
    lines = [line for line in messages.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.search(r"error|fatal|undefined reference", line)]
    first = errors[0] if errors else 0
    with contextlib.suppress(OSError):  # the compiler's message matters more than this copy
        saved.parent.mkdir(exist_ok=True)
        saved.write_text(source)
    ending = f"ended by signal {-code}" if code < 0 else f"exit status {code}"
    return ToolchainError(
        f"{compiler} refused {subject} ({ending}); a bug in mlcomp, unless the text was edited, or the compiler is "
        "broken or out of memory.\n"
        + "".join(f"  {line}\n" for line in lines[first : first + 8] or ["(no message)"])
        + f"  {advice}"
    )


def refused_path(path: Path, suffix: str) -> Path:
    """The path for the source of `path` if its compilation fails."""
    return store.cache_of(path) / "refused" / f"{path.parent.name}{path.stem}{suffix}"
