"""The cross-level intermediate representation: data only; it knows no operators, syntax or TVM."""

from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    Node,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.ir.module import BaseFunc, BufferParam, IRModule, ScalarParam, TensorProgram
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import Rewriter, Visitor

__all__ = [
    "Annotation", "BaseFunc", "Binding", "BindingBlock", "BufferParam", "Call", "CallableType", "Constant",
    "DType", "DataTypeImm", "DataflowBlock", "DataflowVar", "Dim", "Expr", "ExternFunc", "Function",
    "GlobalVar", "IRModule", "If", "KnownShape", "KnownTensor", "MatchCast", "Node", "ObjectType",
    "Operator", "PrimType", "PrimValue",
    "Rewriter", "ScalarParam", "SeqExpr", "ShapeExpr", "ShapeType", "StringImm", "SymVar", "TensorProgram",
    "TensorType", "Tuple", "TupleGetItem", "TupleType", "Var", "VarBinding", "Visitor",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
