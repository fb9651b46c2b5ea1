"""The walk over the graph of an ONNX model: inputs and sizes, then one node after the other."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.errors import RelaxError, Span, UsageError
from relaxpy.frontend import site
from relaxpy.frontend.missing import refuse
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.branches import Rest, branch
from relaxpy.frontend.onnx.checks import check_arguments, check_call, check_names, check_types
from relaxpy.frontend.onnx.contents import Contents
from relaxpy.frontend.onnx.element_types import NUMBERS, PACKED, STORED
from relaxpy.frontend.onnx.functions import first_version, opsets_of, schema_of, standard_body
from relaxpy.frontend.onnx.graph import MOST_NESTED, Graph, Node, Reader
from relaxpy.frontend.onnx.model import read_model
from relaxpy.frontend.onnx.operators import load_operators
from relaxpy.frontend.onnx.refused import REFUSED
from relaxpy.frontend.onnx.table import (
    DRAWING,
    MOVES,
    READS_PACKED,
    STORED_IS_READ,
    attributes_of,
    rule_of,
)
from relaxpy.ir import (
    Call,
    Constant,
    Dim,
    DType,
    Expr,
    IRModule,
    PrimType,
    ShapeType,
    SymVar,
    TensorType,
    Tuple,
    Var,
)
from relaxpy.ir.visitor import used_vars
from relaxpy.narrow import is_list, is_ndarray, is_sequence
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Binary, Comparison, Ternary
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal

MOST_COMPUTED = 1 << 24
"""A rule computes no more elements of a constant."""
WRITTEN_OUT = 64
"""How often the nodes of a model are read at most, on average: bodies of functions are written out at each call."""


@dataclass(frozen=True)
class ValueInfo:
    """An input or output of the model."""

    name: str
    """As the model has it."""
    parameter: str
    """The parameter of `main`; of an output its number."""
    dtype: str
    shape: tuple[int | str | None, ...] | None
    """Sizes: numbers, names as the model has them, None for unknown ones. None: the model does not say."""


@dataclass(frozen=True)
class Imported:
    """A model as IR."""

    mod: IRModule
    params: dict[str, np.ndarray]
    inputs: tuple[ValueInfo, ...]
    """Inputs that calls must give, without those of `constants`."""
    outputs: tuple[ValueInfo, ...]
    draws: bool
    """Does `main` take a seed of random numbers after the inputs?"""
    model: Any
    """The ModelProto."""
    place: Span
    """The head of the graph."""
    warnings: tuple[str, ...] = ()
    """Statements of the model that are false."""


class ConstantNeededError(UsageError):
    """Something must be known when the model is read; `inputs` are the names of the model's inputs that it depends
    on."""

    inputs: tuple[str, ...] = ()


def from_onnx(
    model: Any,
    *,
    constants: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """An ONNX model as a module of IR, and its weights.

        mod, params = relaxpy.from_onnx("model.onnx")
        exe = relaxpy.build(mod, params=params)

    `model` is a path, the bytes of a file, or an `onnx.ModelProto`. `main` takes the model's inputs in order, then the
    weights, after a seed if random numbers are drawn; it returns the outputs in order: a tuple, unless that is one.
    Names that are none of script are changed.
    Sizes of inputs that have a name are symbols, and equal where the names are. `constants` are values of inputs that
    are part of the program (those that decide its structure, as axes), by name; `shapes` are shapes of inputs, in place
    of those that the model says.

    Raises: UsageError (`onnx-file`, `onnx-operator`, `onnx-dtype`, `onnx-constant`, `onnx-shape`), with the node.
    """
    found = import_model(model, constants=constants, shapes=shapes)
    for each in found.warnings:
        warnings.warn(each, stacklevel=2)
    return found.mod, found.params


def import_model(
    model: Any,
    *,
    constants: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Imported:
    """The implementation of `from_onnx`, with what goes in and out."""
    proto, folder = read_model(model)
    file = str(model) if folder is not None else proto.graph.name or "model.onnx"
    reader = Reader(file, folder)
    try:
        return Importer(proto, reader, dict(constants or {}), dict(shapes or {})).run()
    except RelaxError as error:
        raise error.located(Span(reader.file, 1)) from None


class Importer:
    """The function under construction."""

    def __init__(
        self, proto: Any, reader: Reader, constants: dict[str, Any], shapes: dict[str, Any]
    ) -> None:
        load_operators()
        self.proto = proto
        self.reader = reader
        self.constants = constants
        self.shapes = shapes
        self.graph = reader.graph(proto.graph)
        _check_references(self.graph, ())
        self.opsets = opsets_of(proto, self.graph.span)
        self.local = {(_domain(f.domain), f.name): f for f in proto.functions}
        if len(self.local) < len(proto.functions):
            raise UsageError("onnx-file", "two functions of the model have the same name")
        title = site.legal(proto.graph.name or "Module")
        self.builder = BlockBuilder(IRModule(name=title))
        self.contents = Contents()
        self.taken = site.Names()
        self.weights: dict[str, np.ndarray] = {}
        self.params: list[Var] = []
        self.stored_vars: dict[int, tuple[np.ndarray, Expr]] = {}
        """Address of an array → it, kept alive, and its expression."""
        self.packed: dict[Expr, str] = {}
        """Values of int8 or uint8 that are of a dtype of fewer bits in the model → that."""
        self.sizes: dict[str, Dim] = {}
        """Name of a size in the model → the size."""
        self.origins: dict[Var, frozenset[str]] = {}
        """Variable → the inputs of the model that it depends on."""
        self.depth = 0
        self.tries = 0
        """How many bodies of loops inside of one another are written to know what they give."""
        self.splits = 0
        """How many branches inside of one another have all that follows in them."""
        self.seed: Var | None = None
        self.streams = 0
        self.warnings: list[str] = []
        self.left = WRITTEN_OUT * (64 + sum(1 for _ in self._all_nodes()))
        """How many nodes may still be read, those of a function or loop each time."""

    def run(self) -> Imported:
        refuse(self._missing(), REFUSED, "onnx-operator", "docs/from_onnx.md")
        values: dict[str, Any] = {}
        inputs: list[ValueInfo] = []
        for info in self.proto.graph.input:
            if info.name in self.constants:
                values[info.name] = Constant(np.asarray(self.constants[info.name]))
            elif info.name not in self.graph.initializers:
                var, described = self._input(info)
                values[info.name] = var
                inputs.append(described)
        unknown = {*self.constants, *self.shapes} - {each.name for each in self.proto.graph.input}
        if unknown:
            raise UsageError("onnx-constant", f"the model has no input {sorted(unknown)[0]!r}")
        if any(self._draws(node) for node in self._all_nodes()):
            self.seed = Var(self.taken.fresh("seed"), TensorType((), "int64"))
            self.params.append(self.seed)
        attrs: dict[str, Any] = {"num_input": len(self.params)}
        flows = not any(node.op in ("If", "Loop", "Scan") for node in self._all_nodes())
        block = self.builder.dataflow() if flows else nullcontext()
        emit = self.builder.emit_output if flows else self.builder.emit
        outputs: list[ValueInfo] = []
        with self.builder.function("main", self.params, attrs=attrs), block:
            found = self.graph_values(self.graph, values, self.opsets)
            tensors: list[Expr] = []
            for info, value in zip(self.proto.graph.output, found, strict=True):
                if not isinstance(value, Expr):
                    raise UsageError(
                        "onnx-operator",
                        f"the output {info.name!r} is {value}, and only tensors are returned",
                        help="return its elements as outputs of their own",
                    )
                outputs.append(self._output(info, value, len(tensors)))
                tensors.append(value)
            if not tensors:
                raise UsageError("onnx-file", "the model has no outputs")
            output = tensors[0] if len(tensors) == 1 else Tuple(tuple(tensors))
            self.builder.emit_func_output(emit(output))
        return Imported(
            self.builder.get(),
            self.weights,
            tuple(inputs),
            tuple(outputs),
            self.seed is not None,
            self.proto,
            self.graph.span,
            tuple(self.warnings),
        )

    # Inputs and outputs

    def _input(self, info: Any) -> tuple[Var, ValueInfo]:
        kind = info.type
        if not kind.HasField("tensor_type"):
            what = kind.WhichOneof("value") or "no type"
            raise UsageError(
                "onnx-operator",
                f"the input {info.name!r} is of the kind {what}, and only tensors are taken",
                help="pass the elements as inputs of their own",
            )
        tensor = kind.tensor_type
        dtype = dtype_of(tensor.elem_type)
        shape = declared(tensor)
        sizes = self.shapes.get(info.name, shape)
        if sizes is None:
            raise UsageError(
                "onnx-shape",
                f"the model does not say how many dimensions the input {info.name!r} has",
                help=f'say it: shapes={{"{info.name}": ("n", 3)}}',
            )
        name = self.taken.fresh(info.name)
        dims = [self._size(each, f"{name}_{axis}") for axis, each in enumerate(sizes)]
        var = Var(name, TensorType(dims, dtype))
        self.params.append(var)
        self.origins[var] = frozenset((info.name,))
        return var, ValueInfo(info.name, name, str(dtype), shape)

    def _size(self, size: Any, hint: str) -> Dim:
        """A size that the model says: a number, or any text."""
        if isinstance(size, (int, np.integer)) and size >= 0:
            return Dim.of(int(size))  # pyright: ignore[reportUnknownArgumentType]  # an integer of numpy
        if not isinstance(size, str) or size == "?":
            return SymVar(self.taken.fresh(hint)).dim
        if size not in self.sizes:
            self.sizes[size] = SymVar(self.taken.fresh(size)).dim
        return self.sizes[size]

    def _output(self, info: Any, value: Expr, index: int) -> ValueInfo:
        annotation = (
            value.annotation if isinstance(value, Var) else deduce(value, self.builder.get())
        )
        assert isinstance(annotation, TensorType)
        if value in self.packed:
            raise UsageError(
                "onnx-dtype",
                f"the output {info.name!r} is of {self.packed[value]}, which is not supported",
            )
        shape = declared(info.type.tensor_type) if info.type.HasField("tensor_type") else None
        dims = annotation.dims or ()
        if shape is not None and (
            len(shape) != len(dims)
            or any(isinstance(a, int) and b.value not in (None, a) for a, b in zip(shape, dims, strict=True))
        ):  # fmt: skip
            self.warnings.append(
                f"the model says that the output {info.name!r} has the shape {_shown(shape)}, "
                f"and it has {_shown(dims)}"
            )
        return ValueInfo(info.name, str(index), str(annotation.dtype), self._described(shape, dims))

    def _described(
        self, shape: tuple[int | str | None, ...] | None, dims: Sequence[Dim]
    ) -> tuple[int | str | None, ...]:
        """The shape of an output: numbers that are known, else names as the model says them, or those of the inputs'
        sizes."""
        names = {dim: name for name, dim in self.sizes.items()}
        said = shape if shape is not None and len(shape) == len(dims) else [None] * len(dims)
        return tuple(
            dim.value
            if dim.value is not None
            else name
            if isinstance(name, str)
            else names.get(dim)
            for name, dim in zip(said, dims, strict=True)
        )

    def stored(self, array: np.ndarray, name: str) -> Expr:
        """An array of the model: a small one is written into the program, a larger one is a weight."""
        found = self.stored_vars.get(id(array))
        if found is not None:
            return found[1]
        value: Expr
        given, name_of = array, array.dtype.name
        if name_of in PACKED and name_of not in STORED:
            array = array.astype(np.int8 if name_of.startswith("int") else np.uint8)
        if array.nbytes <= site.WRITTEN:
            value = Constant(array)
        else:
            hint = self.builder.fresh_name(site.legal(name).lstrip("_") or "weight")
            value = Var(hint, TensorType(array.shape, str(DType(array.dtype))))
            self.params.append(value)
            self.weights[hint] = array
            self.contents.constants[value] = array
        if name_of in PACKED:
            self.packed[value] = name_of
        self.stored_vars[id(given)] = given, value
        return value

    # Nodes

    def graph_values(
        self,
        graph: Graph,
        outer: Mapping[str, Any],
        opsets: Mapping[str, int],
        wanted: Collection[int] | None = None,
        rest: Rest | None = None,
    ) -> list[Any]:
        """Bind the nodes of a graph that sees the values `outer`, its inputs among them, and give its outputs, those
        that are `wanted` at least; or what `rest` makes of them."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise UsageError(
                "onnx-file", f"the graph {graph.name!r} is nested too deeply", span=graph.span
            )
        check_names(graph)
        values = dict(outer)
        given = self.constants if self.depth == 1 else ()
        values.update(
            (name, self.stored(array, name))
            for name, array in graph.initializers.items()
            if name not in given
        )
        found = self._from(graph, 0, values, opsets, wanted, rest)
        self.depth -= 1
        return found

    def _from(
        self, graph: Graph, start: int, values: dict[str, Any], opsets: Mapping[str, int],
        wanted: Collection[int] | None, rest: Rest | None,
    ) -> list[Any]:  # fmt: skip
        """Bind the nodes from number `start` on."""
        for index in range(start, len(graph.nodes)):
            node = graph.nodes[index]
            if node.op == "If" and not node.domain:

                def follow(
                    results: list[Any], node: Node = node, after: int = index + 1
                ) -> list[Any]:
                    inner = {**values, **dict(zip(node.outputs, results, strict=True))}
                    return self._from(graph, after, inner, opsets, wanted, rest)

                is_all, found = self._branch(node, values, opsets, follow)
                if is_all:
                    return found
            else:
                found = self._node(node, values, opsets)
            for name, value in zip(node.outputs, found, strict=False):
                if name:
                    values[name] = value
        for index, name in enumerate(graph.outputs):
            if name and name not in values and (wanted is None or index in wanted):
                raise UsageError(
                    "onnx-file",
                    f"nothing computes the output {name!r} of {graph.name!r}",
                    span=graph.span,
                )
        outputs = [values.get(name) for name in graph.outputs]
        return outputs if rest is None else rest(outputs)

    def _branch(
        self, node: Node, values: dict[str, Any], opsets: Mapping[str, int], rest: Rest
    ) -> tuple[bool, list[Any]]:
        with self._located(node):
            check_call(node, schema_of("", "If", max(1, opsets.get("", 0))))
            (condition,) = self._inputs(node, values)
            return branch(Site(self, node, values, opsets, 1), condition, rest)

    def _inputs(self, node: Node, values: Mapping[str, Any]) -> list[Any]:
        inputs: list[Any] = []
        for name in node.inputs:
            if name and name not in values:
                raise UsageError("onnx-file", f"nothing computes {name!r} before this node")
            inputs.append(values[name] if name else None)
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs

    @contextmanager
    def _located(self, node: Node) -> Iterator[None]:
        """Errors are at this node."""
        try:
            yield
        except RelaxError as error:
            raise error.located(node.span) from None
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
            AssertionError,
            ArithmeticError,
            MemoryError,
            RuntimeError,
        ) as error:
            raise UsageError(
                "onnx-file",
                f"{node.title} cannot be called like this: {type(error).__name__}: {error}",
                span=node.span,
                help="does onnx.checker.check_model(model, full_check=True) accept the model?",
            ) from error

    def _node(self, node: Node, values: dict[str, Any], opsets: Mapping[str, int]) -> list[Any]:
        with self._located(node):
            self.left -= 1
            if self.left < 0:
                raise UsageError(
                    "onnx-file",
                    "functions, loops and branches inside of one another are too large when they are written out",
                )
            return self._called(node, self._inputs(node, values), values, opsets)

    def _called(
        self, node: Node, inputs: list[Any], values: dict[str, Any], opsets: Mapping[str, int]
    ) -> list[Any]:
        own = self.local.get((node.domain, node.op))
        if own is not None:
            if len(inputs) > len(own.input) or len(node.outputs) > len(own.output):
                raise UsageError(
                    "onnx-file",
                    f"the function {node.title} takes {len(own.input)} inputs and gives {len(own.output)} "
                    f"results, and not {len(inputs)} and {len(node.outputs)}",
                )
            return self._function(own, node, inputs)
        opset = opsets.get(node.domain, 0)
        schema, version, rule = _definition(node, opset)
        if schema is not None:
            check_call(node, schema)
            check_types(node, schema, inputs)
        if rule is None:
            assert schema is not None
            body = standard_body(schema, self._filled(node), [_type(x) for x in inputs], opset)
            if body is None:
                raise UsageError("onnx-operator", f"{node.title} is not supported", span=node.span)
            return self._function(body, node, inputs, schema)
        packed = [self.packed[x] for x in inputs if isinstance(x, Expr) and x in self.packed]
        if packed and node.op not in (*MOVES, *READS_PACKED):
            raise UsageError(
                "onnx-dtype", f"{node.title} of {packed[0]} is not supported", span=node.span
            )
        taken = attributes_of(rule) if schema is None else schema.attributes
        unknown = (
            None if taken is None else next((n for n in node.attributes if n not in taken), None)
        )
        if unknown is not None:
            raise UsageError(
                "onnx-operator",
                f"{node.title} with the attribute {unknown!r} is not supported",
                span=node.span,
            )
        attributes = {**_defaults(schema), **node.attributes}
        if schema is None:
            check_arguments(node, rule, inputs, attributes)
        at = Site(self, node, values, opsets, 1 if schema is None else version)
        found = rule(at, *(_whole(at, x) for x in inputs), **attributes)
        results = list(found) if is_sequence(found) else [found]
        results = [at.emit(value) if isinstance(value, Expr) else value for value in results]
        if packed and node.op in MOVES:
            self.packed.update((value, packed[0]) for value in results)
        return results

    def _filled(self, node: Node) -> Any:
        """The node as a proto without references to a function's attributes, which were filled in."""
        import onnx

        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        kept = [each for each in proto.attribute if not each.ref_attr_name]
        for name in node.references:
            if name in node.attributes:
                kept.append(onnx.helper.make_attribute(name, node.attributes[name]))
        del proto.attribute[:]
        proto.attribute.extend(kept)
        return proto

    def _function(self, proto: Any, node: Node, inputs: list[Any], schema: Any = None) -> list[Any]:
        """The results of a function that is called here: its nodes take the place of the call."""
        body = self.reader.function(proto)
        wanted = [i for i, name in enumerate(node.outputs) if name]
        known = {*proto.attribute, *(each.name for each in proto.attribute_proto)}
        _check_references(body, known)
        given = {**_defaults(schema), **node.attributes}
        for each in proto.attribute_proto:
            given.setdefault(each.name, self.reader.attribute(each))
        values: dict[str, Any] = dict.fromkeys(body.inputs)
        values.update(zip(body.inputs, inputs, strict=False))
        return self.graph_values(
            _bound(body, given, node.span),
            values,
            {**self.opsets, **opsets_of(proto, body.span)},
            wanted,
        )

    # What is missing

    def _draws(self, node: Node) -> bool:
        """Does a node draw random numbers by the program's seed?"""
        trains = node.op == "Dropout" and len(node.inputs) > 2
        return (node.op in DRAWING or trains) and not node.domain and "seed" not in node.attributes

    def _all_nodes(self) -> Iterator[Node]:
        return (node for node, _ in self._nodes_and_opsets())

    def _nodes_and_opsets(self) -> Iterator[tuple[Node, Mapping[str, int]]]:
        """All nodes, each with the versions of the opsets where it is."""
        for node in self.graph.all_nodes():
            yield node, self.opsets
        for each in self.local.values():
            body = self.reader.function(each)
            opsets = {**self.opsets, **opsets_of(each, body.span)}
            for node in body.all_nodes():
                yield node, opsets

    def _missing(self) -> Iterator[tuple[str, Span | None]]:
        for node, opsets in self._nodes_and_opsets():
            if (node.domain, node.op) in self.local:
                continue
            opset = opsets.get(node.domain, 0)
            schema = schema_of(node.domain, node.op, opset)
            first = first_version(node.domain, node.op)
            if schema is None and first is not None:
                raise UsageError(
                    "onnx-file",
                    f"{node.title} is there from version {first} of the opset on, and the model's is {opset}",
                    span=node.span,
                )
            if handling(node.domain, node.op, opset, schema) == "refused":
                yield node.title, node.span


class Site(site.Site):
    """A node of the graph."""

    def __init__(
        self,
        importer: Importer,
        node: Node,
        values: Mapping[str, Any],
        opsets: Mapping[str, int],
        version: int,
    ) -> None:
        names = [name for name in node.outputs if name]
        hint = site.legal(names[0] if names else node.op).strip("_") or node.op
        super().__init__(importer.builder, site.legal(hint), node.span)
        self.importer = importer
        self.node = node
        self.values = values
        """The values that graphs in the node see."""
        self.opsets = opsets
        self.version = version
        """The version of the operator: the opset that it came with."""
        self.count = len(node.outputs)
        """How many results the node has."""

    def wants(self, index: int) -> bool:
        """Does the model use this result?"""
        return index < len(self.node.outputs) and self.node.outputs[index] != ""

    def graph(self, graph: Graph, inputs: Sequence[Any], rest: Rest | None = None) -> list[Any]:
        """The results of a graph in the node, or what `rest` makes of them."""
        given = {**self.values, **dict(zip(graph.inputs, inputs, strict=True))}
        return self.importer.graph_values(graph, given, self.opsets, rest=rest)

    def emit(self, value: Any, name: str | None = None) -> Any:
        """Bind a value; one that is constant is not bound."""
        if isinstance(value, (Var, Constant)):
            return value
        contents, builder = self.importer.contents, self.builder
        if isinstance(value, Call):
            value = replace(value, args=tuple(self._leaf(arg) for arg in value.args))
            if isinstance(value.op, (Binary, Ternary, Comparison)):
                value = replace(value, args=self._of_one_size(value.args))
        if (folded := contents.folded(value, lambda: deduce(value, builder.get()))) is not None:
            if isinstance(folded, Tuple):
                var = super().emit(value, name)
                contents.tuples[var] = folded
                return var
            return folded
        var = super().emit(value, name)
        contents.learn(var, value)
        found = contents.known.get(var)
        if is_ndarray(found) and isinstance(var.annotation, TensorType):
            numbers = [each.value for each in found.flat]
            if None not in numbers:
                dtype = var.annotation.dtype or "int64"
                return Constant(
                    np.array(numbers, np.int64).reshape(found.shape).astype(DType(dtype).numpy)
                )
        origins = [o for each in used_vars(value) if (o := self.importer.origins.get(each))]
        if origins:
            self.importer.origins[var] = frozenset().union(*origins)
        return self.sized(var)

    def _of_one_size(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Operands whose sizes agree. A computed size and another one that cannot be proved to be equal, neither of
        them 1, are taken to be equal, which is checked when the program runs: else nothing would be known of the
        result."""
        found = list(args)
        for i, first in enumerate(found):
            for j in range(i + 1, len(found)):
                if isinstance(first, Var) and isinstance(found[j], Var):
                    found[j] = self._sized_as(found[j], first)
        return tuple(found)

    def _sized_as(self, x: Var, other: Var) -> Any:
        dims, wanted = (getattr(each.annotation, "dims", None) for each in (x, other))
        if not dims or not wanted:
            return x
        new = list(dims)
        for k in range(1, 1 + min(len(dims), len(wanted))):
            a, b = dims[-k], wanted[-k]
            symbolic = a.value is None and b.value is None
            if symbolic and (a.symbol is None or b.symbol is None) and equal(a, b) is Verdict.MAYBE:
                new[-k] = b
        return x if tuple(new) == tuple(dims) else self.match(x, TensorType(new, self.dtype_of(x)))

    def _leaf(self, arg: Any) -> Any:
        if isinstance(arg, Call):
            return self.emit(arg)
        if isinstance(arg, Tuple):
            return replace(arg, fields=tuple(self._leaf(each) for each in arg.fields))
        return arg

    def sized(self, var: Var) -> Var:
        """A tensor whose sizes have names."""
        found = var.annotation
        if not isinstance(found, TensorType) or found.dims is not None or found.ndim < 0:
            return var
        dims = [SymVar(self.importer.taken.fresh(f"{var.name}_{i}")).dim for i in range(found.ndim)]
        sized = self.match(var, TensorType(dims, found.dtype))
        if var in self.importer.origins:
            self.importer.origins[sized] = self.importer.origins[var]
        return sized

    def axis(self, axis: int, rank: int) -> int:
        """The number of an axis, which may count from the end. UsageError (`onnx-file`) if there is no such axis."""
        count = max(rank, 1)  # what has no axes takes the number of one
        if not -count <= axis < count:
            raise self.fail(
                "onnx-file", f"{self.node.title}: there is no axis {axis} of {rank} dimensions"
            )
        return int(axis) % count

    def axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """The numbers of axes, none of them twice."""
        found = [self.axis(int(each), rank) for each in axes]
        if len(set(found)) < len(found):
            raise self.fail("onnx-file", f"{self.node.title}: an axis is there twice: {found}")
        return found

    def check_count(self, count: float) -> None:
        """Refuse to compute so many elements when the model is read. UsageError (`onnx-operator`)."""
        if not count <= MOST_COMPUTED:
            raise self.fail(
                "onnx-operator", f"{self.node.title} of {count:.3g} elements is not supported"
            )

    # Numbers that must be known

    def known(self, value: Any) -> np.ndarray | None:
        """The elements of a tensor, if they are known when the model is read: numbers, or sizes as `Dim`s."""
        return self.importer.contents.of(value)

    def value(self, x: Any, what: str) -> np.ndarray:
        """The numbers in a tensor. ConstantNeededError (`onnx-constant`) if they are not known now."""
        found = self.known(x)
        if found is not None and found.dtype == object:
            numbers = [each.value for each in found.flat]
            found = None if None in numbers else np.array(numbers, np.int64).reshape(found.shape)
        if found is None:
            raise self.needed(x, what)
        return found

    def needed(self, x: Any, what: str) -> ConstantNeededError:
        """The error for something that must be known now, and depends on this value."""
        names = sorted(self.importer.origins.get(x, ()))
        error = ConstantNeededError(
            "onnx-constant",
            f"{self.node.op}: {what} must be known when the model is read",
            span=self.span,
            help=f"it depends on the input {names[0]!r}: give its value in constants={{{names[0]!r}: …}}"
            if names
            else None,
        )
        error.inputs = tuple(names)
        return error

    def ints(self, x: Any, what: str) -> list[Any]:
        """The integers in a tensor, as sizes: numbers, symbols, or values that are read when the program runs. Their
        number must be known."""
        found = self.known(x)
        if found is not None:
            return [v if isinstance(v, Dim) else Dim.of(int(v)) for v in found.reshape(-1)]
        (count,) = self.shape_of(x) if self.ndim(x) else (Dim.of(1),)
        if count.value is None:
            self.value(x, what)
        flat = self.cast(x if self.ndim(x) else self.emit(op.expand_dims(x, 0)), "int64")
        return [self._read(flat, i) for i in range(count.value or 0)]

    def _read(self, vector: Expr, index: int) -> Dim:
        """An element of a vector, read when the program runs."""
        part = self.emit(op.strided_slice(vector, [0], [index], [index + 1]))
        scalar = self.emit(op.tensor_to_scalar(self.emit(op.reshape(part, ()))))
        var = SymVar(self.importer.taken.fresh(f"{self.name}_{index}"), signed=True)
        self.match(scalar, PrimType("int64", var.dim))
        return var.dim

    def read_shape(self, vector: Expr) -> list[Dim]:
        """The sizes in a tensor, read when the program runs, which checks that none is negative."""
        (count,) = self.shape_of(vector)
        dims = [
            SymVar(self.importer.taken.fresh(f"{self.name}_{i}")).dim
            for i in range(count.value or 0)
        ]
        self.match(self.emit(op.tensor_to_shape(vector)), ShapeType(dims))
        return dims

    def number_of(self, x: Any, what: str) -> Any:
        """The number in a tensor of one element."""
        return self.value(x, what).reshape(-1)[0].item()

    def sizes_tensor(self, dims: Sequence[Any]) -> Any:
        """Sizes as an int64 vector."""
        return self.emit(op.shape_to_tensor(tuple(map(Dim.of, dims))))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _definition(node: Node, opset: int) -> tuple[Any, int, Any]:
    """A node's operator in an opset: the schema of the standard, its version, and our rule, or None."""
    schema = schema_of(node.domain, node.op, opset)
    version = opset if schema is None else schema.since_version
    return schema, version, rule_of(node.domain, node.op, version)


def handling(domain: str, name: str, opset: int, schema: Any) -> str:
    """What becomes of an operator: "read" by a rule, "written out" as the function that the standard has of it, or
    "refused"."""
    version = opset if schema is None else schema.since_version
    if (domain, name) == ("", "If") or rule_of(domain, name, version) is not None:
        return "read"
    is_function = schema is not None and (
        schema.has_function or schema.has_context_dependent_function
    )
    return "written out" if is_function else "refused"


def _defaults(schema: Any) -> dict[str, Any]:
    """The attributes' defaults."""
    if schema is None:
        return {}
    import onnx

    return {
        name: _plain(onnx.helper.get_attribute_value(each.default_value))
        for name, each in schema.attributes.items()
        if each.default_value.type
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(map(_plain, value)) if is_list(value) else value


def _check_references(graph: Graph, known: Collection[str]) -> None:
    """Refuse references to attributes that the function around does not have. UsageError (`onnx-file`)."""
    for node in graph.all_nodes():
        for name, other in node.references.items():
            if other not in known:
                raise UsageError(
                    "onnx-file",
                    f"the attribute {name!r} is that of the name {other!r} of a function that has none",
                    span=node.span,
                )


def _bound(graph: Graph, given: Mapping[str, Any], span: Span) -> Graph:
    """A function's body with the attributes of a call."""

    def node(each: Node) -> Node:
        filled = {n: given[other] for n, other in each.references.items() if other in given}
        attributes = {
            n: _bound(v, given, span) if isinstance(v, Graph) else v
            for n, v in each.attributes.items()
        }
        return replace(each, attributes={**attributes, **filled}, span=span)

    return replace(graph, nodes=tuple(map(node, graph.nodes)))


def declared(tensor: Any) -> tuple[int | str | None, ...] | None:
    """The shape that the model says."""
    if not tensor.HasField("shape"):
        return None
    found: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            found.append(dim.dim_value)
        else:
            found.append(dim.dim_param or None)
    return tuple(found)


def _shown(shape: Sequence[Any]) -> str:
    return f"({', '.join('?' if each is None else str(each) for each in shape)})"


def _type(value: Any) -> Any:
    """The TypeProto of a value."""
    import onnx

    annotation = getattr(value, "annotation", None)
    if isinstance(value, Constant):
        annotation = TensorType(value.data.shape, str(DType(value.data.dtype)))
    if not isinstance(annotation, TensorType) or annotation.dtype is None:
        return onnx.TypeProto()
    dims = [None if d.value is None else d.value for d in annotation.dims or ()]
    return onnx.helper.make_tensor_type_proto(NUMBERS[annotation.dtype], dims)


def _whole(at: Site, x: Any) -> Any:
    """A tensor whose elements share bytes as one of whole bytes, unless the node takes it; others as they are."""
    packed = at.importer.packed
    name = packed.get(x, "") if isinstance(x, Expr) else ""
    if name not in STORED or at.node.op in STORED_IS_READ or at.dtype_of(x) != name:
        return x
    found = at.cast(x, DType(name).unpacked)
    packed[found] = name
    return found
