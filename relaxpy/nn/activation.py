"""Activations as modules. Those without weights are also operators: `nn.op.nn.relu(x)`."""

from __future__ import annotations

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor


class _Activation(Module):
    """An activation without options. `inplace` is accepted: results are values, and the compiler reuses memory."""

    def __init__(self, inplace: bool = False) -> None:
        del inplace


class ReLU(_Activation):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.relu(x)


class ReLU6(_Activation):
    """x clamped to [0, 6]."""

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.relu6(x)


class SiLU(_Activation):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.silu(x)


class SELU(_Activation):
    """The self-normalising exponential linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.selu(x)


class Mish(_Activation):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return x * op.tanh(op.nn.softplus(x))


class Hardtanh(Module):
    """x clamped to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        del inplace
        if not min_val < max_val:
            raise mistake("bad-spec", f"min_val {min_val} must be less than max_val {max_val}")
        self.min_val, self.max_val = min_val, max_val

    def extra_repr(self) -> str:
        return options(min_val=self.min_val, max_val=self.max_val)

    def forward(self, x: Tensor) -> Tensor:
        return op.clip(x, self.min_val, self.max_val)


class Hardsigmoid(_Activation):
    """relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.relu6(x + 3.0) * (1 / 6)


class Hardswish(_Activation):
    """x * relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (op.nn.relu6(x + 3.0) * (1 / 6))


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return op.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return -op.nn.softplus(-x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return op.tanh(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (abs(x) + 1.0)


class GELU(Module):
    """The Gaussian error linear unit; `approximate="tanh"` is that of GPT-2."""

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise mistake("bad-spec", f'approximate must be "none" or "tanh", got {approximate!r}')
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.gelu(x) if self.approximate == "none" else op.nn.gelu_tanh(x)


class LeakyReLU(Module):
    """x where it is positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        del inplace
        self.negative_slope = negative_slope

    def extra_repr(self) -> str:
        return options(negative_slope=self.negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.leakyrelu(x, alpha=self.negative_slope)


class ELU(Module):
    """x where it is positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        del inplace
        self.alpha = alpha

    def extra_repr(self) -> str:
        return options(alpha=self.alpha)

    def forward(self, x: Tensor) -> Tensor:
        low = op.minimum(x, 0.0)  # exp of what is selected only: no infinity on the other side
        return op.where(x > 0.0, x, (op.exp(low) - 1.0) * self.alpha)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def extra_repr(self) -> str:
        return options(beta=self.beta, threshold=self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.softplus(x, beta=self.beta, threshold=self.threshold)


class PReLU(Module):
    """x where it is positive, else x * weight, a number a channel (axis 1) or one for all."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: str = "float32") -> None:
        del init
        self.weight = Parameter((num_parameters,), dtype)

    def extra_repr(self) -> str:
        return options(num_parameters=self.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        ones = (1,) * max(x.ndim - 2, 0)
        single = self.weight.shape[0] == 1 or x.ndim < 2
        slope = self.weight if single else op.reshape(self.weight, (-1, *ones))
        return op.where(x > 0.0, x, x * slope)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def extra_repr(self) -> str:
        return options(dim=self.dim)

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.softmax(x, axis=self.dim)


class LogSoftmax(Module):
    """log(softmax(x)) along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def extra_repr(self) -> str:
        return options(dim=self.dim)

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.log_softmax(x, axis=self.dim)


class GLU(Module):
    """a * sigmoid(b), the two halves of x along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def extra_repr(self) -> str:
        return options(dim=self.dim)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[self.dim]
        if (size % 2).value == 1:
            raise mistake(
                "shape-mismatch", f"a GLU halves axis {self.dim}, whose size {size} is odd"
            )
        a, b = op.split(x, 2, axis=self.dim)
        return a * op.sigmoid(b)
