"""Strides and offsets of buffers: what says nothing new is left out, and what a tensor is not is refused. Nothing is
read or written outside of it."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError, RelaxError
from relaxpy.testing.interpret import interpret
from relaxpy.tir.plain import plain, unlike
from relaxpy.tir.prim_func import PrimFunc

COPY = """
for i, j in T.grid(n, m):
    with T.sblock("y"):
        v, w = T.axis.remap("SS", [i, j])
        y[v, w] = x[v, w]
"""
VIEW = """
for i in range(n):
    with T.sblock("y"):
        v = T.axis.spatial(n, i)
        z = T.match_buffer(x[v, 0:m], (1, m){layout})
        for j in range(m):
            y[v, j] = z[0, j]
"""


def module(of_x: str = "", of_y: str = "", body: str = COPY) -> relaxpy.IRModule:
    """A program that copies x to y, where parameters have these attributes."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(p: T.handle, q: T.handle):
        n, m, s, t, o = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        x = T.match_buffer(p, (n, m), "float32"{of_x})
        y = T.match_buffer(q, (n, m), "float32"{of_y})
{lines}

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n, m), "float32"))
""")


TRUE = {
    "variables": dict(of_x=", strides=(s, t)"),
    "a variable and a number": dict(of_x=", strides=(s, 1)"),
    "what they are": dict(of_x=", strides=(m, 1)", of_y=", strides=(m, 1)"),
    "an offset": dict(of_x=", elem_offset=o"),
    "an offset of 0": dict(of_x=", elem_offset=0", of_y=", elem_offset=0"),
    "a stride in a value": dict(
        of_x=", strides=(s, t)", body=COPY.replace("x[v, w]", 'x[v, w] + T.Cast("float32", s - m)')
    ),
    "a view": dict(body=VIEW.format(layout=", strides=(s, t), offset_factor=1")),
    "a view of a strided one": dict(of_x=", strides=(s, t)", body=VIEW.format(layout="")),
}


@pytest.mark.parametrize("name", TRUE)
def test_layouts_of_tensors(name: str) -> None:
    mod = module(**TRUE[name])
    x = np.arange(15, dtype="float32").reshape(3, 5)
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))
    np.testing.assert_array_equal(machine["main"](x).numpy(), x)
    np.testing.assert_array_equal(interpret(mod, "main", x), x)


SIZES = ("n", "m", "n * 100000", "n * m", "m + 1", "-1", "0", "2")
FALSE = {
    **{f"stride {size}": dict(of_x=f", strides=({size}, 1)") for size in SIZES if size != "m"},
    **{f"inner stride {size}": dict(of_x=f", strides=(m, {size})") for size in SIZES},
    **{f"output's stride {size}": dict(of_y=f", strides=(m, {size})") for size in SIZES},
    **{f"offset {size}": dict(of_x=f", elem_offset={size}") for size in SIZES if size != "0"},
    **{
        f"output's offset {size}": dict(of_y=f", elem_offset={size}")
        for size in SIZES
        if size != "0"
    },
    "one for two": dict(of_x=", strides=(s, s)"),
    "shared": dict(of_x=", strides=(s, t)", of_y=", strides=(t, s)"),
    "of another": dict(of_x=", elem_offset=o", of_y=", elem_offset=o + 1"),
    "a view's size": dict(body=VIEW.format(layout=", strides=(n, n)")),
    "a view's offset": dict(body=VIEW.format(layout=", elem_offset=m")),
}


@pytest.mark.parametrize("name", FALSE)
def test_other_layouts_are_refused(name: str) -> None:
    """By name, with the part to remove; the interpreter refuses them, too."""
    mod = module(**FALSE[name])
    with pytest.raises(BuildError) as failed:
        relaxpy.build(mod, "llvm -opt-level=0")
    assert failed.value.code == "tir-extern"
    assert failed.value.span is not None
    what = "elem_offset" if "offset" in name or name == "of another" else "strides"
    assert what in str(failed.value)
    with pytest.raises(RelaxError, match=f"has {what}"):
        interpret(mod, "main", np.zeros((2, 3), "float32"))


@pytest.mark.parametrize("name", TRUE)
def test_plain_programs(name: str) -> None:
    """Parameters without layouts; nothing changes twice."""
    program = module(**TRUE[name])["f"]
    assert isinstance(program, PrimFunc)
    assert not list(unlike(program.func))
    once = plain(program.func)
    assert all(not list(p.strides or ()) for p in once.params)
    assert not list(unlike(once))
