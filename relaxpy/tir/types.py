"""The types of TVM's objects, by which everybody annotates them. It imports nothing: TVM is loaded when a program is
compiled (`relaxpy.tir.tvm`). Their classes are not known to the type checker, since most attributes of theirs are made
when TVM is loaded."""

from __future__ import annotations

from typing import Any, TypeAlias

Expr: TypeAlias = Any
"""A scalar expression."""
Var: TypeAlias = Any
"""A variable of expressions."""
Stmt: TypeAlias = Any
"""A statement."""
Buffer: TypeAlias = Any
"""A buffer of a tensor program."""
Axis: TypeAlias = Any
"""An axis of a block: a variable, with the extent that it runs over."""
