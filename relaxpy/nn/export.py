"""Export of modules to IR: a method runs once on symbolic tensors, and the operators applied to them become a
function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import Span, UsageError
from relaxpy.ir import Dim, Expr, IRModule, SymVar, TensorType, Tuple, TupleGetItem, TupleType, Var
from relaxpy.nn import spec
from relaxpy.nn.construction import Construction
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.op.block_builder import BlockBuilder

if TYPE_CHECKING:
    from relaxpy.nn.module import Module, Parameter


class Exporter(Construction):
    """The function under construction."""

    def __init__(
        self, builder: BlockBuilder, parameters: Mapping[int, Var], module: Module
    ) -> None:
        self.module = module
        self.builder = builder
        self.parameters = parameters
        """Variables of the parameters, by `id` of the `Parameter`."""

    def emit(self, value: Expr, name: str, span: Span | None = None) -> Any:
        """Bind `value`; return a `Tensor`, or a tuple if it has several fields."""
        return self.argument(self.builder.emit(value, name, span=span), span)

    def argument(self, var: Var, span: Span | None = None) -> Any:
        """The value of `var` in a method: a `Tensor`, or a tuple if it has several fields."""
        if isinstance(var.annotation, TupleType):
            fields = range(len(var.annotation.fields))
            return tuple(self.emit(TupleGetItem(var, i), var.name, span) for i in fields)
        return Tensor(var, var.annotation)

    def match_cast(self, value: Expr, annotation: TensorType, span: Span | None) -> Tensor:
        """Bind `value` with an annotation that is checked at run time."""
        var = self.builder.match_cast(value, annotation, "cast", span=span)
        return Tensor(var, var.annotation)

    def parameter(self, parameter: Parameter) -> Var:
        """The function's variable for a parameter."""
        var = self.parameters.get(id(parameter))
        if var is None:
            raise UsageError(
                "foreign-parameter",
                f"{parameter!r} is used, but is not reachable from the exported module",
                help=next(
                    (advice for _, advice in self.module.hidden()),
                    "assign it, or the module that contains it, to an attribute",
                ),
            )
        return var


def _leaf(result: Any, name: str) -> Expr:
    if isinstance(result, Value):
        return result.__relax_expr__
    if isinstance(result, (tuple, list)):
        return Tuple(tuple(_leaf(item, name) for item in result))
    raise UsageError(
        "bad-result",
        f"{name} returned {type(result).__name__}; it must return a tensor or a tuple of tensors",
    )


def export_module(
    module: Module, method_specs: Mapping[str, Mapping[str, Any]]
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """The implementation of `Module.export`."""
    if not isinstance(method_specs, Mapping):
        raise UsageError(
            "bad-spec",
            f"a spec must be a dict of methods, got {type(method_specs).__name__}",
            help='write {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}',
        )
    builder = BlockBuilder(IRModule(name=type(module).__name__))
    parameters = {
        name.replace(".", "_"): parameter for name, parameter in module.named_parameters()
    }
    for name, args in method_specs.items():
        _export_method(builder, module, name, args, parameters)
    data = {
        name: parameter.data for name, parameter in parameters.items() if parameter.data is not None
    }
    return builder.get(), data


def _export_method(
    builder: BlockBuilder,
    module: Module,
    name: str,
    args: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
) -> None:
    method = _method(module, name, args)
    symbols: dict[str, SymVar] = {}
    inputs = {arg: _input(arg, given, symbols) for arg, given in args.items()}
    if both := inputs.keys() & parameters.keys():
        raise UsageError(
            "bad-spec", f"{sorted(both)[0]!r} is both an argument of {name} and a parameter"
        )
    weights = {path: Var(path, p.annotation) for path, p in parameters.items()}
    exporter = Exporter(builder, {id(p): weights[path] for path, p in parameters.items()}, module)
    attrs = {"num_input": len(inputs)}
    params = [*inputs.values(), *weights.values()]
    with exporter.at_work(), builder.function(name, params, attrs=attrs):
        with builder.dataflow():
            result = method(**{arg: exporter.argument(var) for arg, var in inputs.items()})
            output = builder.emit_output(_leaf(result, name))
        builder.emit_func_output(output)


def _method(module: Module, name: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    """The method with this name, after checking that it takes these arguments. Raises UsageError (`bad-spec`)."""
    kind = type(module).__name__
    method = getattr(module, name, None)
    if not callable(method):
        known = module.methods()
        near = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            "bad-spec",
            f"{kind} has no method {name!r}",
            help=f"did you mean {near[0]!r}?"
            if near
            else f"it has {', '.join(known) or 'none of its own'}",
        )
    if not isinstance(args, Mapping):
        raise UsageError(
            "bad-spec",
            f"the spec of {name} must be a dict of its arguments, got {type(args).__name__}",
            help=f'write {{"{name}": {{"x": nn.spec.Tensor(("n", 4), "float32")}}}}',
        )
    signature = inspect.signature(method)
    try:
        signature.bind(**dict.fromkeys(args))
    except TypeError as error:
        raise UsageError(
            "bad-spec",
            f"the spec of {name} does not match its parameters: {error}",
            help=f"the signature is {name}{signature}; the spec has {', '.join(map(str, args)) or 'none'}",
        ) from None
    return method


def _input(arg: str, given: Any, symbols: dict[str, SymVar]) -> Var:
    if not isinstance(given, (spec.Tensor, spec.Tuple)):
        raise UsageError(
            "bad-spec",
            f"argument {arg!r}: {given!r} is not a spec",
            help="write nn.spec.Tensor(shape, dtype)",
        )
    return Var(arg, _annotation(given, symbols))


def _annotation(
    given: spec.Tensor | spec.Tuple, symbols: dict[str, SymVar]
) -> TensorType | TupleType:
    if isinstance(given, spec.Tuple):
        return TupleType(tuple(_annotation(field, symbols) for field in given.fields))
    dims = [
        symbols.setdefault(dim, SymVar(dim)).dim if isinstance(dim, str) else Dim.of(dim)
        for dim in given.shape
    ]
    return TensorType(dims, given.dtype)
