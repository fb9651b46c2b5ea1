"""The type checker's view of TVM (typings/tvm) names only what the installed TVM has."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from relaxpy.tir import tvm as boundary

STUBS = Path(__file__).parents[2] / "typings"
FILES = sorted(STUBS.rglob("*.pyi"))


def module_name(path: Path) -> str:
    parts = path.relative_to(STUBS).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Names that the stub's class declares, with those of its private bases (which TVM does not have)."""
    found = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    found |= {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
    found |= {ast.unparse(item.targets[0]) for item in node.body if isinstance(item, ast.Assign)}
    for base in node.bases:
        if ast.unparse(base) in classes and ast.unparse(base).startswith("_"):
            found |= members(classes[ast.unparse(base)], classes)
    return found - {"__init__", "__getattr__"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_the_installed_tvm_has_what_the_stubs_declare(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    body = ast.parse(path.read_text()).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    missing: list[str] = []
    for node in body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                cls = getattr(module, name, None)
                if not inspect.isclass(cls):
                    missing.append(f"class {name}")
                    continue
                # TVM gives `Expr`'s operators to its subclasses.
                holder = boundary.tirx.Add if cls is boundary.tvm.ir.Expr else cls
                missing += [
                    f"{name}.{each}" for each in members(node, classes) if not hasattr(holder, each)
                ]
                for base in map(ast.unparse, node.bases):
                    known = base.startswith("_") or base not in dir(module)
                    if not known and not issubclass(cls, getattr(module, base)):
                        missing.append(f"{name}({base})")
            case ast.FunctionDef(name=name) if name != "__getattr__":
                if not callable(getattr(module, name, None)):
                    missing.append(f"def {name}")
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if not hasattr(module, name):
                    missing.append(name)
            case ast.ImportFrom(names=names):
                again = [each.asname for each in names if each.asname]
                missing += [name for name in again if not hasattr(module, name)]
            case _:
                pass
    assert missing == []
