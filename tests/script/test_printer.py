from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.ir import (
    BindingBlock,
    Call,
    CallableType,
    Constant,
    DataflowBlock,
    DataflowVar,
    Dim,
    ExternFunc,
    Function,
    If,
    IRModule,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    ShapeType,
    StringImm,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.ir.annotation import VOID, Annotation
from relaxpy.ir.dim import dim_op
from relaxpy.op.base import OPS
from relaxpy.script.printer import print_annotation, print_expr, print_function
from relaxpy.shape.bounds import bounds_of
from tests.sweeps import sweep


def round_trip(mod: IRModule) -> str:
    text = mod.script()
    again = relaxpy.parse(text)
    relaxpy.assert_structural_equal(mod, again)
    settled = again.script()  # function types that shared a symbol have one each now
    assert relaxpy.parse(settled).script() == settled
    return text


def single(func: Function, name: str = "main") -> str:
    return round_trip(IRModule({name: func}))


def returning(value: object, annotation: Annotation, params: tuple[Var, ...] = ()) -> Function:
    """A function that binds a value and returns it."""
    var = Var("y", annotation)
    body = SeqExpr((BindingBlock((VarBinding(var, value),)),), var)  # type: ignore[arg-type]
    return Function(params, body, annotation, attrs={"global_symbol": "main"})


@pytest.mark.parametrize(
    "data",
    [
        np.float32(0.1),
        np.array([np.nan, np.inf, -np.inf, -0.0], "float32"),
        np.array([0x7FC00001], "uint32").view("float32"),  # a NaN with a payload
        np.array([[True], [False]]),
        np.array([2**63 - 1, -(2**63)], "int64"),
        np.array([2**64 - 1], "uint64"),
        np.array([1e-310, 5e-324], "float64"),
        np.array([0.1, 65504], "float16"),
        np.array([0.1, 3e38], ml_dtypes.bfloat16),
        np.zeros((0, 3), "float32"),
        np.arange(1000, dtype="int8").reshape(10, 100),
        np.linspace(0, 1, 77).astype("float32"),
        np.arange(40).astype(ml_dtypes.bfloat16),
    ],
    ids=lambda a: f"{a.dtype}-{a.size}",
)
def test_constants_keep_every_bit(data: np.ndarray) -> None:
    constant = Constant(data)
    func = returning(constant, TensorType(constant.data.shape, str(constant.data.dtype)))
    again = relaxpy.parse(single(func))["main"].body.blocks[0].bindings[0].value
    assert again.data.tobytes() == constant.data.tobytes()
    assert again.data.dtype == constant.data.dtype
    assert again.data.shape == constant.data.shape


@pytest.mark.parametrize(
    "name", ["x y", "1x", "class", "R", "T", "cls", "float", "", "größe", "match", "n", "Module"]
)
def test_unusual_names(name: str) -> None:
    n, other = SymVar(name), SymVar(name)
    x = Var(name, TensorType((n, 4), "float32"))
    cast = Var(name, TensorType((other, 4), "float32"))
    body = SeqExpr((BindingBlock((MatchCast(cast, x, cast.annotation),)),), cast)
    single(
        Function((x,), body, TensorType(None, "float32", 2), attrs={"global_symbol": name}), name
    )


def test_names_of_functions_that_are_no_identifiers() -> None:
    x = Var("x", ObjectType())
    inner = Function((x,), SeqExpr((), x), ObjectType(), attrs={"global_symbol": "a.b"})
    from relaxpy.ir import GlobalVar

    y, z = Var("y", ObjectType()), Var("z", ObjectType())
    block = BindingBlock((VarBinding(z, Call(GlobalVar("a.b"), (y,))),))
    main = Function((y,), SeqExpr((block,), z), ObjectType())
    text = round_trip(
        IRModule({"a.b": inner, "a_b": main, "lib.f": ExternFunc("lib.f")}, name="My Module")
    )
    assert '@R.function(name="a.b")' in text


@pytest.mark.parametrize(
    "annotation",
    [
        ObjectType(),
        PrimType("bool"),
        PrimType("float32"),
        ShapeType(),
        ShapeType(None, 0),
        ShapeType((2, 3)),
        TensorType(),
        TensorType((), "bool"),
        TensorType((1,)),
        TensorType(None, "float32", 3),
        TensorType(None, None, 3, "cuda:0:global"),
        TupleType(()),
        TupleType((ObjectType(),)),
        CallableType(),
        CallableType(None, TensorType(), False),
        CallableType((), VOID),
        CallableType((TensorType(),), ObjectType(), False),
    ],
    ids=str,
)
def test_annotations(annotation: Annotation) -> None:
    x = Var("x", annotation)
    again = relaxpy.parse(single(Function((x,), SeqExpr((), x), annotation)))["main"]
    assert again.params[0].annotation == annotation
    assert again.ret == annotation


def test_function_types_with_symbols() -> None:
    n, m, k = SymVar("n"), SymVar("n"), SymVar("n")
    inner = CallableType((TensorType((m, n)),), TensorType((m.dim * n.dim,)))
    outer = CallableType((inner, TensorType((k,))), inner)
    x, f = Var("x", TensorType((n,))), Var("f", outer)
    text = single(Function((x, f), SeqExpr((), x), TensorType((n,))))
    assert text.count("n_1") + text.count("n_2") + text.count("n_3") > 0


def test_scalars_and_leaves() -> None:
    n = SymVar("n")
    s = Var("s", ShapeType((n,)))
    fields = (
        PrimValue(n.dim * 2 - 3), PrimValue(True), PrimValue(0.5), PrimValue(float("nan")), PrimValue(7, "int32"),
        PrimValue(1.0, "float16"), ShapeExpr((n, 4)), ShapeExpr(()), StringImm('a "b"\n\\ é\x7f'),
        Tuple(()), Tuple((s,)),
    )  # fmt: skip
    value = Tuple(fields)
    from relaxpy.op.deduce import deduce

    single(returning(value, deduce(value), (s,)))


def test_adjacent_and_empty_blocks() -> None:
    x = Var("x", ObjectType())
    a, b, c = DataflowVar("a", ObjectType()), Var("b", ObjectType()), DataflowVar("c", ObjectType())
    blocks = (
        DataflowBlock((VarBinding(a, x), VarBinding(b, a))),
        DataflowBlock((VarBinding(c, b),)),
    )
    text = single(Function((x,), SeqExpr(blocks, b), ObjectType()))
    assert text.count("with R.dataflow():") == 2
    assert "R.output()" in text


def test_branches_of_every_form() -> None:
    """Leaves as values, the same variable in both, a dataflow block at the end, a branch in a branch."""
    c, x = Var("c", TensorType((), "bool")), Var("x", ObjectType())
    d, e = Var("d", ObjectType()), Var("x", ObjectType())
    flow = SeqExpr((DataflowBlock((VarBinding(d, x),)),), d)
    nested = If(c, SeqExpr((), x), SeqExpr((BindingBlock((VarBinding(e, x),)),), e))
    v = Var("v", ObjectType())
    w = Var("w", ObjectType())
    inner = SeqExpr((BindingBlock((VarBinding(v, nested),)),), v)
    body = SeqExpr((BindingBlock((VarBinding(w, If(c, flow, inner)),)),), Tuple((w, w)))
    single(Function((c, x), body, TupleType((ObjectType(), ObjectType()))))


def test_nested_function_with_symbols_of_its_own() -> None:
    n, own, cast = SymVar("n"), SymVar("n"), SymVar("n")
    x = Var("x", TensorType((n,), "float32"))
    y = Var("x", TensorType((own, n), "float32"))
    z = Var("x", TensorType((cast,), "float32"))
    seq = SeqExpr(
        (BindingBlock((MatchCast(z, x, z.annotation),)),), Tuple((y, z, ShapeExpr((own, n, cast))))
    )
    ret = TupleType((y.annotation, TensorType(None, "float32", 1), ShapeType(None, 3)))
    inner = Function((y,), seq, ret)
    f = Var("f", inner.annotation)
    body = SeqExpr((BindingBlock((VarBinding(f, inner),)),), f)
    single(Function((x,), body, ObjectType()))


def test_attributes() -> None:
    attrs = {
        "a": 1,
        "b": [1, [2.5, None]],
        "c": {"d": True},
        "e": float("inf"),
        "global_symbol": "other",
    }
    x = Var("x", ObjectType())
    single(Function((x,), SeqExpr((), x), ObjectType(), False, attrs))


def test_ranges_of_symbols_that_are_renamed() -> None:
    """A symbol that cannot be printed by its own name takes its declared range with it."""
    first, second = SymVar("n"), SymVar("n")
    word, absent = SymVar("len"), "m"
    x = Var("x", TensorType((first, second, word), "float32"))
    limits = {"n": 7, absent: 8, "len": 9}
    attrs = {"tir_var_upper_bound": limits}
    func = Function((x,), SeqExpr((), x), x.annotation, True, attrs)
    printed = relaxpy.parse(str(func))["main"]
    assert isinstance(printed, Function)
    found = bounds_of(printed)
    (again,) = (param.annotation for param in printed.params)
    assert isinstance(again, TensorType)
    assert [found[dim.symbol] for dim in again.dims or ()] == [(0, 7), (0, 7), (0, 9)]
    assert printed.attrs["tir_var_upper_bound"][absent] == 8


def test_empty_module() -> None:
    assert relaxpy.parse(IRModule().script()).functions == {}


def test_one_function() -> None:
    x = Var("x", ObjectType())
    func = Function((x,), SeqExpr((), x), ObjectType(), attrs={"global_symbol": "f"})
    assert print_function(func) == "@R.function\ndef f(x: R.Object) -> R.Object:\n    return x\n"
    assert func.script("g").startswith("@R.function\ndef g(")


def test_for_messages() -> None:
    n = SymVar("n")
    assert (
        print_annotation(TensorType((n.dim * 2, 4), "float32"))
        == 'R.Tensor((n * 2, 4), dtype="float32")'
    )
    assert print_expr(Tuple((Var("x", ObjectType()),))) == "(x,)"


class Generator:
    """Random functions over float32 tensors: names that clash, blocks, branches, casts, nested functions, tuples."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.syms = [SymVar(self.random.choice("nm")) for _ in range(3)]

    def name(self) -> str:
        return self.random.choice(["x", "y", "lv", "n", "gv", "lv1", "x_1", "R"])

    def dim(self) -> Dim:
        pick, r = self.random.choice, self.random
        found = pick(self.syms).dim
        for _ in range(r.randrange(3)):
            other = pick([Dim.of(r.randrange(1, 9)), pick(self.syms).dim])
            form = r.randrange(5)
            found = [
                found + other,
                found * other,
                found // other,
                found % other,
                dim_op("max", found, other),
            ][form]
        return found

    def type(self) -> TensorType:
        return TensorType([self.dim() for _ in range(self.random.randrange(4))], "float32")

    def bindings(
        self, known: list[Var], depth: int, dataflow: bool
    ) -> list[VarBinding | MatchCast]:
        found: list[VarBinding | MatchCast] = []
        for _ in range(self.random.randrange(1, 5)):
            kind = DataflowVar if dataflow and self.random.random() < 0.7 else Var
            x = self.random.choice(known)
            form = self.random.randrange(6)
            if form == 0:
                annotation = self.type()
                found.append(MatchCast(kind(self.name(), annotation), self.any, annotation))
            elif form == 1 and depth and not dataflow:
                cond = Constant(np.array(True))
                value = If(cond, self.seq(known, depth - 1), self.seq(known, depth - 1))
                found.append(VarBinding(kind(self.name(), ObjectType()), value))
            elif form == 2 and depth:
                param = Var(self.name(), self.type())
                value = Function((param,), self.seq([param, *known], depth - 1), ObjectType())
                found.append(VarBinding(kind(self.name(), value.annotation), value))
                continue
            elif form == 3:
                out = self.type()
                call = relaxpy.op.call_dps_library("lib.f", (x, (x,)), out)
                found.append(VarBinding(kind(self.name(), out), call))
            elif form == 4:
                value = ShapeExpr([self.dim(), self.dim()])
                found.append(VarBinding(kind(self.name(), ShapeType(value.dims)), value))
                continue
            else:
                found.append(
                    VarBinding(
                        kind(self.name(), x.annotation),
                        OPS["exp"].make(x) if isinstance(x.annotation, TensorType) else x,
                    )
                )
            known = [*known, found[-1].var]
        return found

    def seq(self, known: list[Var], depth: int) -> SeqExpr:
        blocks: list[BindingBlock] = []
        for _ in range(self.random.randrange(3)):
            dataflow = self.random.random() < 0.5
            if not dataflow and blocks and not isinstance(blocks[-1], DataflowBlock):
                continue  # two plain blocks beside each other are one in script
            bindings = self.bindings(known, depth, dataflow)
            known = [*known, *(b.var for b in bindings if not isinstance(b.var, DataflowVar))]
            blocks.append((DataflowBlock if dataflow else BindingBlock)(tuple(bindings)))
        return SeqExpr(
            tuple(blocks), self.random.choice([v for v in known if self.visible(v, blocks)])
        )

    def visible(self, var: Var, blocks: list[BindingBlock]) -> bool:
        return not isinstance(var, DataflowVar) and not isinstance(var.annotation, CallableType)

    def function(self) -> Function:
        s = Var("s", ShapeType([sym.dim for sym in self.syms]))
        x, self.any = Var(self.name(), self.type()), Var("any", ObjectType())
        return Function(
            (s, self.any, x), self.seq([x], 2), ObjectType(), attrs={"global_symbol": "main"}
        )


@sweep(3)
@pytest.mark.parametrize("seed", range(150))
def test_random_functions(seed: int) -> None:
    round_trip(IRModule({"main": Generator(seed).function()}))


def test_a_field_of_a_tuple_written_out_is_not_folded() -> None:
    x, y = Var("x", ObjectType()), Var("y", ObjectType())
    value = TupleGetItem(Tuple((x, y)), 1)
    assert "R.tuple(x, y)[1]" in single(returning(value, ObjectType(), (x, y)))
