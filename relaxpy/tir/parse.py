"""Parse a `T.prim_func` in Python syntax to a tensor program.

TVM's own parser is run on this one function definition, so line and column of every error are exact, and the body may
use only the names that we provide. `tree` prepares the syntax tree. `program_check` checks the result, because TVM
accepts invalid programs.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from relaxpy.errors import ScriptError, Source, nearest
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.python_operator import is_too_large
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.analyzer import int64, to_tvm
from relaxpy.tir.expression_size import HELP, Sizes
from relaxpy.tir.extents import whole
from relaxpy.tir.message import informative
from relaxpy.tir.nodes import with_zero
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.program_check import check_program, is_dtype
from relaxpy.tir.tree.checked import (
    ARITHMETIC,
    CHECKED,
    COMPARISONS,
    INDEX,
    INTEGERS,
    ITERATED,
    LITERAL,
    MAGNITUDE,
    NEGATIVE,
    OPERATOR,
    SHAPE,
    STARRED,
    STORED,
)
from relaxpy.tir.tree.depth import refuse_deep as refuse_deep
from relaxpy.tir.tree.prepare import Prepared, prepare
from relaxpy.tir.tree.regions import REGIONS
from relaxpy.tir.tvm import IRBuilder, script_core, script_tirx, tirx, tvm, tvm_ffi


def parse_prim_func(
    node: ast.FunctionDef,
    source: str,
    file: str,
    extra_vars: Mapping[str, Any],
    symbols: Sequence[str] = (),
) -> PrimFunc:
    """Parse a `@T.prim_func` definition to a tensor program.

    `source` is the text that `node` was parsed from, `file` its name. `extra_vars` are the values of names that the
    program does not define itself (the namespace `T` is always known), `symbols` the int64 variables that it uses
    without defining them. Raises `ScriptError` with its location: `tir-script` if it is not a tensor program,
    `unknown-name` and `tir-none` before TVM's parser runs, and `tir-index`, `tir-dtype`, `tir-extent`, `tir-undefined`
    for errors that TVM does not detect.
    """
    where = Source(source, file)
    refuse_deep(node, where)
    with deep_recursion():
        key = "" if extra_vars or symbols else ast.dump(node)
        func = _READ.get(key)
        if func is None:
            try:
                func = _parse(prepare(node, where, extra_vars, symbols), where)
            except ScriptError as error:
                if _TOO_NARROW.search(error.message) is None:
                    raise
                # TVM looks for the regions of blocks, and finds that a literal does not fit a conversion in an index.
                func = _parse(prepare(node, where, extra_vars, symbols, every_region=True), where)
            check_program(func, where, node)
            func = func.without_attr("global_symbol")
            if key:
                if len(_READ) >= MOST_KEPT:
                    _READ.clear()
                _READ[key] = func
    return PrimFunc(func, span=where.span(node))


_TOO_NARROW = re.compile(
    r"are multiplied to -?\d+, which|Literal value -?\d+ |cannot make uint from negative|will cause a negative uint"
)

MOST_KEPT = 2048
"""The number of cached programs."""

_READ: dict[str, Any] = {}
"""Cache of programs that do not depend on their context, by their syntax trees. Printed programs are parsed again,
after every pass in tests, and TVM's parser takes 10 to 50 ms for each."""


def _parse(prepared: Prepared, where: Source) -> Any:
    """TVM's function for a prepared tree."""
    _check_namespace(prepared.node, where)
    values: dict[str, Any] = {name: _to_tvm(value) for name, value in prepared.names.items()}
    values |= {name: tirx.Var(name, dtype) for name, dtype in prepared.symbols.items()}
    iterated = _Iterated()
    values |= {"T": script_tirx, **_FUNCTIONS, ITERATED: iterated, STARRED: iterated.starred}
    parser = _Parser(_Text(prepared.node, where))
    with IRBuilder() as builder:
        parser.parse(extra_vars=values)
    return builder.get()


def _check_namespace(node: ast.FunctionDef, where: Source) -> None:
    """Refuse names in TVM's namespace that are not part of the script language: its own modules, and functions that
    compile other programs."""
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="T"), attr=name) if name in _NOT_SCRIPT:
                span = where.span(part)
                raise ScriptError("tir-script", f"the namespace T has no {name}", span=span)


_NOT_SCRIPT = frozenset(
    {"call_kernel", "jit", "TYPE_CHECKING"}
    | {name for name, value in vars(script_tirx).items() if isinstance(value, ModuleType)}
)


def _to_tvm(value: Any) -> Any:
    return to_tvm(Dim.of(value)) if isinstance(value, (Dim, SymVar)) else value


def _index(value: Any) -> Any:
    """Convert Python integers to int64, for extents and indices."""
    if isinstance(value, bool) or value is None:
        raise ScriptError(
            "tir-none" if value is None else "tir-index", f"{value} cannot be a size or an index"
        )
    if isinstance(value, (tuple, list)):
        return tuple(map(_index, value))
    if isinstance(value, int):
        return int64(value)
    if isinstance(value, float):
        raise ScriptError(
            "tir-index", f"{value} is not an integer, so it cannot be a size or an index"
        )
    return to_tvm(Dim.of(value)) if isinstance(value, (Dim, SymVar)) else value


def _checked(value: Any) -> Any:
    """Return the value, which must not be None: in C++ that is a null pointer."""
    if value is None:
        raise ScriptError("tir-none", "None is not a value of a tensor program")
    return value


def _dtype(value: Any) -> str | None:
    """The dtype of a TVM expression (for a vector, of its elements); None for other values."""
    if isinstance(value, bool):
        return None
    if isinstance(value, tvm.ir.Expr) and not tirx.buffer.is_buffer_var(value):
        dtype = getattr(getattr(value, "ty", None), "dtype", None)
        return None if dtype is None else _LANES.sub("", str(dtype))
    return None


_LANES = re.compile(r"(?<=\d)x\d+$")


def _differ(a: str | None, b: str | None) -> bool:
    """Would TVM silently convert one to the other? Integers may differ in width, as indices do."""
    if a is None or b is None or a == b or not (is_dtype(a) and is_dtype(b)):
        return False  # other objects are reported as such
    return a.startswith(("float", "bfloat")) or b.startswith(("float", "bfloat"))


_SIZED = {"Mult": operator.mul, "Pow": operator.pow, "LShift": operator.lshift}
"""Operators of Python whose results may be much larger than their operands."""


def _strict(name: str) -> Callable[[Any, Any], Any]:
    """TVM's operator without implicit conversion of floats."""
    node = getattr(script_core.doc, name)()

    def checked(left: Any, right: Any) -> Any:
        a, b = _dtype(left), _dtype(right)
        if _differ(a, b):
            raise ScriptError(
                "tir-dtype",
                f"the dtypes of the operands differ: {a} and {b}",
                help=f'cast one of them: T.Cast("{a}", …)',
            )
        if is_too_large(_SIZED.get(name, operator.add), (left, right)):
            raise ScriptError("python-call", "the result is too large to compute while parsing")
        if name == "Div" and "int" in (a or "") and "int" in (b or ""):
            raise ScriptError("tir-dtype", "use // for integers (it rounds down)")
        if name in _FOLDED and (kept := _with_zero(_FOLDED[name], left, right)) is not None:
            return kept
        if name == "Sub" and a == b and (a or "").startswith("uint"):
            return _unsigned_difference(left, right)
        # Python's own `==` on TVM's expressions returns an object with a truth value, which `or` would use.
        return script_core.evaluator._eval_op(node, [left, right])

    return checked


_FOLDED = {"Add": tirx.Add, "Mult": tirx.Mul, "Div": tirx.Div}
"""Operators that TVM folds where one operand is a literal 0, of floats too."""


def _with_zero(kind: Any, left: Any, right: Any) -> Any:
    """The arithmetic of a float and a literal 0 as a node; None if it is not that."""
    dtypes = {dtype for dtype in map(_dtype, (left, right)) if dtype is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    if "float" not in dtype:
        return None
    a, b = (
        tirx.const(value, dtype) if isinstance(value, int | float) else value
        for value in (left, right)
    )
    return with_zero(kind, a, b)


def _unsigned_difference(left: Any, right: Any) -> Any:
    """`left - right`, which wraps; TVM refuses some literals."""
    if isinstance(left, tirx.IntImm) and isinstance(right, tirx.IntImm):
        dtype = str(left.ty.dtype)
        number = (int(left.value) - int(right.value)) % (np.iinfo(dtype).max + 1)
        return tirx.const(number, dtype)
    return left - right


_OPERATORS = {OPERATOR + name: _strict(name) for name in ARITHMETIC | COMPARISONS}


def _stored(buffer: Any, value: Any) -> Any:
    """Return `value` if its dtype is that of the buffer."""
    if not tirx.buffer.is_buffer_var(buffer):
        return value
    target = str(buffer.dtype)
    if isinstance(value, float) and "float" not in target:
        raise ScriptError(
            "tir-dtype",
            f"the float {value} cannot be stored in {buffer.name}, a buffer of {target}",
        )
    if _differ(target, _dtype(value)):
        raise ScriptError(
            "tir-dtype",
            f"{_dtype(value)} cannot be stored in {buffer.name}, a buffer of {target}",
            help=f'cast it: T.Cast("{target}", …)',
        )
    return value


def _shape(value: Any) -> Any:
    """The shape of a buffer as a tuple."""
    if isinstance(value, tvm_ffi.Array):  # A.shape
        return value
    return _index(value) if isinstance(value, (tuple, list)) else (_index(value),)


def _regions(*values: Any) -> list[Any]:
    """The regions of those values that are buffers, whole."""
    buffers = {value: None for value in values if tirx.buffer.is_buffer_var(value)}
    return [tirx.BufferRegion(buffer, [*map(whole, buffer.shape)]) for buffer in buffers]


def _integer(dtype: str) -> Callable[[Any], Any]:
    """`T.uint64(value)` for any value of the dtype: TVM's own is limited to int64."""
    make = getattr(script_tirx, dtype)
    limits = np.iinfo(dtype)

    def checked(value: Any) -> Any:
        if isinstance(value, (float, str)):
            raise ScriptError("tir-dtype", f"{value!r} is not an integer")
        if isinstance(value, int) and not limits.min <= value <= limits.max:
            raise ScriptError("tir-dtype", f"{value} is out of range of {dtype}")
        return tirx.const(int(value), dtype) if isinstance(value, int) else make(value)

    return checked


def _magnitude(value: Any) -> Any:
    """`T.abs(value)`: TVM's refuses a literal whose magnitude its dtype does not hold, which wraps."""
    dtype = _dtype(value)
    if isinstance(value, tirx.IntImm) and dtype in INTEGERS and value.value == np.iinfo(dtype).min:
        return value
    return script_tirx.abs(value)


def _negative(value: Any) -> Any:
    """`-value`: TVM multiplies by -1, which unsigned types do not hold."""
    if not (_dtype(value) or "").startswith("uint"):
        return -value
    return _unsigned_difference(tirx.const(0, str(value.ty.dtype)), value)


def _float64(value: Any) -> Any:
    """`T.float64(value)` for any number in float64's range: TVM's own is limited to float32's."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return script_tirx.float64(value)
    try:
        return tirx.const(float(value), "float64")
    except OverflowError:
        raise ScriptError("tir-dtype", f"{value} is out of range of float64") from None


class _Iterated:
    """Limits Python iteration in a program: an expression is an endless sequence, and nested loops count together."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, value: Any) -> Any:
        if isinstance(value, tvm.ir.Expr):
            raise ScriptError("tir-script", "an expression cannot be iterated over")
        if isinstance(value, Sized):
            self.steps += len(value)
            if self.steps > MOST_STEPS:
                shown = str(value) if isinstance(value, range) else "this"
                raise ScriptError(
                    "tir-script",
                    f"{shown} is too long to unroll: a program has at most {MOST_STEPS} steps",
                    help="write a loop of the program: for i in T.serial(n):",
                )
        return value

    def starred(self, value: Any) -> Any:
        """Return `value`, whose items become arguments."""
        if isinstance(self(value), Sized) and len(value) > MOST_STARRED:
            problem = f"{len(value)} arguments are too many: {MOST_STARRED}"
            raise ScriptError("tir-script", problem)
        return value


MOST_STARRED = 64
MOST_STEPS = 1 << 18
"""The most iterations of Python loops over lists and ranges while one program is parsed."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    INDEX: _index,
    SHAPE: _shape,
    CHECKED: _checked,
    REGIONS: _regions,
    STORED: _stored,
    **_OPERATORS,
    **{LITERAL + dtype: _integer(dtype) for dtype in INTEGERS},
    f"{LITERAL}float64": _float64,
    MAGNITUDE: _magnitude,
    NEGATIVE: _negative,
}
"""The functions that `prepare` inserts calls of."""


class _Text(script_core.diagnostics.Source):
    """The one function definition as TVM's source, at its place in the file."""

    def __init__(self, node: ast.FunctionDef, where: Source) -> None:
        self.node = node
        self.source_name = where.file
        self.start_line = 1
        self.start_column = 0
        self.source = self.full_source = where.text

    def as_ast(self) -> Any:
        return script_core.doc.to_doc(ast.Module([self.node], []))


class _Parser(script_core.parser.Parser):
    """TVM's parser with our error messages, which refuses expressions that are too large."""

    def __init__(self, source: _Text) -> None:
        super().__init__(source, {})
        self._sizes = Sizes()

    def get_dispatch_token(self, node: Any) -> str:
        # TVM evaluates the decorator here by inspecting the stack, which takes longer than everything else.
        if node.decorator_list and "inline" not in str(
            getattr(node.decorator_list[-1], "attr", "")
        ):
            return "tirx"
        return super().get_dispatch_token(node)

    def eval_expr(self, node: Any, extra_vars: dict[str, Any] | None = None) -> Any:
        value = super().eval_expr(node, extra_vars)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            problem = self._sizes.problem(part) if isinstance(part, tvm.ir.Expr) else None
            if problem is not None:
                self.report_error(node, ScriptError("tir-script", problem, help=HELP))
        return value

    def report_error(self, node: Any, err: Exception | str) -> NoReturn:
        if isinstance(err, script_core.error.ParserError):
            node, err = err.node, err.args[0]
        source: _Text = self.diag.source  # type: ignore[assignment]
        place = Source(source.full_source, source.source_name).span(node)
        if isinstance(err, ScriptError):
            raise err.located(place)
        message, help = _hint(informative(err))
        raise ScriptError(_code(err), message, span=place, help=help) from None


_HINTS: tuple[tuple[re.Pattern[str], str, str | None], ...] = tuple(
    (re.compile(pattern), message, help)
    for pattern, message, help in (
        (
            r"The last frame is not SBlockFrame",
            "this is allowed only in a block",
            'write with T.sblock("name"): around it',
        ),
        (
            r"Unknown axis kind: (.*)",
            r"\1 is not a kind of axis",
            "write S for a spatial axis, R for a reduction axis",
        ),
        (
            r"unsupported operand type\(s\) for (.+): .*",
            r"\1 is not defined for these values",
            "compute with elements of a buffer: x[i] + 1",
        ),
        (r"Undefined variable: (\w+)", r"\1 is not defined here", None),
        (
            r"Expect the for loop to be .*",
            "this is not a loop of a tensor program",
            "write for i in range(n): or T.grid(n, m)",
        ),
    )
)
"""TVM's messages, their meaning for the user, and the help."""


def _hint(message: str) -> tuple[str, str | None]:
    """The message in the terms of the script, and its help."""
    for pattern, meaning, help in _HINTS:
        if (found := pattern.fullmatch(message)) is not None:
            return found.expand(meaning), help
    if (missing := re.fullmatch(r"the namespace T has no (\w+)", message)) is not None:
        near = nearest(missing[1], dir(script_tirx), 5)
        near.sort(key=lambda name: sorted(name) != sorted(missing[1]))  # letters in another order
        return message, f"did you mean T.{near[0]}?" if near else None
    return message, None


def _code(err: Exception | str) -> str:
    return (
        "unknown-name"
        if str(err).startswith("Undefined variable") or isinstance(err, NameError)
        else "tir-script"
    )
