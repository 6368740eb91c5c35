"""Capture: names, weights, structure and refusals; and Torch IR run by eager kernels, as it is and in f64."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.experimental.proxy_tensor import make_fx

from compiler import frontend
from compiler.errors import CompilerError, Unsupported
from compiler.ir import aten, aten_text, tensor
from compiler.passes.torch_to_tensor import lower

LSTM = 2  # as torch's calls of oneDNN name it


def run(captured: frontend.Captured, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
    given = dict(zip(captured.arguments, inputs, strict=True)) | captured.constants
    tensors = [given[i.name] for i in captured.program.inputs]
    return captured.rebuild(frontend.execute(captured.program, tensors, dtype))


def text(function: Callable[..., Any], *inputs: Any, constants: tuple[int, ...] = ()) -> str:
    program = frontend.capture(function, inputs, constants).program
    aten.verify(program)
    assert aten_text.parse(aten_text.show(program)) is program
    return aten_text.show(program)


def test_inputs_are_named_as_the_parameters_and_keep_their_strides() -> None:
    assert text(lambda left, right: torch.add(left, right, alpha=2), torch.ones(2, 3), torch.ones(3, 2).t()) == (
        "def f(left: f32[2, 3], right: f32[2: 1, 3: 2]):\n"
        "    add: f32[2, 3] = aten.add.Tensor(left, right, alpha=2)\n"
        "    return add\n"
    )


def test_a_name_that_means_something_in_the_text_is_changed() -> None:
    assert text(lambda f32, inf: f32 + inf, torch.ones(2), torch.ones(2)).startswith(
        "def f(f32_1: f32[2], inf_1: f32[2])"
    )


def test_weights_of_a_module_become_constants() -> None:
    module = torch.nn.Linear(4, 3)
    captured = frontend.capture(module, [torch.ones(2, 4)])
    assert [i.constant for i in captured.program.inputs] == [True, True, False]
    assert captured.arguments == ("input",)
    assert {tuple(t.shape) for t in captured.constants.values()} == {(3, 4), (3,)}


def test_tensors_that_a_function_closes_over_become_constants() -> None:
    weight = torch.randn(3)
    captured = frontend.capture(lambda x: x * weight, [torch.ones(3)])
    (name,) = captured.constants
    assert captured.constants[name] is weight or torch.equal(captured.constants[name], weight)


def test_inputs_can_be_marked_as_weights() -> None:
    weight = torch.randn(3)
    captured = frontend.capture(lambda x, w: x * w, [torch.ones(3), weight], constants=[1])
    assert captured.constants == {"w": weight}
    assert captured.arguments == ("x", "w")


def test_a_tensor_passed_twice_is_two_inputs() -> None:
    x = torch.randn(3)
    captured = frontend.capture(lambda a, b: a - 2 * b, [x, x])
    y = torch.randn(3)
    assert torch.equal(run(captured, x, y), x - 2 * y)


def test_nested_arguments_and_results_are_rebuilt() -> None:
    def f(pair: Any, k: int) -> Any:
        return {"sum": pair[0] + k, "rest": [pair[1], None, 3]}

    x, y = torch.randn(2), torch.randn(3)
    captured = frontend.capture(f, [(x, y), 2])
    result = run(captured, x, y)
    assert torch.equal(result["sum"], x + 2)
    assert torch.equal(result["rest"][0], y)
    assert result["rest"][1:] == [None, 3]


def test_only_what_outputs_need_is_kept() -> None:
    program = frontend.capture(lambda x: (x.exp(), x.max(0)[1])[1], [torch.randn(3)]).program
    assert [c.op for c in program.calls] == ["aten.max.dim"]
    assert [t is None for t in program.calls[0].types] == [True, False]


def test_ops_without_a_rule_are_decomposed_and_ops_with_one_are_not() -> None:
    x = torch.randn(2, 3)
    made = text(lambda x: F.linear(F.gelu(F.glu(x.repeat(1, 2), 1)), x), x)
    assert "aten.linear.default" in made and "aten.gelu.default" in made
    assert "aten.glu.default(" not in made and "aten.sigmoid.default(" in made
    assert '    with decomposed("aten.glu.default"):' in made.splitlines()


def test_updates_within_a_decomposition_are_made_functional() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    captured = frontend.capture(F.cosine_similarity, [x, y])
    torch.testing.assert_close(run(captured, x, y), F.cosine_similarity(x, y))


def test_updates_of_fresh_tensors_are_made_functional() -> None:
    x = torch.randn(3)
    captured = frontend.capture(lambda x: (x * 2).add_(1).clamp_(max=0), [x])
    assert not any(c.op.split(".")[1].endswith("_") for c in captured.program.calls)
    assert torch.equal(run(captured, x), (x * 2 + 1).clamp(max=0))


def test_running_statistics_are_read_as_training_leaves_them() -> None:
    def f(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        mean, var = mean * 2, var + 1
        F.batch_norm(x, mean, var, training=True)
        return mean, var

    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3)
    captured = frontend.capture(f, [x, mean, var])
    torch.testing.assert_close(frontend.execute(captured.program, (x, mean, var)), f(x, mean, var))


@pytest.mark.parametrize("norm", [F.batch_norm, F.instance_norm, torch.batch_norm_update_stats])
def test_running_statistics_that_are_inputs_and_change_are_refused(norm: Callable[..., Any]) -> None:
    def f(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        norm(x, mean, var, **options)
        return mean + 1  # what the norm gives is not read

    options = {F.batch_norm: {"training": True}, F.instance_norm: {}}.get(norm, {"momentum": 0.1})
    with pytest.raises(Unsupported, match=r"in.place"):
        frontend.capture(f, [torch.randn(4, 3, 5), torch.randn(3), torch.rand(3)])


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x: x.add_(1), "in-place"),
        (lambda x: x[x > 0], "aten.index.Tensor.*depends on the data"),
        (lambda x: x.nonzero(), "aten.nonzero.default"),
        (lambda x: x * x.sum().item(), "_local_scalar_dense"),
        (lambda x: torch.rand(3) + x, "aten.rand.default.*random"),
        (lambda x: torch.fft.fft(x), "complex numbers"),
        (lambda x: x.to(torch.float8_e4m3fnuz), "float8_e4m3fnuz"),
        (lambda x: F.dropout(x), "aten.dropout.default.*random"),
        (lambda x: torch.linalg.svd(x)[1], r"aten._linalg_svd.default\(f32\[3, 3\]"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(Unsupported, match=problem):
        lower.lower(frontend.capture(function, [torch.randn(3, 3)]).program)


def test_all_unsupported_calls_are_named_in_one_error() -> None:
    program = frontend.capture(lambda x: torch.linalg.svd(x)[1] + torch.linalg.eigvalsh(x), [torch.randn(3, 3)]).program
    with pytest.raises(Unsupported, match=r"_linalg_svd.*_linalg_eigh"):
        lower.lower(program)


def test_unknown_arguments_are_refused() -> None:
    program = aten_text.parse("def f(x: f32[2]):\n    y: f32[2] = aten.gelu.default(x, exact=True)\n    return y\n")
    with pytest.raises(Unsupported, match=r"aten.gelu.default\(f32\[2\], exact=True\).*'exact'"):
        lower.lower(program)


def test_a_program_that_torch_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(CompilerError, match="reduction dim"):
        frontend.capture(lambda x: x @ x, [torch.randn(3, 4)])


def test_symbolic_sizes_are_named_in_their_order_with_what_torch_knows_of_them() -> None:
    n, m = torch.export.Dim("n", min=2), torch.export.Dim("m", max=70)
    captured = frontend.capture(
        lambda x, y: torch.cat([x, y], 1)[:, 1:], [torch.randn(3, 4), torch.randn(3, 9)],
        dynamic_shapes=({0: n}, {0: n, 1: m}),
    )  # fmt: skip
    text = aten_text.show(captured.program)
    assert text.startswith("def f(s0: size[2, inf, 3], s1: size[2, 70, 9], x: f32[s0, 4], y: f32[s0, s1]):\n")
    assert "cat: f32[s0, s1 + 4]" in text and "f32[s0: s1 + 4, s1 + 3: 1]" in text
    assert aten_text.parse(text) is captured.program
    inputs = torch.randn(5, 4), torch.randn(5, 7)
    torch.testing.assert_close(frontend.execute(captured.program, inputs)[0], torch.cat(inputs, 1)[:, 1:])


def test_numbers_that_are_no_sizes_are_refused() -> None:
    dynamic = ({0: torch.export.Dim("n", min=2)},)
    with pytest.raises(Unsupported, match="is a result, but only tensors can be"):
        frontend.capture(lambda x: (x + 1, x.shape[0]), [torch.randn(3, 4)], dynamic_shapes=dynamic)
    with pytest.raises(Unsupported, match="is a number that depends on a size"):
        frontend.capture(lambda x: x / x.shape[0] ** 0.3, [torch.randn(3, 4)], dynamic_shapes=dynamic)


def test_numbers_that_sizes_give_are_expressions() -> None:
    def f(x: torch.Tensor) -> Any:
        return x / (x.shape[0] / 3 + 1) * x.shape[0] ** -0.5

    captured = frontend.capture(f, [torch.randn(3, 4)], dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    text = aten_text.show(captured.program)
    assert "f64(s0) / f64(3.0) + f64(1.0)" in text and "sqrt(f64(s0))" in text
    assert aten_text.parse(text) is captured.program
    x = torch.randn(7, 4)
    torch.testing.assert_close(frontend.execute(captured.program, [x])[0], f(x))


def test_a_reference_runs_in_double_precision() -> None:
    x = torch.randn(4, 5).bfloat16()
    captured = frontend.capture(lambda x: F.softmax(x.float(), -1).to(torch.bfloat16) @ x.mT.mT.t(), [x])
    exact = F.softmax(x.double(), -1) @ x.double().t()
    result = run(captured, x, dtype=torch.float64)
    assert result.dtype is torch.float64
    torch.testing.assert_close(result, exact, rtol=1e-13, atol=1e-13)
    assert torch.get_default_dtype() is torch.float32


def test_a_reference_compares_with_scalars_as_the_original_does() -> None:
    x = torch.tensor([0.1, -2]).bfloat16()
    assert torch.equal(run(frontend.capture(lambda x: x == 0.1, [x]), x, dtype=torch.float64), x == 0.1)


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("along", [0, -1])
def test_a_reference_names_the_first_of_equal_elements_first(k: int, largest: bool, along: int) -> None:
    x = torch.randint(0, 3, (40, 50)).bfloat16()
    x[3, ::7] = x[::7, 3] = torch.nan
    values, indices = frontend.execute(
        frontend.capture(lambda x: torch.topk(x, k, along, largest), [x]).program, [x], torch.float64
    )
    expected = torch.sort(x, dim=along, descending=largest, stable=True)
    torch.testing.assert_close(values, expected.values.double().narrow(along, 0, k), equal_nan=True)
    assert torch.equal(indices, expected.indices.narrow(along, 0, k))
    ordered = frontend.capture(lambda x: torch.sort(x, along, largest)[1], [x])
    assert torch.equal(run(ordered, x, dtype=torch.float64), expected.indices)


def test_results_have_the_strides_that_the_caller_expects() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    program = lower.lower(frontend.capture(lambda x: x * 2, [x]).program)
    tensor.verify(program)
    assert tuple(s.value for s in program.outputs[0].strides) == x.stride()  # type: ignore[attr-defined]


def test_a_reference_keeps_defaults_that_depend_on_the_type() -> None:
    x = torch.full((4,), 1e-3)
    result = run(frontend.capture(lambda x: F.rms_norm(x, (4,)), [x]), x, dtype=torch.float64)
    torch.testing.assert_close(result.float(), F.rms_norm(x, (4,)), rtol=1e-6, atol=0)
    x = torch.tensor([float("inf"), 1.0])
    result = run(frontend.capture(torch.nan_to_num, [x]), x, dtype=torch.float64)
    assert torch.equal(result.float(), torch.nan_to_num(x))


def test_a_graph_of_aot_autograd_is_read() -> None:
    def inference(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        captured = frontend.from_graph(gm)
        aten.verify(captured.program)
        return make_boxed_func(lambda *given: run(captured, *given))

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return aot_module_simplified(graph, inputs, inference, decompositions=frontend.decompositions())

    x, weight = torch.randn(2, 3, 4, 4), torch.randn(4, 4)

    def f(x: torch.Tensor) -> Any:
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return F.layer_norm(F.gelu(F.linear(y, weight)), (4,)), F.softmax(y, -1), None

    with torch.no_grad():
        ours, theirs = torch.compile(f, backend=backend)(x), f(x)
    assert ours[2] is None
    torch.testing.assert_close(ours[:2], theirs[:2])


def test_a_part_may_be_taken_more_than_once() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    whole = graph.call_function(torch.ops.aten.split.Tensor, (x, 2, -1))
    one, same = (graph.call_function(operator.getitem, (whole, 1)) for _ in range(2))
    product = graph.call_function(torch.ops.aten.mul.Tensor, (one, same))
    graph.output((product,))
    given = torch.randn(3, 4)
    parts = torch.split(given, 2, -1)
    for node, value in ((x, given), (whole, parts), (one, parts[1]), (same, parts[1]), (product, parts[1] ** 2)):
        node.meta["val"] = value
    captured = frontend.from_graph(torch.fx.GraphModule({}, graph))
    (found,) = frontend.execute(captured.program, [given])
    assert torch.equal(found, parts[1] * parts[1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_an_lstm_without_an_f64_kernel_runs_in_f64(reverse: bool, has_biases: bool) -> None:
    shapes = (5, 2, 3), (16, 3), (16, 4), (16,), (16,), (1, 2, 4), (1, 2, 4)
    given = tuple(map(torch.randn, shapes))

    def layer(*tensors: torch.Tensor) -> Any:
        options = (reverse, (), LSTM, 4, 1, has_biases, False, False, False)
        return torch.ops.aten.mkldnn_rnn_layer(*tensors, *options)[:3]

    captured = frontend.from_graph(make_fx(layer, tracing_mode="fake")(*given))
    tensors = captured.inputs(given)
    in_f32, in_f64 = (frontend.execute(captured.program, tensors, dtype) for dtype in (None, torch.float64))
    torch.testing.assert_close(in_f32, tuple(x.float() for x in in_f64))


@pytest.mark.parametrize("name", ["layer_norm", "native_layer_norm"])
def test_the_reference_of_a_norm_is_0_at_the_mean(name: str) -> None:
    whole, weight, bias = torch.randint(-9, 9, (5, 7)).double(), torch.randn(8).double(), torch.randn(8).double()
    x = torch.cat([whole * 7, whole.sum(1, keepdim=True)], 1)  # the last is the mean

    def norm(x: torch.Tensor, *others: torch.Tensor) -> Any:
        found = getattr(torch.ops.aten, name)(x, [8], *(others or (None, None)), 1e-5)
        return found if isinstance(found, torch.Tensor) else found[0]

    for given in ((x,), (x, weight, bias)):
        captured = frontend.from_graph(make_fx(norm, pre_dispatch=True, tracing_mode="fake")(*given))
        assert f"aten.{name}.default" in aten_text.show(captured.program)
        (found,) = frontend.execute(captured.program, captured.inputs(given), torch.float64)
        torch.testing.assert_close(found, F.layer_norm(x, (8,), *given[1:]))
        assert torch.equal(found[:, 7], bias[7].expand(5) if given[1:] else torch.zeros(5).double())
