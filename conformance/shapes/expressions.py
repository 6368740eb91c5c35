"""The expressions of a shape file: formulas (sizes and filters) are evaluated; a case's program becomes a function.

Formulas are a small subset of Python, checked node by node before they run. They have no loops, so a short text takes
few steps, and operations that can make large values from small ones are bounded. A program is any Python over tensor
arguments whose free names are known. Dims, params and consts are inserted as literals, so its text is self-contained.
"""

import ast
import functools
import math
import re
from collections.abc import Collection, Mapping
from types import CodeType

from conformance.shapes.cases import DTYPES, Value

TORCH_DTYPES = {
    "f64": "torch.float64", "f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16",
    "i64": "torch.int64", "i32": "torch.int32", "i16": "torch.int16", "i8": "torch.int8", "u8": "torch.uint8",
    "bool": "torch.bool", "f8e4m3": "torch.float8_e4m3fn", "f8e5m2": "torch.float8_e5m2",
}  # fmt: skip
NAMESPACES = frozenset({"torch", "F", "nn", "math"})
BUILTINS = frozenset((
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "reversed",
    "slice", "sorted", "sum", "tuple", "zip",
))  # fmt: skip
FUNCTIONS = {"len": len, "min": min, "max": max, "abs": abs}
FORMULA_LIMIT, PROGRAM_LIMIT = 2_000, 50_000  # most characters of a formula, and of a program
SHALLOW = 300  # a text of at most this many characters cannot be nested too deep for a recursive walk
BITS_LIMIT, ITEMS_LIMIT = 4_096, 10_000  # limits of intermediate numbers (bits) and sequences (items) in a formula
# "bool" stays the Python type, which torch also accepts as a dtype.
RESERVED = NAMESPACES | (frozenset(DTYPES) - {"bool"}) | {"dtype", "module"} | BUILTINS

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.cmpop, ast.Call, ast.Name, ast.Load,
    ast.Constant, ast.Tuple, ast.List, ast.Subscript, ast.Slice, ast.IfExp,
)  # fmt: skip


class ExpressionError(ValueError):
    """An expression is invalid; the caller adds where it is."""


def formula(text: str, names: Collection[str]) -> tuple[CodeType, frozenset[str]]:
    """Compile a formula over `names`; returns the code and the names that it uses. Results are cached.

    >>> code, used = formula("B*M <= 64 and dtype != 'bf16'", {"B", "M", "dtype"})
    >>> evaluate(code, {"B": 8, "M": 8, "dtype": "f32"}), sorted(used)
    (True, ['B', 'M', 'dtype'])
    """
    return _formula(text, frozenset(names))


@functools.lru_cache(maxsize=4096)  # cases of a file repeat the same formulas
def _formula(text: str, names: frozenset[str]) -> tuple[CodeType, frozenset[str]]:
    if len(text) > FORMULA_LIMIT:
        raise ExpressionError(f"{shorten(text)!r} has {len(text)} characters; the limit is {FORMULA_LIMIT}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        used = _check_nodes(text, tree, names)
        bounded = ast.fix_missing_locations(_BoundedOperators().visit(tree))
        return compile(bounded, "<shape file>", "eval"), used
    except SyntaxError as error:
        raise ExpressionError(f"{text!r} is not an expression: {error.msg}") from None
    except ExpressionError:
        raise
    except (ValueError, RecursionError, MemoryError):  # NUL bytes, or brackets nested too deep
        raise ExpressionError(f"{shorten(text)!r} cannot be parsed as a Python expression") from None


def _check_nodes(text: str, tree: ast.Expression, names: frozenset[str]) -> frozenset[str]:
    """Check a formula and return the names that it uses."""
    for node in ast.walk(tree):
        plain_call = not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and not node.keywords)
        if not isinstance(node, _ALLOWED) or not plain_call:
            raise ExpressionError(
                f"{text!r} holds `{ast.unparse(node)}`; only arithmetic, comparisons, and/or/not/in work"
            )
    used = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - FUNCTIONS.keys()
    if unknown := sorted(used - names):
        raise ExpressionError(f"{text!r} names {quote(unknown)}, but only {quote(sorted(names))} are defined")
    return used


def evaluate(code: CodeType, scope: Mapping[str, Value]) -> Value:
    """Evaluate a compiled formula."""
    try:
        return eval(code, {"__builtins__": {}, **FUNCTIONS, **_BOUNDED_FUNCTIONS}, dict(scope))
    except (ArithmeticError, TypeError, LookupError, ValueError) as error:
        raise ExpressionError(f"{type(error).__name__}: {error}") from None


class _BoundedOperators(ast.NodeTransformer):
    """Replaces powers, products and remainders by calls of functions that limit the size of results."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        name = {ast.Pow: "power of", ast.Mult: "product of", ast.Mod: "remainder of"}.get(type(node.op))
        return node if name is None else ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], [])


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > BITS_LIMIT:
        raise ValueError(f"{base}**{exponent} is too large")
    return base**exponent


def _product(a: Value, b: Value) -> Value:
    for sequence, count in ((a, b), (b, a)):
        if isinstance(sequence, tuple | list | str) and isinstance(count, int) and len(sequence) * count > ITEMS_LIMIT:
            raise ValueError(f"a sequence of {len(sequence) * count} items is too long; the limit is {ITEMS_LIMIT}")
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() + b.bit_length() > BITS_LIMIT:
        raise ValueError("a product is too large")
    return a * b


def _remainder(a: Value, b: Value) -> Value:
    if isinstance(a, str):
        raise TypeError("a text has no remainder")
    return a % b


# These names contain spaces, so that no expression can refer to them.
_BOUNDED_FUNCTIONS = {"power of": _power, "product of": _product, "remainder of": _remainder}


def shorten(text: str, most: int = 60) -> str:
    """Return the beginning of a text, for a message."""
    return text if len(text) <= most else text[: most - 1] + "…"


def names_in_program(text: str, args: Collection[str], values: Collection[str]) -> frozenset[str]:
    """Return the names that a program uses, after checking that each is an argument, a value or a built-in name."""
    tree = parse_program(text)
    loaded, bound = _names(tree)
    known = set(args) | set(values) | RESERVED
    if unknown := sorted(loaded - bound - known):
        raise ExpressionError(
            f"the expression uses {quote(unknown)}; in scope are {quote(sorted(set(args) | set(values)))}, "
            "torch, F, nn, math, dtype and the dtype names"
        )
    if clash := sorted(bound & (set(values) | RESERVED)):
        raise ExpressionError(
            f"the expression assigns {quote(clash)}, a name with a meaning of its own; choose another"
        )
    return frozenset(loaded)


def program_source(name: str, text: str, args: Collection[str], values: Mapping[str, Value]) -> str:
    """Return the program as the text of a function of its tensors, with other names replaced by literals.

    >>> print(program_source("softmax", "F.softmax(x, dim=dim).to(acc)", ["x"], {"dim": -1, "acc": "f32"}))
    def softmax(x):
        return F.softmax(x, dim=-1).to(torch.float32)
    """
    tree = _Literals({**{key: key for key in DTYPES if key != "bool"}, **values}).visit(parse_program(text))
    last = tree.body[-1]
    body = [*tree.body[:-1], ast.Return(last.value)]
    lines = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in body)
    return f"def {_identifier(name)}({', '.join(args)}):\n" + _indent(lines)


def literal(value: Value) -> str:
    """Return a parameter's value as Python text; a dtype becomes its torch name.

    >>> literal((1, "f32", float("inf"), "floor"))
    "(1, torch.float32, float('inf'), 'floor')"
    """
    match value:
        case str() if value in TORCH_DTYPES:
            return TORCH_DTYPES[value]
        case float() if not math.isfinite(value):
            return f"float('{value}')"
        case tuple():
            return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
        case _:
            return repr(value)


def quote(names: Collection[str]) -> str:
    """Join quoted names, for a message."""
    return ", ".join(repr(name) for name in names) or "nothing"


class _Literals(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return ast.parse(literal(self.values[node.id]), mode="eval").body
        return node


def parse_program(text: str) -> ast.Module:
    """Parse a program, whose last line must be an expression."""
    if len(text) > PROGRAM_LIMIT:
        raise ExpressionError(f"the expression has {len(text)} characters; the limit is {PROGRAM_LIMIT}")
    try:
        tree = ast.parse(_dedent(text))
        if len(text) > SHALLOW:
            ast.unparse(tree)  # `program_source` will do so; its recursion limit is lower than the parser's
    except SyntaxError as error:
        place = shorten((error.text or "").strip(), 200)
        raise ExpressionError(f"the expression is not Python: {error.msg} at {place!r}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"the expression cannot be parsed as Python: {type(error).__name__}") from None
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        raise ExpressionError("the expression has no value: its last line must be an expression")
    return tree


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    loaded = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return loaded, parameters | {node.id for node in names if not isinstance(node.ctx, ast.Load)}


def _dedent(text: str) -> str:
    # Lines within brackets may have any indentation, so only the common margin is removed.
    lines = text.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() and plain not in RESERVED else f"f_{plain}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
