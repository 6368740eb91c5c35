"""An expression over torch goes in as text; what comes out is a function of its inputs, to compile, check and time."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from compiler import execution

# Calls that make an input rather than being part of the program.
_INPUTS = {"randn", "rand", "randint", "randperm", "tensor"}
_ROUNDS = 5


def program(code: str, seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """The function and the inputs of an expression; raises ValueError for text that is none."""
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except SyntaxError as problem:
        raise ValueError(f"not an expression: {problem.msg} at column {problem.offset}: {code}") from problem
    torch.manual_seed(seed)
    scope = {"torch": torch, "F": F, "nn": torch.nn}
    hoist = _Hoist(scope)
    body = ast.fix_missing_locations(hoist.visit(tree))
    names = [f"x{n}" for n in range(len(hoist.inputs))]
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body.body)))
    function: Callable[..., Any] = eval(compile(made, "<expression>", "eval"), scope)
    return function, hoist.inputs


class _Hoist(ast.NodeTransformer):
    """Replaces calls that make inputs by parameters, and evaluates them."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.inputs: list[Any] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(ast.Name("torch"), name) if name in _INPUTS:
                code = compile(ast.fix_missing_locations(ast.Expression(node)), "<expression>", "eval")
                self.inputs.append(eval(code, dict(self.scope)))
                return ast.copy_location(ast.Name(f"x{len(self.inputs) - 1}", ast.Load()), node)
        return self.generic_visit(node)


@dataclass(frozen=True)
class Outcome:
    """A compiled expression beside its eager original; `difference` is the largest, `allowed` what it may be."""

    function: Callable[..., Any]
    inputs: list[Any]
    compiled: execution.Executable
    seconds: float
    difference: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.difference <= self.allowed


def run(code: str, seed: int, target: str) -> Outcome:
    """Compile an expression, run it, and compare it with eager; `seconds` is what compiling took."""
    function, inputs = program(code, seed)
    with torch.no_grad():
        start = time.perf_counter()
        compiled = execution.compile(function, inputs, target)
        seconds = time.perf_counter() - start
        difference, allowed = execution.compare(compiled, function, inputs)
    return Outcome(function, inputs, compiled, seconds, difference, allowed)


def race(outcome: Outcome) -> dict[str, float]:
    """The best median seconds a call, by contestant, on one thread; in turns, so that a slow moment meets both."""
    torch.set_num_threads(1)
    contestants = {"eager": outcome.function, "mlcomp": outcome.compiled}
    best = dict.fromkeys(contestants, float("inf"))
    with torch.no_grad():
        for _ in range(_ROUNDS):
            for name, f in contestants.items():
                timer = Timer("f(*x)", globals={"f": f, "x": outcome.inputs}, num_threads=1)
                best[name] = min(best[name], timer.blocked_autorange(min_run_time=0.05).median)
    return best
