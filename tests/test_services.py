"""relaxpy.services: what nodes of the IR offer works whatever part of relaxpy was imported first."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from relaxpy.services import SERVICES
from tests.sweeps import part, sweep

MODULE = """
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Function, Var, seq
from relaxpy.ir.module import IRModule

n = SymVar("n")
x = Var("x", TensorType((n.dim, 4), "float32"))
main = Function((x,), seq([], x), x.annotation, attrs={"global_symbol": "main"})
mod = IRModule({"main": main})
"""


@sweep(2)
@pytest.mark.parametrize(
    ("code", "output"),
    part(
        [
            ("print(x.annotation)", 'R.Tensor((n, 4), dtype="float32")'),
            ("print(mod.script())", "def main(x: R.Tensor"),
            ("print(mod)", "def main(x: R.Tensor"),
            ("print(mod._repr_html_())", "main"),
            ("mod.show()", "def main(x: R.Tensor"),
            ("print(main.script())", "def main(x: R.Tensor"),
            ("main.show()", "def main(x: R.Tensor"),
            ("import numpy; print(mod.main(numpy.ones((1, 4), 'float32')))", "1"),
            ("import numpy; print(mod(numpy.ones((1, 4), 'float32')))", "1"),
            ("import numpy; print(main(numpy.ones((1, 4), 'float32')))", "1"),
            (
                "from relaxpy.ir.structural import structural_equal; a = n.dim // 4 * 4 + n.dim % 4\n"
                "print(structural_equal(TensorType((a,)), TensorType((n.dim,)), prove=True))",
                "True",
            ),
        ],
        2,
    ),
)
def test_works_with_only_the_ir_imported(code: str, output: str) -> None:
    """In a process that imported nothing but `relaxpy.ir`."""
    done = subprocess.run(
        [sys.executable, "-c", MODULE + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert output in done.stdout


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_provider_has_the_declared_parameters(name: str) -> None:
    """What is declared is what the provider takes: names, order, defaults."""
    service = SERVICES[name]
    declared, provided = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (service.declaration, service.provider)
    )
    assert declared == provided


def test_providers_are_loaded_when_they_are_used() -> None:
    """The IR loads neither printer nor prover nor compiler."""
    code = (
        MODULE
        + "import sys; print([m for m in ('relaxpy.script', 'relaxpy.shape', 'relaxpy.build') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.strip() == "[]"
