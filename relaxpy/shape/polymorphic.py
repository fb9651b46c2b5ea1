"""Type parameters of functions (Roesch et al., 2019, §3.3): which annotations mention, and what they are at a call.

Quantification is prenex: a function of the module is polymorphic, a function value is not. In its body a parameter is a
type of its own, which nothing but itself fits (`relaxpy.shape.lattice`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relaxpy.ir.annotation import Annotation, CallableType, DataType, TupleType, TypeParam
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.shape.lattice import erase, join


def type_params(annotations: Iterable[Annotation]) -> tuple[str, ...]:
    """The names of the type parameters in annotations, in order of first appearance: that of type arguments."""
    found: dict[str, None] = {}
    todo = [*annotations][::-1]
    while todo:
        match todo.pop():
            case TypeParam(name=name):
                found[name] = None
            case TupleType() as whole:
                todo += reversed(whole.leaf_types)
            case CallableType(params=params, ret=ret):
                todo += [ret, *reversed(params or ())]
            case DataType(args=args):
                todo += reversed(args)
            case _:
                pass
    return tuple(found)


def solve_types(
    wanted: Sequence[Annotation], actual: Sequence[Annotation]
) -> dict[str, Annotation]:
    """The types of the parameters in `wanted` for values of the annotations `actual`: the least precise of what they
    are given. What a function value takes counts only for parameters that nothing else says."""
    found: dict[str, Annotation] = {}
    inputs = [*zip(wanted, actual, strict=False)]
    while inputs:
        level, later = dict[str, Annotation](), list[tuple[Annotation, Annotation]]()
        for pair in inputs:
            _learn(*pair, level, later)
        found, inputs = level | found, later
    return found


def _learn(
    wanted: Annotation,
    actual: Annotation,
    found: dict[str, Annotation],
    inputs: list[tuple[Annotation, Annotation]],
) -> None:
    """Add what a value says of the parameters. `inputs`: parameters of functions and what is known of them."""
    match wanted, actual:
        case TypeParam(name=name), _:
            found[name] = join(found[name], actual) if name in found else actual
        case DataType(), DataType() if wanted.name == actual.name:
            for inner, each in zip(wanted.args, actual.args, strict=False):
                _learn(inner, each, found, inputs)
        case TupleType(), TupleType() if len(wanted.fields) == len(actual.fields):
            for inner, each in zip(wanted.fields, actual.fields, strict=True):
                _learn(inner, each, found, inputs)
        case CallableType(), CallableType():
            own = set(free_sym_vars(actual.params or ()))  # mean nothing outside of the function
            params = [erase(each, lambda symbol: symbol not in own) for each in actual.params or ()]
            inputs += zip(wanted.params or (), params, strict=False)
            _learn(wanted.ret, erase(actual.ret, lambda symbol: symbol not in own), found, inputs)
        case _:
            pass
