"""The modules of a case: the class that its `module` names, and those made by calls such as `nn.Linear(3, 4)`.

Their weights depend only on the case, since a module is made with a seed derived from it.
"""

import ast
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import compiler
from conformance.shapes.cases import Case, seed
from conformance.shapes.toml_values import CaseError, one_line

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
NAMED = "module"  # the name in a program of the module that its case names
SCOPE: Mapping[str, object] = {"torch": torch, "F": F, "nn": nn, "math": math}
_SEED_MODULUS = 2**62  # seeds of weights are reduced modulo this


def extract_modules(text: str) -> tuple[str, dict[str, str]]:
    """Replace calls in a program that make modules from literals by names; returns the text and the calls by name.

    Raises ValueError for a call in a comprehension, whose turns would share one module.

    >>> print(*extract_modules("def f(x):\\n    return nn.Linear(3, 4)(x) + torch.nn.Linear(len(x), 4)(x)"))
    def f(x):
        return module0(x) + torch.nn.Linear(len(x), 4)(x) {'module0': 'nn.Linear(3, 4)'}
    """
    if "nn." not in text:
        return text, {}
    tree = ast.parse(text)
    extractor = _ModuleExtractor({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    rewritten = extractor.visit(tree)
    return (ast.unparse(rewritten), extractor.calls) if extractor.calls else (text, {})


class _ModuleExtractor(compiler.LoopTransformer):
    def __init__(self, taken: set[str]) -> None:
        self.calls: dict[str, str] = {}
        self._taken = taken

    def visit_Call(self, node: ast.Call) -> ast.AST:
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if not (used <= SCOPE.keys() and _is_module(node.func)):
            return self.generic_visit(node)
        if self.is_in_loop:
            raise ValueError(f"{ast.unparse(node)} is called in a loop, each time for another module: write it out")
        number = len(self.calls)
        while f"{NAMED}{number}" in self._taken:
            number += 1
        name = f"{NAMED}{number}"
        self._taken.add(name)
        self.calls[name] = ast.unparse(node)
        return ast.Name(name, ast.Load())


def _is_module(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(ast.Name("nn") | ast.Attribute(ast.Name("torch"), "nn"), name):
            attribute = getattr(nn, name, None)
            return isinstance(attribute, type) and issubclass(attribute, nn.Module)
    return False


def make_modules(case: Case, calls: Mapping[str, str]) -> dict[str, nn.Module]:
    """Make all modules of a case, by name, in the case's dtype, in evaluation mode and without gradients."""
    modules = {name: _make_module(case, name, _constructor(case, call)) for name, call in calls.items()}
    if case.module is not None:
        modules[NAMED] = _make_module(case, NAMED, lambda: _class(case)(**case.init))
    return modules


def modules_of(function: Callable[..., Any]) -> dict[str, nn.Module]:
    """Return the modules that a case's function uses, by their names in its text."""
    inner: Any = getattr(function, "__wrapped__", function)
    while hasattr(inner, "inner"):
        inner = inner.inner
    scope = getattr(inner, "__globals__", {})
    return {name: value for name, value in scope.items() if isinstance(value, nn.Module)}


def _constructor(case: Case, call: str) -> Callable[[], object]:
    return lambda: eval(compile(call, f"<{case.file}>", "eval"), dict(SCOPE))


def _make_module(case: Case, name: str, constructor: Callable[[], object]) -> nn.Module:
    key = "init" if name == NAMED else "expr"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed(case, name) % _SEED_MODULUS)
        try:
            module = constructor()
        except CaseError:
            raise
        except Exception as error:  # a constructor may raise anything
            raise CaseError(case, key, f"the module cannot be made: {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise CaseError(case, "module", f"{case.module} makes a {type(module).__name__}, no torch.nn.Module")
    try:
        return module.to(DTYPES[case.dtype]).eval().requires_grad_(False)
    except TypeError as error:
        raise CaseError(case, key, f"a module has no weights of {case.dtype}: {one_line(error)}") from error


def _class(case: Case) -> Callable[..., object]:
    """Import the class that `module` names; raises CaseError."""
    package, _, attribute = str(case.module).partition(":")
    with import_path(case):
        try:
            value: object = importlib.import_module(package)
            for word in attribute.split("."):
                value = getattr(value, word)
        except Exception as error:  # importing runs arbitrary code
            raise CaseError(case, "module", f"{case.module} cannot be had: {one_line(error)}") from error
    if not callable(value):
        raise CaseError(case, "module", f"{case.module} is a {type(value).__name__}, which cannot be called")
    return value


@contextmanager
def import_path(case: Case) -> Iterator[None]:
    """Put the folder of the case's shape file first on the import path, as Python does for a script's folder."""
    folder, root = Path(case.file).parent, str(case.module).partition(":")[0].partition(".")[0]
    candidates = [str(path) for path in (folder / f"{root}.py", folder / root / "__init__.py") if path.exists()]
    if candidates and getattr(sys.modules.get(root), "__file__", None) not in candidates:
        # A module of this name in another folder was imported before.
        for name in [name for name in sys.modules if name.partition(".")[0] == root]:
            del sys.modules[name]
    previous_path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = previous_path
