"""Launch geometry as values: kernels, buffers and grids of a program, for the GPU and for its emulator."""

from dataclasses import dataclass

Extent = tuple[int, int, int]


@dataclass(frozen=True)
class Buffer:
    """Memory of `size` bytes, which kernels know by its number; `name` is for messages."""

    name: str
    size: int


@dataclass(frozen=True)
class Size:
    """A 64-bit integer argument."""

    value: int


@dataclass(frozen=True)
class Map:
    """A tensor map argument: boxes of `box` elements of buffer number `buffer`, moved by the copy engine.

    `dims`, `strides` and `box` are innermost first. `strides` are bytes between elements of each dimension; the
    innermost is the element size. `swizzle` is the width of the pattern in bytes: 0, 32, 64 or 128. Elements of a box
    are `steps` apart in the tensor, by default adjacent.
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
    """The address of a 32-bit integer in host memory, which kernels set to report invalid data."""


@dataclass(frozen=True)
class Launch:
    """One kernel over a grid of blocks of threads, with extents as (x, y, z). An int in `args` is a buffer's number.

    `shared` is dynamic shared memory in bytes. `cluster` divides `grid`. `synchronizes=False` declares that threads
    neither wait for each other nor exchange values, so that the emulator runs them as a plain loop. A kernel that
    `overlaps` may begin before its predecessors have ended, and itself waits for them before it touches their memory.
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

    Temporary i starts at `offsets[i]` in an arena of `arena` bytes; temporaries with disjoint live ranges may share
    bytes. The last `zeros` of them are at the arena's end and must be zero before and after the launches; concurrent
    runs need separate ones. Inputs are not written.
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
        """All buffers, by number."""
        return (*self.inputs, *self.outputs, *self.temporaries)
