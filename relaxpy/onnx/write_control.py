"""Branches and loops as ONNX has them: If, and Loop for a function that calls itself in the end.

def step(i, x):                        going = i < n
if i < n:                          Loop(going, i, x):
y = …                              y = …
r = step(i + 1, y)      →          going = i + 1 < n
else:                                  i, x = i + 1, y
r = (i, x)                     r = (i, x)
return r
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.analysis.tail_calls import tail_calls
from relaxpy.errors import Span
from relaxpy.frontend.onnx.element_types import NUMBERS
from relaxpy.ir import (
    Annotation,
    Call,
    Dim,
    DType,
    Function,
    If,
    ObjectType,
    PrimType,
    SeqExpr,
    ShapeType,
    TensorType,
    TupleType,
    Var,
)
from relaxpy.ir.accessors import expect
from relaxpy.ir.visitor import Visitor
from relaxpy.narrow import is_tuple
from relaxpy.onnx.write_values import Block, Closure, Frame, ShapeTensor, Tensor, UnwrittenError

if TYPE_CHECKING:
    from relaxpy.onnx.writer import Writer


def write_branch(writer: Writer, frame: Frame, var: Var, value: If, span: Span | None) -> Any:
    """A branch; one that is decided is written alone."""
    condition = writer.value(frame, value.cond)
    if isinstance(condition, Dim) and condition.value is not None:
        return writer.body(frame, value.then if condition.value else value.otherwise)
    chosen = writer.tensor(condition, "bool")
    graphs: list[Any] = []
    parts: list[Tensor] = []
    for name, seq in (("then", value.then), ("else", value.otherwise)):
        with Inner(writer) as block:
            inner = Frame(outer=frame, running=frame.running)
            parts = flat(writer, writer.body(inner, seq), var.annotation)
            graphs.append(_graph(writer, block, f"{var.name}_{name}", [], parts))
    names = writer.node(
        "If", [chosen], var.name, len(parts), span, then_branch=graphs[0], else_branch=graphs[1]
    )
    return rebuilt(writer, frame, var.annotation, iter(names), iter(parts))


def write_loop(
    writer: Writer, frame: Frame, called: Closure, args: Sequence[Any], span: Span | None
) -> Any:
    """The call of a function that calls itself in the end."""
    function = called.function
    found = _parts(called)
    if found is None:
        return _write_steps(writer, frame, called, args, span)
    before, choice, again, name = found

    def entered(values: Sequence[Any]) -> tuple[Frame, Tensor]:
        """The function's start with these arguments: its variables, and whether it goes on."""
        inner = Frame(outer=called.frame, running=frame.running)
        writer.parameters(inner, function, values)
        for binding in before:
            writer.binding(inner, binding)
        goes_on = writer.tensor(writer.value(inner, choice.cond), "bool")
        if again is choice.otherwise:
            (other,) = writer.node("Not", [goes_on], "goes_on")
            goes_on = Tensor(other, goes_on.dtype, 0, ())
        return inner, goes_on

    def restored(names: Iterator[str], like: Iterator[Tensor]) -> list[Any]:
        inner = Frame(outer=called.frame)
        return [rebuilt(writer, inner, param.annotation, names, like) for param in function.params]

    kinds = TupleType(param.annotation for param in function.params)
    first = flat(writer, tuple(args), kinds)
    _, begins = entered(args)
    with Inner(writer) as block:
        inputs = [
            writer.fresh(hint) for hint in ("i", "going", *(f"{each.name}_in" for each in first))
        ]
        block.made.update(inputs)
        inner, _ = entered(restored(iter(inputs[2:]), iter(first)))
        following: list[Any] = []
        for binding in again.bindings:
            if isinstance(binding.value, Call) and binding.value.op == called.name:
                following = [writer.value(inner, arg) for arg in binding.value.args]
                break
            writer.binding(inner, binding)
        _, goes_on = entered(following)
        after = flat(writer, tuple(following), kinds)
        given = [Tensor(inputs[0], DType("int64"), 0, ()), Tensor(inputs[1], DType("bool"), 0, ())]
        given += [Tensor(n, t.dtype, t.ndim) for n, t in zip(inputs[2:], first, strict=True)]
        body = _graph(writer, block, f"{name}_step", given, [goes_on, *after])
    outputs = writer.node("Loop", ["", begins, *first], name, len(first), span, body=body)
    final, _ = entered(restored(iter(outputs), iter(first)))
    return writer.body(final, choice.otherwise if again is choice.then else choice.then)


def own_calls(called: Closure) -> bool:
    """Does a function call itself?"""
    return _Calls(called.name).found_in(called.function) > 0


class _Calls(Visitor):
    """Counts the calls of a function by this name."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self.count = 0

    def found_in(self, function: Function) -> int:
        self.visit(function.body)
        return self.count

    def visit_Call(self, node: Call) -> None:
        self.count += node.op == self.name


def _parts(called: Closure) -> tuple[list[Any], If, SeqExpr, str] | None:
    """What comes before the only branch of a loop, the branch, the arm that goes on, and a name; None: there are
    several."""
    function, name = called.function, called.name.name
    calls = [call for call in tail_calls(function) if call.op == called.name]
    if len(calls) != _Calls(called.name).found_in(function):
        raise UnwrittenError("onnx-operator", f"{name}, which calls itself and is no loop")
    bindings = list(function.body.bindings)
    for index, binding in enumerate(bindings):
        if isinstance(binding.value, If) and len(calls) == 1:
            for arm in (binding.value.then, binding.value.otherwise):
                if any(each.value is calls[0] for each in arm.bindings):
                    return bindings[:index], binding.value, arm, name
    return None


def _write_steps(
    writer: Writer, frame: Frame, called: Closure, args: Sequence[Any], span: Span | None
) -> Any:
    """A loop that ends at several places. A step gives whether it goes on, and the arguments, or the results."""
    function = called.function
    kinds = TupleType(param.annotation for param in function.params)
    first = flat(writer, tuple(args), kinds)
    blank = [*_blank(writer, function.ret)]
    with Inner(writer) as block:
        hints = (
            "i",
            "going",
            *(f"{each.name}_in" for each in first),
            *(["result_in"] * len(blank)),
        )
        inputs = [writer.fresh(hint) for hint in hints]
        block.made.update(inputs)
        own = Frame(outer=called.frame, running=frame.running)
        names, like = iter(inputs[2:]), iter(first)
        values = [rebuilt(writer, own, param.annotation, names, like) for param in function.params]
        writer.parameters(own, function, values)
        state = flat(writer, tuple(values), kinds)
        calls = [call for call in tail_calls(function) if call.op == called.name]
        parts = _Step(writer, function, calls, state, blank).write(own, function.body)
        scalars = [
            Tensor(inputs[0], DType("int64"), 0, ()),
            Tensor(inputs[1], DType("bool"), 0, ()),
        ]
        given = [
            Tensor(n, t.dtype, t.ndim) for n, t in zip(inputs[2:], [*first, *blank], strict=True)
        ]
        body = _graph(writer, block, f"{called.name.name}_step", [*scalars, *given], parts)
    begins = writer.constant(np.array(True))
    outputs = writer.node(
        "Loop", ["", begins, *first, *blank], called.name.name, len(given), span, body=body
    )
    results = iter(outputs[len(first) :])
    return rebuilt(writer, Frame(outer=called.frame), function.ret, results, iter(blank))


class _Step:
    """Writes the body of a loop that ends at several places."""

    def __init__(
        self,
        writer: Writer,
        function: Function,
        calls: Sequence[Call],
        state: Sequence[Tensor],
        blank: Sequence[Tensor],
    ) -> None:
        self.writer = writer
        self.function = function
        self.calls = calls
        self.state = state
        self.blank = blank

    def write(self, frame: Frame, seq: SeqExpr) -> list[Tensor]:
        """Whether it goes on, the next arguments, and the results."""
        writer = self.writer
        for binding in seq.bindings:
            value = binding.value
            if any(value is call for call in self.calls):
                value = expect(Call, value)
                following = tuple(writer.value(frame, arg) for arg in value.args)
                kinds = TupleType(param.annotation for param in self.function.params)
                return [
                    writer.constant(np.array(True)),
                    *flat(writer, following, kinds),
                    *self.blank,
                ]
            if isinstance(value, If) and any(
                self._goes_on(arm) for arm in (value.then, value.otherwise)
            ):
                return self._branch(frame, value, binding.var.name)
            writer.binding(frame, binding)
        results = flat(writer, writer.value(frame, seq.body), self.function.ret)
        return [writer.constant(np.array(False)), *self.state, *results]

    def _goes_on(self, seq: SeqExpr) -> bool:
        """Is there a call of the function itself in it?"""
        return any(
            any(each.value is call for call in self.calls)
            or (
                isinstance(each.value, If)
                and (self._goes_on(each.value.then) or self._goes_on(each.value.otherwise))
            )
            for each in seq.bindings
        )

    def _branch(self, frame: Frame, value: If, name: str) -> list[Tensor]:
        writer = self.writer
        condition = writer.value(frame, value.cond)
        if isinstance(condition, Dim) and condition.value is not None:
            return self.write(frame, value.then if condition.value else value.otherwise)
        chosen = writer.tensor(condition, "bool")
        graphs: list[Any] = []
        parts: list[Tensor] = []
        for title, seq in (("then", value.then), ("else", value.otherwise)):
            with Inner(writer) as block:
                parts = self.write(Frame(outer=frame, running=frame.running), seq)
                graphs.append(_graph(writer, block, f"{name}_{title}", [], parts))
        names = writer.node(
            "If", [chosen], name, len(parts), then_branch=graphs[0], else_branch=graphs[1]
        )
        return [Tensor(n, part.dtype, part.ndim) for n, part in zip(names, parts, strict=True)]


def _blank(writer: Writer, annotation: Annotation) -> Iterator[Tensor]:
    """Values in place of results that there are not yet."""
    match annotation:
        case TupleType():
            for field in annotation.fields:
                yield from _blank(writer, field)
        case TensorType() if annotation.dtype is not None and annotation.ndim >= 0:
            yield writer.constant(np.zeros((0,) * annotation.ndim, annotation.dtype.numpy), "blank")
        case PrimType():
            yield writer.constant(np.zeros((), annotation.dtype.numpy), "blank")
        case ShapeType() if annotation.ndim >= 0:
            yield writer.constant(np.zeros(annotation.ndim, np.int64), "blank")
        case _:
            raise UnwrittenError("onnx-operator", f"a result of the kind {annotation} of a loop")


class Inner:
    """The graph of a branch or a loop."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def __enter__(self) -> Block:
        self.before = self.writer.block
        self.writer.block = Block(self.before)
        return self.writer.block

    def __exit__(self, *_: object) -> None:
        self.writer.block = self.before


def _graph(
    writer: Writer, block: Block, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Any:
    """The graph of a block. Its outputs are made in it, each once."""
    from onnx import helper

    names: list[str] = []
    for each in outputs:
        own = each.name
        if own not in block.made or own in names or any(own == given.name for given in inputs):
            (own,) = writer.node("Identity", [each], each.name)
        names.append(own)
    infos = [
        helper.make_tensor_value_info(own, NUMBERS[each.dtype], None)
        for own, each in zip(names, outputs, strict=True)
    ]
    given = [
        helper.make_tensor_value_info(each.name, NUMBERS[each.dtype], None if each.ndim else [])
        for each in inputs
    ]
    return helper.make_graph(needed(block.nodes, names), name, given, infos)


def needed(nodes: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The nodes that these values depend on."""
    wanted, kept = set(names), list[Any]()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(_uses(node))
    return kept[::-1]


def _uses(node: Any) -> Iterator[str]:
    """The names that a node reads, and the graphs in it."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _uses(inner)


def flat(writer: Writer, value: Any, annotation: Annotation) -> list[Tensor]:
    """The tensors that a value consists of."""
    if isinstance(annotation, TupleType):
        pairs = zip(value, annotation.fields, strict=True)
        return [part for each, own in pairs for part in flat(writer, each, own)]
    if isinstance(annotation, ShapeType):
        return [writer.tensor(value)]
    if is_tuple(value) and not (value and all(isinstance(each, Dim) for each in value)):
        return [part for each in value for part in flat(writer, each, ObjectType())]
    return [writer.tensor(value)]


def rebuilt(
    writer: Writer,
    frame: Frame,
    annotation: Annotation,
    names: Iterator[str],
    like: Iterator[Tensor],
) -> Any:
    """The value of tensors by name, as `flat` gave them."""
    match annotation:
        case TupleType():
            return tuple(rebuilt(writer, frame, each, names, like) for each in annotation.fields)
        case TensorType():
            name, old = next(names), next(like)
            if annotation.dtype is None or annotation.ndim < 0:
                annotation = TensorType(None, old.dtype, old.ndim)
            return writer.typed(frame, name, annotation, None)
        case PrimType():
            found = Tensor(next(names), next(like).dtype, 0, ())
            return writer.as_dim(found, annotation)
        case ShapeType():
            vector = Tensor(next(names), DType("int64"), 1, next(like).dims)
            return writer.shape_dims(ShapeTensor(vector), annotation.ndim)
        case _:
            raise UnwrittenError(
                "onnx-operator", f"a value of the kind {annotation} in a branch or loop"
            )
