"""The function under construction, as seen by the tensors of `forward` and the parameters of modules."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import relaxpy
from relaxpy.errors import Span, UsageError, span_of_code
from relaxpy.ir import Dim, Expr, GlobalVar, TensorType, Var
from relaxpy.ir.module import TensorProgram
from relaxpy.op.block_builder import BlockBuilder

_PACKAGE = str(Path(relaxpy.__file__).parent) + os.sep
_MODELS = f"{_PACKAGE}models{os.sep}"
"""Models in this folder count as user code: an error message shows their lines."""
_current: ContextVar[Construction | None] = ContextVar("relaxpy.nn construction", default=None)


class Construction(ABC):
    """The function under construction; operations on its tensors are bound in it."""

    builder: BlockBuilder

    @abstractmethod
    def emit(self, value: Expr, name: str, span: Span | None = None) -> Any:
        """Bind `value`; return a `Tensor`, or a tuple if it has several fields."""

    @abstractmethod
    def match_cast(self, value: Expr, annotation: TensorType, span: Span | None) -> Any:
        """Bind `value` with an annotation that is checked at run time; return a `Tensor`."""

    @abstractmethod
    def parameter(self, parameter: Any) -> Var:
        """The function's variable for a parameter. Raises UsageError (`foreign-parameter`)."""

    @abstractmethod
    def program(self, program: TensorProgram, name: str) -> GlobalVar:
        """Add a tensor program to the module under construction (once); return its global variable."""

    @abstractmethod
    def once(self, key: Hashable, make: Callable[[BlockBuilder], GlobalVar]) -> GlobalVar:
        """A function of the module for a layer's own use, made at the first request for `key`."""

    @abstractmethod
    def effect(self) -> None:
        """Record that the function has an effect: it becomes impure."""

    @abstractmethod
    def updated(self, parameter: Any, value: Expr) -> None:
        """Record that a buffer was updated in place: from now on it is `value`."""

    @abstractmethod
    def dim(self, name: str) -> Dim:
        """The symbolic dimension of the function with this name. Raises UsageError (`bad-spec`) if there is none."""

    @staticmethod
    def current() -> Construction:
        """The current construction. UsageError outside of `Module.export`."""
        construction = _current.get()
        if construction is None:
            raise mistake(
                "not-exporting",
                "a module can be called only during export",
                help="export the module (mod, params = module.export(spec)), build mod, and call the build",
            )
        return construction

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Make this the current construction in the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def mistake(
    code: str, message: str, help: str | None = None, notes: Sequence[str] = ()
) -> UsageError:
    """The error for a mistake in a model or its use, located at the nearest line outside of this package."""
    return UsageError(code, message, span=caller_span(), help=help, notes=notes)


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_MODELS)


def caller_span() -> Span | None:
    """The location of the nearest caller outside this package: file, line and columns of the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    return span_of_code(frame.f_code, frame.f_lasti, frame.f_lineno)
