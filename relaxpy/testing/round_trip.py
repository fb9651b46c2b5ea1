"""Print → parse → equal: script is the common language, so every module must survive it.

    with modules_made() as made:
        relaxpy.build(mod)
    for each in made:
        check_round_trip(each)

The project's own tests do this for every module that any of them makes.
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
"""Modules with more in their constants than this are left out: a model's weights, as text, after every pass."""

_checked: set[int] = set()
"""Structural hashes of modules that have been through it in this process."""


def check_round_trip(mod: IRModule) -> str:
    """The module's script. Raises `AssertionError` if it does not parse back to an equal module, and `RelaxError` if
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
    """Lists the modules that are constructed inside, by whatever part of the compiler; but for those that differ from
    another by one function (`with_function`), of which a pass makes many on its way."""
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
    """`check_round_trip` for those that are well formed (others are unfinished, or wrong on purpose), equal ones once.

    The parser writes down, as a `match_cast`, what a hand-made program leaves to be checked when it is lowered: an
    annotation that says more than is known of the value. Such a module must come back the same from the second trip.
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
    """Does an annotation of a module say more than is known of the value?"""
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
