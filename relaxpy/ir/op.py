"""The interface of operators, as far as the IR needs it. The operators themselves are in `relaxpy.op`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from relaxpy.errors import OUR_DEFECT, RelaxError, raised_in
from relaxpy.ir.annotation import Annotation

if TYPE_CHECKING:
    from relaxpy.ir.expr import Call, Expr

ErrorKind = TypeVar("ErrorKind", bound=RelaxError)


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


def crashed(kind: type[ErrorKind], op: Operator, method: str, error: Exception) -> ErrorKind:
    """The error for an exception that a method of an operator raised, with the line of the operator that failed, if the
    operator is not relaxpy's."""
    place = raised_in(error)
    found = kind(
        "op-crash",
        f"{op.name}: its {method} failed: {type(error).__name__}: {error}",
        help=OUR_DEFECT
        if place is None
        else "the operator is not relaxpy's: relaxpy.testing.check_op tests it",
    )
    return found if place is None else found.show(f"raised here, in {method}", place)
