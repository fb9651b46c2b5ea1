"""Modules: models as trees of Python objects, exported to IR (the counterpart of TVM's `relax.frontend.nn`).

    class Classifier(nn.Module):
        def __init__(self):
            self.hidden = nn.Linear(784, 128)
            self.output = nn.Linear(128, 10)

        def forward(self, x):
            return self.output(nn.op.nn.relu(self.hidden(x)))

    mod, params = Classifier().export({"forward": {"x": nn.spec.Tensor(("n", 784), "float32")}})

Export runs `forward` on symbolic tensors; `n` is a symbolic dimension. `params` holds the parameters that have data.
"""

import difflib
from typing import NoReturn

from relaxpy.nn import op, spec
from relaxpy.nn.layers import BatchNorm, Conv2d, Embedding, LayerNorm, Linear, RMSNorm
from relaxpy.nn.module import Module, ModuleList, Parameter
from relaxpy.nn.tensor import Tensor
from relaxpy.op import OPS


def __getattr__(name: str) -> NoReturn:
    found = next((n for n in (name.lower(), f"nn.{name.lower()}") if n in OPS), None)
    if name in ("functional", "F"):
        advice = ": write nn.op.nn.relu(x), nn.op.matmul(x, w), … in `forward`"
    elif name in ("Sequential", "ModuleDict", "ParameterList"):
        advice = ": write nn.ModuleList([…]), which applies its modules in order when it is called"
    elif name.startswith("Dropout") or name == "Identity":
        advice = ": programs are for inference, where it does nothing: remove it"
    elif found is not None:
        advice = f": it has no weights, write nn.op.{found}(x) in `forward`"
    else:
        near = difflib.get_close_matches(name, __all__, 1)
        advice = f": did you mean {near[0]!r}?" if near else f": layers are {', '.join(__all__)}"
    raise AttributeError(f"relaxpy.nn has no {name!r}{advice}")


__all__ = [
    "BatchNorm",
    "Conv2d",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "Parameter",
    "RMSNorm",
    "Tensor",
    "op",
    "spec",
]


def __dir__() -> list[str]:
    return sorted(__all__)
