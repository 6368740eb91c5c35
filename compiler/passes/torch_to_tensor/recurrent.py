"""Recurrent networks (LSTM, GRU, plain), unrolled over time, so the number of steps must be known.

The contribution of the inputs to the gates is one matmul for all steps; each step adds that of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, cast, const, op, select, static
from compiler.passes.torch_to_tensor import formula as f
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value
from compiler.passes.torch_to_tensor.contract import Element, product
from compiler.passes.torch_to_tensor.views import permute_dims

State = tuple[Value, ...]  # the hidden state and, for an LSTM, the cell state


@dataclass(frozen=True)
class Weights:
    """Weights of one layer in one direction, with gates stacked along the first dimension."""

    from_input: Value
    from_state: Value
    input_bias: Value | None
    state_bias: Value | None

    @property
    def hidden(self) -> Expr:
        return self.from_state.shape[1]


@dataclass(frozen=True)
class Gates:
    """The contributions of inputs and state to the gates of one step; an index is (batch, feature)."""

    of_input: Callable[[Index, int], Expr]
    of_state: Callable[[Index, int], Expr]

    def sum(self, at: Index, gate: int) -> Expr:
        return self.of_input(at, gate) + self.of_state(at, gate)


Cell = Callable[[Builder, Gates, State], State]


def lstm_cell(b: Builder, gates: Gates, state: State) -> State:
    """Gates: input, forget, candidate, output."""
    _, previous = state

    def new_cell(at: Index) -> Expr:
        new = f.sigmoid(gates.sum(at, 0)) * op("tanh", gates.sum(at, 2))
        return f.sigmoid(gates.sum(at, 1)) * previous.at(at) + new

    cell = b.map(previous.shape, new_cell, "cell")
    return b.map(previous.shape, lambda at: f.sigmoid(gates.sum(at, 3)) * op("tanh", cell.at(at)), "hidden"), cell


def gru_cell(b: Builder, gates: Gates, state: State) -> State:
    """Gates: reset, update, candidate."""
    (previous,) = state

    def hidden(at: Index) -> Expr:
        new = op("tanh", gates.of_input(at, 2) + f.sigmoid(gates.sum(at, 0)) * gates.of_state(at, 2))
        return new + f.sigmoid(gates.sum(at, 1)) * (previous.at(at) - new)

    return (b.map(previous.shape, hidden, "hidden"),)


def plain_cell(activation: Callable[[Expr], Expr]) -> Cell:
    return lambda b, gates, state: (b.map(state[0].shape, lambda at: activation(gates.sum(at, 0)), "hidden"),)


def _contribution(b: Builder, shape: Shape, left: Element, weight: Value, bias: Value | None, hint: str) -> Value:
    """A linear map of the last dimension."""
    contribution = product(b, shape, weight.shape[1:], left, lambda at, r: weight.rounded_at((at[-1], r[0])), hint)
    if bias is None:
        return contribution
    return b.map(shape, lambda at: contribution.at(at) + cast(bias.at(at[-1:]), contribution.compute), hint)


def _run_direction(
    b: Builder, x: Value, w: Weights, cell: Cell, state: State, steps: Sequence[int]
) -> dict[int, State]:
    """The states after each of the steps, taken in that order; `x` is (time, batch, feature)."""
    gate_features, hidden = w.from_input.shape[0], w.hidden
    from_inputs = _contribution(
        b,
        (*x.shape[:2], gate_features),
        lambda at, r: x.rounded_at((*at[:2], r[0])),
        w.from_input,
        w.input_bias,
        "given",
    )
    out: dict[int, State] = {}
    for t in steps:
        state = cell(b, _gates_of(b, from_inputs, state[0], w, hidden, t), state)
        state = out[t] = tuple(replace(s, dtype=x.dtype) for s in state)
    return out


def _gates_of(b: Builder, from_inputs: Value, previous: Value, w: Weights, hidden: Expr, t: int) -> Gates:
    shape = (from_inputs.shape[1], from_inputs.shape[2])
    from_state = _contribution(
        b, shape, lambda at, r: previous.rounded_at((at[0], r[0])), w.from_state, w.state_bias, "recurrent"
    )
    return Gates(
        lambda at, gate: from_inputs.at((const(t), at[0], at[1] + hidden * gate)),
        lambda at, gate: from_state.at((at[0], at[1] + hidden * gate)),
    )


def _concatenate_directions(b: Builder, directions: Sequence[dict[int, State]], dtype: DType) -> Value:
    """Hidden states of all steps, directions concatenated: (time, batch, feature)."""
    count = len(directions[0])
    batch, hidden = directions[0][0][0].shape
    shape = (const(count), batch, hidden * len(directions))

    def element(at: Index) -> Expr:
        sides = []
        for k, states in enumerate(directions):
            index = (at[1], at[2] - hidden * k)
            side = states[count - 1][0].at(index)
            for t in reversed(range(count - 1)):
                side = select(op("eq", at[0], t), states[t][0].at(index), side)
            sides.append(side)
        return sides[0] if len(sides) == 1 else select(op("lt", at[2], hidden), *sides)

    return replace(b.map(shape, element, "sequence"), dtype=dtype)


def _stack_states(b: Builder, states: Sequence[Value]) -> Value:
    shape = (const(len(states)), *states[0].shape)

    def element(at: Index) -> Expr:
        out = states[-1].at(at[1:])
        for k in reversed(range(len(states) - 1)):
            out = select(op("eq", at[0], k), states[k].at(at[1:]), out)
        return out

    return b.map(shape, element, "last")


def _run_network(
    cell: Cell, b: Builder, input: Value, start: State, params: Sequence[Value], options: Options
) -> State:
    """All layers: the sequence of hidden states, and the last states of every layer and direction."""
    x = permute_dims(b, input, (1, 0, 2)) if options.batch_first else input
    count = static(x.shape[0], "the number of time steps")
    direction_count = 1 + options.bidirectional
    weights_per_layer = 4 if options.has_biases else 2
    if len(params) != weights_per_layer * direction_count * options.num_layers:
        raise b.refuse("hidden states are projected")
    if not count:
        raise b.refuse("a sequence without elements")
    last: list[State] = []
    for layer in range(options.num_layers):
        states_by_step = []
        for direction in range(direction_count):
            k = layer * direction_count + direction
            w = Weights(
                *params[weights_per_layer * k : weights_per_layer * k + weights_per_layer],
                *([None] * (4 - weights_per_layer)),
            )
            state = tuple(_initial_state(b, s, k) for s in start)
            steps = list(reversed(range(count))) if direction else list(range(count))
            states_by_step.append(_run_direction(b, x, w, cell, state, steps))
            last.append(states_by_step[-1][steps[-1]])
        x = _concatenate_directions(b, states_by_step, input.dtype)
    finals = tuple(_stack_states(b, [s[n] for s in last]) for n in range(len(start)))
    return (permute_dims(b, x, (1, 0, 2)) if options.batch_first else x, *finals)


def _initial_state(b: Builder, x: Value, k: int) -> Value:
    return replace(b.map(x.shape[1:], lambda at: x.at((const(k), *at)), "start"), dtype=x.dtype)


@dataclass(frozen=True)
class Options:
    """Arguments common to all recurrent networks."""

    has_biases: bool
    num_layers: int
    bidirectional: bool
    batch_first: bool


def _options(
    b: Builder, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool
) -> Options:
    if dropout and train and num_layers > 1:
        raise b.refuse("dropout while training is random")
    return Options(has_biases, num_layers, bidirectional, batch_first)


def lstm(
    b: Builder, input: Value, hx: Sequence[Value], params: Sequence[Value], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> State:  # fmt: skip
    options = _options(b, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    results = _run_network(lstm_cell, b, input, tuple(hx), params, options)
    if any(t is not None and t.shape != result.shape for t, result in zip(b.types, results, strict=True)):
        raise b.refuse("this version of torch traces the last states in a wrong shape; torch 2.13 does not")
    return results


def with_one_state(cell: Cell) -> Rule:
    def rule(
        b: Builder, input: Value, hx: Value, params: Sequence[Value], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> State:  # fmt: skip
        options = _options(b, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return _run_network(cell, b, input, (hx,), params, options)

    return rule


def onednn_layer(
    b: Builder, input: Value, weight0: Value, weight1: Value, weight2: Value, weight3: Value, hx_: Value, cx_: Value,
    reverse: bool, batch_sizes: Sequence[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    bidirectional: bool, batch_first: bool, train: bool,
) -> tuple[Value | None, ...]:  # fmt: skip
    """One layer of an LSTM in one direction, as torch decomposes it on CPUs; the last result is for training."""
    if mode != ONEDNN_LSTM or batch_sizes or num_layers != 1 or bidirectional or batch_first or train:
        raise b.refuse("more than one layer of an LSTM in one direction, or packed sequences, or training")
    count = static(input.shape[0], "the number of time steps")
    if not count:
        raise b.refuse("a sequence without elements")
    steps = list(reversed(range(count))) if reverse else list(range(count))
    biases = (weight2, weight3) if has_biases else (None, None)
    start = (_initial_state(b, hx_, 0), _initial_state(b, cx_, 0))
    states = _run_direction(b, input, Weights(weight0, weight1, *biases), lstm_cell, start, steps)
    return _concatenate_directions(b, [states], input.dtype), *(_stack_states(b, [x]) for x in states[steps[-1]]), None


ONEDNN_LSTM = 2  # LSTM in ideep's enumeration of networks, as torch passes it

RULES: dict[str, Rule] = {
    "aten.mkldnn_rnn_layer.default": onednn_layer,
    "aten.lstm.input": lstm,
    "aten.gru.input": with_one_state(gru_cell),
    "aten.rnn_tanh.input": with_one_state(plain_cell(lambda x: op("tanh", x))),
    "aten.rnn_relu.input": with_one_state(plain_cell(f.relu)),
}
