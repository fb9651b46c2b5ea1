"""The functions, statements and annotations that a tensor program may contain: those that compute, and access no memory
but their buffers.

TVM's language can do more: it calls any C function of the process by name, calls any function of TVM's registry,
inserts LLVM IR, and creates pointers. A program read from text could then do anything, so a program that contains these
constructs can be read and printed, but not built. Out-of-bounds indices are a separate matter
(`relaxpy.analysis.index_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.analyzer import equal, int64
from relaxpy.tir.plain import Unlike, unlike
from relaxpy.tir.schedule import CHECKED, FINISHED
from relaxpy.tir.to_python import FUNCTIONS
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import walk

OUT_OF_RANGE = "relaxpy.out_of_range"
"""The runtime function that a kernel calls for an index out of bounds (`relaxpy.runtime.devices.cpu.kernels`)."""

REQUIRE_MEMORY = "relaxpy.require_memory"
"""The runtime function that a kernel calls before it allocates memory of a size known only at run time."""


@dataclass(frozen=True)
class Refusal:
    """A construct that is refused in tensor programs."""

    where: Any
    """The node that is refused."""
    message: str
    help: str | None = None


def refusals(func: Any) -> Iterator[Refusal]:
    """The refused constructs in a function."""
    for name in (CHECKED, FINISHED):
        if func.attrs is not None and name in func.attrs:
            yield Refusal(func, f"the attribute {name} is reserved for the compiler")
    for found in unlike(func):
        yield _of_layout(found)
    nodes: list[Any] = []  # an exception must not leave a callback of TVM's walker
    walk(func.body, ((tvm.ir.Call, s_tir.SBlock, tirx.Stmt), nodes.append))
    check = _Check()
    for node in nodes:
        check.node(node)
    yield from check.found


def _of_layout(found: Unlike) -> Refusal:
    name, what = found.buffer.name, found.what
    if found.is_view:
        message = f"the view {name} has {what} that something else defines"
        help = f"leave {what} out, or declare a variable that nothing else uses"
    elif what == "strides":
        message = f"the buffer {name} has strides, but tensors are contiguous"
        help = "remove strides"
    else:
        message, help = f"the buffer {name} has an offset", "remove elem_offset"
    return Refusal(found.buffer, message, help)


class _Check:
    def __init__(self) -> None:
        self.found: list[Refusal] = []

    def refuse(self, where: Any, message: str, help: str | None = None) -> None:
        self.found.append(Refusal(where, message, help))

    def node(self, node: Any) -> None:
        match node:
            case tvm.ir.Call():
                self.call(node)
            case tirx.AttrStmt():
                self.key(str(node.attr_key), node)
            case tirx.For() | s_tir.SBlock():
                for key in dict(node.annotations or {}):
                    self.key(str(key), node)
            case tirx.DeclBuffer():
                self.view(node)
            case _ if type(node).__name__ not in _STATEMENTS:
                self.refuse(node, f"a tensor program must not contain a {type(node).__name__}")
            case _:
                pass

    def call(self, call: Any) -> None:
        name = str(getattr(call.op, "name", call.op))
        short = name.rsplit(".", 1)[-1]
        match short:
            case "call_extern" | "call_pure_extern":
                callee = getattr(call.args[0], "value", "")
                numbers = all("handle" not in str(e.ty) for e in (call, *call.args[1:]))
                if not (numbers and is_c_function(str(callee))):
                    self.refuse(
                        call, f"a tensor program must not call the C function {callee}", _HELP
                    )
            case "tvm_call_packed":
                callee = str(getattr(call.args[0], "value", ""))
                if callee != OUT_OF_RANGE and not callee.startswith(_SORTS):
                    self.refuse(
                        call, f"a tensor program must not call the function {callee}", _HELP
                    )
            case "call_llvm_intrin" | "call_llvm_pure_intrin":
                callee = _llvm_name(call)
                if _LLVM.fullmatch(callee) is None:
                    self.refuse(
                        call, f"a tensor program must not use the intrinsic {callee}", _HELP
                    )
            case "tvm_stack_make_array":
                self.array(call)
            case "buffer_data":
                pass  # its target is checked: an array, or a view
            case "reinterpret":
                if "handle" in (str(call.ty.dtype), str(call.args[0].ty.dtype)):
                    self.refuse(call, "a tensor program must not convert numbers to pointers", None)
            case _:
                if name.split(".")[0] not in ("tirx", "prim") or short not in _INTRINSICS:
                    self.refuse(call, f"a tensor program must not use T.{short}", _HELP)

    def array(self, call: Any) -> None:
        """Refuse an array argument, as a sort takes it, that is not a whole buffer."""
        data, shape = call.args[0], call.args[1]
        buffer = data.args[0] if _is_call(data, "buffer_data") else None
        sizes = list(shape.args) if _is_call(shape, "tvm_stack_make_shape") else None
        whole = buffer is not None and sizes is not None and len(sizes) == len(buffer.shape)
        if not whole or not all(
            map(_same, sizes or (), buffer.shape if buffer is not None else ())
        ):
            self.refuse(call, "only a whole buffer may be passed to a function")

    def key(self, key: str, where: Any) -> None:
        if key.startswith(("pragma_import", "pragma_debug", "pragma_parallel")):
            self.refuse(where, f"a tensor program must not contain {key}", _HELP)

    def view(self, stmt: Any) -> None:
        """Refuse a view of a buffer's memory that exceeds it."""
        source = stmt.data if hasattr(stmt, "data") else None
        if source is None:
            return
        buffer = source.args[0] if _is_call(source, "buffer_data") else None
        if buffer is None or not _fits(stmt.buffer, buffer):
            self.refuse(
                stmt,
                f"the buffer {stmt.buffer.name} may be larger than the memory of its declaration",
                "declare it with as many elements, or use T.match_buffer for a part of a buffer",
            )


_HELP = "call it from a graph function: R.call_dps_library, R.call_packed"
_SORTS = "tvm.contrib.sort."
_STATEMENTS = frozenset(
    "SeqStmt For SBlockRealize SBlock BufferStore IfThenElse While Bind LetStmt AllocBuffer DeclBuffer AttrStmt"
    " AssertStmt Evaluate Break Continue Return".split()
)
_INTRINSICS = frozenset(FUNCTIONS) | frozenset(
    "if_then_else popcount ctpop clz q_multiply_shift q_multiply_shift_per_axis dp4a break_loop"
    " continue_loop tvm_stack_make_shape vectorlow vectorhigh vectorcombine tvm_storage_sync undef".split()
)
_C_FUNCTIONS = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax"
    " fmin fmod hypot ldexp lgamma log log10 log1p log2 nearbyint nextafter pow remainder rint round sin sinh sqrt"
    " tan tanh tgamma trunc".split()
)
"""Functions of the C math library; for float32 their names end in f."""
_LLVM = re.compile(
    r"llvm\.(abs|bitreverse|bswap|ceil|copysign|cos|ctlz|ctpop|cttz|exp|exp2|fabs|floor|fma|fmuladd|fshl|fshr|log"
    r"|log10|log2|maximum|maxnum|minimum|minnum|nearbyint|pow|powi|rint|round|roundeven|sadd\.sat|sin|smax|smin|sqrt"
    r"|ssub\.sat|trunc|uadd\.sat|umax|umin|usub\.sat|x86\.avx512\.vpdp\w+|aarch64\.neon\.[su]dot)(\.\w+)*"
)
"""LLVM intrinsics that are arithmetic."""


def is_c_function(name: str) -> bool:
    """Is it a C function that computes a number from numbers?"""
    return name in _C_FUNCTIONS or name.removesuffix("f") in _C_FUNCTIONS


def _llvm_name(call: Any) -> str:
    first = call.args[0]
    if isinstance(first, tirx.IntImm):
        lookup = tvm_function("target.llvm_get_intrinsic_name")
        return str(lookup(int(first.value))) if lookup is not None else ""
    return str(getattr(first, "value", first))


def tvm_function(name: str) -> Any:
    """A function of TVM's registry; None if there is none."""
    return tvm.get_global_func(name, allow_missing=True)


def _is_call(node: Any, name: str) -> bool:
    return isinstance(node, tvm.ir.Call) and str(getattr(node.op, "name", "")).endswith(f".{name}")


def _same(a: Any, b: Any) -> bool:
    return equal(int64(a), int64(b))


def _fits(view: Any, source: Any) -> bool:
    """Is a view no larger in bytes than its source, for all values of the sizes?"""
    used, given = (_bytes(buffer.shape, str(buffer.dtype)) for buffer in (view, source))
    analyzer = tvm.sym.Analyzer()
    return _same(used, given) or bool(analyzer.can_prove(used <= given))


def _bytes(shape: Any, dtype: str) -> Any:
    total: Any = int64(max(1, tvm.DataType(dtype).bits // 8) * tvm.DataType(dtype).lanes)
    for size in shape:
        total = total * int64(size)
    return total
