"""Check a launch against the limits of all GPUs, for the GPU's runtime and for the emulator.

Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

import math
import re

from compiler.errors import CompilerError
from compiler.runtime.launches import Extent, Flag, Launch, Map, Size

MAX_BLOCKS: Extent = (2**31 - 1, 65535, 65535)
MAX_THREADS: Extent = (1024, 1024, 64)
MAX_CLUSTER_BLOCKS = 16
MAX_SHARED = 227 << 10
MAX_PARAMETER_BYTES = 4096  # bytes
_MAP_BYTES = 128  # bytes of a tensor map parameter, aligned to 64
_KERNEL = re.compile(
    r"\bvoid\s+(?:MLC_CLUSTER\((\d+), (\d+), (\d+)\)\s+)?(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\("
)


def check(launch: Launch, buffers: int) -> None:
    """Raise CompilerError for a launch that no GPU accepts: CUDA itself only reports an invalid value."""
    numbers = [a.buffer if isinstance(a, Map) else a for a in launch.args if not isinstance(a, Size | Flag)]
    threads, cluster_blocks = math.prod(launch.block), math.prod(launch.cluster)
    claims = (
        (all(0 <= n <= m for n, m in zip(launch.grid, MAX_BLOCKS, strict=True)), f"grids are at most {MAX_BLOCKS}"),
        (
            all(0 < n <= m for n, m in zip(launch.block, MAX_THREADS, strict=True)),
            f"blocks are at most {MAX_THREADS}",
        ),
        (threads <= 1024, f"blocks have at most 1024 threads, not {threads}"),
        (
            all(n > 0 and m % n == 0 for n, m in zip(launch.cluster, launch.grid, strict=True)),
            "clusters divide the grid",
        ),
        (
            cluster_blocks <= MAX_CLUSTER_BLOCKS,
            f"a cluster has at most {MAX_CLUSTER_BLOCKS} blocks, not {cluster_blocks}",
        ),
        (all(0 <= n < buffers for n in numbers), f"buffers are numbered 0 to {buffers - 1}"),
        (0 <= launch.shared <= MAX_SHARED, f"no GPU has more than {MAX_SHARED} bytes of shared memory for a block"),
        (
            _parameter_bytes(launch) <= MAX_PARAMETER_BYTES,
            f"the parameters of a kernel take at most {MAX_PARAMETER_BYTES} bytes",
        ),
    )
    for holds, claim in claims:
        if not holds:
            raise CompilerError(f"kernel {launch.kernel} cannot be launched as {launch}: {claim}")


def _parameter_bytes(launch: Launch) -> int:
    size = 0
    for argument in launch.args:
        size = -(-size // 64) * 64 + _MAP_BYTES if isinstance(argument, Map) else size + 8
    return size


def check_text(launch: Launch, text: str) -> None:
    """Raise CompilerError if the declarations in the kernel's text contradict the launch's clusters or block size."""
    for x, y, z, max_threads, name in _KERNEL.findall(text):
        if name != launch.kernel:
            continue
        cluster, threads = (int(x or 1), int(y or 1), int(z or 1)), math.prod(launch.block)
        if cluster != launch.cluster:
            raise CompilerError(
                f"kernel {name} is launched in clusters of {launch.cluster}, and its text says {cluster} by MLC_CLUSTER"
            )
        if max_threads and threads > int(max_threads):
            raise CompilerError(
                f"kernel {name} is launched with {threads} threads, and its text allows {max_threads} at most"
            )
