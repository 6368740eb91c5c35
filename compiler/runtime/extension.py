"""Build and load the native launcher (launcher_tensors.c, launcher.c), and pass it the addresses of torch's functions.

It reads tensors through torch's stable C ABI (`aoti_torch_*`, made for generated code). The ABI takes an at::Tensor,
which a Python tensor contains: `tensor_offset` locates it in the object and verifies the result. If a torch lacks any
of this or differs, tensors are read through Python attributes.
"""

import ctypes
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from compiler.errors import ToolchainError
from compiler.runtime import build, detect

NAME = "mlc_launcher"
SOURCES = ("launcher_tensors.c", "launcher.c")  # one translation unit
LIBRARIES = Path(torch.__file__).parent / "lib"
FLAGS = ("-x", "c", "-O2", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib", "-lc", "-lgcc")

# In the order of launcher_tensors.c.
READERS = (
    "aoti_torch_get_device_type", "aoti_torch_get_layout", "aoti_torch_get_dtype", "aoti_torch_get_dim",
    "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_data_ptr",
)  # fmt: skip
MAKERS = ("aoti_torch_empty_strided", "aoti_torch_delete_tensor_object")
OTHERS = ("omp_get_max_threads", "aoti_torch_get_device_index")
# PyObject* THPVariable_Wrap(const at::TensorBase&), mangled; newer torches also provide its address.
WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"


@functools.cache
def load(cache: Path | None = None) -> ModuleType:
    """The module, built into `cache` unless it is there. Raises ToolchainError without compiler or Python headers."""
    headers = detect.python_headers()
    if headers is None:
        raise ToolchainError(
            f"Python's headers are missing for {sys.executable}; install them (Debian, Ubuntu: `apt-get install "
            f"python{sys.version_info.major}.{sys.version_info.minor}-dev`) for faster calls"
        )
    source = "".join(Path(__file__).with_name(name).read_text() for name in SOURCES)
    flags = (*FLAGS, f"-DBUILT_FOR_PYTHON={sys.hexversion:#x}", f"-I{headers}")
    path = build.build(source, flags, cache=cache)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    if spec is None:
        raise ToolchainError(f"cannot import the native launcher {path}; delete the file and try again")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    connect(module)
    return module


def connect(module: ModuleType, abi: bool = True) -> None:
    """Pass torch's functions to the module, for all of its launchers; without `abi`, as if torch had no C ABI."""
    module.use(torch.Tensor, torch.nn.Parameter, empty_strided(), *torch_functions(abi))


def empty_strided() -> object:
    """The fastest function (shape, stride, dtype) -> tensor of this torch."""
    function = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cpu", None)
    return function or (lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype))


def torch_functions(abi: bool = True) -> tuple[int, tuple[int, ...]]:
    """Offset of the at::Tensor and the addresses for `use`; zeros for what this torch lacks or `abi` excludes."""
    offset = tensor_offset() if abi else None
    wrap = wrapper(offset) if offset else 0
    readers = [function_address(name) for name in READERS]
    makers = [function_address(name) for name in MAKERS]
    if offset is None or not all((*readers, *makers)):
        offset, wrap = 0, 0
    others = map(function_address, OTHERS)
    return offset, (*readers, *makers, wrap, *others)


def wrapper(offset: int) -> int:
    """The address of the function that wraps an at::Tensor in a Python object; 0 if none is found to work."""
    symbol = getattr(_library("libtorch_python.so"), WRAP, None)
    symbol_address = ctypes.cast(symbol, ctypes.c_void_p).value if symbol is not None else 0
    address = getattr(getattr(torch._C._dynamo, "guards", None), "_torchinductor_thp_variable_wrap", symbol_address)
    if not address:
        return 0
    probe = torch.empty(2, 3)  # already has its object, which the function must return
    wrapped = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)(id(probe) + offset)
    return int(address) if wrapped is probe else 0


@functools.cache
def supports_all_devices() -> bool:
    """Whether this torch lets a native launcher read and create tensors on devices other than the CPU."""
    offset, addresses = torch_functions()
    *_, wrap, _, device_index = addresses
    return bool(offset and wrap and device_index)


def tensor_offset() -> int | None:
    """Offset of the at::Tensor in the object of a tensor; None if it cannot be determined with certainty.

    A handle to a tensor starts with the pointer that its at::Tensor consists of; that word is searched in the object.
    All probes must agree, and the ABI must then read their sizes and dtypes correctly.
    """
    make_handle = getattr(getattr(torch._C, "_aoti", None), "unsafe_alloc_void_ptr_from_tensor", None)
    if make_handle is None or not all(map(function_address, (*READERS, *MAKERS))):
        return None
    probes = (torch.empty(2, 3), torch.empty(0, dtype=torch.int8), torch.nn.Parameter(torch.empty(5, 1, 7).mT))
    offsets = {_offset_in(probe, make_handle(probe)) for probe in probes}
    offset = offsets.pop()
    return offset if not offsets and offset and all(_reads_correctly(probe, offset) for probe in probes) else None


def _offset_in(probe: torch.Tensor, capsule: object) -> int | None:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    handle = pointer_of(capsule, None)
    pointer = ctypes.c_void_p.from_address(handle).value
    words = (ctypes.c_void_p * (torch.Tensor.__basicsize__ // 8)).from_address(id(probe))
    _function("aoti_torch_delete_tensor_object")(ctypes.c_void_p(handle))
    offsets = [8 * i for i, word in enumerate(words) if word == pointer]
    return offsets[0] if len(offsets) == 1 else None


def _reads_correctly(probe: torch.Tensor, offset: int) -> bool:
    tensor = ctypes.c_void_p(id(probe) + offset)
    dim, sizes = ctypes.c_int64(), ctypes.POINTER(ctypes.c_int64)()
    strides, data = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_void_p()
    for name, result in zip(READERS[3:], (dim, sizes, strides, data), strict=True):
        if _function(name)(tensor, ctypes.byref(result)) != 0:
            return False
    ndim = probe.dim()
    return (
        dim.value == ndim
        and tuple(sizes[:ndim]) == tuple(probe.shape)
        and tuple(strides[:ndim]) == probe.stride()
        and (data.value or 0) == probe.data_ptr()
        and dtype_code(probe.dtype) == _read_dtype(tensor)
    )


@functools.cache
def device_type(device: torch.device) -> int:
    """The ABI's number for the type of a device; -1 if it has none."""
    return _constant(f"aoti_torch_device_type_{device.type}")


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The ABI's number for a dtype, from the function that returns it; -1 if there is none."""
    return _constant(f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")


def _constant(name: str) -> int:
    function = function_address(name)
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(function)()) if function else -1


def _read_dtype(tensor: ctypes.c_void_p) -> int:
    code = ctypes.c_int32()
    return code.value if _function("aoti_torch_get_dtype")(tensor, ctypes.byref(code)) == 0 else -2


def function_address(name: str) -> int:
    """The address of a function in torch's library or one that it loads (such as its own OpenMP); 0 if missing."""
    try:
        return ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _function(name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(_library(), name)
    return function


@functools.cache
def _library(name: str = "libtorch_cpu.so") -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARIES / name))
