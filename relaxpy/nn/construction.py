"""The function under construction, as seen by the tensors of `forward` and the parameters of modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from relaxpy.errors import Span, UsageError
from relaxpy.errors import caller_span as caller_span
from relaxpy.ir import Dim, Expr, GlobalVar, TensorType, Var
from relaxpy.ir.module import TensorProgram
from relaxpy.op.block_builder import BlockBuilder

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
