"""Values of a program that is written to ONNX, and where they are: tensors by name, sizes as `Dim`s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import Dim, DType, Function, GlobalVar, SymVar, Var


class UnwrittenError(UsageError):
    """Something that ONNX cannot say."""


@dataclass(eq=False)
class Tensor:
    """A tensor of the file."""

    name: str
    dtype: DType
    ndim: int
    dims: tuple[Dim, ...] | None = None
    """Its sizes; None: no symbols are written for them yet."""
    constant: np.ndarray | None = None
    """Its elements, if they are in the file."""


@dataclass(frozen=True, eq=False)
class ShapeTensor:
    """A shape whose sizes are the elements of a tensor."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Closure:
    """A function with what it sees."""

    function: Function
    frame: Frame
    name: Var | GlobalVar
    """What it is called by."""


@dataclass(eq=False)
class Frame:
    """The call of a function: its variables, and what its symbols stand for."""

    values: dict[Var, Any] = field(default_factory=dict[Var, Any])
    symbols: dict[SymVar, Dim] = field(default_factory=dict[SymVar, Dim])
    outer: Frame | None = None
    """That of the function which a local one is in."""
    running: tuple[Function, ...] = ()
    """The functions that are being written, innermost last."""

    def find(self, var: Var) -> Any:
        """The value of a variable. KeyError if it has none."""
        frame: Frame | None = self
        while frame is not None:
            if var in frame.values:
                return frame.values[var]
            frame = frame.outer
        raise KeyError(var.name)

    def symbol(self, var: SymVar) -> Dim | None:
        """What a symbol stands for; None: it is not defined."""
        frame: Frame | None = self
        while frame is not None:
            if var in frame.symbols:
                return frame.symbols[var]
            frame = frame.outer
        return None

    def dim(self, dim: Dim) -> Dim:
        """A size in terms of what its symbols stand for."""
        found = {var: known for var in dim.vars if (known := self.symbol(var)) is not None}
        return dim.substitute(found) if found else dim


@dataclass(eq=False)
class Block:
    """A graph that is being written: the model's, or that of a branch or a loop."""

    outer: Block | None = None
    nodes: list[Any] = field(default_factory=list[Any])
    made: set[str] = field(default_factory=set[str])
    """The names that its nodes and inputs define."""
    sizes: dict[Any, str] = field(default_factory=dict[Any, str])
    """Size, and whether it is an element or a vector of one → its tensor."""

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else self.outer.depth + 1
