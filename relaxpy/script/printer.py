"""Printing IR as TVMScript that parses back to an equal IR, in one canonical form.

Symbols are quoted in signatures and bare in bodies, where `n = T.int64()` introduces them. Names are those of the
program, made unique and turned into identifiers if they are none. Every binding carries its annotation, so that nothing
is lost that deduction would not recover.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
    leaf_types,
)
from relaxpy.ir.data import TABLE as TYPES
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.vdevice import VDevice
from relaxpy.ir.visitor import Visitor, free_sym_vars
from relaxpy.narrow import is_mapping
from relaxpy.op.data import DataCall
from relaxpy.script.constants import ConstantTable
from relaxpy.script.written_types import written_type
from relaxpy.shape.bounds import LOWER, UPPER
from relaxpy.shape.polymorphic import type_params

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
INDENT = "    "
_WORDS = "R T I cls metadata float int bool str len list tuple range dict"
RESERVED = frozenset([*keyword.kwlist, *keyword.softkwlist, *_WORDS.split()])
"""Names that a variable cannot have in a script."""


CALLS_BY_NAME = ("call_dps_library", "call_pure_packed")
"""Operators whose first argument is printed as a plain string."""


def print_module(
    mod: IRModule, constants: str | PathLike[str] | None = None, *, abbreviated: bool = False
) -> str:
    """A module as a class decorated with `@I.ir_module`, imports included. The data of large constants follows it, or
    is written to the `.npz` file `constants`; with `abbreviated` only a few values are shown."""
    table = ConstantTable()
    with deep_recursion():
        text = _ModulePrinter(mod, table).text()
    if constants is not None:
        return HEADER + "\n" + text + table.beside(constants)
    return HEADER + "\n" + text + (table.summary() if abbreviated else table.inline())


def print_function(func: Function, name: str | None = None, *, abbreviated: bool = False) -> str:
    """A function as a definition decorated with `@R.function`. Its name is its global symbol unless given. The data of
    large constants follows; with `abbreviated` only a few values are shown."""
    shown = name or str(func.attrs.get("global_symbol", "main"))
    table = ConstantTable()
    printer = _FunctionPrinter(Names(type_params([func.annotation])), constants=table)
    with deep_recursion():
        lines = printer.definition(func, shown, identifier(shown), False)
    return "\n".join(lines) + "\n" + (table.summary() if abbreviated else table.inline())


def print_annotation(annotation: Annotation) -> str:
    """An annotation in the form used in a function's body."""
    return _FunctionPrinter(Names()).annotation(annotation)


def print_expr(expr: Expr) -> str:
    """An expression on one line, for messages."""
    printer = _FunctionPrinter(Names())
    if isinstance(expr, (Function, If, SeqExpr)):
        return f"<{type(expr).__name__}>"
    return printer.value(expr)


def identifier(name: str) -> str:
    """`name` with characters that are invalid in Python names replaced."""
    made = re.sub(r"\W", "_", name)
    if not made or made[0].isdigit():
        made = "_" + made
    return made if made.isidentifier() else "_v"


class Names:
    """Names of the variables and symbols of a function: their own, made unique."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._names: dict[Any, str] = {}
        self._used: set[str] = {*RESERVED, *taken}
        self._next: dict[str, int] = {}

    def of(self, item: Var | SymVar) -> str:
        """The name of a variable, chosen at its first use."""
        found = self._names.get(item)
        if found is None:
            found = self._names[item] = self.fresh(item.name)
        return found

    def fresh(self, wanted: str) -> str:
        """A unique name."""
        base = identifier(wanted)
        name = base
        while name in self._used:
            count = self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name

    def share(self, item: Var | SymVar, name: str) -> None:
        """Give `item` the name of another variable: the value of a branch has the name of the if's value."""
        self._names[item] = name

    def __contains__(self, item: object) -> bool:
        return item in self._names


class _ModulePrinter:
    def __init__(self, mod: IRModule, constants: ConstantTable) -> None:
        self.mod = mod
        self.constants = constants
        self.types = [decl.name for decl in mod.data_types]
        unique = Names(self.types)
        self.name = unique.fresh(mod.name)
        self.globals = {name: unique.fresh(name) for name in mod}

    def text(self) -> str:
        parts: list[str] = []
        if self.mod.attrs:
            parts.append(f"I.module_attrs({print_literal(dict(self.mod.attrs))})")
        infos = {k: list(values) for k, values in self.mod.global_infos.items() if k != TYPES}
        if infos:
            parts.append(f"I.module_global_infos({print_literal(infos)})")
        parts += [written_type(each, _field_annotation) for each in self.mod.data_types]
        for name, func in self.mod.functions.items():
            shown = self.globals[name]
            if isinstance(func, Function):
                taken = [self.name, *self.types, *type_params([func.annotation])]
                printer = _FunctionPrinter(Names(taken), self.globals, self.name, self.constants)
                parts.append("\n".join(printer.definition(func, name, shown, False)))
            elif isinstance(func, ExternFunc):
                given = "" if shown == name else f", name={quote(name)}"
                parts.append(f"{shown} = I.extern({quote(func.name)}{given})")
            else:
                parts.append(_tensor_program(func.script(shown), name, shown))
        body = "\n\n".join(parts) or "pass"
        lines = [f"{INDENT}{line}" if line else "" for line in body.split("\n")]
        return f"@I.ir_module\nclass {self.name}:\n" + "\n".join(lines) + "\n"


def _declared_types(func: Function) -> str:
    """Its type parameters in brackets: `[A: Type]`."""
    types = type_params([func.annotation])
    return f"[{', '.join(f'{each}: Type' for each in types)}]" if types else ""


def _field_annotation(annotation: Annotation) -> str:
    """The annotation of a field in a declaration."""
    printer = _FunctionPrinter(Names())
    printer.quoted = True
    return printer.annotation(annotation)


def _tensor_program(script: str, name: str, shown: str) -> str:
    """The definition without its imports; if `name` is no identifier, with that name given explicitly."""
    text = script[script.index("@T.prim_func") :].rstrip()
    if name == shown:
        return text
    first, rest = text.split("\n", 1)
    inside = first.removeprefix("@T.prim_func").strip("()")
    given = [f"name={quote(name)}", *([inside] if inside else [])]
    return f"@T.prim_func({', '.join(given)})\n{rest}"


class _FunctionPrinter:
    """Prints one function, and its nested functions."""

    def __init__(
        self,
        names: Names,
        global_names: Mapping[str, str] | None = None,
        module: str | None = None,
        constants: ConstantTable | None = None,
    ) -> None:
        self.names = names
        self.constants = constants or ConstantTable()
        self.global_names = global_names or {}
        self.module = module
        self.scope: set[SymVar] = set()
        """Symbols of this function and the enclosing ones."""
        self.scalars: set[SymVar] = set()
        """Symbols that are scalar parameters: the parameter and the symbol share a name."""
        self.body_symbols: Mapping[Function, tuple[SymVar, ...]] = {}
        """Symbols used by the bodies of this function and of nested ones."""
        self.quoted = False
        self.own_types: list[set[SymVar]] = []
        """Symbols of the function types that enclose the annotation being printed."""
        self.tuple_types: dict[int, tuple[TupleType, str]] = {}
        """By address: the tuple type, which keeps the address, and its text in a body."""

    # Functions

    def definition(self, func: Function, name: str, shown: str, nested: bool) -> list[str]:
        """Lines of a decorated definition."""
        outer_scope = set(self.scope)
        params = [(self.names.of(param), param) for param in func.params]
        self.scope |= symbols_of(param.annotation for param in func.params)
        self.name_scalars(func)
        self.quoted = True
        signature = ", ".join(f"{text}: {self.parameter(var.annotation)}" for text, var in params)
        ret = self.annotation(func.ret)
        self.quoted = False
        attrs = self.attributes(func)
        options: list[str] = []
        if name != shown:
            options.append(f"name={quote(name)}")
        if not nested:
            if attrs.get("global_symbol") == name:
                del attrs["global_symbol"]
            elif "global_symbol" not in attrs:
                options.append("private=True")
        if not func.pure:
            options.append("pure=False")
        lines = [f"@R.function({', '.join(options)})" if options else "@R.function"]
        declared = "" if nested else _declared_types(func)
        lines.append(f"def {shown}{declared}({signature}) -> {ret}:")
        body: list[str] = []
        if attrs:
            body.append(f"R.func_attr({print_literal(attrs)})")
        body += self.declarations(func, outer_scope)
        if self.module is not None and not nested and uses_globals(func):
            body.append(f"cls = {self.module}")
        body += self.seq(func.body)
        body.append(f"return {self.value(func.body.body)}")
        self.scope = outer_scope
        return lines + [INDENT + line for line in body]

    def attributes(self, func: Function) -> dict[str, Any]:
        """The attributes of a function, in which ranges are declared for symbols by the names that are printed."""
        attrs, printed = dict(func.attrs), dict[str, list[str]]()
        for symbol in symbols_in_order(param.annotation for param in func.params):
            printed.setdefault(symbol.name, []).append(self.names.of(symbol))
        for key in (LOWER, UPPER):
            limits = attrs.get(key)
            if is_mapping(limits):
                attrs[key] = {
                    name: limit for old, limit in limits.items() for name in printed.get(old, [old])
                }
        return attrs

    def name_scalars(self, func: Function) -> None:
        """Give a scalar parameter, and the symbol of the same name that is its value, one name."""
        for param in func.params:
            value = param.annotation.value if isinstance(param.annotation, PrimType) else None
            symbol = value.symbol if value is not None else None
            if (
                symbol is not None
                and symbol not in self.names
                and symbol.name == self.names.of(param)
            ):
                self.names.share(symbol, self.names.of(param))
                self.scalars.add(symbol)

    def parameter(self, annotation: Annotation) -> str:
        """A parameter's annotation. An int64 parameter is the symbol of its name, unless printed otherwise."""
        if isinstance(annotation, PrimType) and annotation.dtype == "int64":
            if annotation.value is None:
                return 'R.Prim("int64", value=None)'
            if annotation.value.symbol in self.scalars:
                return 'R.Prim("int64")'
        return self.annotation(annotation)

    def declarations(self, func: Function, outer: set[SymVar]) -> list[str]:
        """`n = T.int64()` for the symbols of this function that its body uses."""
        if func not in self.body_symbols:
            self.body_symbols = _BodySymbols(func).of
        lines: list[str] = []
        for var in self.body_symbols[func]:
            if var in outer or var in self.scalars:
                continue
            self.scope.add(var)
            lines.append(f"{self.names.of(var)} = T.{var.dtype}()")
        return lines

    # Bindings

    def seq(self, body: SeqExpr, value: tuple[Var, str] | None = None) -> list[str]:
        """Lines of all blocks. `value`: the last binding's variable, and the name under which it is printed."""
        lines: list[str] = []
        for block in body.blocks:
            inner = [line for binding in block.bindings for line in self.binding(binding, value)]
            if isinstance(block, DataflowBlock):
                outputs = [b.var for b in block.bindings if not isinstance(b.var, DataflowVar)]
                inner.append(f"R.output({', '.join(map(self.names.of, outputs))})")
                lines.append("with R.dataflow():")
                inner = [INDENT + line for line in inner]
            lines += inner
        return lines

    def binding(self, binding: Binding, shared: tuple[Var, str] | None = None) -> list[str]:
        """Lines of one binding."""
        if shared is not None and shared[0] is binding.var:
            self.names.share(binding.var, shared[1])
        if isinstance(binding, MatchCast):
            value = self.value(binding.value)
            target = self.annotation(binding.annotation)
            return [f"{self.names.of(binding.var)} = R.match_cast({value}, {target})"]
        value, var = binding.value, binding.var
        if isinstance(value, Function):
            name = self.names.of(var)
            return self.definition(value, name, name, True)
        if isinstance(value, If):
            return self.branch(binding, value)
        text = self.value(value)
        annotation = self.annotation(var.annotation)
        if isinstance(value, Call) and f"out_ty={annotation})" in text[-len(annotation) - 9 :]:
            return [f"{self.names.of(var)} = {text}"]
        return [f"{self.names.of(var)}: {annotation} = {text}"]

    def branch(self, binding: VarBinding, value: If) -> list[str]:
        """An if: both branches bind the name of its value in their last line."""
        cond = self.value(value.cond)
        name = self.names.of(binding.var)
        lines: list[str] = [f"{name}: {self.annotation(binding.var.annotation)}", f"if {cond}:"]
        lines += [INDENT + line for line in self.branch_body(value.then, name)]
        lines.append("else:")
        lines += [INDENT + line for line in self.branch_body(value.otherwise, name)]
        return lines

    def branch_body(self, body: SeqExpr, name: str) -> list[str]:
        last = body.blocks[-1] if body.blocks else None
        if (
            last is not None
            and not isinstance(last, DataflowBlock)
            and isinstance(last.bindings[-1], VarBinding)
            and last.bindings[-1].var is body.body
            and not isinstance(last.bindings[-1].value, If)
            and not is_leaf(last.bindings[-1].value)
        ):
            return self.seq(body, (last.bindings[-1].var, name))
        return [*self.seq(body), f"{name} = {self.value(body.body)}"]

    # Values

    def value(self, expr: Any) -> str:
        """An expression, or an annotation given as an argument, on one line."""
        match expr:
            case Var():
                return self.names.of(expr)
            case GlobalVar(name=name):
                prefix = "cls." if self.module is not None else ""
                return prefix + self.global_names.get(name, identifier(name))
            case Call():
                return self.call(expr)
            case Constant():
                return self.constants.text(expr)
            case Tuple(fields=fields):
                if not fields:
                    return "R.tuple()"
                inner = ", ".join(map(self.value, fields))
                return f"({inner},)" if len(fields) == 1 else f"({inner})"
            case TupleGetItem(tuple=Tuple(fields=fields), index=index):
                # (a, b)[0] would be parsed as a, as Python does
                return f"R.tuple({', '.join(map(self.value, fields))})[{index}]"
            case TupleGetItem(tuple=inner, index=index):
                return f"{self.value(inner)}[{index}]"
            case ShapeExpr(dims=dims):
                return f"R.shape([{', '.join(map(self.dim, dims))}])"
            case PrimValue():
                return self.scalar(expr)
            case StringImm(value=value):
                return f"R.str({quote(value)})"
            case DataTypeImm(dtype=dtype):
                return f"R.dtype({quote(dtype)})"
            case ExternFunc(name=name):
                return f"R.ExternFunc({quote(name)})"
            case Annotation():
                return self.annotation(expr)
            case _:
                return f"<{type(expr).__name__}>"

    def scalar(self, expr: PrimValue) -> str:
        value = expr.value
        if isinstance(value, Dim):
            text, default = self.dim(value), "bool" if value.is_truth else "int64"
        else:
            text, default = print_literal(value), "bool" if isinstance(value, bool) else "float32"
        return f"R.prim_value({text}{'' if expr.dtype == default else f', {quote(expr.dtype)}'})"

    def call(self, call: Call) -> str:
        op = call.op
        if isinstance(op, DataCall):
            return op.written(call, self.value)
        if isinstance(op, Operator):
            args = op.print_args(call, lambda arg: self.operator_arg(call, arg))
            return f"R.{op.name}({', '.join(args)})"
        if isinstance(op, ExternFunc):
            args = [quote(op.name), *map(self.value, call.args)]
            if call.ty_args:
                types = [self.annotation(t) for t in call.ty_args]
                args.append(
                    f"ty_args={types[0] if len(types) == 1 else '(' + ', '.join(types) + ')'}"
                )
            return f"R.call_packed({', '.join(args)})"
        given = f"[{', '.join(map(self.annotation, call.ty_args))}]" if call.ty_args else ""
        return f"{self.value(op)}{given}({', '.join(map(self.value, call.args))})"

    def operator_arg(self, call: Call, arg: Any) -> str:
        """An argument; the name of the called function is a plain string."""
        named = getattr(call.op, "name", "") in CALLS_BY_NAME and arg is call.args[0]
        if named and isinstance(arg, ExternFunc):
            return quote(arg.name)
        return self.value(arg)

    # Annotations

    def dim(self, dim: Dim) -> str:
        """A dimension; quoted if a signature or a function type introduces its symbols."""
        if dim.value is not None:
            return str(dim.value)
        text = dim.format(self.names.of)
        if self.own_types:
            own = any(var in symbols for symbols in self.own_types for var in dim.vars)
            return f'"{text}"' if own or (self.quoted and not set(dim.vars) <= self.scope) else text
        return f'"{text}"' if self.quoted else text

    def annotation(self, annotation: Annotation) -> str:
        match annotation:
            case TensorType():
                return self.tensor(annotation)
            case ShapeType(dims=None, ndim=ndim):
                return "R.Shape" if ndim < 0 else f"R.Shape(ndim={ndim})"
            case ShapeType(dims=tuple() as dims):
                return f"R.Shape([{', '.join(map(self.dim, dims))}])"
            case PrimType(dtype=dtype, value=value):
                if value is None:
                    return f"R.Prim({quote(dtype)})"
                kind = "" if dtype == "int64" else f"{quote(dtype)}, "
                return f"R.Prim({kind}value={self.dim(value)})"
            case TupleType():
                return self.tuple_type(annotation)
            case CallableType():
                return self.function_type(annotation)
            case DataType(name=name, args=args):
                return f"{name}[{', '.join(map(self.annotation, args))}]" if args else name
            case TypeParam(name=name):
                return name
            case _:
                annotation = expect(ObjectType, annotation)
                return "R.Object"

    def tuple_type(self, annotation: TupleType) -> str:
        """A tuple type; once for each object in bodies, since tuples in tuples are in many annotations."""
        known = None if self.quoted or self.own_types else self.tuple_types.get(id(annotation))
        if known is not None:
            return known[1]
        text = f"R.Tuple({', '.join(map(self.annotation, annotation.fields))})"
        if not self.quoted and not self.own_types:
            self.tuple_types[id(annotation)] = annotation, text
        return text

    def tensor(self, annotation: TensorType) -> str:
        parts: list[str] = []
        shape = annotation.shape
        if isinstance(shape, Var):
            parts.append(self.names.of(shape))
        elif shape is not None:
            inner = ", ".join(map(self.dim, shape))
            parts.append(f"({inner},)" if len(shape) == 1 else f"({inner})")
        if annotation.dtype is not None:
            parts.append(f"dtype={quote(annotation.dtype)}")
        if annotation.vdevice is not None:
            parts.append(f"vdevice={quote(annotation.vdevice)}")
        implied = TensorType(shape).ndim if shape is not None else -1
        if annotation.ndim != implied:
            parts.append(f"ndim={annotation.ndim}")
        return f"R.Tensor({', '.join(parts)})" if parts else "R.Tensor"

    def function_type(self, annotation: CallableType) -> str:
        if annotation.params is None:
            if annotation.ret == ObjectType() and not annotation.pure:
                return "R.Callable"
            given = (
                [] if annotation.ret == ObjectType() else [f"ret={self.annotation(annotation.ret)}"]
            )
            given += ["purity=True"] if annotation.pure else []
            return f"R.Callable({', '.join(given)})"
        around = set().union(self.scope, *self.own_types)
        self.own_types.append(symbols_of(annotation.params) - around)
        inner = ", ".join(map(self.annotation, annotation.params))
        inner = f"({inner},)" if len(annotation.params) == 1 else f"({inner})"
        ret = self.annotation(annotation.ret)
        self.own_types.pop()
        return f"R.Callable({inner}, {ret}, {annotation.pure})"


class _BodySymbols(Visitor):
    """The symbols that the body of a function, and of each nested one, uses, in order. Those that nested functions
    define themselves are left out. One traversal serves all nesting depths."""

    def __init__(self, func: Function) -> None:
        self.of: dict[Function, tuple[SymVar, ...]] = {}
        self.found: dict[SymVar, None] = {}
        self.casts: set[SymVar] = set()
        """Symbols of match_casts, those of nested functions included."""
        self.visit(func)

    def visit_dim(self, dim: Dim) -> None:
        self.found.update(dict.fromkeys(dim.vars))

    def visit_annotation(self, annotation: Annotation) -> None:
        self.found.update(dict.fromkeys(symbols_in_order([annotation])))

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit(node.value)
        self.visit_annotation(node.var.annotation)

    def visit_MatchCast(self, node: MatchCast) -> None:
        super().visit_MatchCast(node)
        self.casts |= symbols_of([node.annotation])

    def visit_Function(self, node: Function) -> None:
        outer, self.found = self.found, {}
        outer_casts, self.casts = self.casts, set()
        self.visit(node.body)
        self.of[node] = tuple(self.found)
        self.visit_annotation(node.ret)
        own = symbols_of(param.annotation for param in node.params) | self.casts
        outer.update((var, None) for var in self.found if var not in own)
        self.found, self.casts = outer, outer_casts | self.casts


def symbols_in_order(annotations: Iterable[Annotation]) -> list[SymVar]:
    """Symbols of annotations, without those of function types, in order."""
    leaves = (leaf for annotation in annotations for leaf in leaf_types(annotation))
    return list(free_sym_vars(leaf for leaf in leaves if not isinstance(leaf, CallableType)))


def symbols_of(annotations: Iterable[Annotation]) -> set[SymVar]:
    """The same as `symbols_in_order`, as a set."""
    return set(symbols_in_order(annotations))


class _UsesGlobals(Visitor):
    def __init__(self) -> None:
        self.found = False

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.found = True


def uses_globals(func: Function) -> bool:
    """Does a function refer to other functions of its module?"""
    visitor = _UsesGlobals()
    visitor.visit(func.body)
    return visitor.found


def quote(text: str) -> str:
    """A string literal in double quotes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def print_literal(value: Any) -> str:
    """An attribute's value as a Python literal."""
    match value:
        case bool() | None:
            return repr(value)
        case str():
            return quote(value)
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case Mapping():
            return (
                "{"
                + ", ".join(f"{quote(str(k))}: {print_literal(v)}" for k, v in value.items())
                + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(map(print_literal, value)) + "]"
        case int() | float():
            return repr(value)
        case Dim():
            return str(value)
        case VDevice(target=target, device=device, memory_scope=scope):
            return f"I.vdevice({quote(target)}, {device}, {quote(scope)})"
        case _:
            return quote(str(value))
