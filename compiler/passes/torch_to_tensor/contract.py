"""contract"""

from compiler.passes.torch_to_tensor.builder import Rule

RULES: dict[str, Rule] = {}
