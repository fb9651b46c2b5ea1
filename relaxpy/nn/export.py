"""Export of modules to IR: a method runs once on symbolic tensors, and the operators applied to them become a
function."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from relaxpy.analysis.in_place import state, updatable
from relaxpy.errors import Span, UsageError, did_you_mean
from relaxpy.ir import (
    Annotation,
    BindingBlock,
    Call,
    DataflowVar,
    Dim,
    DType,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    PrimType,
    PrimValue,
    Rewriter,
    ShapeType,
    SymVar,
    TensorProgram,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from relaxpy.ir.accessors import expect
from relaxpy.ir.names import FreshNames
from relaxpy.nn import spec
from relaxpy.nn.construction import Construction, mistake
from relaxpy.nn.tensor import Tensor, Value, Values
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.call import CallTIRInplace

if TYPE_CHECKING:
    from relaxpy.nn.module import Module
    from relaxpy.nn.parameter import Parameter

SCRIPT_NAMES = frozenset({"R", "T", "I", "cls"})
"""Names that have a meaning in script."""


def export_module(
    module: Module, method_specs: Mapping[str, Mapping[str, Any]]
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """The implementation of `Module.export`."""
    if not isinstance(method_specs, Mapping):
        raise mistake(
            "bad-spec",
            f"a spec must be a dict of methods, got {type(method_specs).__name__}",
            help='write {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}',
        )
    methods = {name: _method(module, name, args) for name, args in method_specs.items()}
    for name, args in method_specs.items():
        for arg, given in args.items():
            spec.check(arg, given, name)
    parameters = _named(module, method_specs)
    builder = BlockBuilder(IRModule(name=type(module).__name__), reserved=methods)
    programs = _Programs(builder)
    kept: set[int] = set()
    for name, method in methods.items():
        exporter = Exporter(builder, module, parameters, programs)
        _export_method(exporter, name, method, method_specs[name])
        kept |= exporter.state
    data = {
        name: parameter.data
        for name, parameter in parameters.items()
        if parameter.data is not None and id(parameter) not in kept
    }
    mod = builder.get()
    used = {param.name for function in mod.graph_functions.values() for param in function.params}
    return mod, {name: array for name, array in data.items() if name in used}


def _named(module: Module, method_specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameter]:
    """The parameters by their names in the program: paths with `_` for what no name has in it. A name that an argument,
    a symbol or another parameter has gets a number."""
    taken = FreshNames(SCRIPT_NAMES, separator="_")
    for args in method_specs.values():
        taken.update(args)
        taken.update(name for given in args.values() for name in spec.symbols(given))
    found: dict[str, Parameter] = {}
    for path, parameter in module.named_tensors():
        name = re.sub(r"\W", "_", path)
        if keyword.iskeyword(name) or not name.isidentifier():
            name = f"_{name}"
        found[taken.fresh(name)] = parameter
    return found


class _Programs:
    """The tensor programs of the module under construction: equal ones are added once."""

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder
        self.found: dict[int, list[tuple[TensorProgram, GlobalVar]]] = {}

    def add(self, program: TensorProgram, name: str) -> GlobalVar:
        same = self.found.setdefault(program.structural_hash(), [])
        for other, gvar in same:
            if other.structural_equal(program):
                return gvar
        same.append((program, self.builder.add_func(program, name)))
        return same[-1][1]


class Exporter(Construction):
    """The function under construction."""

    def __init__(
        self,
        builder: BlockBuilder,
        module: Module,
        parameters: Mapping[str, Parameter],
        programs: _Programs,
    ) -> None:
        self.module = module
        self.builder = builder
        self.programs = programs
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.parameters = parameters
        self.params: list[Var] = []
        """The function's parameters: its arguments, then the module's parameters as they are used."""
        self.variables: dict[int, Var] = {}
        """Variables of the parameters that are used, by `id` of the `Parameter`."""
        self.current: dict[int, Expr] = {}
        """The value of a buffer after its updates."""
        self.symbols: dict[str, SymVar] = {}
        self.effects = False
        self.state: set[int] = set()
        """The buffers that the function updates in place, by `id`."""

    def emit(self, value: Expr, name: str, span: Span | None = None) -> Any:
        """Bind `value`; return a `Tensor`, or a tuple if it has several fields."""
        return self.argument(self.builder.emit(value, name, span=span), span)

    def argument(self, var: Var, span: Span | None = None) -> Any:
        """The value of `var` in a method: a `Tensor`, a tuple if it has several fields, a dimension for an integer, and
        dimensions for a shape."""
        match var.annotation:
            case TupleType(fields=fields):
                every = range(len(fields))
                return Values(self.emit(TupleGetItem(var, i), var.name, span) for i in every)
            case PrimType(value=Dim() as value):
                return value
            case ShapeType(dims=tuple() as dims):
                return dims
            case _:
                return Tensor(var, var.annotation)

    def match_cast(self, value: Expr, annotation: TensorType, span: Span | None) -> Tensor:
        """Bind `value` with an annotation that is checked at run time."""
        var = self.builder.match_cast(value, annotation, "cast", span=span)
        return Tensor(var, var.annotation)

    def parameter(self, parameter: Parameter) -> Expr:
        """The function's variable for a parameter, or its value after an update."""
        key = id(parameter)
        if key in self.current:
            return self.current[key]
        if key not in self.variables:
            if key not in self.names:
                raise mistake(
                    "foreign-parameter",
                    f"{parameter!r} is used, but is not reachable from the exported module",
                    help=next(
                        (advice for _, advice in self.module.hidden_parts()),
                        "assign it, or the module that contains it, to an attribute",
                    ),
                )
            self.variables[key] = Var(self.names[key], parameter.annotation)
            self.params.append(self.variables[key])
        return self.variables[key]

    def program(self, program: TensorProgram, name: str) -> GlobalVar:
        return self.programs.add(program, name)

    def effect(self) -> None:
        self.effects = True

    def updated(self, parameter: Parameter, value: Expr) -> None:
        self.current[id(parameter)] = value

    def dim(self, name: str) -> Dim:
        if name not in self.symbols:
            known = ", ".join(self.symbols) or "none"
            raise mistake(
                "bad-spec",
                f"there is no dimension {name!r} in this function",
                help=f"the dimensions of its arguments are {known}; x.shape has those of a tensor",
            )
        return self.symbols[name].dim


def _export_method(
    exporter: Exporter, name: str, method: Callable[..., Any], args: Mapping[str, Any]
) -> None:
    builder, params = exporter.builder, exporter.params
    for given in args.values():
        exporter.symbols.update({name: SymVar(name) for name in spec.sizes(given)})
    params += [Var(arg, spec.annotation(g, exporter.symbols, arg)) for arg, g in args.items()]
    inputs = list(params)
    attrs = {"num_input": len(inputs)}
    with exporter.at_work(), builder.function(name, params, attrs=attrs):
        for reserved in exporter.parameters:
            builder.fresh_name(reserved)
        with builder.dataflow():
            given = {var.name: exporter.argument(var) for var in inputs}
            result = method(**given)
            output = builder.emit_output(_leaf(result, name, method, exporter))
        builder.emit_func_output(output)
        order = {name: i for i, name in enumerate(exporter.parameters)}
        params[len(inputs) :] = sorted(params[len(inputs) :], key=lambda p: order[p.name])
    function = expect(Function, builder.get().functions[name])
    changed = dataclasses.replace(function, pure=False)
    owned = state(changed)
    if not owned and not exporter.effects:
        return
    changed = _plain(changed)
    _check_updates(changed)
    builder.update_func(name, changed)
    own = {id(var) for var in owned}
    exporter.state |= {key for key, var in exporter.variables.items() if id(var) in own}


def _check_updates(function: Function) -> None:
    """Refuse an update of the caller's memory that would go to a copy, because the memory is used elsewhere."""
    owned, allowed = state(function), updatable(function)
    for binding in function.body.bindings:
        call = binding.value
        if not isinstance(call, Call) or not isinstance(call.op, CallTIRInplace):
            continue
        fields = expect(Tuple, call.args[1])
        for index in call.op.inplace_indices:
            given = fields.fields[index] if index >= 0 else None
            if isinstance(given, Var) and given in owned and (call, index) not in allowed:
                raise UsageError(
                    "update-lost",
                    f"{given.name} is updated in place, but also used elsewhere, so only a copy would be updated",
                    help="after the update, use its result instead",
                    span=call.span or binding.span,
                )


class _Plain(Rewriter):
    """Makes all bindings plain ones: those with effects, or on memory of the caller, are in no dataflow block."""

    def rewrite_DataflowBlock(self, node: Any) -> BindingBlock:
        bindings = []
        for binding in node.bindings:
            var = binding.var
            if isinstance(var, DataflowVar):
                self.vars[var] = Var(var.name, var.annotation, span=var.span)
            new = self.rewrite(binding)
            bindings.append(dataclasses.replace(new, var=self.vars.get(var, new.var)))
        return BindingBlock(tuple(bindings), span=node.span)

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        """Keep what `rewrite_DataflowBlock` made."""
        return self.vars[var] if var in self.vars else super().define(var, annotation)


def _plain(function: Function) -> Function:
    return dataclasses.replace(function, body=_Plain().rewrite(function.body))


def _leaf(result: Any, name: str, method: Callable[..., Any], exporter: Exporter) -> Expr:
    if isinstance(result, Value):
        return result.__relax_expr__
    if isinstance(result, (tuple, list)):
        return Tuple(tuple(_leaf(item, name, method, exporter) for item in result))
    if isinstance(result, Dim):
        return PrimValue(result)
    if result is None and (exporter.effects or exporter.current):
        return Tuple(())  # it is called for its effects
    kind = "nothing" if result is None else type(result).__name__
    help = (
        "a constant is a buffer of the module: self.table = nn.Buffer(array), and return self.table"
    )
    if result is None:
        help = "add a return statement"
    elif isinstance(result, Mapping):
        help = f"results have no names: return ({', '.join(map(str, cast('Mapping[Any, Any]', result)))},)"
    elif isinstance(result, (bool, int, float)):
        help = f'write nn.op.full((), {result}, "{DType(type(result))}")'
    raise UsageError(
        "bad-result",
        f"{name} returned {kind}; it must return a tensor or a tuple of tensors",
        span=_span_of(method),
        help=help,
    )


def _span_of(method: Callable[..., Any]) -> Span | None:
    """Where a method is written."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return None if code is None else Span(code.co_filename, code.co_firstlineno)


def _method(module: Module, name: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    """The method with this name, after checking that it takes these arguments. Raises UsageError (`bad-spec`)."""
    kind = type(module).__name__
    method = getattr(module, name, None)
    if not callable(method):
        known = module.exportable_methods()
        raise mistake(
            "bad-spec",
            f"{kind} has no method {name!r}",
            help=f'write {{"forward": {{{name!r}: …}}}}: specs of arguments are those of a method'
            if not isinstance(args, Mapping) and "forward" in known
            else did_you_mean(name, known) or f"it has {', '.join(known) or 'none of its own'}",
        )
    if not isinstance(args, Mapping):
        raise mistake(
            "bad-spec",
            f"the spec of {name} must be a dict of its arguments, got {type(args).__name__}",
            help=f'write {{"{name}": {{"x": nn.spec.Tensor(("n", 4), "float32")}}}}',
        )
    signature = inspect.signature(method)
    try:
        signature.bind(**dict.fromkeys(args))
    except TypeError as error:
        raise mistake(
            "bad-spec",
            f"the spec of {name} does not match its parameters: {error}",
            help=f"the signature is {name}{signature}; the spec has {', '.join(map(str, args)) or 'none'}",
        ) from None
    return method
