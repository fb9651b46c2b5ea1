"""The walk over a function that is written as an ONNX graph: one binding after the other.

Functions of the module that are called are written out where they are called. Sizes stay `Dim`s until a node needs one
as a tensor: `Writer.size` then writes it with Shape, Mul, Add and the like, once for each graph. A loop is a function
that calls itself in the end (`relaxpy.op.loop`), and becomes Loop (`write_control`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from relaxpy.errors import Span
from relaxpy.frontend.onnx.element_types import NUMBERS
from relaxpy.ir import (
    Annotation,
    Call,
    Constant,
    Dim,
    DType,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    IRModule,
    MatchCast,
    PrimType,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    ShapeType,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.dim import DimOp, dim_op
from relaxpy.narrow import is_list, is_tuple
from relaxpy.onnx.write_control import Inner, own_calls, write_branch, write_loop
from relaxpy.onnx.write_table import RULES
from relaxpy.onnx.write_values import Block, Closure, Frame, ShapeTensor, Tensor, UnwrittenError
from relaxpy.op.base import Op
from relaxpy.op.datatype import Bitcast
from relaxpy.shape.prove import prove
from relaxpy.shape.solve import solve_exact

_ELEMENTS = {"float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2"}
"""Dtype → its name in ONNX's schemas, where that is another one."""
FIRST_OF_PACKED = 21
"""The first opset with integers of 4 bits."""
_TRUTHS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "and": "And", "or": "Or"}


class Writer:
    """The graph under construction."""

    def __init__(self, mod: IRModule, opset: int) -> None:
        self.mod = mod
        self.opset = opset
        self.block = Block()
        self.initializers: dict[str, np.ndarray] = {}
        self.shared: dict[Any, str] = {}
        """Dtype, shape and bytes of a constant → its name."""
        self.taken: set[str] = {""}
        self.sources: dict[SymVar, tuple[Block, Any]] = {}
        """Symbol → the graph that it is known in, and how it is written there."""
        self.missing: list[tuple[str, Span | None]] = []
        """What cannot be written."""
        self.unchecked: list[str] = []
        """Checks of the program that the file does not have."""
        self.spans: dict[str, Span | None] = {}
        """Name of a node → where it comes from."""

    # Names

    def fresh(self, hint: str) -> str:
        """A name that is not taken."""
        name, count = hint or "value", 0
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name

    # Constants

    def constant(self, array: np.ndarray, hint: str = "constant") -> Tensor:
        """An initializer: one for all constants of the same elements."""
        array = np.asarray(array, order="C")
        dtype = DType(array.dtype)
        data = array.tobytes() if array.nbytes <= 1 << 16 else id(array)
        name = self.shared.get((dtype, array.shape, data))
        if name is None:
            name = self.fresh(hint)
            self.shared[dtype, array.shape, data] = name
            self.initializers[name] = array
        return Tensor(name, dtype, array.ndim, tuple(map(Dim.of, array.shape)), array)

    # Nodes

    def node(
        self, kind: str, inputs: Sequence[Any], hint: str, count: int = 1, span: Span | None = None, **attrs: Any
    ) -> list[str]:  # fmt: skip
        """Write a node, and give the names of its results."""
        from onnx import helper

        outputs = [self.fresh(hint if count == 1 else f"{hint}_{i}") for i in range(count)]
        given = ["" if each is None else getattr(each, "name", each) for each in inputs]
        while given and not given[-1]:
            given.pop()
        title = f"{outputs[0]}/{kind}"
        kept = {name: value for name, value in attrs.items() if value is not None}
        self.block.nodes.append(helper.make_node(kind, given, outputs, name=title, **kept))
        self.block.made.update(outputs)
        self.spans[title] = span
        return outputs

    # Sizes

    def size(self, dim: Dim, vector: bool = True) -> str:
        """A size as an int64 tensor: of one element (`vector`), or without dimensions."""
        if dim.value is not None:
            return self.constant(np.array([dim.value] if vector else dim.value, np.int64)).name
        block = self._home(dim)
        key = dim, vector
        if key in block.sizes:
            return block.sizes[key]
        before, self.block = self.block, block
        try:
            if vector:
                found = self._sum(dim)
            else:
                (found,) = self.node("Squeeze", [self.size(dim), self._zero()], "size")
        finally:
            self.block = before
        block.sizes[key] = found
        return found

    def truth(self, dim: Dim) -> Tensor:
        """A condition on sizes as a bool tensor without dimensions."""
        name = self._truth(dim)
        (name,) = self.node("Squeeze", [name, self._zero()], "condition")
        return Tensor(name, DType("bool"), 0, ())

    def _zero(self) -> str:
        return self.constant(np.array([0], np.int64)).name

    def _home(self, dim: Dim) -> Block:
        """The innermost of the graphs that the symbols of a size are known in."""
        home = self.block
        while home.outer is not None:
            home = home.outer
        for var in dim.vars:
            if var not in self.sources:
                raise UnwrittenError(
                    "onnx-operator", f"the size {var.name} is not known where it is used"
                )
            block = self.sources[var][0]
            if block.depth > home.depth:
                home = block
        return home

    def _sum(self, dim: Dim) -> str:
        atom = dim.atom
        if isinstance(atom, SymVar):
            return self.sources[atom][1]()
        if isinstance(atom, DimOp):
            return self._function(atom)
        total: str | None = None
        for monomial, coefficient in sorted(dim.terms, key=lambda term: term[1] < 0):
            factors = [
                self.size(Dim.of(a) if isinstance(a, SymVar) else _as_dim(a))
                for a, power in monomial for _ in range(power)
            ]  # fmt: skip
            scale = abs(coefficient) if total is not None else coefficient
            if scale != 1 or not factors:
                factors.append(self.size(Dim.of(scale)))
            term = factors[0]
            for factor in factors[1:]:
                (term,) = self.node("Mul", [term, factor], "size")
            if total is None:
                total = term
            else:
                (total,) = self.node("Sub" if coefficient < 0 else "Add", [total, term], "size")
        assert total is not None
        return total

    def _function(self, atom: DimOp) -> str:
        if atom.op in ("eq", "ne", "lt", "le", "and", "or", "not"):
            return self.node("Cast", [self._truth(_as_dim(atom))], "size", to=NUMBERS["int64"])[0]
        if atom.op == "select":
            then, otherwise = map(self.size, atom.args[1:])
            return self.node("Where", [self._truth(atom.args[0]), then, otherwise], "size")[0]
        a, b = map(self.size, atom.args)
        if atom.op in ("min", "max"):
            return self.node(atom.op.capitalize(), [a, b], "size")[0]
        if atom.op == "floormod":
            return self.node("Mod", [a, b], "size")[0]
        if not (prove(dim_op("le", 0, atom.args[0])) and prove(dim_op("le", 1, atom.args[1]))):
            (rest,) = self.node("Mod", [a, b], "size")  # ONNX's Div rounds toward 0
            (a,) = self.node("Sub", [a, rest], "size")
        return self.node("Div", [a, b], "size")[0]

    def _truth(self, dim: Dim) -> str:
        """A condition as a bool tensor of one element."""
        atom = dim.atom
        if not isinstance(atom, DimOp) or not dim.is_truth:
            zero = self.size(Dim.of(0))
            return self.node("Not", self.node("Equal", [self.size(dim), zero], "is"), "is")[0]
        if atom.op == "not":
            return self.node("Not", [self._truth(atom.args[0])], "is")[0]
        part = self._truth if atom.op in ("and", "or") else self.size
        given = [part(each) for each in atom.args]
        if atom.op == "ne":
            return self.node("Not", self.node("Equal", given, "is"), "is")[0]
        return self.node(_TRUTHS[atom.op], given, "is")[0]

    def vector(self, dims: Sequence[Dim]) -> Tensor:
        """Sizes as an int64 vector."""
        if all(dim.value is not None for dim in dims):
            return self.constant(np.array([dim.value for dim in dims], np.int64))
        parts = [self.size(dim) for dim in dims]
        name = parts[0] if len(parts) == 1 else self.node("Concat", parts, "shape", axis=0)[0]
        return Tensor(name, DType("int64"), 1, (Dim.of(len(dims)),))

    def measure(self, tensor: Tensor, axis: int) -> Any:
        """How a size of a tensor is written: the tensor must be known in the current graph."""
        return lambda: self.node(
            "Shape", [tensor], f"{tensor.name}_size", start=axis, end=axis + 1
        )[0]

    def element(self, vector: Tensor, index: int) -> Any:
        """How an element of a vector is written, as a vector of one."""
        place = self.constant(np.array([index], np.int64))
        return lambda: self.node("Gather", [vector, place], "size", axis=0)[0]

    def new_symbol(self, name: str, how: Any, signed: bool = False) -> Dim:
        """A size that is known in the current graph."""
        var = SymVar(name, signed=signed)
        self.sources[var] = self.block, how
        return var.dim

    def dims_of(self, tensor: Tensor) -> tuple[Dim, ...]:
        """The sizes of a tensor, with new symbols where they are not known."""
        if tensor.dims is not None:
            return tensor.dims
        block = self.block
        while tensor.name not in block.made and block.outer is not None:
            block = block.outer
        before, self.block = self.block, block
        dims = tuple(
            self.new_symbol(f"{tensor.name}_{axis}", self.measure(tensor, axis)) for axis in range(tensor.ndim)
        )  # fmt: skip
        self.block = before
        tensor.dims = dims
        return dims

    # Annotations

    def define(self, frame: Frame, annotation: Annotation, value: Any, what: str) -> None:
        """Learn what symbols stand for, where a value meets an annotation that defines them. What has to be checked is
        noted, since a file checks nothing."""
        if isinstance(annotation, TupleType) and is_tuple(value):
            for inner, each in zip(annotation.fields, value, strict=True):
                self.define(frame, inner, each, what)
            return
        pairs: list[tuple[Dim, Any]] = []
        if (
            isinstance(annotation, TensorType)
            and annotation.dims is not None
            and isinstance(value, Tensor)
        ):
            pairs = list(zip(annotation.dims, self.dims_of(value), strict=False))
        elif isinstance(annotation, ShapeType) and annotation.dims is not None:
            pairs = list(
                zip(annotation.dims, self.shape_dims(value, annotation.ndim), strict=False)
            )
        elif isinstance(annotation, PrimType) and annotation.value is not None:
            pairs = [(annotation.value, self.as_dim(value, annotation))]
        for alone in (True, False):
            for dim, actual in pairs:
                if (dim.symbol is not None) == alone:
                    self._equate(frame, dim, actual, what)

    def _equate(self, frame: Frame, dim: Dim, actual: Any, what: str) -> None:
        if not isinstance(actual, Dim):
            return
        wanted = frame.dim(dim)
        unknown = [var for var in dim.vars if frame.symbol(var) is None and var not in self.sources]
        if len(unknown) == 1:
            found = actual if dim.symbol is not None else solve_exact(wanted, actual, unknown[0])
            if found is not None:
                frame.symbols[unknown[0]] = found
                return
        if not unknown and not prove(dim_op("eq", wanted, actual)):
            self.unchecked.append(f"{wanted} == {actual} ({what})")

    def typed(
        self,
        frame: Frame,
        name: str,
        annotation: Annotation,
        span: Span | None,
        constant: Any = None,
    ) -> Tensor:
        """A tensor of this name with what is known of it."""
        if not isinstance(annotation, TensorType) or annotation.dtype is None:
            raise UnwrittenError("onnx-dtype", f"the dtype of {name!r} is not known", span=span)
        if annotation.dtype.is_packed and self.opset < FIRST_OF_PACKED:
            problem = f"{name!r} is of {annotation.dtype}, which opset {self.opset} does not have"
            advice = f"write a later one: opset={FIRST_OF_PACKED}"
            raise UnwrittenError("onnx-dtype", problem, span=span, help=advice)
        if annotation.ndim < 0:
            raise UnwrittenError(
                "onnx-shape", f"the number of dimensions of {name!r} is not known", span=span
            )
        found = Tensor(name, annotation.dtype, annotation.ndim, None, constant)
        if annotation.dims is not None:
            known = [frame.dim(dim) for dim in annotation.dims]
            for axis, dim in enumerate(known):
                if any(var not in self.sources for var in dim.vars):
                    known[axis] = self.new_symbol(str(dim), self.measure(found, axis))
            found.dims = tuple(known)
        return found

    # Values

    def shape_dims(self, value: Any, ndim: int = -1) -> tuple[Dim, ...]:
        """The sizes of a shape."""
        if isinstance(value, ShapeTensor):
            tensor = value.tensor
            count = ndim if ndim >= 0 else self.dims_of(tensor)[0].value
            if count is None:
                raise UnwrittenError("onnx-shape", "a shape of an unknown number of dimensions")
            return tuple(
                self.new_symbol(f"{tensor.name}_{i}", self.element(tensor, i)) for i in range(count)
            )
        assert is_tuple(value), value
        return value

    def as_dim(self, value: Any, annotation: PrimType) -> Dim | float:
        """An integer scalar as a size."""
        if isinstance(value, Tensor) and annotation.dtype.is_int:
            flat = self.constant(np.array([1], np.int64))

            def how() -> str:
                source: Any = value
                if value.dtype != "int64":
                    (source,) = self.node("Cast", [value], "size", to=NUMBERS["int64"])
                return self.node("Reshape", [source, flat], "size")[0]

            return self.new_symbol(value.name, how, signed=True)
        found: Any = value
        return found

    def tensor(self, value: Any, dtype: DType | str | None = None) -> Tensor:
        """A value as a tensor: a size or number has no dimensions, a shape is a vector."""
        match value:
            case Tensor():
                return value
            case Dim() if value.is_truth and (dtype is None or DType(dtype).is_bool):
                return self.truth(value)
            case Dim():
                if value.value is not None:
                    return self.constant(np.array(value.value, DType(dtype or "int64").numpy))
                name = self.size(value, vector=False)
                if dtype is not None and dtype != "int64":
                    (name,) = self.node("Cast", [name], "number", to=NUMBERS[dtype])
                return Tensor(name, DType(dtype or "int64"), 0, ())
            case bool():
                return self.constant(np.array(value, DType(dtype or "bool").numpy))
            case float() | int():
                return self.constant(np.array(value, DType(dtype or "float32").numpy))
            case ShapeTensor():
                return value.tensor
            case _ if is_tuple(value) and all(isinstance(each, Dim) for each in value):
                return self.vector(value)
            case _:
                raise UnwrittenError("onnx-operator", f"{type(value).__name__} is no tensor")

    def value(self, frame: Frame, expr: Expr) -> Any:
        """The value of a leaf."""
        match expr:
            case Var():
                return frame.find(expr)
            case Constant():
                return self.constant(expr.data)
            case ShapeExpr():
                return tuple(map(frame.dim, expr.dims))
            case PrimValue():
                if isinstance(expr.value, Dim):
                    found = frame.dim(expr.value)
                    return (
                        found if expr.dtype in ("int64", "bool") else self.tensor(found, expr.dtype)
                    )
                if isinstance(expr.value, float):
                    return self.tensor(expr.value, expr.dtype)
                return expr.value
            case Tuple():
                return tuple(self.value(frame, each) for each in expr.fields)
            case GlobalVar():
                function = self.mod[expr.name]
                if not isinstance(function, Function):
                    raise UnwrittenError(
                        "onnx-operator", f"{expr.name} is no function of the graph level"
                    )
                return Closure(function, Frame(), expr)
            case _:
                raise UnwrittenError("onnx-operator", f"a {type(expr).__name__} as a value")

    # Bindings

    def body(self, frame: Frame, seq: SeqExpr) -> Any:
        """Write a sequence of bindings, and give its value."""
        for binding in seq.bindings:
            self.binding(frame, binding)
        return self.value(frame, seq.body)

    def binding(self, frame: Frame, binding: Any) -> None:
        """Write a binding. What cannot be written is noted, and its value is a stand-in."""
        value, var, span = binding.value, binding.var, binding.span or binding.value.span
        try:
            if isinstance(binding, MatchCast):
                found = self.value(frame, value)
                self.define(frame, binding.annotation, found, f"match_cast of {var.name}")
                frame.values[var] = self._cast(frame, found, binding)
            else:
                frame.values[var] = self._bound(frame, var, value, span)
        except UnwrittenError as error:
            self.missing.append((error.message, error.span or span))
            frame.values[var] = self._stand_in(var.annotation)

    def _cast(self, frame: Frame, value: Any, binding: MatchCast) -> Any:
        annotation = binding.annotation
        if (
            isinstance(value, Tensor)
            and isinstance(annotation, TensorType)
            and annotation.ndim >= 0
        ):
            return self.typed(frame, value.name, annotation, binding.span, value.constant)
        if isinstance(annotation, PrimType) and annotation.value is not None:
            return frame.dim(annotation.value)
        if isinstance(annotation, ShapeType) and annotation.dims is not None:
            return tuple(map(frame.dim, annotation.dims))
        return value

    def _bound(self, frame: Frame, var: Var, value: Expr, span: Span | None) -> Any:
        match value:
            case If():
                return write_branch(self, frame, var, value, span)
            case Function():
                return Closure(value, frame, var)
            case TupleGetItem():
                whole = self.value(frame, value.tuple)
                return whole[value.index] if not isinstance(whole, Tensor) else whole
            case Call() if isinstance(value.op, Op):
                return self._operator(frame, var, value, value.op, span)
            case Call() if isinstance(value.op, (GlobalVar, Var)):
                called = self.value(frame, value.op)
                if not isinstance(called, Closure):
                    raise UnwrittenError("onnx-operator", "a call of a function that is a value")
                return self.call(
                    frame, called, [self.value(frame, arg) for arg in value.args], span
                )
            case Call():
                name = str(getattr(value.op, "name", type(value.op).__name__))
                if value.args and isinstance(value.args[0], ExternFunc):
                    name += f' of "{value.args[0].name}"'
                raise UnwrittenError("onnx-operator", name)
            case Constant():
                return self.constant(value.data, var.name)
            case _:
                return self.value(frame, value)

    def call(self, frame: Frame, called: Closure, args: Sequence[Any], span: Span | None) -> Any:
        """A call: the function is written out here, or is a loop."""
        function = called.function
        if function in frame.running:
            raise UnwrittenError("onnx-operator", f"{called.name}, which calls itself", span=span)
        inner = Frame(outer=called.frame, running=(*frame.running, function))
        if own_calls(called):
            return write_loop(self, inner, called, args, span)
        self.parameters(inner, function, args)
        return self.body(inner, function.body)

    def parameters(self, frame: Frame, function: Function, args: Sequence[Any]) -> None:
        """Bind the parameters of a function."""
        for param, arg in zip(function.params, args, strict=True):
            frame.values[param] = arg
            self.define(frame, param.annotation, arg, f"the parameter {param.name}")

    def _operator(self, frame: Frame, var: Var, call: Call, op: Op, span: Span | None) -> Any:
        rule = RULES.get(type(op))
        if rule is None:
            raise UnwrittenError("onnx-operator", op.name)
        args = [self._argument(frame, op, place, arg) for place, arg in enumerate(call.args)]
        args += [None] * (len(op.args) - len(args))
        wide = self._needs_wide(frame, var, op, rule, args)
        if wide:
            args = [self._widened(each) for each in args]
        at = Place(self, frame, var, op, span)
        try:
            found = rule(at, op, *args)
        except UnwrittenError as error:
            raise error.located(span) if span else error from None
        return at.result(at.narrowed(found) if wide else found)

    def _needs_wide(self, frame: Frame, var: Var, op: Op, rule: Any, args: Sequence[Any]) -> bool:
        """Does ONNX lack an operator for narrow floats of these arguments, that the rule writes? It is tried on a graph
        that is left again."""
        kinds = {
            each.name: each.dtype for arg in args for each in _tensors(arg) if each.dtype.is_narrow
        }
        if not kinds or isinstance(op, Bitcast):
            return False
        with Inner(self) as block, suppress(UnwrittenError):
            rule(Place(self, frame, var, op, None), op, *args)
        self.taken -= block.made
        return not all(self._is_taken(node, kinds) for node in block.nodes)

    def _is_taken(self, node: Any, kinds: dict[str, DType]) -> bool:
        """Does ONNX have this node for these dtypes? Those of its results are added."""
        from onnx import defs

        schema = defs.get_schema(node.op_type, self.opset)
        for place, name in enumerate(node.input):
            if name in kinds:
                formal = schema.inputs[min(place, len(schema.inputs) - 1)]
                if f"tensor({_ELEMENTS.get(kinds[name], kinds[name])})" not in formal.types:
                    return False
                for index, result in enumerate(node.output):
                    if (
                        schema.outputs[min(index, len(schema.outputs) - 1)].type_str
                        == formal.type_str
                    ):
                        kinds[result] = kinds[name]
        return True

    def _widened(self, arg: Any) -> Any:
        """An argument with its narrow floats in float32."""
        if is_list(arg):
            return [self._widened(each) for each in arg]
        if not isinstance(arg, Tensor) or not arg.dtype.is_narrow:
            return arg
        (name,) = self.node("Cast", [arg], f"{arg.name}_wide", to=NUMBERS["float32"])
        constant = None if arg.constant is None else arg.constant.astype(np.float32)
        return Tensor(name, DType("float32"), arg.ndim, self.dims_of(arg), constant)

    def _argument(self, frame: Frame, op: Op, place: int, arg: Expr) -> Any:
        spec = op.args[place]
        value = self.value(frame, arg)
        if spec.kind is TensorType:
            if spec.optional and is_tuple(value) and not value:
                return None
            dtype = getattr(arg, "dtype", None)
            return self.tensor(value, dtype)
        if spec.kind is TupleType:
            return [self.tensor(each) for each in value]
        if spec.kind is ShapeType:
            if spec.optional and isinstance(arg, Tuple) and not arg.fields:
                return None
            return self.shape_dims(value)
        if isinstance(value, Tensor) and spec.kind is PrimType and value.dtype.is_int:
            return self.as_dim(value, PrimType(value.dtype))
        return value

    def _stand_in(self, annotation: Annotation) -> Any:
        """A value in place of one that cannot be written, so that all that is missing is found."""
        match annotation:
            case TensorType():
                dims = annotation.dims or (Dim.of(1),) * max(annotation.ndim, 0)
                known = tuple(Dim.of(2 if dim.value is None else dim.value) for dim in dims)
                return Tensor("missing", annotation.dtype or DType("float32"), len(dims), known)
            case TupleType():
                return tuple(map(self._stand_in, annotation.fields))
            case ShapeType():
                return (Dim.of(2),) * max(annotation.ndim, 0)
            case _:
                return Dim.of(2)


class Place:
    """Where the nodes of one binding are written: what rules use."""

    def __init__(self, writer: Writer, frame: Frame, var: Var, op: Op, span: Span | None) -> None:
        self.writer = writer
        self.frame = frame
        self.var = var
        self.op = op
        self.span = span
        self.block = writer.block
        self.begin = len(writer.block.nodes)

    @property
    def opset(self) -> int:
        return self.writer.opset

    def node(self, kind: str, *inputs: Any, **attrs: Any) -> str:
        """Write a node of one result."""
        return self.writer.node(kind, inputs, self.var.name, span=self.span, **attrs)[0]

    def nodes(self, kind: str, count: int, *inputs: Any, **attrs: Any) -> list[str]:
        """Write a node of several results."""
        return self.writer.node(kind, inputs, self.var.name, count, span=self.span, **attrs)

    def fail(self, reason: str) -> UnwrittenError:
        """The error for a call that ONNX cannot say."""
        return UnwrittenError("onnx-operator", f"{self.op.name} {reason}", span=self.span)

    def need(self, opset: int, what: str = "") -> None:
        """Refuse an opset that lacks the operator."""
        if self.opset < opset:
            raise self.fail(
                f"{what + ' ' if what else ''}in opset {self.opset}: pass opset={opset}"
            )

    # Constants and sizes

    def number(self, value: Any, dtype: DType | str) -> str:
        """A number of this dtype, without dimensions."""
        return self.writer.constant(np.asarray(value).astype(DType(dtype).numpy)).name

    def ints(self, values: Sequence[int]) -> str:
        """An int64 vector."""
        return self.writer.constant(np.array(list(values), np.int64)).name

    def array(self, array: np.ndarray) -> str:
        return self.writer.constant(array).name

    def shape(self, dims: Sequence[Any]) -> str:
        """Sizes as an int64 vector."""
        return self.writer.vector([Dim.of(dim) for dim in dims]).name

    def scalar(self, dim: Any, dtype: DType | str = "int64") -> str:
        """A size as a tensor without dimensions."""
        return self.writer.tensor(Dim.of(dim), dtype).name

    def dims(self, x: Tensor) -> tuple[Dim, ...]:
        return self.writer.dims_of(x)

    @property
    def out(self) -> TensorType:
        """The annotation of the result."""
        return tensor_of(self.var)

    # Common nodes

    def cast(self, x: Any, dtype: DType | str, source: DType | str | None = None) -> Any:
        """A tensor in this dtype; `source` is that of a name."""
        if (x.dtype if isinstance(x, Tensor) else source) == dtype:
            return x
        # What is beyond the largest number of eight bits is NaN or infinite here, and that number by default in ONNX.
        bits = DType(dtype)
        beyond = 0 if bits.is_float and bits.bits == 8 else None
        return self.node("Cast", x, to=NUMBERS[dtype], saturate=beyond)

    def reshape(self, x: Any, dims: Sequence[Any]) -> str:
        """A tensor in this shape."""
        sizes = [Dim.of(dim) for dim in dims]
        symbolic = [i for i, dim in enumerate(sizes) if dim.value is None]
        if len(symbolic) == 1 and all(dim.value != 0 for dim in sizes):
            sizes[symbolic[0]] = Dim.of(-1)
        zeros = any(dim.value in (0, None) for dim in sizes)
        return self.node("Reshape", x, self.shape(sizes), allowzero=1 if zeros else None)

    def transpose(self, x: Any, order: Sequence[int]) -> Any:
        if list(order) == list(range(len(order))):
            return x
        return self.node("Transpose", x, perm=list(order))

    def unsqueeze(self, x: Any, axes: Sequence[int]) -> Any:
        return self.node("Unsqueeze", x, self.ints(axes)) if axes else x

    def squeeze(self, x: Any, axes: Sequence[int]) -> Any:
        return self.node("Squeeze", x, self.ints(axes)) if axes else x

    def slice(self, x: Any, axis: int, begin: Any, end: Any) -> str:
        return self.node("Slice", x, self.shape([begin]), self.shape([end]), self.ints([axis]))

    # The result

    def narrowed(self, found: Any) -> Any:
        """What a rule gave of wide arguments, in the dtypes of the results."""
        kinds = self.var.annotation
        fields = kinds.fields if isinstance(kinds, TupleType) else (kinds,)
        parts: list[Any] = found if is_list(found) else [found]
        narrow = [
            self.cast(each, kind.dtype, "float32")
            if isinstance(kind, TensorType) and kind.dtype is not None and kind.dtype.is_narrow
            else each
            for each, kind in zip(parts, fields, strict=True)
        ]
        return narrow if is_list(found) else narrow[0]

    def result(self, found: Any) -> Any:
        """What a rule returned as values, with the variable's name."""
        annotation = self.var.annotation
        if is_list(found):
            if not isinstance(annotation, TupleType):
                assert len(found) == 1, self.op
                return self._value(found[0], annotation)
            return tuple(map(self._value, found, annotation.fields))
        if isinstance(found, str) and isinstance(annotation, TensorType):
            found = self._renamed(found)
        return self._value(found, annotation)

    def _value(self, found: Any, annotation: Annotation) -> Any:
        name = found.name if isinstance(found, Tensor) else found
        if isinstance(annotation, TensorType) and isinstance(name, str):
            constant = self.writer.initializers.get(name)
            return self.writer.typed(self.frame, name, annotation, self.span, constant)
        if isinstance(annotation, PrimType) and isinstance(name, str):
            if annotation.value is not None:
                return self.frame.dim(annotation.value)
            return Tensor(name, annotation.dtype, 0, ())
        return found

    def _renamed(self, name: str) -> str:
        """The result under the variable's own name, if that is free."""
        wanted = self.var.name
        made = self.block.nodes[self.begin :]
        if name == wanted or wanted in self.writer.taken - _made(made) or not made:
            return name
        if name not in made[-1].output or len(made[-1].output) != 1:
            return name
        spare = self.writer.fresh(wanted) if wanted in self.writer.taken else ""
        for node in made:
            for names in (node.input, node.output):
                for i, each in enumerate(names):
                    if each == wanted:
                        names[i] = spare
                    elif each == name:
                        names[i] = wanted
        self.block.made.add(wanted)
        if spare:
            self.block.made.add(spare)
        self.writer.taken.add(wanted)
        return wanted


def _tensors(arg: Any) -> Sequence[Tensor]:
    parts: list[Any] = arg if is_list(arg) else [arg]
    return [each for each in parts if isinstance(each, Tensor)]


def _made(nodes: Sequence[Any]) -> set[str]:
    return {name for node in nodes for name in node.output}


def _as_dim(atom: DimOp) -> Dim:
    return dim_op(atom.op, *atom.args)
