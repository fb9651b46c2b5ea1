"""BindParams: bind parameters to constant arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import PassError, Span, did_you_mean
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.array import as_array
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Constant, Expr, Function, GlobalVar, Var, VarBinding
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor, free_sym_vars
from relaxpy.op.memory import CallDPS
from relaxpy.shape.lattice import Verdict, accepts, substitute
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class BindParams(Pass):
    """Replace parameters by the arrays of the context's `params` (`BindParams` in TVM).

    A name may be qualified by its function, as in `"main.w"`. An unqualified name binds the parameter of that name in
    every public function. Symbolic variables that only the bound parameters mention become numbers.

    Before (with params = {"w": zeros(4)}):
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4,), dtype="float32")
        ) -> R.Tensor(("n", 4), dtype="float32"):
            y = R.add(x, w)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
            y = R.add(x, R.const([0.0, 0.0, 0.0, 0.0], dtype="float32"))
            return y
    """

    name: ClassVar[str] = "bind-params"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        if not ctx.params:
            return mod
        params = {name: as_constant(name, value) for name, value in ctx.params.items()}
        used: set[str] = set()

        def bind(name: str, function: Function) -> Function:
            public = "global_symbol" in function.attrs
            chosen: dict[str, Constant] = {}
            for param in function.params:
                for key in (f"{name}.{param.name}", param.name if public else ""):
                    if key in params:
                        chosen[param.name] = params[key]
                        used.add(key)
                        break
            return _bind(mod, name, function, chosen) if chosen else function

        result = mod.map_graph_functions(bind)
        for key in params.keys() - used:
            names = [f"{n}.{p.name}" for n, f in mod.graph_functions.items() for p in f.params]
            known = [*names, *(n.split(".", 1)[1] for n in names)]
            raise PassError(
                "unknown-parameter",
                f"there is no parameter {key!r} to bind",
                help=did_you_mean(key, known) or f"parameters are {', '.join(names)}",
            )
        return result


def _advice(wanted: Annotation, actual: TensorType) -> str | None:
    """The hint of the error for a value that does not fit its parameter."""
    if not isinstance(wanted, TensorType):
        return None
    if wanted.dtype is not None and wanted.dtype != actual.dtype:
        return f'there are no implicit casts: pass value.astype("{wanted.dtype}")'
    dims = actual.dims or ()
    if len(dims) > 1 and wanted.dims == dims[::-1]:
        return "the value is transposed (torch's Linear has shape (out, in)): pass value.T"
    return None


def as_constant(name: str, value: Any) -> Constant:
    """Return an array (or any object that numpy or DLPack reads) as a constant, without a copy."""
    if isinstance(value, Constant):
        return value
    try:
        return Constant.shared(as_array(value))
    except Exception as error:
        raise PassError(
            "parameter-value", f"the value of parameter {name!r} is not a tensor: {error}"
        ) from None


def _bind(mod: IRModule, name: str, function: Function, values: Mapping[str, Constant]) -> Function:
    bound: dict[SymVar, Dim] = {}
    rebuilder = Rebuilder(mod)
    kept: list[Var] = []
    for param in function.params:
        constant = values.get(param.name)
        if constant is None:
            kept.append(param)
            continue
        actual = TensorType(constant.data.shape, DType(constant.data.dtype))
        if accepts(param.annotation, actual, bound) is Verdict.NO:
            raise PassError(
                "parameter-value",
                f"parameter {param.name} of {name} is {substitute(param.annotation, bound)}, "
                f"but its value is {actual}",
                span=param.span,
                help=_advice(param.annotation, actual),
            )
        rebuilder.vars[param] = constant
    # A symbol that a remaining parameter mentions too is checked at run time against the number it got here.
    if bound:
        function, kept = _replace_symbols(function, kept, bound, rebuilder)
    body = rebuilder.function(dataclasses.replace(function, params=tuple(kept))).body
    with deep_recursion():
        _NotWritten(mod, name).visit(body)
    return dataclasses.replace(function, params=tuple(kept), body=body)


class _NotWritten(Visitor):
    """Refuses calls of tensor programs that write to a constant: its memory belongs to the user or to a file."""

    def __init__(self, mod: IRModule, name: str) -> None:
        self.mod = mod
        self.name = name
        self.place: Span | None = None
        """Source location of the current binding."""
        self.constants: set[Expr] = set()
        """Variables that alias constants."""

    def is_constant(self, value: Expr) -> bool:
        return isinstance(value, Constant) or value in self.constants

    def visit_VarBinding(self, node: VarBinding) -> None:
        if self.is_constant(node.value):
            self.constants.add(node.var)
        self.place = node.span or node.var.span
        self.visit(node.value)

    def visit_Call(self, node: Call) -> None:
        if not isinstance(node.op, CallDPS) or not isinstance(node.args[0], GlobalVar):
            return
        program = self.mod.functions.get(node.args[0].name)
        args = node.args[1:]
        for i in program.written if isinstance(program, TensorProgram) else ():
            if i < len(args) and self.is_constant(args[i]):
                raise PassError(
                    "parameter-value",
                    f"{self.name} updates a parameter that is bound to a value, in its call of {node.args[0].name}",
                    span=node.span or self.place,
                    help="bind only parameters that the function reads, or update a copy: R.memory.alloc_tensor(…)",
                )


def _replace_symbols(
    function: Function, kept: list[Any], bound: Mapping[SymVar, Dim], rebuilder: Rebuilder
) -> tuple[Function, list[Any]]:
    from relaxpy.ir.visitor import Rewriter

    mentioned = set(free_sym_vars(p.annotation for p in function.params)) & set(bound)
    if not mentioned:
        return function, kept
    rewriter = Rewriter()
    rewriter.syms.update(bound)
    new = rewriter.rewrite(function)
    positions = {param: i for i, param in enumerate(function.params)}
    replaced = {param: new.params[i] for param, i in positions.items()}
    rebuilder.vars = {
        replaced[var]: value for var, value in rebuilder.vars.items() if var in replaced
    }
    return new, [replaced[param] for param in kept]
