"""Checks that printing and parsing a module gives an equal module.

    with modules_made() as made:
        relaxpy.build(mod)
    for each in made:
        check_round_trip(each)

The project's own tests check this for every module that any test creates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relaxpy.analysis.well_formed import well_formed
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.expr import Constant, Expr, Function, VarBinding
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.structural import assert_structural_equal, structural_hash
from relaxpy.ir.visitor import Visitor
from relaxpy.op.deduce import deduce
from relaxpy.script.parser import parse
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal

MAX_CONSTANT_BYTES = 4 << 20
"""The limit in bytes of a module's constants. Larger ones, such as a model's weights after every pass, are left out."""

_checked: set[int] = set()
"""Structural hashes of modules that this process has checked."""


def check_round_trip(mod: IRModule) -> str:
    """Returns the module's script. Raises `AssertionError` if it does not parse to an equal module, and `RelaxError` if
    it does not parse."""
    text = mod.script()
    try:
        assert_structural_equal(mod, parse(text))
    except Exception as error:
        error.add_note(f"the script was:\n{text}")
        raise
    return text


@contextmanager
def modules_made() -> Iterator[list[IRModule]]:
    """Lists the modules that any part of the compiler creates inside, except for those that differ from another by one
    function (`with_function`): a pass creates many of these as intermediate steps."""
    made: list[IRModule] = []
    original, with_function = IRModule.__post_init__, IRModule.with_function

    def record(self: IRModule) -> None:
        original(self)
        made.append(self)

    def one_step(self: IRModule, name: str, function: BaseFunc) -> IRModule:
        before = len(made)
        changed = with_function(self, name, function)
        del made[before:]
        return changed

    IRModule.__post_init__ = record  # type: ignore[method-assign]
    IRModule.with_function = one_step  # type: ignore[method-assign]
    try:
        yield made
    finally:
        IRModule.__post_init__ = original  # type: ignore[method-assign]
        IRModule.with_function = with_function  # type: ignore[method-assign]


def check_all(made: list[IRModule]) -> None:
    """Calls `check_round_trip` for each well-formed module, and for equal ones once. Others are intermediate, or
    invalid on purpose.

    If an annotation of a hand-made program is more precise than what is known of its value, the check happens at
    lowering, and the parser makes it explicit as a `match_cast`. Such a module must be unchanged by the second round
    trip.
    """
    for mod in made:
        if _constant_bytes(mod) > MAX_CONSTANT_BYTES:
            continue
        key = structural_hash(mod)
        if key in _checked:
            continue
        _checked.add(key)
        if not well_formed(mod):
            check_round_trip(parse(mod.script()) if _leaves_checks(mod) else mod)


class _ConstantBytes(Visitor):
    def __init__(self) -> None:
        self.total = 0

    def visit_Constant(self, node: Constant) -> None:
        self.total += node.data.nbytes


def _constant_bytes(mod: IRModule) -> int:
    counter = _ConstantBytes()
    with deep_recursion():
        for function in mod.graph_functions.values():
            counter.visit(function)
    return counter.total


def _leaves_checks(mod: IRModule) -> bool:
    """Whether an annotation in a module is more precise than what is known of its value."""
    finder = _Checks(mod)
    with deep_recursion():
        for function in mod.graph_functions.values():
            finder.visit(function)
    return finder.found


class _Checks(Visitor):
    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.found = False

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit(node.value)
        self.compare(node.var.annotation, node.value)

    def visit_Function(self, node: Function) -> None:
        self.visit(node.body)
        self.compare(node.ret, node.body)

    def compare(self, declared: Annotation, value: Expr) -> None:
        known = deduce(value, self.mod)
        self.found |= accepts(declared, known, None, equal) is not Verdict.YES
