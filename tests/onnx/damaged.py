"""Damaged ONNX files: 300, drawn. Each is a small model that was damaged in one way: its bytes, its text, its structure, or
the file of its weights.

Case number k is the same in each run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper, helper, numpy_helper, printer

from tests.onnx.small_models import models

COUNT = 300

Write = Callable[[Path], Path]
"""Writes the files of a case into an empty folder, and gives the model's."""


def cases() -> Mapping[str, Write]:
    """The cases by name."""
    return dict(_case(number) for number in range(COUNT))


def undamaged(name: str) -> Any:
    """The model of which a case was made."""
    return _models()[name.split(" ")[1]]


@cache
def _models() -> Mapping[str, Any]:
    return models()


def _case(number: int) -> tuple[str, Write]:
    names, kinds = list(_models()), list(DAMAGES)
    base = names[number % len(names)]
    kind = kinds[(number // len(names)) % len(kinds)]

    def write(folder: Path) -> Path:
        return DAMAGES[kind](_copy(_models()[base]), random.Random(number), folder)

    return f"{number} {base} {kind}", write


def _copy(proto: Any) -> Any:
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    return found


# Bytes


def _bytes(change: Callable[[bytearray, random.Random], None]) -> Any:
    """Damage to the bytes of protobuf."""

    def damage(model: Any, rng: random.Random, folder: Path) -> Path:
        data = bytearray(model.SerializeToString())
        change(data, rng)
        return _written(folder, bytes(data))

    return damage


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    for k in range(start, min(len(data), start + rng.choice((1, 4, 16)))):
        data[k] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))


def _cut(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 9, 60))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start, length = rng.randrange(len(data)), rng.choice((1, 2, 9, 60))
    data[start:start] = data[start : start + length]


def _exchange(data: bytearray, rng: random.Random) -> None:
    length = rng.choice((1, 2, 8))
    first, second = sorted(rng.sample(range(len(data) - length), 2))
    data[first : first + length], data[second : second + length] = (
        data[second : second + length],
        data[first : first + length],
    )


# Text


def _text(model: Any, rng: random.Random, folder: Path) -> Path:
    """Words of the text are left out, repeated, exchanged, or become others."""
    words = printer.to_text(model).split(" ")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                words[at] = ""
            case 1:
                words[at] = f"{words[at]} {words[at]}"
            case 2:
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = words[other]
            case _:
                words[at] = "".join(
                    rng.choice("0919-x{}[]<>,") if rng.random() < 0.3 else c for c in words[at]
                )
    return _written(folder, " ".join(words).encode())


# Structure


def _structure(change: Callable[[Any, random.Random], Any]) -> Any:
    """Damage to the message."""

    def damage(model: Any, rng: random.Random, folder: Path) -> Path:
        change(model, rng)
        return _written(folder, model.SerializeToString())

    return damage


def graphs(model: Any) -> Iterator[Any]:
    """The graphs of a model, those of nodes and the bodies of functions among them."""

    def inner(graph: Any) -> Iterator[Any]:
        yield graph
        for node in graph.node:
            for each in node.attribute:
                if each.type == onnx.AttributeProto.GRAPH:
                    yield from inner(each.g)

    yield from inner(model.graph)
    for function in model.functions:
        yield from inner(function)


def _drawn_node(model: Any, rng: random.Random) -> tuple[Any, int]:
    places = [(graph, k) for graph in graphs(model) for k in range(len(graph.node))]
    return rng.choice(places)


def _without_node(model: Any, rng: random.Random) -> None:
    graph, place = _drawn_node(model, rng)
    del graph.node[place]


def _node_twice(model: Any, rng: random.Random) -> None:
    graph, place = _drawn_node(model, rng)
    graph.node.add().CopyFrom(graph.node[place])


def _order(model: Any, rng: random.Random) -> None:
    graph, place = _drawn_node(model, rng)
    moved = onnx.NodeProto()
    moved.CopyFrom(graph.node[place])
    del graph.node[place]
    graph.node.insert(rng.randrange(len(graph.node) + 1), moved)


def _operator(model: Any, rng: random.Random) -> None:
    """Another operator, with the inputs and attributes of this one."""
    graph, place = _drawn_node(model, rng)
    names = sorted({each.name for each in onnx.defs.get_all_schemas() if not each.domain})
    graph.node[place].op_type = rng.choice(names)


def _wires(model: Any, rng: random.Random) -> None:
    """An input of a node is another value, nothing, or one more or less."""
    graph, place = _drawn_node(model, rng)
    node = graph.node[place]
    names = [name for each in graph.node for name in (*each.input, *each.output)] or [""]
    if node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = rng.choice((*names, "", "nobody"))
    elif node.input and rng.random() < 0.5:
        node.input.pop()
    else:
        node.input.append(rng.choice(names))


def _results(model: Any, rng: random.Random) -> None:
    """An output of a node has the name of another value, none, or there is one more or less."""
    graph, place = _drawn_node(model, rng)
    node = graph.node[place]
    names = [name for each in graph.node for name in (*each.input, *each.output)] or [""]
    if node.output and rng.random() < 0.7:
        node.output[rng.randrange(len(node.output))] = rng.choice((*names, "", "nobody"))
    elif node.output and rng.random() < 0.5:
        node.output.pop()
    else:
        node.output.append("another")


NUMBERS = (0, 1, -1, 2, -2, 7, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))


def _attribute(model: Any, rng: random.Random) -> None:
    """An attribute is left out, of another value, or of another type."""
    found = [
        (node, k)
        for graph in graphs(model)
        for node in graph.node
        for k in range(len(node.attribute))
    ]
    if not found:
        return _operator(model, rng)
    node, place = rng.choice(found)
    name = node.attribute[place].name
    match rng.randrange(4):
        case 0:
            del node.attribute[place]
            return None
        case 1:
            value: Any = rng.choice(NUMBERS)
        case 2:
            value = [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 5))]
        case _:
            value = rng.choice((0.5, float("nan"), "text", [0.5], ["text"], weightless()))
    node.attribute[place].CopyFrom(helper.make_attribute(name, value))
    return None


def weightless() -> Any:
    """A tensor without elements."""
    return helper.make_tensor("t", onnx.TensorProto.FLOAT, [0], [])


def _initializer(model: Any, rng: random.Random) -> None:
    """A weight is left out, there twice, or of another name, dtype, shape or size."""
    found = model.graph.initializer
    if not found:
        return _wires(model, rng)
    place = rng.randrange(len(found))
    tensor = found[place]
    match rng.randrange(8):
        case 0:
            del found[place]
        case 1:
            found.add().CopyFrom(tensor)
        case 2:
            tensor.name = rng.choice(("nobody", "", found[rng.randrange(len(found))].name))
        case 3:
            tensor.data_type = rng.randrange(30)
        case 4:
            tensor.dims.append(rng.choice(NUMBERS))
        case 5 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 6:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case _:
            del tensor.dims[:]
    return None


def _interface(model: Any, rng: random.Random) -> None:
    """An input or output of a graph is left out, there twice, or of another name, dtype, rank or size."""
    graph = rng.choice([each for each in graphs(model) if isinstance(each, onnx.GraphProto)])
    found = rng.choice([each for each in (graph.input, graph.output) if each])
    place = rng.randrange(len(found))
    info = found[place]
    tensor = info.type.tensor_type
    match rng.randrange(8):
        case 0:
            del found[place]
        case 1:
            found.add().CopyFrom(info)
        case 2:
            info.name = rng.choice(("nobody", "", graph.node[0].output[0]))
        case 3:
            tensor.elem_type = rng.randrange(30)
        case 4:
            tensor.shape.dim.add().dim_value = rng.choice(NUMBERS)
        case 5:
            info.ClearField("type")
        case 6 if tensor.shape.dim:
            rng.choice(tensor.shape.dim).dim_value = rng.choice(NUMBERS)
        case _:
            del tensor.shape.dim[:]


def _versions(model: Any, rng: random.Random) -> None:
    """The opset is another, or there is none."""
    match rng.randrange(5):
        case 0:
            del model.opset_import[:]
        case 1:
            model.opset_import[0].domain = "elsewhere"
        case 2:
            model.opset_import.add().version = rng.choice(NUMBERS)
        case 3 if model.functions:
            del model.functions[0].opset_import[:]
        case _:
            model.opset_import[0].version = rng.choice((1, 6, 7, 12, 13, *NUMBERS))


# Weights in another file


def _external(model: Any, rng: random.Random, folder: Path) -> Path:
    """The weights are in a file of their own, which is damaged, or is said to be another or to have other places."""
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    external_data_helper.convert_model_to_external_data(
        model, location="weights", size_threshold=0, convert_attribute=True
    )
    path = folder / "model.onnx"
    onnx.save(model, path)
    if not model.graph.initializer:
        _truncated(path, rng)
        return path
    model = onnx.load(path, load_external_data=False)
    entries = rng.choice(model.graph.initializer).external_data
    match rng.randrange(5):
        case 0:
            _truncated(folder / "weights", rng)
        case 1:
            (folder / "weights").unlink()
        case 2:
            del entries[rng.randrange(len(entries))]
        case _:
            entry = rng.choice(entries)
            entry.value = rng.choice((*map(str, NUMBERS), "", "x", "1.5", "model.onnx", ".."))
    path.write_bytes(model.SerializeToString())
    return path


def _truncated(path: Path, rng: random.Random) -> None:
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


DAMAGES: Mapping[str, Any] = {
    "truncated": _bytes(_truncate),
    "flipped": _bytes(_flip),
    "overwritten": _bytes(_overwrite),
    "cut": _bytes(_cut),
    "repeated": _bytes(_repeat),
    "exchanged": _bytes(_exchange),
    "text": _text,
    "without-node": _structure(_without_node),
    "node-twice": _structure(_node_twice),
    "order": _structure(_order),
    "operator": _structure(_operator),
    "wires": _structure(_wires),
    "results": _structure(_results),
    "attribute": _structure(_attribute),
    "initializer": _structure(_initializer),
    "interface": _structure(_interface),
    "versions": _structure(_versions),
    "external": _external,
}
