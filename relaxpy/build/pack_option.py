"""The option `pack` of a build: which parameters are weights that the caller packs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import NUM_INPUT, PACKED, trailing_weights
from relaxpy.errors import UsageError, did_you_mean
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule


def with_packed_params(mod: IRModule, pack: bool | Sequence[str]) -> IRModule:
    """Return the module with the attribute `packed_params` on its functions: the names of the weights that callers
    pack.

    True: the parameters after the first `num_input` of every public function that has this attribute. Names: `"w"` is
    the parameter w of every public function that has one, `"main.w"` that of one function. Functions that other
    functions call keep their parameters, and so do functions that have the attribute.

    Raises: UsageError (`pack`) for another value, an unknown name, a parameter that is no tensor, a function that other
    functions call, and where no function says which parameters are weights.
    """
    if pack is False and not any(PACKED in f.attrs for f in mod.graph_functions.values()):
        return mod
    called = called_functions(mod)
    public = {
        name: function
        for name, function in mod.graph_functions.items()
        if "global_symbol" in function.attrs
    }
    chosen = {name: list(f.attrs[PACKED]) for name, f in public.items() if PACKED in f.attrs}
    if pack is True:
        marked = {name: f for name, f in public.items() if NUM_INPUT in f.attrs}
        if not marked and not chosen:
            raise UsageError(
                "pack",
                "no function says which of its parameters are weights",
                help='write R.func_attr({"num_input": 1}), or name the weights: build(…, pack=["w"])',
            )
        for name, function in marked.items():
            if name not in called:
                weights = [w for w in trailing_weights(function) if _is_tensor(w.annotation)]
                chosen.setdefault(name, [weight.name for weight in weights])
    elif pack is not False:
        for key in _names(pack):
            for name in _owners(key, public):
                chosen.setdefault(name, []).append(key.rpartition(".")[2])
    for name, names in chosen.items():
        _check(name, public[name], names, called)
    return mod.map_graph_functions(
        lambda name, function: (
            dataclasses.replace(function, attrs={**function.attrs, PACKED: chosen[name]})
            if chosen.get(name)
            else function
        )
    )


def _names(pack: object) -> list[str]:
    given = cast("Sequence[object]", pack) if isinstance(pack, (list, tuple)) else None
    if given is not None and all(isinstance(name, str) for name in given):
        return list(dict.fromkeys(map(str, given)))
    raise UsageError(
        "pack",
        f"pack is True or a list of names of parameters, got {pack!r}",
        help='write pack=["w"]' if isinstance(pack, str) else None,
    )


def _owners(key: str, public: dict[str, Function]) -> list[str]:
    """The functions whose parameter a name is. Raises: UsageError (`pack`) if there is none."""
    owner, _, weight = key.rpartition(".")
    found = [
        name
        for name, function in public.items()
        if owner in ("", name) and weight in [param.name for param in function.params]
    ]
    if found:
        return found
    known = [param.name for function in public.values() for param in function.params]
    known += [f"{name}.{param.name}" for name, f in public.items() for param in f.params]
    raise UsageError(
        "pack",
        f"no public function has a parameter {key!r} to pack",
        help=did_you_mean(key, known) or f"parameters are {', '.join(known)}",
    )


def _check(name: str, function: Function, names: Sequence[str], called: set[str]) -> None:
    params = {param.name: param for param in function.params}
    for each in names:
        if each not in params:
            raise UsageError(
                "pack", f"{name} has no parameter {each!r}, which its packed_params name"
            )
        if not _is_tensor(params[each].annotation):
            raise UsageError(
                "pack", f"{name}: {each} is {params[each].annotation}, and only tensors are packed"
            )
    if names and name in called:
        raise UsageError(
            "pack",
            f"{name} is called by a function of the module, so its weights keep their layout",
            help="pack the weights of the functions that Python calls",
        )


def _is_tensor(annotation: object) -> bool:
    return isinstance(annotation, TensorType)
