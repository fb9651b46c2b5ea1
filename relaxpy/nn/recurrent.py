"""Recurrent layers, with the parameters of torch's.

The products of the inputs do not depend on the state: they are one matrix product of all steps. The steps are a
recursive function of the module, which halves the sequence: it calls itself on the first half, and with the state after
that on the second. So calls are nested as deep as the logarithm of the length, and any length runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relaxpy.ir import (
    Call,
    Dim,
    Function,
    GlobalVar,
    PrimValue,
    SeqExpr,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from relaxpy.ir.dim import dim_op
from relaxpy.nn import op
from relaxpy.nn.construction import Construction, mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor
from relaxpy.op.block_builder import BlockBuilder


class _Recurrent(Module):
    """Layers of a recurrent network, in one direction or both."""

    gates: ClassVar[int]
    """The number of vectors of the hidden size that a step computes from the input."""
    states: ClassVar[int] = 1
    """The number of vectors that go from step to step."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str = "float32",
    ) -> None:
        del dropout
        if num_layers < 1:
            raise mistake("bad-spec", f"num_layers must be at least 1, got {num_layers}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                width = hidden_size * (1 + bidirectional) if layer else input_size
                rows = self.gates * hidden_size
                self.__setattr__(f"weight_ih_{suffix}", Parameter((rows, width), dtype))
                self.__setattr__(f"weight_hh_{suffix}", Parameter((rows, hidden_size), dtype))
                if bias:
                    self.__setattr__(f"bias_ih_{suffix}", Parameter((rows,), dtype))
                    self.__setattr__(f"bias_hh_{suffix}", Parameter((rows,), dtype))

    def extra_repr(self) -> str:
        more = {"num_layers": self.num_layers, "bidirectional": self.bidirectional}
        shown = options(**{name: value for name, value in more.items() if value not in (1, False)})
        return ", ".join(filter(None, (f"{self.input_size}, {self.hidden_size}", shown)))

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: 1 + self.bidirectional]

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(length, batch, input), with `batch_first` (batch, length, input), or (length, input) without a batch.
        Returns the outputs of all steps, (length, batch, directions * hidden) or likewise, and the last state of each
        layer and direction, (layers * directions, batch, hidden)."""
        if x.ndim not in (2, 3):
            raise mistake("op-rank", f"the input must have 2 or 3 axes, got {x.ndim}")
        single = x.ndim == 2
        if single:
            x = op.expand_dims(x, 1)
        elif self.batch_first:
            x = op.permute_dims(x, (1, 0, 2))
        first = self._first(x, state, single)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(layer):
                back = suffix.endswith("reverse")
                start = tuple(each[len(last)] for each in first)
                y, *end = self._run(op.flip(x, 0) if back else x, suffix, start)
                outputs.append(op.flip(y, 0) if back else y)
                last.append(tuple(end))
            x = op.concat(outputs, axis=-1) if len(outputs) > 1 else outputs[0]
        ends = tuple(op.stack([each[i] for each in last], axis=0) for i in range(self.states))
        if single:
            return op.squeeze(x, 1), self._state(tuple(op.squeeze(end, 1) for end in ends))
        x = op.permute_dims(x, (1, 0, 2)) if self.batch_first else x
        return x, self._state(ends)

    def _state(self, parts: tuple[Tensor, ...]) -> Any:
        return parts if self.states > 1 else parts[0]

    def _first(self, x: Tensor, state: Any, single: bool) -> list[list[Tensor]]:
        """The states before the first step: for each of a step's states, those of all layers and directions."""
        count = self.num_layers * (1 + self.bidirectional)
        if state is None:
            zeros = op.zeros((x.shape[1], self.hidden_size), x.dtype)
            return [[zeros] * count] * self.states
        given = tuple(state) if self.states > 1 and isinstance(state, (tuple, list)) else (state,)
        if len(given) != self.states or not all(isinstance(each, Tensor) for each in given):
            raise mistake(
                "bad-spec",
                f"the state of {type(self).__name__} must be {self.states} tensors (layers, batch, hidden)",
                help="(h, c)" if self.states > 1 else "h",
            )
        given = tuple(op.expand_dims(each, 1) if single else each for each in given)
        return [[each[i] for i in range(count)] for each in given]

    def _run(self, x: Tensor, suffix: str, start: Sequence[Tensor]) -> list[Tensor]:
        """The outputs (length, batch, hidden) of one direction of a layer, and the last state."""
        weights = vars(self)
        inputs = op.linear(x, weights[f"weight_ih_{suffix}"])
        if self.bias:
            inputs = inputs + weights[f"bias_ih_{suffix}"]
        own = [weights[f"weight_hh_{suffix}"]]
        own += [weights[f"bias_hh_{suffix}"]] if self.bias else []
        construction = Construction.current()
        loop = construction.once(self._key(x), lambda builder: self._loop(builder, str(x.dtype)))
        args = tuple(each.__relax_expr__ for each in (inputs, *start, *own))
        return list(construction.emit(Call(loop, args), "steps"))

    def _key(self, x: Tensor) -> tuple[Any, ...]:
        return type(self).__name__, self._variant(), self.hidden_size, self.bias, str(x.dtype)

    def _variant(self) -> str:
        """The options that change the steps of a layer of this class."""
        return ""

    def step(self, inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The state after a step; its first vector is the output. `inputs` and `hidden` are the products of the input
        and of the state, (batch, gates * hidden size)."""
        raise NotImplementedError

    def _loop(self, builder: BlockBuilder, dtype: str) -> GlobalVar:
        """The recursive function of the steps: (inputs, *state, weight, bias) → (outputs, *state)."""
        size, rows = self.hidden_size, self.gates * self.hidden_size
        length, batch = SymVar("length"), SymVar("batch")
        one = TensorType((batch, size), dtype)
        inputs = Var("inputs", TensorType((length, batch, rows), dtype))
        state = [Var(f"state{i}", one) for i in range(self.states)]
        own = [Var("weight", TensorType((rows, size), dtype))]
        own += [Var("bias", TensorType((rows,), dtype))] if self.bias else []
        params = (inputs, *state, *own)
        ret = TupleType((TensorType((length, batch, size), dtype), *(one,) * self.states))
        # The function is declared before its body is made, which calls it.
        declared = Function(params, SeqExpr((), inputs), ret, True, {})
        loop = builder.add_func(declared, f"{type(self).__name__.lower()}_steps")
        n, b = length.dim, batch.dim
        with builder.function(loop.name, params, private=True, ret=ret):
            with builder.seq() as none:
                empty = op.zeros((n, b, size), dtype)
                none.result(builder.emit(Tuple((empty.__relax_expr__, *state))))
            with builder.seq() as some:
                with builder.seq() as last:
                    last.result(builder.emit(self._last(n, b, inputs, state, own)))
                with builder.seq() as halves:
                    halves.result(builder.emit(self._halves(builder, loop, n, params)))
                single = PrimValue(dim_op("eq", n, 1))
                some.result(builder.emit_if(single, last.seq, halves.seq, "steps"))
            zero = PrimValue(dim_op("eq", n, 0))
            builder.emit_func_output(builder.emit_if(zero, none.seq, some.seq, "result"))
        return loop

    def _last(self, n: Dim, b: Dim, inputs: Var, state: Sequence[Var], own: Sequence[Var]) -> Tuple:
        """The result of a single step."""
        size, rows = self.hidden_size, self.gates * self.hidden_size
        tensors = [Tensor(var, var.annotation) for var in (inputs, *state, *own)]
        x, before, weights = tensors[0], tensors[1 : 1 + self.states], tensors[1 + self.states :]
        now = op.reshape(op.strided_slice(x, (0,), (0,), (1,), assume_inbound=True), (b, rows))
        hidden = op.linear(before[0], weights[0])
        hidden = hidden + weights[1] if self.bias else hidden
        after = self.step(now, hidden, before)
        y = op.broadcast_to(op.expand_dims(after[0], 0), (n, b, size))
        return Tuple(tuple(each.__relax_expr__ for each in (y, *after)))

    def _halves(
        self, builder: BlockBuilder, loop: GlobalVar, n: Dim, params: Sequence[Var]
    ) -> Tuple:
        """The result of both halves of a sequence."""
        inputs, *state = params[: 1 + self.states]
        own = params[1 + self.states :]
        x, half = Tensor(inputs, inputs.annotation), n // 2
        outputs = []
        for begin, end in ((0, half), (half, n)):
            part = op.strided_slice(x, (0,), (begin,), (end,), assume_inbound=True)
            done = builder.emit(Call(loop, (part.__relax_expr__, *state, *own)), "half")
            y, *state = (builder.emit(TupleGetItem(done, i)) for i in range(1 + self.states))
            outputs.append(Tensor(y, y.annotation))
        joined = op.concat(outputs, axis=0)
        return Tuple((joined.__relax_expr__, *state))


class RNN(_Recurrent):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it (Elman, 1990)."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str = "float32",
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise mistake(
                "bad-spec", f'nonlinearity must be "tanh" or "relu", got {nonlinearity!r}'
            )
        self.nonlinearity = nonlinearity
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )

    def _variant(self) -> str:
        return self.nonlinearity

    def step(self, inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        total = inputs + hidden
        return (op.tanh(total) if self.nonlinearity == "tanh" else op.nn.relu(total),)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997). Its state is (h, c)."""

    gates, states = 4, 2

    def step(self, inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        take, forget, cell, give = op.split(inputs + hidden, 4, axis=-1)
        c = op.sigmoid(forget) * state[1] + op.sigmoid(take) * op.tanh(cell)
        return op.sigmoid(give) * op.tanh(c), c


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al., 2014)."""

    gates = 3

    def step(self, inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        reset, update, new = op.split(inputs, 3, axis=-1)
        reset_h, update_h, new_h = op.split(hidden, 3, axis=-1)
        z = op.sigmoid(update + update_h)
        n = op.tanh(new + op.sigmoid(reset + reset_h) * new_h)
        return (n + z * (state[0] - n),)
