"""Placement of values on devices: operators that mark a value and leave its numbers unchanged.

`R.to_vdevice` copies if the virtual device is a different one (`relaxpy.backend.place_values`). On the same device, and
between virtual devices of CPUs, it is the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.known import KnownTensor
from relaxpy.ir.vdevice import vdevice_of
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import Cotangent, Rule


class Mark(Op):
    """Base of operators that return their argument."""

    legalize = None
    packed: ClassVar[str] = "relaxpy.same"

    def marked(self, x: TensorType) -> TensorType:
        """The annotation of `x` with the mark."""
        return x

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return self.marked(x)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        x = expect(TensorType, x)
        return self.marked(x)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [ct]


@define_op
class HintOnDevice(Mark):
    """x, with a hint that it is on a device: `R.hint_on_device(x, R.cpu(0))`."""

    name = "hint_on_device"
    dst_device: str = "cpu:0"
    """The device, in the form of `R.cpu(0)` or `R.device("cuda", 1)`."""
    memory_scope: str = "global"

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        try:
            vdevice_of(self.dst_device)
        except UsageError as error:
            d.fail(error.message, arg="dst_device", code=error.code, help=error.help)
        return super().deduce(d, x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield sample(cls("cuda:1"), rand(0), dims="n")
        yield wrong(cls("cuda:one"), rand(3), code="device-name", match="cuda:one")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class ToVDevice(Mark):
    """x on a virtual device of the module: `R.to_vdevice(x, "llvm:0:global")`."""

    name = "to_vdevice"
    dst_vdevice: str

    def marked(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, x.dtype, x.ndim, self.dst_vdevice)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        home = b.known(args[0]).vdevice
        return [ct if home is None else b.to_vdevice(ct, home)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("llvm:0:global"), rand(3, 4), dims="n 4")
        yield wrong(cls("llvm:0:global"), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class StopLiftParams(Mark):
    """x, as a barrier: computations on it are not lifted into the function that transforms parameters."""

    name = "builtin.stop_lift_params"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")
