"""Modules: models as trees of Python objects, exported to IR (the counterpart of TVM's `relax.frontend.nn`).

class Classifier(nn.Module):
def __init__(self):
self.hidden = nn.Linear(784, 128)
self.output = nn.Linear(128, 10)

def forward(self, x):
return self.output(nn.op.nn.relu(self.hidden(x)))

mod, params = Classifier().export({"forward": {"x": nn.spec.Tensor(("n", 784), "float32")}})
"""

from relaxpy.nn import spec
from relaxpy.nn.module import Module, ModuleList, Parameter
from relaxpy.nn.tensor import Tensor

from relaxpy.nn import op  # isort: skip  (op is made of the above)
from relaxpy.nn.layers import BatchNorm, Conv2d, Embedding, LayerNorm, Linear, RMSNorm  # isort: skip

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
