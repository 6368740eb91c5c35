"""Rewriting of Python expressions that knows what is evaluated once and what in each turn of a comprehension."""

import ast

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class LoopTransformer(ast.NodeTransformer):
    """A transformer whose `is_in_loop` says whether the node that is visited is evaluated in a comprehension."""

    is_in_loop = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the parts of a node; the first iterable of a comprehension is evaluated once, outside of it."""
        if not isinstance(node, _COMPREHENSIONS):
            return super().generic_visit(node)
        outermost = node.generators[0]
        outermost.iter = self.visit(outermost.iter)
        was_in_loop, self.is_in_loop = self.is_in_loop, True
        visited = super().generic_visit(node)
        self.is_in_loop = was_in_loop
        return visited
