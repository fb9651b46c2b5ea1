"""A packed weight: an argument whose layout only the kernels of its executable know."""

from __future__ import annotations

from typing import Any

from relaxpy.runtime.absent import declare_absent, present
from relaxpy.runtime.tensor import Tensor


class PackedTensor:
    """A weight as the packer of an executable made it (`VirtualMachine.pack`). It is passed to functions of that
    executable, or of another one with an equal packer; its numbers are in an order that nothing else knows."""

    __slots__ = ("__weakref__", "layout", "sources", "tensor")

    def __init__(self, tensor: Tensor, layout: str, sources: tuple[str, ...]) -> None:
        self.tensor = tensor
        """The memory."""
        self.layout = layout
        """The packer that made it (`WeightParam.layout`)."""
        self.sources = sources
        """The names of the tensors that it was made from."""

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    __dir__ = present

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTensor, (self.tensor, self.layout, self.sources)

    def __repr__(self) -> str:
        return f"<packed weight of {', '.join(self.sources)}: {self.nbytes} bytes>"


def _unknown(name: str, weight: PackedTensor) -> str:
    """The message for an attribute of tensors."""
    return (
        f"a PackedTensor has no attribute {name!r}: only kernels know its layout; the numbers are in its sources, "
        f"{', '.join(weight.sources)}"
    )


declare_absent(PackedTensor, dir(Tensor), _unknown)
