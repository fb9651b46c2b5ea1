"""Which weights of a model are packed after its build, one by one from torch's memory."""

from __future__ import annotations

import numpy as np

from relaxpy.frontend.torch.importer import Imported
from relaxpy.ir import Call, Function, Var
from relaxpy.ir.accessors import expect
from relaxpy.ir.visitor import used_vars
from relaxpy.op.conv import Convolution
from relaxpy.op.norm import BatchNorm

_LARGE_MODEL, _LARGE_WEIGHT = 64 << 20, 64 << 10
"""Of a model with so many bytes of weights, those of so many bytes are packed one by one after the build, from torch's
memory: a build that binds them has each of them twice for a while. All others are bound: each that is passed costs a
call half a microsecond."""


def streamed_weights(found: Imported) -> dict[str, np.ndarray]:
    """The weights that are packed after the build: the large ones of a large model, but for convolutions, which batch
    normalisation is folded into."""
    if sum(array.nbytes for array in found.params.values()) < _LARGE_MODEL:
        return {}
    main = expect(Function, found.mod["main"])
    folded: set[Var] = set()
    for binding in main.body.bindings:
        if isinstance(binding.value, Call) and isinstance(
            binding.value.op, (BatchNorm, Convolution)
        ):
            folded.update(used_vars(binding.value))
    kept = {var.name for var in folded}
    return {
        name: array
        for name, array in found.params.items()
        if name not in kept and array.nbytes >= _LARGE_WEIGHT
    }
