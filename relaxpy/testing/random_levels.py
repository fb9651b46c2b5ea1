"""Cross-level calls in random programs: tensor programs, library functions (`random_libraries`), functions of the
runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from relaxpy.analysis.prim_func_call import check_prim_func_call
from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.annotation import ShapeType, TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Call, Expr, GlobalVar, ShapeExpr
from relaxpy.op import astype, concat, isnan, multiply, subtract
from relaxpy.op.call import (
    call_dps_library,
    call_packed,
    call_pure_packed,
    call_tir,
    call_tir_inplace,
)
from relaxpy.script.parser import parse
from relaxpy.testing import random_libraries as _libraries  # noqa: F401  (registers them)
from relaxpy.testing import random_nests, random_widths
from relaxpy.testing.random_body import UNDECIDED, Body, Rule

FLOATS = (
    "{a} + {b}",
    "{a} * {b}",
    "T.max({a}, {b})",
    "T.tanh({a}) - {b}",
    "T.if_then_else({a} < {b}, {b}, {a})",
)
INTS = (
    "{a} + {b}",
    "{a} - {b}",
    "T.max({a}, {b})",
    "{a} // 2 + {b}",
    "T.if_then_else({a} < {b}, {a} * 2, {b})",
)
READS = (
    "x[vi, vj]",
    "x[vi, vj]",
    "x[n - 1 - vi, vj]",
    "x[vi, T.max(vj - 1, 0)]",
    "x[vi, (vj * 2) % m]",
)
"""Expressions that read elements of x for the element (vi, vj) of a result of x's shape."""


def tensor_programs(g: Body) -> None:
    """Adds a few tensor programs to the module, with rules that call them."""
    makers: list[Maker] = []
    if g.rng.random() < 0.4:
        makers += g.rng.sample(MAKERS, g.rng.choice((1, 2)))
        if g.rng.random() < 0.5:  # a test of the call, not of the computation
            makers.append(together)
    if g.rng.random() < 0.35:
        makers.append(random_nests.nests)
    if g.rng.random() < 0.1:
        makers.append(random_widths.codes)
    for make in makers:
        name = f"{g.name}_{make.__name__}"
        dtype = g.rng.choice(("float32", "float32", "int64", "int32"))
        body, use = make(g, dtype)
        text = f"@T.prim_func(private=True)\ndef {name}({body}"
        program = parse(text)[name]
        g.builder.add_func(program, name)
        g.programs[name] = use(GlobalVar(name))


Maker = Callable[[Body, str], tuple[str, Callable[[GlobalVar], Rule]]]


def _of_a_vector(dtype: str, own: str) -> Callable[[GlobalVar], Rule]:
    """Calls that make of a vector one as long, of the dtype `own`."""

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 1)
            g.emit(call_tir(name, [x], TensorType(g.dims(x), own)))
            return True

        return rule

    return use


def _expression(g: Body, dtype: str, a: str, b: str) -> str:
    return g.rng.choice(FLOATS if dtype == "float32" else INTS).format(a=a, b=b)


def elementwise(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Two results of x's shape, one of which reads x in another order."""
    one, two = (_expression(g, dtype, "x[vi, vj]", g.rng.choice(READS)) for _ in range(2))
    matrix = f'T.Buffer(("n", "m"), "{dtype}")'
    text = f"""x: {matrix}, o: {matrix}, p: {matrix}):
    n, m = T.int64(), T.int64()
    for i, j in T.grid(n, m):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            o[vi, vj] = {one}
            p[vi, vj] = {two}
"""

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 2)
            out = TensorType(g.dims(x), dtype)
            g.emit(call_tir(name, [x], [out, out]))
            return True

        return rule

    return text, use


def gather(_: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Gathers rows at indices that are clamped to the valid range."""
    text = f'''x: T.Buffer(("n", "m"), "{dtype}"), i: T.Buffer(("k",), "int64"), o: T.Buffer(("k", "m"), "{dtype}")):
    n, m, k = T.int64(), T.int64(), T.int64()
    for r, c in T.grid(k, m):
        with T.sblock("b"):
            vr, vc = T.axis.remap("SS", [r, c])
            o[vr, vc] = T.if_then_else(n > 0, x[T.max(T.min(i[vr], n - 1), 0), vc], T.Cast("{dtype}", 7))
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x, i = g.tensor_or_param(dtype, 2), g.tensor_or_param("int64", 1)
            out = TensorType([*g.dims(i), g.dims(x)[1]], dtype)
            g.emit(call_tir(name, [x, i], out))
            return True

        return rule

    return text, use


def together(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Two vectors that must have the same size, called with any sizes. Whether they fit is checked at run time; for
    some not even the rank is known before."""
    text = f"""x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{dtype}"), o: T.Buffer(("n",), "{dtype}")):
    n = T.int64()
    for i in range(n):
        with T.sblock("b"):
            v = T.axis.spatial(n, i)
            o[v] = {_expression(g, dtype, "x[v]", "y[v]")}
"""

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = y = g.tensor_or_param(dtype, 1)
            size = g.dims(x)[0]
            if g.rng.random() < UNDECIDED:
                y = g.tensor_or_param(dtype, 1)
            if g.rng.random() < UNDECIDED:
                size = g.rng.choice((size * 2, size // 2, size + 1, g.dimension()))
            given = [g.forgotten(v) if g.rng.random() < 2 * UNDECIDED else v for v in (x, y)]
            call = call_tir(name, given, TensorType([size], dtype))
            if check_prim_func_call(call, g.builder.get()):
                return False  # it never fits
            g.emit(call)
            return True

        return rule

    return text, use


LOOKUPS = (
    "T.Select(0 <= i[v] and i[v] < n, x[i[v]], {other})",
    "T.if_then_else(i[v] < 0 or n <= i[v], {other}, x[i[v]])",
    "T.if_then_else(v < n, x[n - 1 - v], {other})",
    "x[i[v] % T.max(n, 1)]",
    "x[v]",
    "x[i[v]]",
)
"""Expressions that read elements of x for element v of a result of another size. The last ones may be out of range."""


def lookup(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Elements at indices that may be out of range: of a longer vector, or at indices from data."""
    other = f'T.Cast("{dtype}", 7)'
    value = g.rng.choice(LOOKUPS).format(other=other)
    text = f'''x: T.Buffer(("n",), "{dtype}"), i: T.Buffer(("k",), "int64"), o: T.Buffer(("k",), "{dtype}")):
    n, k = T.int64(), T.int64()
    for r in range(k):
        with T.sblock("b"):
            v = T.axis.spatial(k, r)
            o[v] = {value}
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x, i = g.tensor_or_param(dtype, 1), g.tensor_or_param("int64", 1)
            g.emit(call_tir(name, [x, i], TensorType(g.dims(i), dtype)))
            return True

        return rule

    return text, use


GATHERED = (
    "o[0] = o[0] + x[v]",
    "o[v] = x[v] + T.if_then_else(v > 0, o[v - 1], {zero})",
    "o[v // 2] = o[v // 2] + x[v]",
    "o[(v * 3) % n] = x[v]",
    "o[n - 1 - v] = o[v] + x[v]",
)
"""Statements whose order matters."""


def in_order(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """An axis that is declared spatial although one of its iterations needs the result of another."""
    zero = f'T.Cast("{dtype}", 0)'
    loop = g.rng.choice(("range", "range", "T.parallel", "T.vectorized"))
    extent = "4" if loop == "T.vectorized" else "n"
    text = f'''x: T.Buffer(("n",), "{dtype}"), o: T.Buffer(("n",), "{dtype}")):
    n = T.int64()
    for i in range(n):
        with T.sblock("a"):
            v = T.axis.spatial(n, i)
            o[v] = {zero}
    for i in {loop}({extent}):
        with T.sblock("b"):
            v = T.axis.spatial({extent}, i)
            T.where(i < n)
            {g.rng.choice(GATHERED).format(zero=zero)}
'''

    return text, _of_a_vector(dtype, dtype)


def reduction(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """A sum or maximum over an axis. The maximum replaces NaN by 0, since `T.max` of a NaN depends on the order."""
    axis = g.rng.choice("01")
    out, index = ("n", "vi") if axis == "1" else ("m", "vj")
    kinds = "SR" if axis == "1" else "RS"
    number = "T.if_then_else(x[vi, vj] == x[vi, vj], x[vi, vj], T.Cast({dtype!r}, 0))"
    step = g.rng.choice(
        (f"o[{index}] + x[vi, vj]", f"T.max(o[{index}], {number.format(dtype=dtype)})")
    )
    text = f'''x: T.Buffer(("n", "m"), "{dtype}"), o: T.Buffer(("{out}",), "{dtype}")):
    n, m = T.int64(), T.int64()
    for i, j in T.grid(n, m):
        with T.sblock("b"):
            vi, vj = T.axis.remap("{kinds}", [i, j])
            with T.init():
                o[{index}] = T.Cast("{dtype}", 0)
            o[{index}] = {step}
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 2)
            g.emit(call_tir(name, [x], TensorType([g.dims(x)[1 - int(axis)]], dtype)))
            return True

        return rule

    return text, use


def spread(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Extents that are expressions of symbols: each element occurs twice."""
    text = f'''x: T.Buffer(("n",), "{dtype}"), o: T.Buffer(("n * 2",), "{dtype}")):
    n = T.int64()
    for i in range(n * 2):
        with T.sblock("b"):
            vi = T.axis.spatial(n * 2, i)
            o[vi] = {_expression(g, dtype, "x[vi // 2]", "x[vi % n]")}
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 1)
            g.emit(call_tir(name, [x], TensorType([g.dims(x)[0] * 2], dtype)))
            return True

        return rule

    return text, use


def scaled(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """A symbol that no buffer determines is an argument of its own (`tir_vars`)."""
    text = f'''x: T.Buffer(("n",), "{dtype}"), o: T.Buffer(("n",), "{dtype}"), k: T.int64):
    n = T.int64()
    for i in range(n):
        with T.sblock("b"):
            vi = T.axis.spatial(n, i)
            o[vi] = {_expression(g, dtype, "x[vi]", f'T.Cast("{dtype}", k % 5)')}
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 1)
            out = TensorType(g.dims(x), dtype)
            g.emit(call_tir(name, [x], out, ShapeExpr([g.dimension()])))
            return True

        return rule

    return text, use


def update(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """A program that updates its argument (`call_tir_inplace`), which other bindings may still read."""
    text = f'''x: T.Buffer(("n", "m"), "{dtype}"), y: T.Buffer(("n", "m"), "{dtype}")):
    n, m = T.int64(), T.int64()
    for i, j in T.grid(n, m):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = {_expression(g, dtype, "x[vi, vj]", "y[vi, vj]")}
'''

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param(dtype, 2)
            y = g.pick(lambda a: a == x.annotation)
            if x is y:
                y = g.emit(multiply(x, 2))
            g.emit(call_tir_inplace(name, [x, y], [0], TensorType(g.dims(x), dtype)))
            return True

        return rule

    return text, use


NARROW = ("int8", "uint8", "int16", "uint16", "float16", "bool")
UPDATES = (
    "{y} + {y}",
    "{y} * {y}",
    "T.max({y}, {x})",
    "{x} - {y}",
    "T.if_then_else({x} < {y}, {y} - {x}, {y})",
)


def narrow_update(g: Body, dtype: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Elements of less than 32 bits whose new values are computed from the old ones, also several times."""
    own = g.rng.choice(NARROW)
    x = (
        "x[v]"
        if own in ("float16", "bool") or dtype != "float32"
        else 'T.Cast("int32", x[v] * T.float32(50))'
    )
    x = f"({x} > T.Cast({dtype!r}, 0))" if own == "bool" else f'T.Cast("{own}", {x})'
    change = "T.Not({y})" if own == "bool" else g.rng.choice(UPDATES)
    again = "{y} != {x}" if own == "bool" else "{y} + {x}"
    text = f"""x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{own}")):
    n = T.int64()
    for i in T.serial(n):
        with T.sblock("first"):
            v = T.axis.spatial(n, i)
            y[v] = {x}
    for i in T.serial(n):
        with T.sblock("change"):
            v = T.axis.spatial(n, i)
            y[v] = {change.format(y="y[v]", x=x)}
    for i in T.serial(n):
        with T.sblock("again"):
            v = T.axis.opaque(n, i)
            y[v // 2] = {again.format(y="y[v // 2]", x=x)}
"""

    return text, _of_a_vector(dtype, own)


REAL = (
    "{c} - {c}",
    "({a} + {c}) - {c}",
    "{c} + ({a} - {c})",
    "{a} * {c} - {a} * {c}",
    "T.exp({c}) * T.exp({a})",
    "T.Cast('float32', {c} != {c})",
)


def no_number(g: Body, _: str) -> tuple[str, Callable[[GlobalVar], Rule]]:
    """Values that are NaN or infinite for some elements, behind a choice and behind a join. What comes out is finite:
    other operators may take either operand beside a NaN."""
    other = g.rng.choice(("nan", "inf", "-inf"))
    chosen = f"T.if_then_else(x[v] < T.float32(0), T.float32({other!r}), x[v])"
    found = g.rng.choice(REAL).format(a="x[v]", c=chosen)
    text = f"""x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
    n = T.int64()
    for i in T.serial(n):
        with T.sblock("y"):
            v = T.axis.spatial(n, i)
            y[v] = {found}
"""

    def use(name: GlobalVar) -> Rule:
        def rule(g: Body) -> bool:
            x = g.tensor_or_param("float32", 1)
            y = g.builder.emit(call_tir(name, [x], TensorType(g.dims(x), "float32")))
            joined = g.builder.emit(concat((y, x) if g.rng.random() < 0.5 else (x, y), axis=0))
            rest = g.builder.emit(subtract(joined, joined))
            g.emit(astype(isnan(rest), "float32"))
            return True

        return rule

    return text, use


MAKERS: tuple[Maker, ...] = (
    *(elementwise, gather, reduction, spread, scaled, update),
    *(lookup, in_order),
    *(narrow_update, no_number),
)


def first_calls(g: Body) -> None:
    """Calls most of the module's programs, since random choice rarely reaches them."""
    for rule in g.programs.values():
        if g.rng.random() < 0.8:
            with suppress(DeduceError):
                rule(g)


def tensor_program(g: Body) -> bool:
    """A call of a tensor program of the module."""
    return bool(g.programs) and g.programs[g.rng.choice(list(g.programs))](g)


def library(g: Body) -> bool:
    """A library function in destination-passing style, with one or two results."""
    x = g.tensor("float32" if g.rng.random() < 0.7 else "int64")
    kind = tensor_of(x)
    out = TensorType(g.dims(x), kind.dtype)
    if g.rng.random() < 0.5:
        g.emit(call_dps_library("relaxpy.testing.halved", [x], out))
    else:
        g.emit(call_dps_library("relaxpy.testing.parts", [x], [out, out]))
    return True


def packed(g: Body) -> bool:
    """A registered function that returns a value of known shape, of known rank, or of unknown type."""
    x = g.tensor("float32", least=1)
    kind = tensor_of(x)
    choice = g.rng.randrange(3)
    value: Call
    if choice == 0:
        value = _call(g, "relaxpy.testing.reversed", x, TensorType(g.dims(x), kind.dtype))
    elif choice == 1:
        value = _call(g, "relaxpy.testing.positive", x, TensorType(None, kind.dtype, 1))
    else:
        value = _call(g, "vm.builtin.shape_of", x, ShapeType(None, kind.ndim))
    found = g.emit(value)
    if choice == 1 and g.rng.random() < 0.7:
        g.add(g.builder.match_cast(found, TensorType([g.fresh_symbol()], kind.dtype)))
    elif choice == 2 and g.rng.random() < 0.7:
        symbols: list[SymVar] = [g.fresh_symbol() for _ in range(kind.ndim)]
        g.add(g.builder.match_cast(found, ShapeType(symbols)))
    return True


def _call(g: Body, name: str, x: Expr, result: TensorType | ShapeType) -> Call:
    pure = g.pure or g.dataflow or g.depth > 0 or g.rng.random() < 0.5
    return (call_pure_packed if pure else call_packed)(name, x, ty_args=result)


RULES: Mapping[Rule, int] = {tensor_program: 4, library: 1, packed: 1}
