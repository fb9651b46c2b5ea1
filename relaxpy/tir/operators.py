"""Operators of our own in TVM's registry: calls that its passes copy and vectorise without knowing what they do."""

from __future__ import annotations

from relaxpy.tir.tvm import tvm

PURE, READS_STATE = 1, 2
"""Values of TVM's `CallEffectKind`. A call that reads state is not a value that its name could be replaced by."""


def register(name: str, text: str, effect: int = PURE) -> None:
    """Register an operator that is described by a text."""
    tvm.ir.op._ffi_api.RegisterOp(name, text)
    tvm.ir.register_op_attr(name, "TCallEffectKind", effect)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name)
