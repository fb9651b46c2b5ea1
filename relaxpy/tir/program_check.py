"""Check tensor programs for errors that TVM's parser accepts: float indices, negative extents, unknown dtypes,
variables used outside their scope."""

from __future__ import annotations

import ast
import re
from typing import Any

from relaxpy.errors import ScriptError, Source, Span, UsageError
from relaxpy.ir.dtype import DType
from relaxpy.tir.message import informative
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

_VECTOR = re.compile(r"(\w+?)x\d+")


def check_program(func: Any, source: Source, node: ast.FunctionDef) -> None:
    """Raise a located `ScriptError` (`tir-index`, `tir-extent`, `tir-dtype`, `tir-undefined`) if the program is
    invalid."""
    _ProgramCheck(source, node).run(func)


def is_dtype(name: str) -> bool:
    """Is this a dtype of elements (or of vectors of them) in tensor programs?"""
    vector = _VECTOR.fullmatch(name)
    if name == "handle" or name.startswith(("float8", "float4")):
        return True
    try:
        return not DType(vector[1] if vector else name).is_packed
    except UsageError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, tvm_ffi.Map):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, (tvm_ffi.Array, list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return (
            -(2**63) <= value < 2**63
        )  # TVM prints other objects as metadata, which text does not contain
    return value is None or isinstance(value, (float, str, tvm.ir.Expr, tvm.target.Target))


_WRITTEN_OUT = {int(tirx.ForKind.VECTORIZED): 4096, int(tirx.ForKind.UNROLLED): 65536}
"""Kinds of loops that are expanded to code for each iteration, and their largest number of iterations."""


class _ProgramCheck:
    def __init__(self, source: Source, node: ast.FunctionDef) -> None:
        self.source = source
        self.node = node
        # An exception does not pass through TVM's walker, so errors are collected and raised afterwards.
        self.errors: list[ScriptError] = []
        self.seen: set[Any] = set()

    def run(self, func: Any) -> None:
        callbacks = [
            (tirx.For, self.loop),
            (s_tir.SBlock, self.block),
            (tirx.IterVar, self.axis),
            ((tirx.IfThenElse, tirx.While, tirx.Select), self.condition),
            (tvm.ir.TensorLoad, self.access),
            (tirx.BufferStore, self.access),
            ((tirx.Mod, tirx.FloorMod, tirx.Div, tirx.FloorDiv), self.division),
            (tvm.ir.Var, self.variable),
        ]
        for param in func.params:
            self.variable(param)
        self.attributes(func.attrs, func)
        tvm_ffi.structural_walk(func.body, callbacks)
        if self.errors:
            raise min(
                self.errors,
                key=lambda error: (error.span.line, error.span.column) if error.span else (0, 0),
            )
        self.definitions(func)

    def refuse(self, where: Any, code: str, message: str, help: str | None = None) -> None:
        self.errors.append(ScriptError(code, message, span=self.span(where), help=help))

    def span(self, where: Any) -> Span:
        if isinstance(where, ast.AST):
            return self.source.span(where)
        span = getattr(where, "span", None)
        if span is None:
            return self.source.span(self.node)
        return self.source.range(span.line, span.column - 1, span.end_line, span.end_column - 1)

    def condition(self, node: Any) -> None:
        """A condition is of bools or integers; of others, TVM ends the process."""
        dtype = str(node.condition.ty.dtype)
        if "float" in dtype:
            self.refuse(
                node, "tir-dtype", f"a condition cannot be of {dtype}", "compare the value: x != 0"
            )

    def division(self, node: Any) -> None:
        """TVM refuses a literal 0 by itself, but not an unsigned one."""
        if isinstance(node.b, tirx.IntImm) and int(node.b.value) == 0:
            self.refuse(node, "tir-script", "Divide by zero")

    def attributes(self, attrs: Any, where: Any) -> None:
        """Attributes and annotations must be numbers (64-bit integers), strings, or lists and maps of these, the values
        that text can express."""
        for key, value in dict(attrs or {}).items():
            if not _is_plain(value):
                self.refuse(
                    where,
                    "tir-script",
                    f"the value of {key} must be a number (integers: int64), a string, or a list of these",
                )

    def block(self, block: Any) -> None:
        self.attributes(block.annotations, block)
        own = set(block.alloc_buffers)
        self.sizes(block)
        for region in (*block.reads, *block.writes) if own else ():
            used: list[Any] = []
            for part in region.region:
                tvm_ffi.structural_walk(part.min, [(tvm.ir.Var, used.append)])
                tvm_ffi.structural_walk(part.extent, [(tvm.ir.Var, used.append)])
            for var in used:
                if var in own:
                    self.refuse(
                        block,
                        "tir-script",
                        f"an index of {region.source.name} depends on {var.name}, which its block allocates",
                        f"allocate {var.name} outside the block {block.name_hint}",
                    )
                    return

    def sizes(self, block: Any) -> None:
        """Refuse allocations of a size that depends on the block's own axes, which TVM does not define there."""
        axes = {axis.var for axis in block.iter_vars}
        for buffer in block.alloc_buffers:
            used: list[Any] = []
            for size in buffer.ty.shape:
                tvm_ffi.structural_walk(size, [(tvm.ir.Var, used.append)])
            axis = next((var for var in used if var in axes), None)
            if axis is not None:
                self.refuse(
                    self.assignment(buffer.name) or block,
                    "tir-extent",
                    f"the size of {buffer.name} depends on {axis.name}, an axis of the block that allocates it",
                    "allocate the largest size that it can have, or outside of the block",
                )

    def assignment(self, name: str) -> ast.stmt | None:
        """The statement that defines a name."""
        return next(
            (
                part
                for part in ast.walk(self.node)
                if isinstance(part, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in part.targets)
            ),
            None,
        )

    def loop(self, loop: Any) -> None:
        self.attributes(loop.annotations, loop)
        self.extent(loop.extent, f"loop {loop.loop_var.name}", loop)
        self.integer(loop.min, f"the start of loop {loop.loop_var.name}", loop)
        most = _WRITTEN_OUT.get(int(loop.kind))
        if most is not None and isinstance(loop.extent, tirx.IntImm) and loop.extent.value > most:
            self.refuse(
                loop,
                "tir-extent",
                f"loop {loop.loop_var.name} has {loop.extent.value} steps: one that is unrolled or "
                f"vectorized has at most {most}",
                "write T.serial, or split the loop",
            )

    def axis(self, axis: Any) -> None:
        if axis.dom is not None:
            self.extent(axis.dom.extent, f"axis {axis.var.name}", axis.var)

    def variable(self, var: Any) -> None:
        if var in self.seen or not isinstance(var.ty, tirx.BufferType):
            return
        self.seen.add(var)
        for size in var.ty.shape:
            self.extent(size, f"a dimension of {var.name}", var)
        strides = list(var.strides or ())
        if strides and len(strides) != len(var.ty.shape):
            count = f"{len(strides)} strides for {len(var.ty.shape)} dimensions"
            self.refuse(var, "tir-script", f"the buffer {var.name} has {count}")
        for stride in strides:
            self.integer(stride, f"a stride of {var.name}", var)
        name = str(var.ty.dtype)
        if is_dtype(name):
            return
        try:
            dtype = DType(name)
        except UsageError as error:
            self.refuse(var, "tir-dtype", error.message, error.help)
            return
        problem = f"a buffer of {dtype}, whose elements share bytes, cannot be read or written"
        advice = 'take the bytes: T.Buffer(…, "uint8"), of R.memory.view(x, R.shape([bytes]), dtype="uint8")'
        self.refuse(var, "tir-dtype", problem, advice)

    def access(self, access: Any) -> None:
        for index in access.indices:
            self.integer(index, "an index", index if getattr(index, "span", None) else access)

    def extent(self, size: Any, what: str, where: Any) -> None:
        place = size if getattr(size, "span", None) is not None else where
        self.integer(size, f"the extent of {what}", place)
        if isinstance(size, tirx.IntImm) and int(size.value) < 0:
            self.refuse(place, "tir-extent", f"the extent of {what} is negative: {size.value}")

    def integer(self, value: Any, what: str, where: Any) -> None:
        dtype = str(value.ty.dtype)
        if not dtype.startswith(("int", "uint")):
            self.refuse(
                where,
                "tir-index",
                f"{what} must be an integer, got {dtype}",
                'cast it: T.Cast("int64", …)',
            )

    def definitions(self, func: Any) -> None:
        module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        try:
            tvm.s_tir.analysis.verify_well_formed(module)
        except Exception as error:
            text = informative(error)
            named = re.search(r"(?:variable|buffer) (\w+)", text)
            where = next(
                (
                    n
                    for n in ast.walk(self.node)
                    if named and isinstance(n, ast.Name) and n.id == named[1]
                ),
                self.node,
            )
            raise ScriptError("tir-undefined", text, span=self.source.span(where)) from None
