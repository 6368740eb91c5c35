"""Turn an expression over torch, as text, into a function of its inputs, to compile, check and time it."""

from __future__ import annotations

import ast
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from compiler import frontend, pipeline
from compiler.errors import CompilerError
from compiler.execution import executable, gpu_programs, loops, named, truth
from compiler.interpret.verdicts import Verdict

# Calls that create an input, rather than being part of the program.
_INPUTS = {"randn", "rand", "randint", "randperm", "tensor"}
_ROUNDS = 5
_CALLS = 100  # per turn on a GPU


def program(code: str, seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """The function and the inputs of an expression. Raises CompilerError for invalid text."""
    text = code.strip()
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as problem:
        line = text.splitlines()[(problem.lineno or 1) - 1] if text else ""
        mark = f"\n  {line}\n  {' ' * ((problem.offset or 1) - 1)}^" if line else ""
        raise CompilerError(f"not an expression: {problem.msg}{mark}") from problem
    torch.manual_seed(seed)
    hoist = _Hoist({"torch": torch, "F": F, "nn": torch.nn})
    body = ast.fix_missing_locations(hoist.visit(tree))
    names = [f"x{n}" for n in range(len(hoist.inputs))]
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body.body)))
    function: Callable[..., Any] = eval(compile(made, "<expression>", "eval"), hoist.scope)
    return function, hoist.inputs


def capture(code: str, seed: int) -> tuple[Callable[..., Any], list[Any], frontend.Captured]:
    """Function, inputs and Torch IR of an expression. If PyTorch rejects it too, the error quotes PyTorch."""
    function, inputs = program(code, seed)
    try:
        captured = frontend.capture(function, inputs)
    except CompilerError as refusal:
        _try_eager(function, inputs, refusal)
        raise
    if not captured.program.outputs:
        raise CompilerError(f"the expression computes no tensor: {code.strip()}")
    return function, inputs, captured


def _try_eager(function: Callable[..., Any], inputs: list[Any], refusal: Exception) -> None:
    """Raise if PyTorch does not run the function either, since its message is clearer than that of the capture."""
    try:
        with torch.no_grad():
            results = function(*inputs)
    except Exception as problem:  # whatever the expression makes PyTorch or Python raise
        raise CompilerError(f"PyTorch does not run the expression: {_first_line(problem)}") from refusal
    kinds = {type(leaf).__name__ for leaf in pytree.tree_leaves(results) if not isinstance(leaf, torch.Tensor)}
    if kinds - {"int", "float", "bool", "NoneType"}:
        raise CompilerError(f"the expression gives no tensor but {', '.join(sorted(kinds))}") from refusal


def _first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else ''}"


class _Hoist(loops.LoopTransformer):
    """Replaces calls that create inputs by parameters, and those that create modules by names; evaluates both."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.inputs: list[Any] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        makes_input = _makes_input(node)
        if not makes_input and not _makes_module(node):
            return self.generic_visit(node)
        if self.is_in_loop:
            raise CompilerError(f"{ast.unparse(node)} is called in a loop, each time for another value: write it out")
        if makes_input:
            self.inputs.append(self._value(node))
            return ast.copy_location(ast.Name(f"x{len(self.inputs) - 1}", ast.Load()), node)
        module_name = f"module{len(self.scope)}"
        self.scope[module_name] = self._value(node).eval().requires_grad_(False)
        return ast.copy_location(ast.Name(module_name, ast.Load()), node)

    def _value(self, node: ast.Call) -> Any:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<expression>", "eval")
        try:
            return eval(code, dict(self.scope))
        except Exception as problem:  # whatever the call makes PyTorch or Python raise
            raise CompilerError(f"PyTorch does not run {ast.unparse(node)}: {_first_line(problem)}") from problem


def _makes_input(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("torch"), name):
            return name in _INPUTS
    return False


def _makes_module(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("nn") | ast.Attribute(ast.Name("torch"), "nn"), name):
            attribute = getattr(torch.nn, name, None)
            return isinstance(attribute, type) and issubclass(attribute, torch.nn.Module)
    return False


@dataclass(frozen=True)
class Outcome:
    """A compiled expression compared with eager: the largest difference, and whether the results are correct."""

    function: Callable[..., Any]
    inputs: list[Any]
    compiled: executable.Executable
    capture_seconds: float
    compile_seconds: float
    difference: float
    verdict: Verdict
    quantization: float | None = None  # its own error, in f64


def run(code: str, seed: int, target: str, schedules: str = "", quantize: str | None = None) -> Outcome:
    """Compile an expression, run it, and judge the results, on the GPU if that runs the target's code.

    `schedules` is a text of schedules for some of its kernels; raises ValueError if it is invalid. A quantized program
    is compared with eager of the same, and that in f64 with the original.
    """
    machine = named.target(target)
    with torch.no_grad(), torch.device(gpu_programs.tensors_on(machine)):
        start = time.perf_counter()
        function, inputs, captured = capture(code, seed)
        original = captured
        captured = captured if quantize is None else executable.quantized(captured, quantize)
        captured_at = time.perf_counter()
        parsed_schedules = pipeline.read_schedules(schedules, captured.program, machine) if schedules else None
        compiled = executable.build_captured(captured, machine, schedules=parsed_schedules)
        end = time.perf_counter()
        values = dict(zip(original.arguments, inputs, strict=True))
        try:
            ours = [x.cpu() for x in compiled.launch(*(values[n] for n in captured.arguments))]
            eager = _eager_results(captured, function, inputs) if quantize is None else _run_in_eager(captured, values)
        except Exception as problem:  # of the compiled function, or of the expression itself
            _try_eager(function, inputs, problem)
            raise
        verdict = truth.judge(captured.program, _program_inputs(captured, values), ours, compiled.lowering)
        quantization_error = None
        if quantize is not None:
            exact, unquantized = (_run_in_eager(c, values, torch.float64) for c in (captured, original))
            quantization_error = executable.difference(exact, unquantized)
    return Outcome(
        function,
        inputs,
        compiled,
        captured_at - start,
        end - captured_at,
        executable.difference(ours, eager),
        verdict,
        quantization_error,
    )


def _program_inputs(captured: frontend.Captured, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The values of the program's inputs, including its weights."""
    return [(captured.constants[i.name] if i.constant else values[i.name]).cpu() for i in captured.program.inputs]


def _run_in_eager(
    captured: frontend.Captured, values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None
) -> Sequence[torch.Tensor]:
    """Eager's results of the program, on the CPU, which supports int8 matmuls of any size."""
    with torch.device("cpu"):
        return frontend.execute(captured.program, _program_inputs(captured, values), dtype)


def _eager_results(captured: frontend.Captured, function: Callable[..., Any], inputs: list[Any]) -> list[torch.Tensor]:
    """The function's own results, as the outputs of its program."""
    with frontend.FirstOfEqual():
        leaves = pytree.tree_leaves(function(*inputs))
    return [torch.as_tensor(leaf).cpu() for n, leaf in enumerate(leaves) if n not in captured.literals]


def race(outcome: Outcome) -> dict[str, float]:
    """The least mean seconds per call, by contestant, which take turns so that a slow moment affects both.

    On the CPU with one thread; on a GPU the calls of a turn are enqueued without waiting.
    """
    if gpu_programs.tensors_on(outcome.compiled.code.target) == "cuda":
        return _race_on_gpu(outcome)
    torch.set_num_threads(1)
    contestants = {"eager": outcome.function, "mlcomp": outcome.compiled}
    timers = {n: timeit.Timer("f(*x)", globals={"f": f, "x": outcome.inputs}) for n, f in contestants.items()}
    with torch.no_grad():
        calls = {name: max(1, timer.autorange()[0] // 4) for name, timer in timers.items()}  # at least 50 ms in total
        turns = [{name: t.timeit(calls[name]) / calls[name] for name, t in timers.items()} for _ in range(_ROUNDS)]
    return {name: min(turn[name] for turn in turns) for name in timers}


def _race_on_gpu(outcome: Outcome) -> dict[str, float]:
    contestants: dict[str, Callable[..., Any]] = {"eager": outcome.function, "mlcomp": outcome.compiled}
    event: Any = torch.cuda.Event  # untyped in torch
    turns: list[dict[str, float]] = []
    with torch.no_grad(), torch.device("cuda"):
        for _ in range(_ROUNDS + 1):
            turn = {}
            for name, call in contestants.items():
                start, end = event(enable_timing=True), event(enable_timing=True)
                start.record()
                for _ in range(_CALLS):
                    call(*outcome.inputs)
                end.record()
                end.synchronize()
                turn[name] = start.elapsed_time(end) * 1e-3 / _CALLS
            turns.append(turn)
    return {name: min(turn[name] for turn in turns[1:]) for name in contestants}  # the first turn warms up
