"""Programs as ONNX files: `export`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

import relaxpy
from relaxpy.errors import RelaxError, Span, UsageError
from relaxpy.files import replacing
from relaxpy.frontend.missing import refuse
from relaxpy.frontend.onnx.element_types import NAMES, NUMBERS
from relaxpy.frontend.onnx.model import need_onnx
from relaxpy.half_bytes import as_bytes
from relaxpy.ir import (
    Annotation,
    Dim,
    DType,
    Function,
    IRModule,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    Var,
)
from relaxpy.ir.array import as_array
from relaxpy.ir.expr import leaves_of
from relaxpy.narrow import is_tuple
from relaxpy.onnx.write_control import flat, needed
from relaxpy.onnx.write_table import INSTEAD, load_rules
from relaxpy.onnx.write_values import Frame, ShapeTensor, Tensor
from relaxpy.onnx.writer import Writer
from relaxpy.runtime import dtype as dtypes

OPSET = 21
"""The opset that is written unless another one is asked for."""
FIRST_OPSET = 18
"""The oldest opset: those before have axes and scales as attributes."""
LARGEST = (1 << 31) - (1 << 20)
"""A larger file is no protobuf: the weights go beside it."""
SMALL = 1024
"""Tensors of fewer bytes are never beside the file: shapes are among them."""


def export(
    module: IRModule | tuple[IRModule, Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    function: str = "main",
    opset: int = OPSET,
    external_data: bool | None = None,
) -> Any:
    """A program as an ONNX model, written to `path` if that is given. Returns the `onnx.ModelProto`.

        mod, params = model.export(spec)                                  # or from_torch, from_jax, from_onnx
        relaxpy.onnx.export(mod, "model.onnx", params=params)

    `module` is a module of the graph level, or a pair of it and its weights by name. Its `function` becomes the graph,
    the functions that it calls are written out there, symbolic sizes get names, and what is computed of sizes is
    computed by Shape, Gather, Mul and the like. Inputs, weights and results keep their names; a tuple is an input for
    each of its fields (`cache_0`, `cache_1`). `external_data` writes the weights into a file beside, `model.onnx.data`;
    None: if the file would be too large.

    Raises: UsageError (`onnx-operator`, `onnx-dtype`, `onnx-shape`) with all that ONNX cannot say, and its lines.
    Checks of the program that the file does not make are a warning.
    """
    pair: Any = module if is_tuple(module) else (module, {})
    mod: Any = pair[0]
    given: dict[str, Any] = {**pair[1], **(params or {})}
    weights = {name: as_array(value) for name, value in given.items()}
    _check_arguments(mod, function, opset)
    model, large = _Model(mod, function, weights, opset).run()
    _store(model, large, None if path is None else Path(path), external_data)
    return model


def _check_arguments(mod: Any, function: str, opset: int) -> None:
    if not isinstance(mod, IRModule):
        raise UsageError(
            "onnx-file",
            f"a {type(mod).__name__} is no module of IR",
            help="export it first: mod, params = model.export(spec); relaxpy.onnx.export(mod, path, params=params)",
        )
    if not isinstance(mod.functions.get(function), Function):
        names = ", ".join(mod.graph_functions)
        raise UsageError(
            "onnx-file", f"the module has no function {function!r}", help=f"it has {names}"
        )
    need_onnx("writing ONNX models")
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not FIRST_OPSET <= opset <= newest:
        raise UsageError(
            "onnx-operator",
            f"opset {opset} is not written: the opsets are {FIRST_OPSET} to {newest}",
            help="onnx.version_converter.convert_version makes an older one of opset 18",
        )


class _Model:
    """A model under construction."""

    def __init__(
        self, mod: IRModule, name: str, weights: Mapping[str, np.ndarray], opset: int
    ) -> None:
        load_rules()
        self.name = name
        self.function = cast(Function, mod[name])
        self.weights = weights
        self.writer = Writer(mod, opset)
        self.frame = Frame(running=(self.function,))
        self.inputs: list[Any] = []

    def run(self) -> tuple[Any, dict[str, np.ndarray]]:
        """The model, and the arrays of its initializers, which are not in it yet."""
        writer = self.writer
        for param in self.function.params:
            for name, _ in _parts(param.name, param.annotation):
                if name in writer.taken:
                    raise UsageError(
                        "onnx-file", f"two inputs would be {name!r}", span=param.span,
                        help="rename a parameter: fields of a tuple have its name and their places",
                    )  # fmt: skip
                writer.taken.add(name)
        self._parameters()
        found = writer.body(self.frame, self.function.body)
        if writer.missing:
            refuse(writer.missing, INSTEAD, "onnx-operator", "docs/from_onnx.md")
        self._warn()
        outputs = self._outputs(found)
        if not outputs:
            raise UsageError(
                "onnx-file", f"the function {self.name!r} has no results, and a model needs one"
            )
        return self._checked(outputs)

    def _parameters(self) -> None:
        """Weights first: what their sizes say is known."""
        unknown = self.weights.keys() - {param.name for param in self.function.params}
        if unknown:
            raise UsageError("onnx-file", f"the function has no parameter {sorted(unknown)[0]!r}")
        writer, frame = self.writer, self.frame
        params = self.function.params
        for param in params:
            if param.name in self.weights:
                array = self.weights[param.name]
                _check_weight(param, array)
                writer.initializers[param.name] = array
                dims = tuple(map(Dim.of, array.shape))
                tensor = Tensor(param.name, DType(array.dtype), array.ndim, dims, array)
                frame.values[param] = tensor
                writer.define(frame, param.annotation, tensor, f"the weight {param.name}")
        kept = [param for param in params if param.name not in self.weights]
        given = [part for param in kept for part in _parts(param.name, param.annotation)]
        for alone in (True, False):  # sizes that are symbols first: others are solved for theirs
            for name, annotation in given:
                self._symbols(name, annotation, alone)
        for param in kept:
            frame.values[param] = self._input(param.name, param.annotation, param.span)

    def _symbols(self, name: str, annotation: Annotation, alone: bool) -> None:
        """Learn symbols from the sizes of an input."""
        writer, frame = self.writer, self.frame
        dims: Any = ()
        if isinstance(annotation, (TensorType, ShapeType)):
            dims = annotation.dims or ()
        elif isinstance(annotation, PrimType) and annotation.value is not None:
            dims = (annotation.value,)
        source = Tensor(name, DType("int64"), len(dims))
        for axis, dim in enumerate(dims):
            new = [v for v in dim.vars if frame.symbol(v) is None and v not in writer.sources]
            if len(new) != 1 or (dim.symbol is not None) != alone:
                continue
            if isinstance(annotation, TensorType):
                how = writer.measure(source, axis)
            elif isinstance(annotation, ShapeType):
                how = writer.element(source, axis)
            else:
                how = partial(_as_row, writer, name)
            if dim.symbol is not None:
                writer.sources[dim.symbol] = writer.block, how
            else:
                writer.define(
                    frame,
                    ShapeType([dim]),
                    (writer.new_symbol(f"{name}_{axis}", how),),
                    name,
                )

    def _input(self, name: str, annotation: Annotation, span: Span | None) -> Any:
        """The value of an input. Those of a tuple have its name and their places."""
        from onnx import helper

        frame = self.frame
        if isinstance(annotation, TupleType):
            fields = enumerate(annotation.fields)
            return tuple(self._input(f"{name}_{i}", field, span) for i, field in fields)
        self.writer.block.made.add(name)
        match annotation:
            case TensorType():
                tensor = self.writer.typed(frame, name, annotation, span)
                known = annotation.dims is not None
                shape = [*map(_shown, tensor.dims or ())] if known else [None] * tensor.ndim
                info = helper.make_tensor_value_info(name, NUMBERS[tensor.dtype], shape)
                value: Any = tensor
            case ShapeType() if annotation.ndim >= 0:
                info = helper.make_tensor_value_info(name, NUMBERS["int64"], [annotation.ndim])
                vector = Tensor(name, DType("int64"), 1, (Dim.of(annotation.ndim),))
                value = ShapeTensor(vector)
                if annotation.dims is not None:
                    value = tuple(map(frame.dim, annotation.dims))
            case PrimType():
                info = helper.make_tensor_value_info(name, NUMBERS[annotation.dtype], [])
                value = Tensor(name, annotation.dtype, 0, ())
                if annotation.value is not None:
                    value = frame.dim(annotation.value)
            case _:
                raise UsageError(
                    "onnx-operator", f"the parameter {name!r} is {annotation}, and a model takes tensors",
                    span=span, help="say what it is: R.Tensor(…), R.Shape(…), R.Prim(…), or a tuple of these",
                )  # fmt: skip
        self.inputs.append(info)
        return value

    def _outputs(self, found: Any) -> list[Any]:
        """The descriptions of the results, each the result of a node, once."""
        from onnx import helper

        writer = self.writer
        given = {each.name for each in self.inputs}
        leaf = self.function.body.body
        hints = [getattr(each, "name", "") for each in leaves_of([leaf])]
        infos: list[Any] = []
        for index, tensor in enumerate(flat(writer, found, self.function.ret)):
            name = tensor.name
            if name in given or name in writer.initializers or any(name == i.name for i in infos):
                hint = (
                    hints[index]
                    if index < len(hints) and hints[index] not in writer.taken
                    else "output"
                )
                (name,) = writer.node("Identity", [tensor], hint or "output")
            shape = None if tensor.dims is None else [_shown(dim) for dim in tensor.dims]
            infos.append(
                helper.make_tensor_value_info(
                    name, NUMBERS[tensor.dtype], shape or [None] * tensor.ndim
                )
            )
        return infos

    def _warn(self) -> None:
        if self.writer.unchecked:
            text = "; ".join(dict.fromkeys(self.writer.unchecked))
            warnings.warn(
                f"the file does not check what the program does: {text}", UserWarning, stacklevel=4
            )

    def _checked(self, outputs: list[Any]) -> tuple[Any, dict[str, np.ndarray]]:
        """The model, after ONNX's checker has seen it with its large weights as inputs."""
        import onnx
        from onnx import helper

        writer = self.writer
        nodes = needed(writer.block.nodes, [each.name for each in outputs])
        used = set(_all_inputs(nodes))
        arrays = {name: array for name, array in writer.initializers.items() if name in used}
        small = {name: array for name, array in arrays.items() if array.nbytes <= SMALL}
        large = {name: array for name, array in arrays.items() if name not in small}
        graph = helper.make_graph(
            nodes, self.name, self.inputs, outputs, [tensor_of(name, array) for name, array in small.items()]
        )  # fmt: skip
        opsets = [helper.make_opsetid("", writer.opset)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets),
            producer_name="relaxpy", producer_version=relaxpy.__version__,
        )  # fmt: skip
        trial = onnx.ModelProto()
        trial.CopyFrom(model)
        trial.graph.input.extend(
            helper.make_tensor_value_info(name, NUMBERS[DType(a.dtype)], a.shape)
            for name, a in large.items()
        )
        try:
            checker: Any = onnx.checker
            checker.check_model(trial, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise self._wrong(str(error)) from None
        return model, large

    def _wrong(self, text: str) -> RelaxError:
        """ONNX's checker refuses a node: mostly a dtype that its operator does not take."""
        place: Span | None = None
        for title, span in self.writer.spans.items():
            if title in text:
                place = span
        line = next(
            (each for each in text.splitlines() if "typestr" in each or "Error" in each),
            text.strip(),
        )
        return UsageError(
            "onnx-dtype",
            f"ONNX does not take this: {' '.join(line.split())}",
            span=place,
            help="cast to float32 or int64 before it",
        )


def _parts(name: str, annotation: Annotation) -> Iterator[tuple[str, Annotation]]:
    """The inputs that a parameter is: itself, or the fields of a tuple."""
    if not isinstance(annotation, TupleType):
        yield name, annotation
        return
    for i, field in enumerate(annotation.fields):
        yield from _parts(f"{name}_{i}", field)


def _check_weight(param: Var, array: np.ndarray) -> None:
    kind = param.annotation
    if not isinstance(kind, TensorType):
        raise UsageError("onnx-file", f"the parameter {param.name!r} is no tensor", span=param.span)
    dims = kind.dims
    fits = (kind.dtype in (None, DType(array.dtype))) and kind.ndim in (-1, array.ndim)
    if fits and dims is not None:
        fits = all(d.value in (None, n) for d, n in zip(dims, array.shape, strict=True))
    if not fits:
        raise UsageError(
            "onnx-file",
            f"the weight {param.name!r} is {DType(array.dtype)} {list(array.shape)}, and its parameter is {kind}",
            span=param.span,
        )


def tensor_of(name: str, array: np.ndarray) -> Any:
    """An array as a TensorProto."""
    from onnx import helper

    raw = as_bytes(array).tobytes()
    return helper.make_tensor(name, NUMBERS[DType(array.dtype)], array.shape, raw, raw=True)


def _store(
    model: Any, large: Mapping[str, np.ndarray], path: Path | None, beside: bool | None
) -> None:
    """Put the weights into the model, or into a file beside it, and write it."""
    total = sum(array.nbytes for array in large.values()) + model.ByteSize()
    if beside is None:
        beside = total > LARGEST
    if total > LARGEST and (path is None or not beside):
        raise UsageError(
            "onnx-file",
            f"a model with weights of {total:,} bytes cannot be in one piece",
            help='write the weights beside it: relaxpy.onnx.export(mod, "model.onnx")',
        )
    if beside and path is None:
        raise UsageError(
            "onnx-file",
            "external_data needs a path",
            help='give the path of a file: relaxpy.onnx.export(mod, "model.onnx", external_data=True)',
        )
    if not beside:
        model.graph.initializer.extend(tensor_of(name, array) for name, array in large.items())
    elif path is not None:
        location = weights_file(path).name
        with replacing(weights_file(path)) as temporary, temporary.open("wb") as file:
            for name, array in large.items():
                file.write(b"\0" * (-file.tell() % ALIGNED))
                entry = _external(name, array, location, file.tell())
                as_bytes(array).tofile(file)
                model.graph.initializer.append(entry)
    if path is not None:
        with replacing(path) as temporary:
            temporary.write_bytes(model.SerializeToString(deterministic=True))


def weights_file(path: Path) -> Path:
    """The file of the weights that are beside a model."""
    return path.with_name(f"{path.name}.data")


def described(info: Any) -> str:
    """An input or output of a model as text: its name, dtype and shape."""
    kind = info.type.tensor_type
    sizes = [
        dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")
        for dim in kind.shape.dim
    ]
    return f"{info.name}: {NAMES[kind.elem_type]}[{', '.join(sizes)}]"


ALIGNED = 4096
"""Tensors beside the file begin at multiples of this: a page of memory."""


def _external(name: str, array: np.ndarray, location: str, offset: int) -> Any:
    import onnx

    entry = onnx.TensorProto(name=name, data_type=NUMBERS[DType(array.dtype)], dims=array.shape)
    entry.data_location = onnx.TensorProto.EXTERNAL
    length = dtypes.nbytes(array.dtype.name, array.shape)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        entry.external_data.add(key=key, value=str(value))
    return entry


def _as_row(writer: Writer, name: str) -> str:
    """A scalar as a tensor of one element."""
    return writer.node("Reshape", [name, writer.constant(np.array([1]))], "size")[0]


def _shown(dim: Dim) -> int | str:
    return dim.value if dim.value is not None else str(dim)


def _all_inputs(nodes: Any) -> Any:
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_inputs(attribute.g.node)
                yield from (each.name for each in attribute.g.output)
