"""From PyTorch to Torch IR: trace functions, decompose ops without a rule, convert graphs; run Torch IR in eager."""

from compiler.frontend.checks import with_assertions, without_dropout
from compiler.frontend.complex_numbers import as_real, has_complex, is_complex, parts
from compiler.frontend.convert import Converted, convert, offsets
from compiler.frontend.decompose import IGNORED, Decompositions, decompositions, expand, specialised
from compiler.frontend.gradient import capture_gradient, gradient
from compiler.frontend.higher_order import without_higher_order
from compiler.frontend.quantize import quantized, restored, rounded
from compiler.frontend.results import sources, with_results
from compiler.frontend.run import FirstOfEqual, execute, refuse, resolve
from compiler.frontend.trace import Captured, capture, from_graph
from compiler.frontend.types import ir_dtype, tensor_type, torch_dtype, widened

__all__ = [
    "IGNORED", "Captured", "Converted", "Decompositions", "FirstOfEqual", "as_real", "capture",
    "capture_gradient", "convert", "decompositions", "execute", "expand", "from_graph", "gradient", "has_complex",
    "ir_dtype", "is_complex", "offsets", "parts", "quantized", "refuse", "resolve", "restored", "rounded", "sources",
    "specialised", "tensor_type", "torch_dtype", "widened", "with_assertions", "with_results", "without_dropout",
    "without_higher_order",
]  # fmt: skip
