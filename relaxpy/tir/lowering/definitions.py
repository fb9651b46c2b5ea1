"""Functions in LLVM's language that a kernel calls, which are part of the kernel."""

from __future__ import annotations

from relaxpy.tir.tvm import tirx


def with_definitions(text: str, body: tirx.Stmt) -> tirx.Stmt:
    """The statement, in a kernel that also has these definitions. LLVM links them before it optimises, so a call costs
    nothing where the function is `alwaysinline`. The same text may be given twice."""
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
