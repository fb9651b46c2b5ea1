"""The stub files are those of the table; an operator is one file."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import relaxpy.op
from relaxpy import nn
from relaxpy.script import relax as R
from tests.stubs import stubs, write
from tests.sweeps import full

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "relaxpy"


def test_stubs_are_up_to_date() -> None:
    texts = stubs()
    kept = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.pyi")}
    assert kept == texts.keys(), "run: make stubs"
    for path, text in texts.items():
        assert (PACKAGE / path).read_text(encoding="utf-8") == text, "run: make stubs"


def declared(text: str) -> set[str]:
    """The public names of a stub."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("op/__init__.pyi", relaxpy.op),
        ("op/nn.pyi", relaxpy.op.nn),
        ("script/relax.pyi", R),
        ("nn/op.pyi", nn.op),
    ],
)
def test_a_stub_declares_what_is_there(path: str, module: object) -> None:
    text = stubs()[path]
    names = declared(text)
    assert set(dir(module)) <= names
    assert all(hasattr(module, name) for name in names)
    listed = [line for line in text.splitlines() if line.startswith("__all__ = ")]
    for line in listed:  # an import under another name is public in a stub where it is listed
        assert set(dir(module)) <= set(ast.literal_eval(line.removeprefix("__all__ = ")))
    assert bool(listed) == (module is R)


SOFTSIGN = '''
"""One operator, in the only file that is added."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from relaxpy.ir import KnownTensor, TensorType
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction


@define_op
class Softsign(Op):
    """x / (1 + |x|), element by element."""

    name = "NAME"
    scale: float = 1.0
    """A factor of the result."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        d.need_float(x, "x")
        return x

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *i: self.scale * x(*i) / (1 + te.absolute(x(*i))))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return (self.scale * x / (1 + np.abs(x))).astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n 5")
        yield wrong(cls(), rand(3, dtype="int32"), code="op-dtype", match="float")
'''

FIND = """
import inspect, sys
import numpy as np
import relaxpy
from relaxpy import nn
from relaxpy.script import relax as R
from tests.stubs import stubs
from tests.docs.test_operators import listing, own_operators

texts = stubs()
page = listing(own_operators())

def check(name, file):
    space, _, short = name.rpartition(".")

    def of(owner):
        return getattr(getattr(owner, space) if space else owner, short)

    parameters = "(x: 'TensorLike', scale: 'float' = 1.0)"
    assert of(relaxpy.op) is of(R)
    assert str(inspect.signature(of(relaxpy.op))) == f"{parameters} -> 'Call'"
    assert str(inspect.signature(of(nn.op))) == f"{parameters} -> 'Tensor'"
    assert short in dir(getattr(relaxpy.op, space) if space else relaxpy.op)
    path = f"op/{space or '__init__'}.pyi"
    assert f"def {short}(x: TensorLike, scale: float = 1.0) -> Call:" in texts[path], texts[path]
    assert "scale: A factor of the result." in texts[path]
    assert f"from relaxpy.op import {space or short} as {space or short}" in texts["script/relax.pyi"]
    assert f"def {short}(x: TensorLike, scale: float = 1.0) -> Tensor:" in texts["nn/op.pyi"]
    assert f"`R.{name}(x, scale=1.0)` | x / (1 + \\\\|x\\\\|), element" in page
    assert f"relaxpy/op/{file}" in page

    class Model(nn.Module):
        def forward(self, x):
            return of(nn.op)(x, scale=2.0)

    mod, _ = Model().export({"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}})
    assert f"R.{name}(x, scale=2.0)" in mod.script()
    assert relaxpy.structural_equal(relaxpy.parse(mod.script()), mod)
    x = np.ones((3, 4), np.float32)
    result = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm"))["forward"](x)
    np.testing.assert_allclose(result.numpy(), np.ones((3, 4)))

for given in sys.argv[1:]:
    check(*given.split(" in "))
"""


ADDED = {"softsign": "softsign.py", "nn.softsign": "smooth.py", "sound.softsign": "rough.py"}
"""Operator → the file that is added: of its own name, beside others of a namespace, and in a new one."""


@full
def test_adding_an_operator_is_one_file(tmp_path: Path) -> None:
    """In a copy of the package with one more file for each: they are in `relaxpy.op`, in R, in nn.op, in the stubs and
    on the page of operators, and they run."""
    leave = shutil.ignore_patterns("__pycache__", "models")
    shutil.copytree(PACKAGE, tmp_path / "relaxpy", ignore=leave)
    for name, file in ADDED.items():
        text = SOFTSIGN.replace("NAME", name)
        (tmp_path / "relaxpy/op" / file).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", FIND, *(f"{name} in {file}" for name, file in ADDED.items())],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr


def test_writing_removes_what_is_gone(tmp_path: Path) -> None:
    for folder in ("op", "script", "nn"):
        (tmp_path / folder).mkdir()
    (tmp_path / "op/gone.pyi").write_text("")
    assert set(write(tmp_path)) == {*stubs(), "op/gone.pyi"}
    assert not (tmp_path / "op/gone.pyi").exists()
    assert write(tmp_path) == []
