"""Recurrent layers, with the parameters of torch's: the operators `nn.lstm`, `nn.gru` and `nn.rnn`."""

from __future__ import annotations

from typing import Any, ClassVar

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor


class _Kind(Module):
    """A kind of recurrent network, for its layers and its cell."""

    gates: ClassVar[int]
    """The number of vectors of the hidden size that a step computes from the input."""
    states: ClassVar[int] = 1
    """The number of vectors that go from step to step."""
    proj_size: int = 0

    def _call(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The operator."""
        raise NotImplementedError


class _Elman(_Kind):
    gates = 1
    nonlinearity: str

    def _choose(self, nonlinearity: str) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise mistake(
                "bad-spec", f'nonlinearity must be "tanh" or "relu", got {nonlinearity!r}'
            )
        self.nonlinearity = nonlinearity

    def _call(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return op.nn.rnn(*args, **kwargs, activations=(self.nonlinearity,))


class _Lstm(_Kind):
    gates, states = 4, 2

    def _call(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return op.nn.lstm(*args, **kwargs, projection=self.proj_size > 0)


class _Gru(_Kind):
    gates = 3

    def _call(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return op.nn.gru(*args, **kwargs)


class _Recurrent(_Kind):
    """Layers of a recurrent network, in one direction or both."""

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
        rows, state = self.gates * hidden_size, self.proj_size or hidden_size
        for layer in range(num_layers):
            width = state * (1 + bidirectional) if layer else input_size
            shapes = {"weight_ih": (rows, width), "weight_hh": (rows, state)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if self.proj_size:
                shapes["weight_hr"] = (state, hidden_size)
            for suffix in [f"l{layer}", f"l{layer}_reverse"][: 1 + bidirectional]:
                for name, shape in shapes.items():
                    self.__setattr__(f"{name}_{suffix}", Parameter(shape, dtype))

    def extra_repr(self) -> str:
        more = {
            "num_layers": self.num_layers,
            "bidirectional": self.bidirectional,
            "proj_size": self.proj_size,
        }
        shown = options(**{name: value for name, value in more.items() if value not in (0, 1)})
        return ", ".join(filter(None, (f"{self.input_size}, {self.hidden_size}", shown)))

    def forward(
        self, x: Tensor, state: Any = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """(length, batch, input), with `batch_first` (batch, length, input), or (length, input) without a batch.
        Returns the outputs of all steps, (length, batch, directions * hidden) or likewise, and the last state of each
        layer and direction, (layers * directions, batch, hidden). `lengths` (batch,) says how many steps each sequence
        has, in place of torch's packed sequences: outputs after them are 0."""
        if x.ndim not in (2, 3):
            raise mistake("op-rank", f"the input must have 2 or 3 axes, got {x.ndim}")
        single = x.ndim == 2
        first = self._first(state)
        if single:
            x = op.expand_dims(x, 1)
            first = [each if each is None else op.expand_dims(each, 1) for each in first]
        y, *last = self._call(
            x,
            [value for value in vars(self).values() if isinstance(value, Parameter)],
            *first,
            lengths=lengths,
            num_layers=self.num_layers,
            direction="bidirectional" if self.bidirectional else "forward",
            biases=2 if self.bias else 0,
            batch_first=self.batch_first and not single,
        )
        if single:
            y, *last = (op.squeeze(each, 1) for each in (y, *last))
        return y, tuple(last) if self.states > 1 else last[0]

    def _first(self, state: Any) -> list[Tensor | None]:
        """The states before the first step."""
        if state is None:
            return [None] * self.states
        given = tuple(state) if self.states > 1 and isinstance(state, (tuple, list)) else (state,)
        if len(given) != self.states or not all(isinstance(each, Tensor) for each in given):
            raise mistake(
                "bad-spec",
                f"the state of {type(self).__name__} must be {self.states} tensors (layers, batch, hidden)",
                help="(h, c)" if self.states > 1 else "h",
            )
        return list(given)


class RNN(_Elman, _Recurrent):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it (Elman, 1990)."""

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
        self._choose(nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )


class LSTM(_Lstm, _Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997). Its state is (h, c). With a `proj_size` h is a
    product of the output with a weight (Sak et al., 2014)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        dtype: str = "float32",
    ) -> None:
        if not 0 <= proj_size < hidden_size:
            raise mistake(
                "bad-spec",
                f"proj_size must be 0 or below the hidden size {hidden_size}, got {proj_size}",
            )
        self.proj_size = proj_size
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype
        )


class GRU(_Gru, _Recurrent):
    """Gated recurrent units (Cho et al., 2014)."""


class _Cell(_Kind):
    """One step of a recurrent layer."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, dtype: str = "float32"
    ) -> None:
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        self.weight_ih = Parameter((rows, input_size), dtype)
        self.weight_hh = Parameter((rows, hidden_size), dtype)
        self.bias_ih = Parameter((rows,), dtype) if bias else None
        self.bias_hh = Parameter((rows,), dtype) if bias else None

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def forward(self, x: Tensor, state: Any = None) -> Any:
        """(batch, input) or (input,), and the state (batch, hidden) or (hidden,), zeros if left out; of an LSTM a pair
        (h, c). Returns the next state."""
        if x.ndim not in (1, 2):
            raise mistake("op-rank", f"the input must have 1 or 2 axes, got {x.ndim}")
        given = [None] * self.states if state is None else state if self.states > 1 else [state]
        axes = (0,) if x.ndim == 2 else (0, 1)
        first = [None if each is None else op.expand_dims(each, axes) for each in given]
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        _, *last = self._call(
            op.expand_dims(x, axes),
            [each for each in weights if each is not None],
            *first,
            biases=2 if self.bias else 0,
        )
        found = tuple(op.squeeze(each, axes) for each in last)
        return found if self.states > 1 else found[0]


class RNNCell(_Elman, _Cell):
    """A step of `RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: str = "float32",
    ) -> None:
        self._choose(nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype)


class LSTMCell(_Lstm, _Cell):
    """A step of `LSTM`. Its state is (h, c)."""


class GRUCell(_Gru, _Cell):
    """A step of `GRU`."""
