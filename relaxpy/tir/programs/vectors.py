"""Vector code from scalar statements: whole vectors, the masked remainder, and the reduction of a vector to one number.

A statement is written for one element, with a variable for its index; `vectorise` returns the statement for `lanes`
elements at once. TVM's own pass does the rewriting. If it fails (it would leave a scalar loop), the result is None, and
the caller writes that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.tir.numerics.floats import is_unordered
from relaxpy.tir.programs.loops import (
    Expr,
    Program,
    Stmt,
    broadcast,
    ceildiv,
    clamped_int32,
    constant,
    first_lanes,
    floordiv,
    int64,
    load,
    simplify,
)
from relaxpy.tir.recognise.stages import Combiner, loads_of, map_loads
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

# TVM leaves a scalar loop for rounding to integers, although there is an instruction for vectors.
tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)

ElementStmt = Callable[[Expr], tirx.BufferStore]
"""The store of one element, given its index."""


def vectorise(body: ElementStmt, lanes: int) -> tirx.BufferStore | None:
    """The stores of elements 0 to `lanes` - 1 as one vector store; None if TVM would scalarise them."""
    if lanes == 1:
        return body(int64(0))
    var = tirx.Var("lane", "int64")
    return _vectorised(body(var), var, lanes)


def _vectorised(stmt: tirx.BufferStore, var: tvm.ir.Var, lanes: int) -> tirx.BufferStore | None:
    """The stores for each value of `var` below `lanes` as one; None if TVM would scalarise them."""
    stmt = rewritten(stmt, (tvm.ir.Call, _without_isnan))
    scalar = tirx.For(var, int64(0), int64(lanes), tirx.ForKind.VECTORIZED, stmt)
    module = tvm.IRModule({"body": tirx.PrimFunc([], scalar)})
    try:
        result = tirx.transform.VectorizeLoop(True)(module)["body"].body
    except tvm.error.InternalError:
        return None  # lanes in another index than the last: TVM cannot express it
    return result if isinstance(result, tirx.BufferStore) else None


def _without_isnan(call: tvm.ir.Call) -> Expr:
    """Replace `isnan` by a form that also exists for vectors."""
    if str(getattr(call.op, "name", "")) != "tirx.isnan":
        return call
    return is_unordered(call.args[0])


def vector_value(value: Callable[[Expr], Expr], lanes: int) -> Expr | None:
    """The vector of `value(0)` to `value(lanes - 1)`; None where TVM would scalarise it."""
    if lanes == 1:
        return value(int64(0))
    var = tirx.Var("lane", "int64")
    element = value(var)
    scratch = tirx.decl_buffer([int64(lanes)], str(element.ty.dtype), "scratch", layout=None)
    stmt = _vectorised(tirx.BufferStore(scratch, element, [var]), var, lanes)
    if stmt is None:
        return None
    return stmt.value if lanes_of(stmt.value) == lanes else tirx.Broadcast(stmt.value, lanes)


def masked_value(value: Expr, mask: Expr) -> Expr | None:
    """The vector value with its reads masked; None if it reads elements that are not contiguous."""
    for read in loads_of(value):
        if not _is_maskable(read.indices):
            return None

    def masked(node: tvm.ir.TensorLoad) -> Expr:
        if not node.indices or lanes_of(node.indices[-1]) == 1:
            return node
        args = (node.source, *node.indices, mask)
        return tirx.call_intrin(node.ty.dtype, "tirx.masked_load", *args)

    return rewritten(value, (tvm.ir.TensorLoad, masked))


def masked_store(stmt: tirx.BufferStore, mask: Expr) -> Stmt | None:
    """The vector store for the active lanes of the mask only; None if it accesses elements that are not contiguous."""
    if not stmt.indices or not _is_maskable(stmt.indices) or lanes_of(stmt.indices[-1]) == 1:
        return None
    value = masked_value(stmt.value, mask)
    if value is None:
        return None
    args = (stmt.buffer, value, *stmt.indices, mask)
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.masked_store", *args))


def vector_loop(
    p: Program,
    name: str,
    extent: Expr,
    lanes: int,
    body: ElementStmt,
    side_by_side: int = 1,
    whole_store: Callable[[tirx.BufferStore], None] | None = None,
) -> None:
    """`body(i)` for every i below `extent`, which must be independent: whole vectors, then the remainder under a mask.
    A body that does not vectorise becomes a scalar loop.

    `side_by_side` vectors are computed operation by operation, which LLVM splits into registers: a processor sees as
    many chains of dependent operations at once, however long they are. `whole_store` adds the store of whole vectors to
    the program, in another way than `p.add` does.
    """
    extent = simplify(extent)
    if lanes == 1 or vectorise(body, lanes) is None:
        with p.loop(name, extent) as i:
            p.add(body(i))
        return
    if masked_store(_shifted(body, int64(0), lanes), first_lanes(int64(1), lanes)) is None:
        side_by_side = 1
    block = lanes * side_by_side
    whole = floordiv(extent, block)
    with p.loop(name, whole) as i:
        (whole_store or p.add)(_shifted(body, i * int64(block), block))
    if constant(simplify(extent - whole * int64(block))) == 0:
        return  # `done` would hide it
    done = p.let("done", simplify(whole * int64(block)))
    rest = simplify(extent - done)
    with p.when(rest > 0), p.loop(name, int64(1) if block == lanes else ceildiv(rest, lanes)) as i:
        start, left = simplify(done + i * int64(lanes)), simplify(rest - i * int64(lanes))
        mask = first_lanes(left if block == lanes else clamped_int32(left, lanes), lanes)
        masked = masked_store(_shifted(body, start, lanes), mask)
        if masked is not None:
            p.add(masked)
            return
        with p.loop(name, left) as j:
            p.add(body(start + j))


def converted(vector: Expr, dtype: str, lanes: int, mask: Expr | None = None) -> Expr:
    """The vector with elements of another type; zeros in the lanes that a mask did not read."""
    value = vector
    if str(tvm.DataType(str(vector.ty.dtype)).with_lanes(1)) != dtype:
        value = tirx.Cast(_dtype(dtype, lanes), vector)
    if mask is None:
        return value
    return tirx.Select(mask, value, broadcast(tirx.const(0, dtype), lanes))


def every_second(low: Expr, high: Expr, lanes: int, first: int = 0) -> Expr:
    """Concatenate the elements at even positions of two vectors, or at odd ones if the first is 1."""
    places = [tirx.IntImm("int32", 2 * lane + first) for lane in range(lanes)]
    return tirx.Shuffle([low, high], places)


def interleaved(first: Expr, second: Expr, size: int) -> tuple[Expr, Expr]:
    """The elements of two vectors in turns, as two vectors: those in the first halves of their parts of `size`
    elements, and those in the second halves."""
    lanes, half = lanes_of(first), size // 2
    low = [part + k // 2 + k % 2 * lanes for part in range(0, lanes, size) for k in range(size)]
    places = (low, [place + half for place in low])
    of_first, of_second = ([tirx.IntImm("int32", place) for place in each] for each in places)
    return tirx.Shuffle([first, second], of_first), tirx.Shuffle([first, second], of_second)


def strips(parts: Sequence[Expr], size: int) -> list[Expr]:
    """The registers of a strip of a square (`relaxpy.backend.cpu.rules.transpose`), given its `size` words of each row:
    the first register has rows 0, `size`, 2 `size`, …, the second the rows behind these. Words are joined as they are
    read, which is cheaper than a permutation."""
    return [joined(parts[first::size]) for first in range(size)]


def joined(vectors: Sequence[Expr]) -> Expr:
    """The vectors, one behind the other."""
    if len(vectors) == 1:
        return vectors[0]
    lanes = sum(map(lanes_of, vectors))
    return tirx.Shuffle(list(vectors), [tirx.IntImm("int32", lane) for lane in range(lanes)])


def mapped(function: Callable[[Expr], Expr], vector: Expr, lanes: int) -> Expr:
    """A function of a float32, which must vectorise, applied to every lane of a vector."""
    operand = tirx.decl_buffer([int64(lanes)], "float32", "x", layout=None)

    def element(lane: Expr) -> tirx.BufferStore:
        return tirx.BufferStore(operand, function(tirx.BufferLoad(operand, [lane])), [lane])

    stmt = vectorise(element, lanes)
    assert stmt is not None, "the function vectorises"
    return map_loads(stmt.value, lambda _: vector)


def fold(p: Program, vector: Expr, lanes: int, combiner: Combiner) -> Expr:
    """Combine all lanes to one number in a fixed order: the lower half with the upper, and so on."""
    dtype = str(combiner.init.ty.dtype)

    def kept(value: Expr, width: int) -> Expr:
        # In memory that LLVM keeps in a register: a name would be replaced by its value, twice at each step.
        buffer = p.allocate("fold", width, dtype)
        p.store(buffer, 0, value, width)
        return load(buffer, 0, width)

    current, width = kept(vector, lanes), lanes
    while width > 1:
        width //= 2
        half = f"{dtype}x{width}" if width > 1 else dtype
        low = _half(current, half, width, upper=False)
        high = _half(current, half, width, upper=True)
        current = kept(combiner.join(low, high), width)
    return current


def _half(vector: Expr, dtype: str, width: int, *, upper: bool) -> Expr:
    if width == 1:
        return tirx.Shuffle([vector], [tirx.IntImm("int32", int(upper))])
    name = "tirx.vectorhigh" if upper else "tirx.vectorlow"
    return tirx.call_intrin(dtype, name, vector)


def _shifted(body: ElementStmt, start: Expr, lanes: int) -> tirx.BufferStore:
    stmt = vectorise(lambda lane: body(start + lane), lanes)
    assert stmt is not None, "what vectorises at 0 does so everywhere"
    return stmt


def _is_maskable(indices: Sequence[Expr]) -> bool:
    """Is the access to one element, or to contiguous ones along the last dimension?"""
    if not indices:
        return True  # a 0-d tensor has one element
    *outer, last = indices
    if any(lanes_of(index) != 1 for index in outer):
        return False
    if lanes_of(last) == 1:
        return True
    return (
        isinstance(last, tirx.Ramp)
        and isinstance(last.stride, tirx.IntImm)
        and last.stride.value == 1
    )


def lanes_of(value: Expr) -> int:
    """The number of lanes of a value; 1 of a number."""
    return int(tvm.DataType(str(value.ty.dtype)).lanes)


def _dtype(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
