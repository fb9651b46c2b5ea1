"""Modules: models as trees of Python objects, exported to IR (the counterpart of TVM's `relax.frontend.nn`).

    class Classifier(nn.Module):
        def __init__(self):
            self.hidden = nn.Linear(784, 128)
            self.output = nn.Linear(128, 10)

        def forward(self, x):
            return self.output(nn.op.nn.relu(self.hidden(x)))

    mod, params = Classifier().export({"forward": {"x": nn.spec.Tensor(("n", 784), "float32")}})

Export runs `forward` on symbolic tensors; `n` is a symbolic dimension. `params` holds the parameters that have data.
Layers have the names, parameters and layouts of torch's: `model.load_state_dict(theirs.state_dict())`.
"""

import sys
from typing import NoReturn

from relaxpy.errors import did_you_mean
from relaxpy.nn import op, spec
from relaxpy.nn.activation import (
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from relaxpy.nn.adapters import Adapters, SharedAdapters
from relaxpy.nn.attention import MultiheadAttention, causal_attention
from relaxpy.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from relaxpy.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from relaxpy.nn.kv_cache import KVCache
from relaxpy.nn.linear import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    Identity,
    Linear,
    Unflatten,
)
from relaxpy.nn.mlp import GatedMLP, MixtureOfExperts
from relaxpy.nn.module import Module
from relaxpy.nn.norm import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from relaxpy.nn.pad import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from relaxpy.nn.paged_cache import (
    PAGE_SIZE,
    PagedBatch,
    PagedCache,
    Pages,
    check_pages,
    copy_pages,
)
from relaxpy.nn.parameter import Buffer, Parameter
from relaxpy.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
)
from relaxpy.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from relaxpy.nn.rotary import Rope, RotaryEmbedding
from relaxpy.nn.sampling import sample, sampling_spec, top_logprobs
from relaxpy.nn.tensor import Tensor
from relaxpy.nn.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from relaxpy.nn.update import update_slice
from relaxpy.op import OPS
from relaxpy.op.familiar import advice as advice_of

_LOSSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
}
"""torch's classes of losses → its functions, whose counterparts are known."""


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # asked for by tools, which do not read hints
        raise AttributeError(f"module 'relaxpy.nn' has no attribute {name!r}")
    found = next((n for n in (name.lower(), f"nn.{name.lower()}") if n in OPS), None)
    if name in ("functional", "F"):
        advice = ": write nn.op.nn.relu(x), nn.op.matmul(x, w), … in `forward`"
    elif name == "init":
        advice = ": weights come from arrays, model.load_state_dict(state)"
    elif name in _LOSSES:
        advice = f": {advice_of(_LOSSES[name], 'nn.op.')}, and train with relaxpy.train.Step (docs/gradients.md)"
    elif name in ("Conv1D", "Conv2D", "Conv3D", "ConvTranspose1D"):
        advice = f": did you mean {name[:-1]}d?"
    elif found is not None:
        advice = f": it has no weights, write nn.op.{found}(x) in `forward`"
    elif "torch" in sys.modules and hasattr(sys.modules["torch"].nn, name):
        advice = ": it is torch's alone, write it with nn.op, or import the model: relaxpy.from_torch(model, args=(x,))"
    else:
        names = (
            "see dir(relaxpy.nn); relaxpy.from_torch(model, args=(x,)) imports a module of torch"
        )
        advice = f": {did_you_mean(name, __all__) or names}"
    raise AttributeError(f"relaxpy.nn has no {name!r}{advice}")


__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "PAGE_SIZE",
    "RNN",
    "SELU",
    "Adapters",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Buffer",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GatedMLP",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KVCache",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "MixtureOfExperts",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PReLU",
    "PagedBatch",
    "PagedCache",
    "Pages",
    "Parameter",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Rope",
    "RotaryEmbedding",
    "Sequential",
    "SharedAdapters",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "Tensor",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "causal_attention",
    "check_pages",
    "copy_pages",
    "op",
    "sample",
    "sampling_spec",
    "spec",
    "top_logprobs",
    "update_slice",
]


def __dir__() -> list[str]:
    return sorted(__all__)
