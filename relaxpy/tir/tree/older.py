"""Rewrite older spellings of tensor programs: `T.block`, `T.alloc_buffer` in a block, `T.Buffer[…]`, `T.handle` with
`T.match_buffer`, the attribute `global_symbol`, `T.let[T.int32]`."""

from __future__ import annotations

import ast

from relaxpy.tir.tree.namespace import attribute, call_attribute, t_attribute


def modernize(node: ast.FunctionDef) -> None:
    """Replace older spellings by today's, in a program whose namespace is `T`."""
    drop_symbol(node)
    Modern(node).visit(node)
    match_handles(node)


def drop_symbol(node: ast.FunctionDef) -> None:
    """Drop the attribute `global_symbol` of older scripts: the module names the program."""
    for part in ast.walk(node):
        if not (isinstance(part, ast.Call) and t_attribute(part.func) == "func_attr"):
            continue
        for attrs in part.args:
            if isinstance(attrs, ast.Dict):
                items = zip(attrs.keys, attrs.values, strict=True)
                kept = [(k, v) for k, v in items if getattr(k, "value", None) != "global_symbol"]
                attrs.keys, attrs.values = [k for k, _ in kept], [v for _, v in kept]


def match_handles(node: ast.FunctionDef) -> None:
    """Rewrite `x: T.handle` with `X = T.match_buffer(x, shape, dtype)` to `X: T.Buffer(shape, dtype)`."""
    handles = {
        a.arg: a
        for a in node.args.args
        if a.annotation and ast.unparse(a.annotation) in ("T.handle", "T.handle()")
    }
    kept: list[ast.stmt] = []
    for stmt in node.body:
        call = stmt.value if isinstance(stmt, ast.Assign) else None
        if (
            handles
            and isinstance(call, ast.Call)
            and ast.unparse(call.func) == "T.match_buffer"
            and call.args
            and isinstance(call.args[0], ast.Name)
            and call.args[0].id in handles
            and isinstance(stmt, ast.Assign)
            and isinstance(stmt.targets[0], ast.Name)
        ):
            param = handles.pop(call.args[0].id)
            param.arg = stmt.targets[0].id
            buffer = ast.Call(attribute("T", "Buffer"), call.args[1:], call.keywords)
            ast.copy_location(buffer.func, call.func)
            ast.copy_location(buffer.func.value, call.func)
            param.annotation = ast.copy_location(buffer, call)
        else:
            kept.append(stmt)
    node.body = kept


class Modern(ast.NodeTransformer):
    """Rewrites older expressions and statements in (a part of) a program."""

    def __init__(self, program: ast.AST) -> None:
        self.has_blocks = any(
            t_attribute(part) in ("block", "sblock") for part in ast.walk(program)
        )
        self.in_loop = 0

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        name = t_attribute(node)
        if name == "block" or (name or "").startswith("block_"):
            node.attr = f"s{name}"
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.in_loop += 1
        self.generic_visit(node)
        self.in_loop -= 1
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        # A block's buffers are local to it, whatever loops are around it.
        inside = any(
            call_attribute(item.context_expr) in ("block", "sblock") for item in node.items
        )
        outer, self.in_loop = self.in_loop, 0 if inside else self.in_loop
        self.generic_visit(node)
        self.in_loop = outer
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if t_attribute(node.value) == "Buffer":
            args = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return ast.copy_location(ast.Call(node.value, args, []), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if t_attribute(node.func) == "alloc_buffer" and self.has_blocks and not self.in_loop:
            node.func.attr = "sblock_alloc_buffer"  # type: ignore[attr-defined]
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        match node.annotation:
            # indices are int64 here, whatever they were where the text was printed
            case ast.Subscript(value=let, slice=ast.Attribute(attr="int32")) if (
                t_attribute(let) == "let"
            ):
                node.annotation = let
        return node
