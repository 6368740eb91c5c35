"""Launch geometry as values: what a program runs, on which buffers, in what grid; for the GPU and for its emulator."""

from dataclasses import dataclass

Extent = tuple[int, int, int]


@dataclass(frozen=True)
class Buffer:
    """Memory of `size` bytes that kernels know by its number; `name` is for people."""

    name: str
    size: int


@dataclass(frozen=True)
class Size:
    """A 64-bit integer argument."""

    value: int


@dataclass(frozen=True)
class Map:
    """A tensor map argument: boxes of `box` elements of buffer number `buffer`, moved by the copy engine.

    `dims`, `strides` and `box` are innermost first; `strides` are bytes between elements of each dimension, the
    innermost being the element's own size. `swizzle` is the width of the pattern in bytes: 0, 32, 64 or 128. Elements
    of a box are `steps` apart in the tensor, by default neighbours.
    """

    buffer: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Flag:
    """The address of a 32-bit integer of the host's, in which kernels say that the data has what it may not have."""


@dataclass(frozen=True)
class Launch:
    """One kernel over a grid of blocks of threads, extents as (x, y, z); an int in `args` is a buffer's number.

    `shared` is the dynamic shared memory in bytes. `cluster` divides `grid`. A kernel that neither waits nor exchanges
    values between threads says so by `synchronizes=False`, and runs as a plain loop on the CPU. One that `overlaps` may
    begin before the launches before it have ended, and waits for them itself before it touches what they touched.
    """

    kernel: str
    grid: Extent
    block: Extent
    args: tuple[int | Size | Map | Flag, ...]
    shared: int = 0
    cluster: Extent = (1, 1, 1)
    synchronizes: bool = True
    overlaps: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a program in order; buffers are numbered inputs first, then outputs, then temporaries.

    Temporary i lies `offsets[i]` bytes into an arena of `arena` bytes; those alive at different times may share bytes.
    The last `zeros` of them hold zeros before the launches, and must do so after them: they lie at the arena's end, and
    whoever runs launches at once gives each run its own. Inputs are not written.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    temporaries: tuple[Buffer, ...] = ()
    offsets: tuple[int, ...] = ()
    arena: int = 0
    zeros: int = 0

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by their number."""
        return (*self.inputs, *self.outputs, *self.temporaries)
