"""Monomorphise: functions with type parameters become functions of the types at which they are used."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import PassError
from relaxpy.ir.annotation import Annotation, ObjectType
from relaxpy.ir.data import instantiate
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, rebuild
from relaxpy.op.deduce import deduce, type_arguments
from relaxpy.shape.lattice import Verdict, accepts, erase
from relaxpy.shape.polymorphic import type_params
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder
from relaxpy.transform.specialize_functions import Copy

MOST_COPIES = 64
"""A function is used at so many types at most."""


@dataclass(frozen=True)
class Monomorphise(Pass):
    """Copy functions with type parameters for each types at which they are called. Sizes are no part of a type:
    `R.Tensor((n,))` and `R.Tensor((m,))` share a copy for vectors, of whose result the caller compares the sizes. A
    public function, and one that is passed on as a value, takes any values.

    Before:
        @I.ir_module
        class Module:
            @R.function(private=True)
            def swap[A: Type, B: Type](x: A, y: B) -> R.Tuple(B, A):
                return (y, x)

            @R.function
            def main(x: R.Tensor((4,), dtype="float32"), y: R.Tensor(("n",), dtype="int32")):
                n = T.int64()
                cls = Module
                z: R.Tuple(R.Tensor((n,), dtype="int32"), R.Tensor((4,), dtype="float32")) = cls.swap(x, y)
                return z
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4,), dtype="float32"), y: R.Tensor(("n",), dtype="int32")):
                n = T.int64()
                cls = Module
                lv: R.Tuple(R.Tensor(dtype="int32", ndim=1), R.Tensor((4,), dtype="float32")) = cls.swap1(x, y)
                lv1 = R.match_cast(lv, R.Tuple(R.Tensor((n,), dtype="int32"), R.Tensor((4,), dtype="float32")))
                z = lv1
                return z

            @R.function(private=True)
            def swap1(x: R.Tensor((4,), dtype="float32"), y: R.Tensor(dtype="int32", ndim=1)):
                return (y, x)
    """

    name: ClassVar[str] = "monomorphise"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        generic = {
            name: params
            for name, f in mod.graph_functions.items()
            if (params := type_params([f.annotation]))
        }
        return _Monomorphiser(mod, generic).run() if generic else mod


class _Monomorphiser(Rebuilder):
    def __init__(self, mod: IRModule, generic: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(mod)
        self.generic = generic
        self.copies: dict[tuple[str, tuple[Annotation, ...]], str] = {}
        self.count: Counter[str] = Counter()
        self.waiting: list[str] = []

    def run(self) -> IRModule:
        public: dict[str, str] = {}
        for name in self.generic:
            if "global_symbol" in self.mod.graph_functions[name].attrs:
                public[name] = self.for_any(name).name
        self.waiting += [name for name in self.mod.graph_functions if name not in self.generic]
        self.waiting = list(dict.fromkeys(self.waiting))
        while self.waiting:
            name = self.waiting.pop()
            function = self.function(self.mod.graph_functions[name])  # adds copies to the module
            self.mod = self.mod.with_function(name, function)
        kept: dict[str, Any] = {}
        renamed = {copy: name for name, copy in public.items()}
        for name, function in self.mod.functions.items():
            if name in public:  # it keeps its name and place, and others call it by this name
                source, function = function, self.mod.graph_functions[public[name]]
                assert isinstance(source, Function)
                kept[name] = dataclasses.replace(function, attrs=source.attrs)
            elif name not in self.generic and name not in renamed:
                kept[name] = function
        names = _Renamed({GlobalVar(old): GlobalVar(new) for old, new in renamed.items()})
        return self.mod.with_functions(kept).map_graph_functions(lambda _, f: names.rewrite(f))

    def use(self, expr: Expr) -> Expr:
        match expr:
            case Call(op=GlobalVar(name=name)) if name in self.generic:
                changes = {
                    "args": self.uses(expr.args),
                    "ty_args": self.annotations(expr.ty_args),
                }
                return rebuild(expr, changes)
            case GlobalVar(name=name) if name in self.generic:
                return self.for_any(name)
            case _:
                return super().use(expr)

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=GlobalVar(name=name)) if name in self.generic:
                given = type_arguments(value, self.mod)
                op = self.copy_for(name, [given[each] for each in self.generic[name]], value)
                new = rebuild(value, {"op": op, "ty_args": ()})
                wanted, known = deduce(value, self.mod), deduce(new, self.mod)
                if wanted != known and accepts(wanted, known) is Verdict.MAYBE:
                    return self.emit_match_cast(self.emit(new), wanted, "lv")
                return new
            case _:
                return value

    def for_any(self, name: str) -> GlobalVar:
        """The copy of a function that takes any values."""
        return self.copy_for(name, [ObjectType()] * len(self.generic[name]), None)

    def copy_for(self, name: str, args: list[Annotation], at: Expr | None) -> GlobalVar:
        """The copy of a function for these types, of which the sizes do not count."""
        types = tuple(erase(each, lambda _: False) for each in args)
        key = name, types
        if key not in self.copies:
            self.count[name] += 1
            if self.count[name] > MOST_COPIES:
                raise PassError(
                    "data-type",
                    f"{name} is used at more than {MOST_COPIES} types",
                    span=at.span if at is not None else self.span,
                    help="a function that calls itself must do so at its own types, not at ever larger ones",
                )
            source = self.mod.graph_functions[name]
            new = self.copies[key] = self.mod.fresh_name(f"{name}{self.count[name]}")
            copy = _Instance(dict(zip(self.generic[name], types, strict=True)))
            attrs = {k: v for k, v in source.attrs.items() if k != "global_symbol"}
            function = dataclasses.replace(copy.rewrite(source), attrs=attrs)
            self.mod = self.mod.with_function(new, function)
            self.waiting.append(new)
        return GlobalVar(self.copies[key])


class _Instance(Copy):
    """Copies a function with types in place of its type parameters."""

    def __init__(self, given: Mapping[str, Annotation]) -> None:
        super().__init__(())
        self.given = given

    def rewrite_annotation(self, annotation: Any) -> Any:
        return super().rewrite_annotation(instantiate(annotation, self.given))


class _Renamed(Rewriter):
    """Calls functions by other names."""

    def __init__(self, names: Mapping[GlobalVar, GlobalVar]) -> None:
        super().__init__()
        self.names = names

    def rewrite_GlobalVar(self, node: GlobalVar) -> GlobalVar:
        return self.names.get(node, node)
