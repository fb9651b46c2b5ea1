"""The interface of operators, as far as the IR needs it. The operators themselves are in `relaxpy.op`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.ir.annotation import Annotation

if TYPE_CHECKING:
    from relaxpy.ir.expr import Call, Expr


class Operator:
    """An operator with its attributes: an immutable value, compared and hashed by its fields.

    It is a base class but no `ABC`: passes constantly test the class of an operator, and `isinstance` of an abstract
    class takes five times as long.
    """

    __slots__ = ()
    name: ClassVar[str]
    """Dotted name in the script namespace R, e.g. `nn.relu`."""
    pure: ClassVar[bool] = True
    """False if a call has a side effect, so that it must not be removed, moved or repeated."""

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        """The annotation of the call's result. Raises `DeduceError`, located, if the arguments can never fit."""
        raise NotImplementedError

    def normal(self, call: Call) -> Call:
        """The call in canonical form for its arguments. Applied when a call is made, and when its arguments change,
        since more may then be known about them."""
        return call

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        """The call's arguments and attributes as script, in order (`["x", "axis=1"]`). `arg` prints an expression or an
        annotation."""
        raise NotImplementedError
