"""Stub files (`.pyi`) for the names from the table of operators, for editors and type checkers.

    python -m tests.stubs

writes them (`make stubs`): of `relaxpy.op` and its namespaces, of `R` (`relaxpy.script.relax`), and of `relaxpy.nn.op`.
They are kept with the source, and a test compares them with the table.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from relaxpy.nn import op as nn_op
from relaxpy.nn.function import function_on_tensors
from relaxpy.op import OPS
from relaxpy.op.base import print_attr
from relaxpy.op.function import AnyOperator, function_of, functions, names_below
from relaxpy.script import relax
from relaxpy.script.dialects.older_words import R_NAMES

HEADER = '"""Written from the table of operators by `make stubs`; see tests/stubs.py."""\n\n'
WIDTH = 100
"""The longest line of a signature."""
TYPES = ("DTypeLike", "ExprLike", "Operand", "ScalarLike", "ShapeLike", "TensorLike", "TupleLike")
"""The types of `relaxpy.op.function` that occur in signatures."""


def stubs() -> dict[str, str]:
    """The text of each stub file, by its path under `relaxpy/`."""
    top = names_below("", functions())
    spaces = [name for name in top if name not in OPS]
    files = {"op/__init__.pyi": _operators("", spaces)}
    files |= {f"op/{name}.pyi": _operators(f"{name}.", []) for name in spaces}
    files["script/relax.pyi"] = _script([name for name in top if name in OPS], spaces)
    files["nn/op.pyi"] = _tensors(spaces)
    return files


def write(root: Path) -> list[str]:
    """Writes the stub files of the package at `root`, and removes those of namespaces that no longer exist. Returns the
    changed paths."""
    texts = stubs()
    changed = [path.relative_to(root).as_posix() for path in (root / "op").glob("*.pyi")]
    changed = [path for path in changed if path not in texts]
    for path in changed:
        (root / path).unlink()
    for path, text in texts.items():
        file = root / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def _operators(prefix: str, spaces: list[str]) -> str:
    """The stub of `relaxpy.op`, or of a namespace in it."""
    table = _below(prefix)
    lines = [HEADER]
    if any("Sequence[" in p.annotation for cls in table for p in cls.parameters()):
        lines.append("from collections.abc import Sequence\n\n")
    if not prefix:
        lines += [f"from relaxpy.op import {name} as {name}\n" for name in spaces]
        tree = _tree(sys.modules["relaxpy.op"])
        lines += _reexports(tree, set(dir(sys.modules["relaxpy.op"])))
    lines += ["from relaxpy.ir.expr import Call\n", _type_imports(table)]
    lines += [f"\n{_definition(function_of(cls))}" for cls in table]
    return "".join(lines)


def _script(operators: list[str], spaces: list[str]) -> str:
    """The stub of R. Instructions of lowered programs have no function elsewhere and are declared here."""
    tree = _tree(relax)
    lines = [HEADER, "import builtins\nimport typing\nfrom collections.abc import Sequence\n\n"]
    lines += ["from relaxpy.ir.expr import Call\n"]
    lines += [
        f"from relaxpy.op import {name} as {name}\n" for name in sorted([*operators, *spaces])
    ]
    instructions = sorted({name.split(".")[0] for name in OPS if name not in functions()})
    lines += [_type_imports([cls for name in instructions for cls in _below(f"{name}.")])]
    lines += _reexports(tree, set(relax.__all__))
    lines += [_alias(tree, older, name) for older, name in R_NAMES.items()]
    public = sorted({*dir(relax), *R_NAMES})
    lines += [f"\n__all__ = [{', '.join(map(print_attr, public))}]\n", *_declared(tree)]
    for name in instructions:
        text = _namespace_class(name, [function_of(cls) for cls in _below(f"{name}.")])
        lines.append(re.sub(r"(?<=[:|] )str\b", "builtins.str", text))  # R.str is another
    return "".join(lines)


def _tensors(spaces: list[str]) -> str:
    """The stub of `relaxpy.nn.op`."""
    tree = _tree(nn_op)
    table = [OPS[name] for name in functions()]
    declared = _declared(tree)
    lines = [HEADER, *_imports(tree, "".join(declared)), _type_imports(table), "\n", *declared]
    tops = [OPS[name] for name in functions() if "." not in name]
    lines += [f"\n{_definition(function_on_tensors(cls))}" for cls in _sorted(tops)]
    for name in spaces:
        made = [function_on_tensors(cls) for cls in _below(f"{name}.")]  # type: ignore[arg-type]
        lines.append(_namespace_class(name, made))
    return "".join(lines)


def _below(prefix: str) -> list[AnyOperator]:
    """The operators of a namespace, by name; without a prefix, those in no namespace."""
    found = [cls for name, cls in OPS.items() if name.rpartition(".")[0] == prefix[:-1]]
    return _sorted(found)


def _sorted(table: Iterable[Any]) -> list[Any]:
    return sorted(table, key=lambda cls: cls.name)


def _type_imports(table: Iterable[AnyOperator]) -> str:
    """The imports of types in signatures: our own types, and those that an operator's module imports."""
    used = {
        node.id: cls
        for cls in table
        for parameter in cls.parameters()
        for node in ast.walk(ast.parse(parameter.annotation))
        if isinstance(node, ast.Name)
    }
    ours = sorted(name for name in used if name in TYPES)
    lines = [f"from relaxpy.op.function import {', '.join(ours)}\n"] if ours else []
    for name, cls in sorted(used.items()):
        value = getattr(sys.modules[cls.__module__], name, None)
        if name not in (*TYPES, "Sequence") and isinstance(value, type):
            lines.append(f"from {value.__module__} import {name}\n")
    return "".join(lines)


def _definition(function: Callable[..., Any], indent: str = "") -> str:
    """A function in stub syntax: its signature with types, and its docstring including those of its attributes."""
    signature = inspect.signature(function)
    shown = list(_shown(signature.parameters.values()))
    head, tail = f"{indent}def {function.__name__}(", f") -> {signature.return_annotation}:\n"
    if len(head) + len(", ".join(shown)) + len(tail) <= WIDTH:
        text = head + ", ".join(shown) + tail
    else:
        text = head + "\n" + "".join(f"{indent}    {each},\n" for each in shown) + indent + tail
    inside = indent + "    "
    doc = "\n\n".join([function.__doc__ or "", *_attribute_docs(inspect.unwrap(function))])
    doc = textwrap.indent(doc, inside).strip() + ("\n" + inside if "\n" in doc else "")
    return f'{text}{inside}"""{doc}"""\n'.replace("\n\n\n", "\n\n")


def _shown(parameters: Iterable[Parameter]) -> Iterator[str]:
    """Parameters with the markers `/` and `*` where needed."""
    before: Any = None
    for each in parameters:
        if before is Parameter.POSITIONAL_ONLY is not each.kind:
            yield "/"
        if each.kind is Parameter.KEYWORD_ONLY and before not in (
            Parameter.KEYWORD_ONLY,
            Parameter.VAR_POSITIONAL,
        ):
            yield "*"
        star = "*" if each.kind is Parameter.VAR_POSITIONAL else ""
        default = "" if each.default is Parameter.empty else f" = {_default(each.default)}"
        yield f"{star}{each.name}: {each.annotation}{default}"
        before = each.kind


def _default(value: Any) -> str:
    """A default value as source text. Tuples are kept as tuples."""
    if isinstance(value, tuple):
        return f"({', '.join(map(print_attr, value))}{',' * (len(value) == 1)})"
    return print_attr(value)


def _attribute_docs(cls: type) -> list[str]:
    """The docstrings of an operator's attributes: `axis: ...`."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("relaxpy."):
            found = {**_docs_of_fields(base.__module__).get(base.__name__, {}), **found}
    fields = [each.name for each in dataclasses.fields(cls)]
    return [f"{name}: {found[name]}" for name in fields if name in found]


@cache
def _docs_of_fields(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of the fields of each class in a module."""
    tree = _tree(sys.modules[module])
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_field_docs(node)) for node in classes}


def _field_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text)


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _namespace_class(name: str, members: Iterable[Callable[..., Any]]) -> str:
    """A namespace that is not a module, as a class of static methods and its single instance."""
    parts = [f"\nclass _{name}:\n"]
    parts += [f"    @staticmethod\n{_definition(each, '    ')}" for each in members]
    return "".join([*parts, f"\n{name}: _{name}\n"])


def _reexports(tree: ast.Module, names: set[str]) -> list[str]:
    """The imports of a module that re-export names."""
    return [
        f"from {node.module} import {alias.name} as {alias.asname or alias.name}\n"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.asname or alias.name) in names
    ]


def _alias(tree: ast.Module, older: str, name: str) -> str:
    """An import of `name` under its older name."""
    (line,) = _reexports(tree, {name})
    return f"{line.rpartition(' as ')[0]} as {older}\n"


def _imports(tree: ast.Module, text: str) -> list[str]:
    """The imports of a module that the stub's `text` needs, and its re-exports."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return [
        f"from {node.module} import {alias.name}{f' as {alias.asname}' if alias.asname else ''}\n"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname or alias.name in used
    ]


def _declared(tree: ast.Module) -> list[str]:
    """The public functions and classes that a module defines itself. Modifies the tree."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            inner = [node] if isinstance(node, ast.FunctionDef) else node.body
            for function in inner:
                if isinstance(function, ast.FunctionDef):
                    doc = ast.get_docstring(function)
                    text = doc.replace("\n", "\n    ") if doc else ...
                    function.body = [ast.Expr(ast.Constant(text))]
            found.append(f"\n{ast.unparse(node)}\n")
    return found


def main() -> None:
    root = Path(__file__).parents[1] / "relaxpy"
    for path in write(root):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
