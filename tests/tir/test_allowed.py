"""What a tensor program may reach: its buffers, and functions that compute."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError, RelaxError
from relaxpy.ir.module import IRModule
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx


def text(body: str) -> str:
    """A module of a program `f` of this body and a function that calls it."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
{lines}

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
        return y
"""


HOSTILE = {
    "system": 'T.evaluate(T.call_extern("int32", "system", "touch {path}"))',
    "pure": 'y[0] = T.call_pure_extern("float32", "system", "touch {path}")',
    "pointer": 'y[0] = T.call_pure_extern("float32", "sinf", x.data)',
    "packed": 'T.evaluate(T.call_packed("runtime.ModuleLoadFromFile", "{path}"))',
    "cpacked": 'T.evaluate(T.call_cpacked("system", "touch {path}"))',
    "trap": 'T.evaluate(T.call_llvm_intrin("int32", "llvm.trap"))',
    "memory": 'T.evaluate(T.call_llvm_intrin("int32", "llvm.memset.p0.i64", x.data, 0, 9, 0))',
    "pragma": 'with T.attr(T.int32(0), "pragma_import_llvm", "define void @f() {{ ret void }}"):\n    y[0] = x[0]',
    "pragma of C": 'with T.attr(T.int32(0), "pragma_import_c", "void f(void) {{}}"):\n    y[0] = x[0]',
    "annotation": 'for i in T.serial(n, annotations={{"pragma_import_llvm": "text"}}):\n    y[i] = x[i]',
    "address": "T.evaluate(T.address_of(x[0]))",
    "view": 'z = T.decl_buffer((n * 2,), "float32", data=x.data)\ny[0] = z[n]',
    "gaps": 'z = T.alloc_buffer((4,), "float32", strides=(100,))\nz[3] = x[0]',
    "assumption": "T.assume(n > 8)\ny[8] = x[8]",
    "finished": 'T.func_attr({{"relaxpy.finished": True}})\ny[0] = x[0]',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_reaches_further_is_refused(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is read and printed, and not built."""
    path = tmp_path_factory.mktemp("hostile") / "made"
    with pytest.raises(RelaxError) as caught:
        relaxpy.build(relaxpy.parse(text(HOSTILE[name].format(path=path))))
    assert caught.value.code in ("tir-extern", "tir-script")
    assert caught.value.span is not None
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('for i in range(n):\n    y[i] = T.call_pure_extern("float32", "erff", x[i])', [0.8427008]),
        (
            'for i in range(n):\n    y[i] = T.call_llvm_pure_intrin("float32", "llvm.fabs.f32", x[i])',
            [1],
        ),
        (
            'z = T.decl_buffer((n,), "float32", data=x.data)\nfor i in range(n):\n    y[i] = z[i]',
            [1],
        ),
        (
            'with T.attr(T.int32(0), "a.word", "text"):\n    for i in range(n):\n        y[i] = x[i]',
            [1],
        ),
    ],
)
def test_what_computes_runs(body: str, expected: list[float]) -> None:
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text(body))))
    np.testing.assert_allclose(vm["main"]([1.0]).numpy(), expected, rtol=1e-6)


def test_programs_that_are_no_text_are_refused() -> None:
    """A program may be made by TVM's own constructors, too."""
    mod = relaxpy.parse(text("y[0] = x[0]"))
    program = mod["f"]
    assert isinstance(program, PrimFunc)
    call = tirx.Evaluate(tirx.call_extern("int32", "system", "true"))
    hostile = PrimFunc(program.func.with_body(call), program.span)
    with pytest.raises(
        BuildError, match="f: a tensor program must not call the C function system"
    ) as e:
        relaxpy.build(IRModule({**mod.functions, "f": hostile}))
    assert e.value.code == "tir-extern"


def test_sorts_are_read_again() -> None:
    """They call TVM's runtime, with whole buffers."""
    mod = relaxpy.parse("""
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        y = R.sort(x)
        return y
""")
    lowered = relaxpy.transform.LegalizeOps()(mod)
    again = relaxpy.parse(lowered.script())
    vm = relaxpy.VirtualMachine(relaxpy.build(again))
    assert vm["main"]([3.0, 1.0, 2.0]).numpy().tolist() == [1, 2, 3]


def test_nothing_of_a_text_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a process of its own: TVM's parser evaluates Python."""
    path = tmp_path_factory.mktemp("hostile") / "made"
    source = text('y[0] = __import__("os").system("touch ' + str(path) + '")')
    code = f"import relaxpy\nrelaxpy.parse({source!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "unknown-name" in done.stderr or "tir-" in done.stderr, done.stderr
    assert not path.exists()
