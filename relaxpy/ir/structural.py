"""Structural equality and hash, up to renaming of variables and symbols.

Both traverse an *expansion*: every node gives a head (to be compared directly) and its parts in the order of
evaluation. Equality expands two programs in step and keeps a one-to-one map between their variables and symbols. The
hash expands one program and numbers its variables and symbols. An explicit stack replaces recursion, so neither long
nor deep programs end in a `RecursionError`.

A symbol that is a whole dimension (as it must be where it is defined) is mapped at its first occurrence. A compound
dimension with symbols not mapped yet is deferred to the end of the function.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaxpy import services
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
)
from relaxpy.ir.data import TypeDecl
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataTypeImm,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.op import Operator
from relaxpy.narrow import is_mapping, is_ndarray, is_sequence

Part = tuple[str, Any]
"""(label for messages, value to be expanded)."""


def structural_equal(a: Any, b: Any, *, prove: bool = False, map_free_vars: bool = False) -> bool:
    """Are two modules, functions, expressions or annotations equal up to renaming?

    Variables and symbols defined outside must be the same objects, unless `map_free_vars`. Constants are compared bit
    by bit. With `prove`, dimensions need only be provably equal (`n // 4 * 4 + n % 4` is `n`).
    """
    return _Comparison(prove, map_free_vars).difference(a, b) is None


def assert_structural_equal(
    a: Any, b: Any, *, prove: bool = False, map_free_vars: bool = False
) -> None:
    """Raise `AssertionError`, with the first difference and both sides as text, unless they are structurally equal."""
    found = _Comparison(prove, map_free_vars).difference(a, b)
    if found is not None:
        raise AssertionError(f"{found}\n\n--- left\n{_text(a)}\n--- right\n{_text(b)}")


def structural_hash(a: Any, *, map_free_vars: bool = False) -> int:
    """A 64-bit hash, the same for structurally equal values (without `prove`)."""
    return _Hash(map_free_vars).run(a)


@dataclasses.dataclass(frozen=True, slots=True)
class _Define:
    """A variable at its definition."""

    var: Var


@dataclasses.dataclass(frozen=True, slots=True)
class _Scope:
    """The start or end of a scope that defines symbols of its own: a function, a function type."""

    enter: bool


def _expand(node: Any) -> tuple[tuple[Any, ...], list[Part]]:  # noqa: C901 (one case a node class)
    """The head of a node, which is compared directly, and its parts in the order of evaluation."""
    match node:
        case Call():
            if isinstance(node.op, Operator):
                attrs = [(f.name, getattr(node.op, f.name)) for f in dataclasses.fields(node.op)]  # type: ignore[arg-type]
                head, parts = ("Call", type(node.op).__qualname__, len(node.args)), attrs
            else:
                head, parts = ("Call", len(node.args)), [("op", node.op)]
            return (*head, len(node.ty_args)), [
                *parts,
                *_items("args", node.args),
                *_items("ty_args", node.ty_args),
            ]
        case VarBinding():
            # A local function may be recursive, so its variable is defined before its value.
            value: list[Part] = [("value", node.value)]
            define: list[Part] = [("var", _Define(node.var))]
            return ("VarBinding",), define + value if isinstance(
                node.value, Function
            ) else value + define
        case MatchCast():
            return ("MatchCast",), [
                ("value", node.value),
                ("annotation", node.annotation),
                ("var", _Define(node.var)),
            ]
        case BindingBlock():
            return (type(node).__name__, len(node.bindings)), list(
                _items("bindings", node.bindings)
            )
        case SeqExpr():
            blocks = _merged(node.blocks)
            return ("SeqExpr", len(blocks)), [*_items("blocks", blocks), ("body", node.body)]
        case If():
            return ("If",), [
                ("cond", node.cond),
                ("then", node.then),
                ("otherwise", node.otherwise),
            ]
        case Function():
            params: list[Part] = [(f"params[{i}]", _Define(p)) for i, p in enumerate(node.params)]
            inner: list[Part] = [
                *params,
                ("body", node.body),
                ("ret", node.ret),
                ("attrs", dict(node.attrs)),
            ]
            return ("Function", len(params), node.pure), [
                ("", _Scope(True)),
                *inner,
                ("", _Scope(False)),
            ]
        case Tuple():
            return ("Tuple", len(node.fields)), list(_items("fields", node.fields))
        case TupleGetItem():
            return ("TupleGetItem", node.index), [("tuple", node.tuple)]
        case ShapeExpr():
            return ("ShapeExpr", len(node.dims)), list(_items("dims", node.dims))
        case PrimValue():
            return ("PrimValue", node.dtype), [("value", node.value)]
        case Constant():
            return ("Constant",), [("data", node.data)]
        case GlobalVar() | ExternFunc():
            return (type(node).__name__, node.name), []
        case StringImm():
            return ("StringImm", node.value), []
        case DataTypeImm():
            return ("DataTypeImm", node.dtype), []
        case Annotation():
            return _expand_annotation(node)
        case IRModule():
            names = sorted(node.functions)
            functions: list[Part] = [(name, node.functions[name]) for name in names]
            return ("IRModule", tuple(names)), [
                *functions,
                ("attrs", dict(node.attrs)),
                ("global_infos", dict(node.global_infos)),
            ]
        case _:
            return _expand_attribute(node)


def _expand_annotation(node: Annotation) -> tuple[tuple[Any, ...], list[Part]]:
    match node:
        case TensorType(shape=tuple() as dims):
            return ("Tensor", node.dtype, node.vdevice, len(dims)), list(_items("shape", dims))
        case TensorType(shape=Var() as shape):
            return ("Tensor", node.dtype, node.vdevice, "shape of"), [("shape", shape)]
        case TensorType():
            return ("Tensor", node.dtype, node.vdevice, "rank", node.ndim), []
        case ShapeType(dims=None):
            return ("Shape", "rank", node.ndim), []
        case ShapeType(dims=tuple() as dims):
            return ("Shape", len(dims)), list(_items("dims", dims))
        case PrimType():
            return ("Prim", node.dtype, node.value is None), [("value", node.value)]
        case TupleType():
            return ("Tuple", len(node.fields)), list(_items("fields", node.fields))
        case CallableType():
            params = node.params or ()
            parts: list[Part] = [*_items("params", params), ("ret", node.ret)]
            head = ("Callable", None if node.params is None else len(params), node.pure)
            return head, [("", _Scope(True)), *parts, ("", _Scope(False))]
        case DataType(name=name, args=args):
            return ("Data", name, len(args)), list(_items("args", args))
        case TypeParam(name=name):
            return ("TypeParam", name), []
        case ObjectType():
            return ("Object",), []
        case _:
            return (node,), []


def _expand_attribute(node: Any) -> tuple[tuple[Any, ...], list[Part]]:
    """The expansion of a value that is no node: an attribute of an operator, function or module."""
    if isinstance(node, TypeDecl):
        cases = node.constructors
        head = ("TypeDecl", node.name, node.params, *((c.name, c.fields) for c in cases))
        inner: list[Part] = []
        for case in cases:
            types = _items(case.name, case.types)
            inner += [("", _Scope(True)), *types, ("", _Scope(False))]
        return head, inner
    if isinstance(node, float):
        return ("float", struct.pack("<d", node)), []
    if is_ndarray(node):
        return ("array", str(node.dtype), node.shape, _Bytes(node)), []
    if is_sequence(node):
        return ("sequence", len(node)), list(_items("", node))
    if is_mapping(node):
        keys = sorted(node, key=str)
        return ("mapping", tuple(keys)), [(str(key), node[key]) for key in keys]
    return (type(node).__name__, node), []


def _merged(blocks: Sequence[BindingBlock]) -> list[BindingBlock]:
    """The blocks, with adjacent plain blocks merged: their boundaries have no meaning, and script does not show
    them."""
    merged: list[BindingBlock] = []
    plain: list[Binding] = []
    for block in blocks:
        if not isinstance(block, DataflowBlock):
            plain += block.bindings
            continue
        if plain:
            merged.append(BindingBlock(tuple(plain)))
            plain = []
        merged.append(block)
    return [*merged, BindingBlock(tuple(plain))] if plain else merged


def _items(label: str, values: Any) -> list[Part]:
    return [(f"{label}[{i}]", value) for i, value in enumerate(values)]


class _Bytes:
    """The content of an array, compared bit by bit without a copy."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = np.ascontiguousarray(data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bytes):
            return NotImplemented
        same = (
            self.data.ctypes.data == other.data.ctypes.data
            and self.data.nbytes == other.data.nbytes
        )
        return same or bool(np.array_equal(self._raw(), other._raw()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return hashlib.blake2b(self._raw().data, digest_size=16).hexdigest()

    def _raw(self) -> np.ndarray:
        return self.data.reshape(-1).view(np.uint8)


class _Path:
    """The path of a part, as a linked list; its text is only made for a message."""

    __slots__ = ("label", "parent")

    def __init__(self, parent: _Path | None, label: str) -> None:
        self.parent = parent
        self.label = label

    def __str__(self) -> str:
        labels: list[str] = []
        path: _Path | None = self
        while path is not None:
            if path.label:
                labels.append(path.label)
            path = path.parent
        return ".".join(reversed(labels)).replace(".[", "[") or "the top"


class _Comparison:
    def __init__(self, prove: bool, map_free_vars: bool) -> None:
        self.prove = prove
        self.map_free_vars = map_free_vars
        self.vars: dict[Var, Var] = {}
        self.vars_back: dict[Var, Var] = {}
        self.syms: dict[SymVar, SymVar] = {}
        self.syms_back: dict[SymVar, SymVar] = {}
        self.scopes: list[list[SymVar]] = []
        self.waiting: list[tuple[Dim, Dim, _Path]] = []

    def difference(self, left: Any, right: Any) -> str | None:
        """The first difference as text, or None."""
        stack: list[tuple[Any, Any, _Path]] = [(left, right, _Path(None, ""))]
        while stack:
            a, b, path = stack.pop()
            problem: str | None = None
            if isinstance(a, Var):
                problem = self.use(a, b, stack, path)
            elif isinstance(a, Dim):
                problem = self.dim(a, b, path)
            elif isinstance(a, SymVar):
                problem = self.dim(a.dim, b.dim if isinstance(b, SymVar) else b, path)
            elif isinstance(a, _Define):
                problem = self.define(a.var, b.var, stack, path)
            elif isinstance(a, _Scope):
                problem = self.scope(a.enter)
            elif isinstance(a, TensorProgram):
                same = a is b or (isinstance(b, TensorProgram) and a.structural_equal(b))
                problem = None if same else self.say(path, "the tensor programs differ")
            elif (
                a is b
                and not isinstance(a, (Function, IRModule, Annotation))
                and not dataclasses.is_dataclass(a)
            ):
                continue
            else:
                problem = self.parts(a, b, stack, path)
            if problem is not None:
                return problem
        return self.settle(0)

    def say(self, path: _Path, problem: str) -> str:
        return f"{path}: {problem}"

    def parts(self, a: Any, b: Any, stack: list[tuple[Any, Any, _Path]], path: _Path) -> str | None:
        if isinstance(b, (Var, Dim, SymVar, _Define, _Scope, TensorProgram)):
            return self.say(path, f"{_brief(a)} against {_brief(b)}")
        head, children = _expand(a)
        other, others = _expand(b)
        if head != other or len(children) != len(others):
            if head[:1] == ("array",) == other[:1] and head[1:3] == other[1:3]:
                return self.say(path, "the values of the constants differ")
            return self.say(path, f"{_brief(a)} against {_brief(b)}")
        for (label, child), (label_b, child_b) in zip(
            reversed(children), reversed(others), strict=True
        ):
            if label != label_b:  # a local function, against another value
                return self.say(path, f"{_brief(a)} against {_brief(b)}")
            stack.append((child, child_b, _Path(path, label)))
        return None

    def use(self, a: Var, b: Any, stack: list[tuple[Any, Any, _Path]], path: _Path) -> str | None:
        if not isinstance(b, Var):
            return self.say(path, f"the variable {a.name} against {_brief(b)}")
        if a in self.vars or b in self.vars_back:
            if self.vars.get(a) is b:
                return None
            return self.say(path, f"the variables {a.name} and {b.name} have different definitions")
        if a is b:
            return None
        if self.map_free_vars:
            return self.define(a, b, stack, path)
        return self.say(path, f"the free variables {a.name} and {b.name} differ")

    def define(
        self, a: Var, b: Var, stack: list[tuple[Any, Any, _Path]], path: _Path
    ) -> str | None:
        if type(a) is not type(b):
            return self.say(
                path, f"{a.name} is a {type(a).__name__}, {b.name} a {type(b).__name__}"
            )
        self.vars[a] = b
        self.vars_back[b] = a
        stack.append((a.annotation, b.annotation, _Path(path, f"annotation of {a.name}")))
        return None

    def scope(self, enter: bool) -> str | None:
        if enter:
            self.scopes.append([])
            return None
        # Deferred dimensions may mention symbols of this scope, which end with it.
        problem = self.settle(len(self.scopes) - 1)
        for symbol in self.scopes.pop():
            self.syms_back.pop(self.syms.pop(symbol), None)
        return problem

    def dim(self, a: Dim, b: Any, path: _Path) -> str | None:
        if not isinstance(b, Dim):
            return self.say(path, f"{a} against {_brief(b)}")
        left, right = a.symbol, b.symbol
        if left is None or right is None:
            if not a.vars and not b.vars:
                return None if a == b else self.say(path, f"{a} against {b}")
            if all(var in self.syms for var in a.vars):
                return self.compare(a, b, path)
            self.waiting.append((a, b, path))
            return None
        if left in self.syms or right in self.syms_back:
            if self.syms.get(left) is right:
                return None
            return self.compare(a, b, path) if self.prove else self.say(path, f"{a} against {b}")
        if left is not right and not self.scopes and not self.map_free_vars:
            return self.say(path, f"the free symbols {a} and {b} differ")
        self.syms[left] = right
        self.syms_back[right] = left
        if self.scopes:
            self.scopes[-1].append(left)
        return None

    def compare(self, a: Dim, b: Dim, path: _Path) -> str | None:
        mapped = a.substitute({var: self.syms[var] for var in a.vars if var in self.syms})
        if mapped == b or (self.prove and _proved(mapped, b)):
            return None
        return self.say(path, f"{a} against {b}")

    def settle(self, depth: int) -> str | None:
        """Compare the deferred dimensions at the end of a scope. An inner scope leaves those whose symbols are not
        mapped yet."""
        waiting, self.waiting = self.waiting, []
        if depth <= 0:
            self.pair(waiting)
        for a, b, path in waiting:
            if depth > 0 and not all(var in self.syms for var in a.vars):
                self.waiting.append((a, b, path))
            elif (problem := self.compare(a, b, path)) is not None:
                return problem
        return None

    def pair(self, waiting: list[tuple[Dim, Dim, _Path]]) -> None:
        """Map symbols that are never a whole dimension (a parameter `n * 2` defines n), by dimensions with one unmapped
        symbol."""
        changed = True
        while changed:
            changed = False
            for a, b, _ in waiting:
                left = [var for var in a.vars if var not in self.syms]
                right = [var for var in b.vars if var not in self.syms_back]
                if len(left) == 1 and len(right) == 1:
                    self.syms[left[0]], self.syms_back[right[0]] = right[0], left[0]
                    changed = True


def _proved(a: Dim, b: Dim) -> bool:
    return services.prove(dim_op("eq", a, b))


class _Hash:
    def __init__(self, map_free_vars: bool) -> None:
        self.map_free_vars = map_free_vars
        self.digest = hashlib.blake2b(digest_size=8)
        self.vars: dict[Var, int] = {}
        self.syms: dict[SymVar, int] = {}
        self.scopes: list[list[SymVar]] = []
        self.waiting: list[Dim] = []

    def run(self, root: Any) -> int:
        stack: list[Any] = [root]
        while stack:
            node = stack.pop()
            if isinstance(node, Var):
                self.add("var", self.vars.get(node, "free"))
            elif isinstance(node, _Define):
                self.vars[node.var] = len(self.vars)
                self.add(type(node.var).__name__)
                stack.append(node.var.annotation)
            elif isinstance(node, (Dim, SymVar)):
                self.dim(Dim.of(node))
            elif isinstance(node, _Scope):
                self.scope(node.enter)
            elif isinstance(node, TensorProgram):
                self.add("program", node.structural_hash())
            else:
                head, children = _expand(node)
                self.add(*head)
                stack.extend(child for _, child in reversed(children))
        self.settle()
        return int.from_bytes(self.digest.digest(), "little")

    def add(self, *head: Any) -> None:
        self.digest.update(repr(head).encode())

    def dim(self, dim: Dim) -> None:
        symbol = dim.symbol
        if symbol is None:
            self.waiting.append(dim)
            return
        if symbol not in self.syms:
            self.syms[symbol] = len(self.syms)
            if self.scopes:
                self.scopes[-1].append(symbol)
        self.add("symbol", self.syms[symbol])

    def scope(self, enter: bool) -> None:
        if enter:
            self.scopes.append([])
            return
        self.settle()
        for symbol in self.scopes.pop():
            del self.syms[symbol]

    def settle(self) -> None:
        for dim in self.waiting:
            self.add("dim", _dim_key(dim, self.syms))
        self.waiting = []


def _dim_key(dim: Dim, numbers: Mapping[SymVar, int]) -> str:
    """A text of the dimension that does not depend on names, nor on the order of terms derived from them."""
    terms: list[str] = []
    for monomial, coefficient in dim.terms:
        factors: list[str] = []
        for atom, power in monomial:
            if isinstance(atom, SymVar):
                text = str(numbers.get(atom, "free"))
            else:
                args = [_dim_key(arg, numbers) for arg in atom.args]
                if atom.op in ("min", "max", "eq", "ne"):
                    args.sort()
                text = f"{atom.op}({','.join(args)})"
            factors.append(f"{text}^{power}")
        terms.append(f"{coefficient}*{'*'.join(sorted(factors))}")
    return f"[{'+'.join(sorted(terms))}]"


def _brief(node: Any) -> str:
    """A short description of a node."""
    match node:
        case Call(op=Operator() as op):
            return f"a call of {op}" if len(str(op)) < 80 else f"a call of {op.name}"
        case Call(op=op):
            return f"a call of {getattr(op, 'name', 'a function')} with {len(node.args)} arguments"
        case BindingBlock():
            return f"a {type(node).__name__} of {len(node.bindings)} bindings"
        case Function():
            return f"a function of {len(node.params)} parameters" + (
                "" if node.pure else ", impure"
            )
        case IRModule():
            return f"a module of {', '.join(node.functions)}"
        case Constant():
            return f"a constant of shape {node.data.shape}, {node.data.dtype}"
        case Var():
            return f"the variable {node.name}"
        case _Define():
            return f"the definition of {node.var.name}"
        case SeqExpr():
            return f"a body of {len(node.blocks)} blocks"
        case Annotation():
            return _short_annotation(node)
        case _:
            pass
    text = repr(node)
    return text if len(text) < 100 else type(node).__name__


def _short_annotation(node: Annotation) -> str:
    match node:
        case TensorType(shape=tuple() as dims):
            return f'Tensor(({", ".join(map(str, dims))}), "{node.dtype}")'
        case TensorType():
            return f'Tensor(ndim={node.ndim}, "{node.dtype}")'
        case ShapeType(dims=tuple() as dims):
            return f"Shape({', '.join(map(str, dims))})"
        case _:
            return f"{type(node).__name__}"


def _text(node: Any) -> str:
    """A module, function or annotation as script; a short description of anything else."""
    script = getattr(node, "script", None)
    return str(script()) if callable(script) else _brief(node)
