"""Run a cubin's launches once on the current GPU, on NumPy arrays in host memory: for checks, not for speed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from compiler.runtime import device, gpu
from compiler.runtime.cubin import Cubin
from compiler.runtime.device import Device
from compiler.runtime.launches import LaunchPlan


def current() -> Device:
    """The GPU that kernels run on. Raises CompilerError if there is none."""
    device.require_gpu()
    return device.devices()[torch.cuda.current_device()]


def run(
    image: Cubin, launches: LaunchPlan, arrays: Sequence[npt.NDArray[np.generic]], timeout: float = 10.0
) -> tuple[npt.NDArray[np.generic], ...]:
    """Return the contents of inputs, outputs and temporaries after the launches; `arrays` has those before, unmodified.

    `timeout` is in seconds, for all launches. Raises DeviceError for faults of the kernels.
    """
    buffers = [torch.from_numpy(a.copy()).cuda() for a in arrays]
    gpu.run_once(image, launches, buffers)
    gpu.synchronize(timeout, ", ".join(launch.kernel for launch in launches.launches))
    return tuple(b.cpu().numpy() for b in buffers)
