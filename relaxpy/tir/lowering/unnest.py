"""Turn nested `Let`s into a sequence of named values, each computed before the statement that uses it.

TVM's code generator for LLVM binds each name to its value in the analyser, which substitutes the value at each use,
recursively: time doubles with each name that is used twice in the value of another (eight nested `exp` do not
terminate). It does so for `Let` expressions and for statements, but not for loads. Therefore each value is stored in a
buffer of one element, which LLVM promotes to a register, and the name becomes a load of it. Integers whose values stay
short under substitution keep them: the analyser derives the alignment of accesses from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from relaxpy.tir.name_length import NameLengths
from relaxpy.tir.nodes import address_of, dtype_of, items, operator_of, with_body
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, rewritten

Expr = tvm.ir.Expr
Stmt = tirx.Stmt
Mutator = tvm_ffi.StructuralMutator

_CHOICE = "prim.if_then_else"
_READS_STATE = 2
"""TVM's `CallEffectKind` of calls that read memory; those above it write."""

_LEAVES = (tirx.BufferStore, tirx.Evaluate)
_SIMPLE = (*_LEAVES, tirx.Bind)
"""Statements without statements of their own."""

_FIRST, _ONE = tirx.const(0, "int64"), tirx.const(1, "int64")


@tvm.transform.module_pass(opt_level=0, name="relaxpy.UnnestLets")
def unnest_lets(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Return the module with its `Let`s as statements."""
    return tvm.IRModule({var: unnested(func) for var, func in mod.functions.items()})


@tvm.transform.module_pass(opt_level=0, name="relaxpy.UnnestNewLets")
def unnest_new_lets(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Return the module with the `Let`s that a pass after `unnest_lets` has made as statements. Most have none."""
    return tvm.IRModule(
        {
            var: unnested(func) if contains(func.body, tirx.Let) else func
            for var, func in mod.functions.items()
        }
    )


def unnested(func: tirx.PrimFunc, scope: str = "global") -> tirx.PrimFunc:
    """Return the function with its `Let`s as statements, and their values in buffers of this scope. Choices between
    values that contain `Let`s become branches, so that the value that is not chosen is not computed. `Let`s stay in the
    condition of a `while`, and beside calls with effects."""
    body = _unnested(func.body, scope)
    return with_body(func, body)


def _unnested(body: Stmt, scope: str) -> Stmt:
    """Most programs have `Let`s in few statements, if any. These alone are rewritten here, and TVM copies the rest. A
    program with one in the head of a loop or branch is rewritten as a whole."""
    unnester = _Unnester(body, scope)
    if unnester.all_of_it:
        return unnester.run(body)
    rewritten_to: dict[int, Stmt] = {}
    sequences: set[int] = set()
    kinds = _SIMPLE if unnester.nested else tirx.Bind

    def unnest(node: Stmt) -> None:
        if isinstance(node, tirx.Bind) or address_of(node) in unnester.nested:
            found = unnester.run(node)
            if not found.same_as(node):
                rewritten_to[address_of(node)] = found

    def enter(node: tirx.SeqStmt) -> None:
        sequences.add(address_of(node))

    # Definitions precede uses in this order.
    tvm_ffi.structural_walk(body, ((kinds, unnest), (tirx.SeqStmt, enter)), order="pre")
    if not rewritten_to:
        return body

    def replace(node: Stmt) -> Stmt:
        return rewritten_to.get(address_of(node), node)

    def join(node: tirx.SeqStmt) -> Stmt:
        return node if address_of(node) in sequences else _joined(items(node.seq))

    return rewritten(body, (kinds, replace), (tirx.SeqStmt, join))


def _keeps_its_name(var: tvm.ir.Var, value: Expr, lengths: NameLengths) -> bool:
    """May the code generator put this value for the variable: a pointer, or a short read or integer?"""
    if isinstance(value.ty, tvm.ir.PointerType):
        return True
    return (_is_read(value) or _is_integer(value)) and lengths.keeps(var, value)


class _Unnester:
    """Rewrites statements, each with the statements that precede it."""

    def __init__(self, body: Stmt, scope: str) -> None:
        self._scope = scope
        self._before: list[list[Stmt]] = []
        """The preceding statements of those that are being rewritten, innermost last."""
        self._lengths = NameLengths()
        self.nested: set[int] = set()
        """Addresses of the statements without statements of their own that contain `Let`s."""
        self.all_of_it = False
        """Do other statements contain some?"""
        self._find(body)

    def _find(self, body: Stmt) -> None:
        last = 0

        def enter(node: Stmt) -> None:
            nonlocal last
            last = address_of(node) if isinstance(node, _SIMPLE) else 0

        def note(_: tirx.Let) -> None:
            if last:
                self.nested.add(last)
            else:
                self.all_of_it = True

        if contains(body, tirx.Let):
            tvm_ffi.structural_walk(body, ((Stmt, enter), (tirx.Let, note)), order="pre")

    def run(self, node: Stmt) -> Stmt:
        """Rewrite a statement."""
        if isinstance(node, tirx.Bind) and address_of(node) not in self.nested:
            return self._named(node)
        return tvm_ffi.structural_mutate(
            node,
            (
                (tirx.SeqStmt, self._sequence),
                (_LEAVES, self._leaf),
                (tirx.Bind, self._bind),
                (tirx.While, self._while),
                (Stmt, self._stmt),
                (tirx.Let, self._let),
                (tvm.ir.Call, self._call),
            ),
        )

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> Stmt:
        return _joined([mutator.mutate(part) for part in items(node.seq)])

    def _named(self, node: tirx.Bind) -> Stmt:
        """The same for a name of a value without `Let`s."""
        if _keeps_its_name(node.var, node.value, self._lengths):
            return node
        slot = _Slot(node.var.name, node.value, self._scope)
        named = tirx.Bind(node.var, slot.value)
        return tirx.SeqStmt([slot.allocated(), slot.put(node.value), named])

    def _leaf(self, node: Stmt, mutator: Mutator) -> Stmt:
        if address_of(node) not in self.nested or _has_effects_inside(node):
            return node
        return self._stmt(node, mutator)

    def _bind(self, node: tirx.Bind, mutator: Mutator) -> Stmt:
        if address_of(node) in self.nested and _has_effects_inside(node):
            return node
        self._before.append([])
        value = self._meaning(node.var, mutator.mutate(node.value))
        return _joined([*self._before.pop(), tirx.Bind(node.var, value)])

    def _while(self, node: tirx.While, mutator: Mutator) -> Stmt:
        return tirx.While(node.condition, mutator.mutate(node.body))

    def _stmt(self, node: Stmt, mutator: Mutator) -> Stmt:
        self._before.append([])
        rewritten = mutator.default_mutate(node)
        return _joined([*self._before.pop(), rewritten])

    def _let(self, node: Expr, mutator: Mutator) -> Expr:
        while isinstance(node, tirx.Let):
            # A value that occurs in several places has a name in each.
            var = tirx.Var(node.var.name, node.var.ty)
            value = mutator.mutate(node.value)
            meaning = self._meaning(var, value)
            if meaning.same_as(value):
                self._before[-1].append(tirx.Bind(var, value))
            mutator.var_remap_set(node.var, var if meaning.same_as(value) else meaning)
            node = node.body
        return mutator.mutate(node)

    def _meaning(self, var: tvm.ir.Var, value: Expr) -> Expr:
        """The expression that replaces a variable: its value, or a load from memory in which the value is stored."""
        if _keeps_its_name(var, value, self._lengths):
            return value
        slot = _Slot(var.name, value, self._scope)
        self._before[-1] += [slot.allocated(), slot.put(value)]
        return slot.value

    def _call(self, node: tvm.ir.Call, mutator: Mutator) -> Expr:
        if operator_of(node) != _CHOICE:
            return mutator.default_mutate(node)
        condition = mutator.mutate(node.args[0])
        arms: list[list[Stmt]] = []
        values: list[Expr] = []
        for arm in node.args[1:]:
            self._before.append([])
            values.append(mutator.mutate(arm))
            arms.append(self._before.pop())
        if not any(arms):
            return tvm.ir.Call(node.op, [condition, *values], node.attrs, ret_ty=node.ty)
        slot = _Slot("chosen", node, self._scope)
        chosen = [_joined([*arm, slot.put(value)]) for arm, value in zip(arms, values, strict=True)]
        self._before[-1] += [slot.allocated(), tirx.IfThenElse(condition, *chosen)]
        return slot.value


class _Slot:
    """Memory for one value. Bools are stored as bytes: vectors of bools are loaded incorrectly."""

    def __init__(self, name: str, like: Expr, scope: str) -> None:
        dtype = dtype_of(like)
        stored = dtype.replace("bool", "int8")
        self._buffer = tirx.decl_buffer([_ONE], stored, name, scope=scope, layout=None)
        load = tirx.BufferLoad(self._buffer, [_FIRST])
        self.value = load if stored == dtype else tirx.Cast(dtype, load)

    def allocated(self) -> Stmt:
        return tirx.AllocBuffer(self._buffer)

    def put(self, value: Expr) -> Stmt:
        stored = str(self._buffer.dtype)
        if dtype_of(value) != stored:
            value = tirx.Cast(stored, value)
        return tirx.BufferStore(self._buffer, value, [_FIRST])


def _is_read(value: Expr) -> bool:
    """Is it a plain read from memory?"""
    return isinstance(value.value if isinstance(value, tirx.Cast) else value, tvm.ir.TensorLoad)


def _is_integer(value: Expr) -> bool:
    """Is it a scalar integer? Then it may be an index."""
    dtype = dtype_of(value)
    return dtype.startswith(("int", "uint")) and "x" not in dtype


def _joined(stmts: Sequence[Stmt]) -> Stmt:
    """Combine statements into one sequence. A name is known to the end of the innermost sequence."""
    if len(stmts) == 1:
        return stmts[0]
    parts: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, tirx.SeqStmt):
            parts.extend(items(stmt.seq))
        else:
            parts.append(stmt)
    return tirx.SeqStmt(parts)


def _has_effects_inside(stmt: tirx.BufferStore | tirx.Evaluate | tirx.Bind) -> bool:
    """Does an expression in a statement have an effect, apart from the statement's own call?"""
    whole = None if isinstance(stmt, tirx.BufferStore) else stmt.value
    return contains(stmt, tvm.ir.Call, lambda call: not call.same_as(whole) and _changes(call))


def _changes(call: tvm.ir.Call) -> bool:
    name = operator_of(call)
    return not name or _changes_something(name)


@cache
def _changes_something(name: str) -> bool:
    effect = tvm.ir.Op.get(name).get_attr("TCallEffectKind")
    return effect is None or int(effect) > _READS_STATE
