"""Protect arithmetic from compiler passes that ignore overflow, rounding and NaN.

TVM's passes simplify values as integers and real numbers without overflow or NaN: they fold `x - x` and `x * 0` of
floats to 0 (for NaN and infinities the result is NaN), `x == x` to true, and `x + 1 > x` of integers to true (the
largest integer wraps around). Its code generator declares sums, differences and products of 32 and 64 bits to LLVM as
free of overflow (`nsw`), so that LLVM folds the same. Fusion creates such expressions: `x + 1` of one operator and
`> x` of another.

Therefore the arithmetic of *values* is hidden before TVM's passes run (`sealed`): each operation becomes a call of an
opaque operator, which the passes only copy and vectorise. Afterwards (`unsealed`) the operations are restored: on
floats unchanged, on integers as wrapping LLVM functions, which are inlined. Arithmetic of *indices*, that is, all
integer arithmetic on values that were not read from a tensor, is not hidden: indices do not overflow, and the passes
rely on simplifying them. But an index that goes through few bits may wrap (`relaxpy.tir.ranges`), and the passes take
`cast(int64, cast(int8, i))` for `i`; so such arithmetic and conversions are hidden, too.

Comparisons of unsigned values are hidden: under such a condition, the pass that shrinks buffers solves for one of the
operands, and fails with -1 as an unsigned number.

Masks of vector loads and stores are hidden, too. If `select(m, f(masked_load(p, m)), x)` were simplified under the
assumption that `m` is true, the load would read the whole vector, beyond the end of the tensor.

Lanes of indices that are cast to unsigned numbers are hidden: `cast(uint32, ramp)` would become a ramp of unsigned
numbers, which the pass that narrows indices refuses.

What is divided by a number of more than 32 bits is hidden: passes multiply divisors, `a // 2 % c` becomes
`a % (2 * c) // 2`, and refuse programs whose product 64 bits do not hold.

Values of let-bound names are hidden as well, and so are indices that would grow long by substitution. The passes
substitute the value of a name at each use, recursively, which takes time exponential in the nesting depth.

The pass that narrows indices to 32 bits also narrows what `reinterpret` takes the bits of; these get their number of
bits back.
"""

from __future__ import annotations

from functools import cached_property

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.lowering.lanes import like
from relaxpy.tir.name_length import NameLengths
from relaxpy.tir.nodes import DIVISIONS, address_of, dtype_of, operator_of, with_body
from relaxpy.tir.operators import READS_STATE, register
from relaxpy.tir.ranges import Ranges
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains_any, rewritten

Expr = tvm.ir.Expr

_ARITHMETIC = {"add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul}
_OF_FLOATS = {
    **_ARITHMETIC, "div": tirx.Div, "min": tirx.Min, "max": tirx.Max, "eq": tirx.EQ, "ne": tirx.NE, "lt": tirx.LT,
    "le": tirx.LE, "gt": tirx.GT, "ge": tirx.GE,
}  # fmt: skip
_COMPARISONS = {name: _OF_FLOATS[name] for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_COMPARED = frozenset(_COMPARISONS.values())
_PREFIX = "relaxpy."
_NAMES = {node: name for name, node in _OF_FLOATS.items()}
_NAMED = "relaxpy.named"
"""The operator around a value that has a name."""
_MASKED = ("tirx.masked_load", "tirx.masked_store")
"""Masked vector loads and stores; the mask is the last argument."""


def _register() -> None:
    for name in _OF_FLOATS:
        register(_PREFIX + name, f"`tirx.{name}`, of which no pass knows.")
    register(_NAMED, "Its operand, under a name of which no pass knows.", READS_STATE)


_register()


def sealed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with the arithmetic of its values hidden from the passes."""
    read, short, ranges = _ReadVars(func), _short_indices(func), Ranges(func)

    def seal(node: Expr) -> Expr:
        if _compares_bools(node):
            return _in_words(node)
        if _is_float(node.a):
            return _sealed(node)
        if type(node) in _WRAPPING and (read.in_sum(node) or ranges.wraps(node)):
            return _sealed(node)
        # Terms would be moved to the side of what was read, and overflow there.
        if (
            type(node) in _COMPARED
            and not (_is_leaf(node.a) and _is_leaf(node.b))
            and read.in_either(node)
        ):
            return _sealed(node)
        if type(node) in _COMPARED and dtype_of(node.a).startswith("uint") and read.in_either(node):
            return _sealed(node)
        return node

    def mask(call: tvm.ir.Call) -> Expr:
        if _is_hidden_integer(call):  # which may be any number
            return tvm.ir.Call(call.op, [_sealed(call.args[0])], span=call.span, ret_ty=call.ty)
        if operator_of(call) not in _MASKED:
            return call
        hidden = rewritten(call.args[-1], (tuple(_COMPARISONS.values()), _sealed))
        return tvm.ir.Call(call.op, [*call.args[:-1], hidden], span=call.span, ret_ty=call.ty)

    def name(node: tirx.Let | tirx.Bind) -> tirx.Let | tirx.Bind:
        if not isinstance(node.value.ty, tvm.ir.PrimType) or node.var in short:
            return node
        value = tirx.call_intrin(node.value.ty, _NAMED, node.value)
        if isinstance(node, tirx.Bind):
            return tirx.Bind(node.var, value)
        return tirx.Let(node.var, value, node.body)

    def convert(node: tirx.Cast) -> Expr:
        lanes = _is_vector_of(node.value, "int") and _is_vector_of(node, "uint")
        if not lanes and not ranges.wraps(node):
            return node
        return tirx.Cast(node.ty, tirx.call_intrin(node.value.ty, _NAMED, node.value))

    def divide(node: Expr) -> Expr:
        if not isinstance(node.b, tirx.IntImm):
            return seal(node) if type(node) in _NAMES else node
        if abs(int(node.b.value)) < _LARGE:
            return node
        return type(node)(tirx.call_intrin(node.a.ty, _NAMED, node.a), node.b)

    entries = (
        (DIVISIONS, divide),
        (tuple(_NAMES), seal),
        ((tirx.Let, tirx.Bind), name),
        (tvm.ir.Call, mask),
        (tirx.Cast, convert),
    )
    body = rewritten(func.body, *entries)
    return with_body(func, body)


def _is_hidden_integer(call: tvm.ir.Call) -> bool:
    """Is it a sum or a product of 64 bits that is hidden since it may wrap (`relaxpy.tir.numerics.defined`)?"""
    return (
        operator_of(call).endswith(".reinterpret")
        and type(call.args[0]) in _WRAPPING
        and dtype_of(call).startswith("uint64")
        and dtype_of(call.args[0]).startswith("int64")
    )


def _sealed(node: Expr) -> Expr:
    return tirx.call_intrin(node.ty, _PREFIX + _NAMES[type(node)], node.a, node.b)


def compared(condition: Expr) -> tuple[Expr, Expr] | None:
    """The operands of a comparison for equality, also of a hidden one; None if it is none."""
    if isinstance(condition, tirx.EQ):
        return condition.a, condition.b
    if isinstance(condition, tvm.ir.Call) and operator_of(condition) == f"{_PREFIX}eq":
        a, b = condition.args
        return a, b
    return None


def unnamed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its let-bound values visible again."""
    body = rewritten(func.body, (tvm.ir.Call, _without_name))
    return with_body(func, body)


def _without_name(call: tvm.ir.Call) -> Expr:
    return call.args[0] if operator_of(call) == _NAMED else call


_WRAPPING = frozenset(_ARITHMETIC.values())
_LARGE = 1 << 31


def _is_leaf(expr: Expr) -> bool:
    """Is it a literal, a variable or an element, perhaps of another type?"""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return isinstance(expr, (tirx.IntImm, tvm.ir.Var, tvm.ir.TensorLoad))


def _is_float(expr: Expr) -> bool:
    return "float" in dtype_of(expr)


def _is_vector_of(expr: Expr, kind: str) -> bool:
    dtype = dtype_of(expr)
    return dtype.startswith(kind) and "x" in dtype


def _may_index(expr: Expr) -> bool:
    """Is it a scalar integer?"""
    dtype = dtype_of(expr)
    return dtype.startswith(("int", "uint")) and "x" not in dtype


def _short_indices(func: tirx.PrimFunc) -> set[tvm.ir.Var]:
    """The names of integers whose values passes may know."""
    lengths = NameLengths()
    short: set[tvm.ir.Var] = set()

    def bind(node: tirx.Let | tirx.Bind) -> None:
        if _may_index(node.value) and lengths.keeps(node.var, node.value):
            short.add(node.var)

    tvm_ffi.structural_walk(func.body, ((tirx.Let, tirx.Bind), bind), order="pre")
    return short


class _ReadVars:
    """Determines which values depend on data read from a tensor."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._func = func
        self._sums: dict[int, tuple[Expr, bool]] = {}
        """Address of a sum, difference or product → the node, kept alive, and the answer."""

    @cached_property
    def _names(self) -> set[tvm.ir.Var]:
        """Variables that name such values."""
        names: set[tvm.ir.Var] = set()

        def bind(node: tirx.Let | tirx.Bind) -> None:
            if _reads(node.value, names):
                names.add(node.var)

        # Definitions precede uses in this order: a value before the expression under its name.
        tvm_ffi.structural_walk(self._func.body, ((tirx.Let, tirx.Bind), bind), order="pre")
        return names

    def in_sum(self, node: Expr) -> bool:
        """Does this sum, difference or product depend on read data? Inner ones are asked first and their answers
        cached, so an index of many terms is traversed once."""
        answer = self.in_either(node)
        self._sums[address_of(node)] = (node, answer)
        return answer

    def in_either(self, node: Expr) -> bool:
        """Does a side of this comparison depend on read data?"""
        return self._part(node.a) or self._part(node.b)

    def _part(self, expr: Expr) -> bool:
        if isinstance(expr, tirx.IntImm):
            return False
        known = self._sums.get(address_of(expr)) if type(expr) in _WRAPPING else None
        return _reads(expr, self._names) if known is None else known[1]


def _reads(expr: Expr, names: set[tvm.ir.Var]) -> bool:
    """Does this value depend on read data, which these names have?"""
    if isinstance(expr, tvm.ir.Var):
        return expr in names
    return contains_any(
        expr,
        (tvm.ir.TensorLoad, lambda _: True),
        (tvm.ir.Var, names.__contains__),
        (tvm.ir.Call, lambda call: operator_of(call) == "tirx.masked_load"),
    )


def unsealed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with the hidden arithmetic written out, for its target's code generator."""
    wrapping = _wrapping(func)

    def unseal(call: tvm.ir.Call) -> Expr:
        name = operator_of(call)
        if name == _NAMED:
            return call.args[0]
        if name == "tirx.reinterpret":
            return _of_all_bits(call)
        kind = name.removeprefix(_PREFIX)
        if kind == name or kind not in _OF_FLOATS:
            return call
        a, b = call.args
        if _is_float(a):
            return _unequal(a, b) if kind == "ne" else _OF_FLOATS[kind](a, b)
        # Passes that narrow indices look through the call.
        if kind in _COMPARISONS:
            wide = max(
                (str(x.ty.dtype) for x in (a, b)), key=lambda dtype: tvm.DataType(dtype).bits
            )
            return _OF_FLOATS[kind](_as(a, wide), _as(b, wide))
        dtype = str(call.ty.dtype)
        return wrapping(kind, _as(a, dtype), _as(b, dtype))

    body = rewritten(func.body, (tvm.ir.Call, unseal))
    return func if body.same_as(func.body) else with_body(func, wrapping.around(body))


def _of_all_bits(call: tvm.ir.Call) -> Expr:
    """A number made of an integer's bits, which the pass that narrows indices leaves too few of."""
    (value,) = call.args
    if not isinstance(call.ty, tvm.ir.PrimType) or not dtype_of(value).startswith("int"):
        return call
    made, given = tvm.DataType(dtype_of(call)), tvm.DataType(dtype_of(value))
    bits = made.bits * made.lanes // given.lanes
    if given.bits >= bits:
        return call
    return tirx.reinterpret(dtype_of(call), value.astype(like(value, f"int{bits}")))


def _compares_bools(node: Expr) -> bool:
    return type(node) in _COMPARED and dtype_of(node.a).startswith("bool")


def _in_words(node: Expr) -> Expr:
    """A comparison of bools as one of integers. TVM's code generator compares bools as floats, which LLVM refuses."""
    dtype = dtype_of(node.a).replace("bool", "int32")
    return type(node)(_as(node.a, dtype), _as(node.b, dtype))


def _unequal(a: Expr, b: Expr) -> Expr:
    """Is the first float another one than the second? Code generators write `!=` as one that is false for a NaN."""
    return tirx.Not(tirx.EQ(a, b))


def wrapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`unsealed(sealed(func))`, for a function that no pass rewrites in between. Only arithmetic of integers, `!=` of
    floats, and comparisons of bools change by it."""
    read, ranges = _ReadVars(func), Ranges(func)
    wrapping = _wrapping(func)

    def wrap(node: Expr) -> Expr:
        if _is_float(node) or not (read.in_sum(node) or ranges.wraps(node)):
            return node
        return wrapping(_NAMES[type(node)], node.a, node.b)

    def bits(call: tvm.ir.Call) -> Expr:
        if not _is_hidden_integer(call):
            return call
        (node,) = call.args
        made = wrapping(_NAMES[type(node)], node.a, node.b)
        return tvm.ir.Call(call.op, [made], span=call.span, ret_ty=call.ty)

    def compare(node: Expr) -> Expr:
        if _compares_bools(node):
            return _in_words(node)
        is_unequal = isinstance(node, tirx.NE) and _is_float(node.a)
        return _unequal(node.a, node.b) if is_unequal else node

    body = rewritten(
        func.body, (tuple(_WRAPPING), wrap), (tuple(_COMPARED), compare), (tvm.ir.Call, bits)
    )
    return func if body.same_as(func.body) else with_body(func, wrapping.around(body))


def _wrapping(func: tirx.PrimFunc) -> _Inlined | _Unsigned:
    """The wrapping arithmetic of a function's target."""
    return _Inlined() if func.attrs["target"].kind.name == "llvm" else _Unsigned()


def _as(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else value.astype(dtype)


class _Unsigned:
    """Wrapping arithmetic in C, by unsigned numbers."""

    def __call__(self, kind: str, a: Expr, b: Expr) -> Expr:
        dtype = str(a.ty.dtype)
        unsigned = dtype if dtype.startswith("u") else f"u{dtype}"
        return _ARITHMETIC[kind](_unsigned(a, unsigned), _unsigned(b, unsigned)).astype(dtype)

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return the body with the definitions that it needs."""
        return body


def _unsigned(value: Expr, dtype: str) -> Expr:
    """The value modulo the size of an unsigned type. TVM folds casts of literals at once, and refuses negative ones."""
    if isinstance(value, tirx.IntImm):
        return tirx.const(int(value.value) % (1 << tvm.DataType(dtype).bits), dtype)
    return value.astype(dtype)


class _Inlined:
    """Wrapping arithmetic in LLVM. TVM marks its own operations of 32 bits and more as never wrapping, so these are
    functions in LLVM IR that the optimiser inlines."""

    def __init__(self) -> None:
        self._definitions: dict[str, str] = {}

    def __call__(self, kind: str, a: Expr, b: Expr) -> Expr:
        kind_of = tvm.DataType(str(a.ty.dtype))
        bits, lanes = kind_of.bits, kind_of.lanes
        if bits < _MARKED_BITS:
            return _ARITHMETIC[kind](a, b)
        own = f"i{bits}" if lanes == 1 else f"<{lanes} x i{bits}>"
        name = f"relaxpy_{kind}_i{bits}x{lanes}"
        self._definitions[name] = (
            f"define {own} @{name}({own} %a, {own} %b) alwaysinline nounwind readnone {{\n"
            f"  %c = {kind} {own} %a, %b\n  ret {own} %c\n}}\n"
        )
        return tirx.call_pure_extern(str(a.ty.dtype), name, a, b)

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return the body with the functions' definitions."""
        if not self._definitions:
            return body
        text = "".join(self._definitions[name] for name in sorted(self._definitions))
        return with_definitions(text, body)


_MARKED_BITS = 32
