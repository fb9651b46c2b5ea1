"""What the IR knows of an operator. The operators themselves are in `relaxpy.op`, each in one
place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.ir.annotation import Annotation

if TYPE_CHECKING:
    from relaxpy.ir.expr import Call, Expr


class Operator:
    """An operator with its attributes: an immutable value, compared and hashed by its fields.

    A base to derive from, but no `ABC`: passes ask all the time of which class an operator is, and `isinstance` of an
    abstract class takes five times as long.
    """

    __slots__ = ()
    name: ClassVar[str]
    """Dotted name in the script namespace R, e.g. `nn.relu`."""
    pure: ClassVar[bool] = True
    """False if a call has an effect, and so must not be removed, moved or repeated."""

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        """The annotation of this call's result. Raises `DeduceError`, located, if the arguments
        cannot fit."""
        raise NotImplementedError

    def normal(self, call: Call) -> Call:
        """A call of this operator as it is written with these arguments. Asked when a call is made and when its
        arguments become others, of which more may be known."""
        return call

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        """The call's arguments and attributes as script, in order (`["x", "axis=1"]`). `arg`
        prints an expression or an annotation."""
        raise NotImplementedError
