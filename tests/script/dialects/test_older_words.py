"""Words of TVM's texts that have other names here."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.expr import GlobalVar
from relaxpy.script import relax as R

TODAY = """
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Object:
        cls = Module
        a = R.call_tir(cls.f, (x,), out_ty=R.Tensor((4,), "float32"))
        b = R.call_dps_library("lib.g", (a,), out_ty=x.ty)
        c = R.call_pure_packed("h", b, ty_args=R.Object)
        d = R.match_cast(c, ty=R.Tensor((4,), "float32"))
        return d
"""

WORDS = {
    "keyword out_sinfo": ("out_ty=R.Tensor", "out_sinfo=R.Tensor"),
    "keyword sinfo_args": ("ty_args", "sinfo_args"),
    "keyword struct_info": ("(c, ty=", "(c, struct_info="),
    "attribute struct_info": ("x.ty", "x.struct_info"),
    "R.Any": ("R.Object", "R.Any"),
    "R.call_dps_packed": ("call_dps_library", "call_dps_packed"),
    "option of the module": ("@I.ir_module", "@I.ir_module(s_tir=True)"),
    "options of a program": ("@T.prim_func", "@T.prim_func(s_tir=True, persistent=False)"),
}


@pytest.mark.parametrize("name", WORDS)
def test_is_read_as_ours(name: str) -> None:
    """The older word gives the program of today's."""
    ours, theirs = WORDS[name]
    text = TODAY.replace(ours, theirs)
    assert text != TODAY
    relaxpy.assert_structural_equal(relaxpy.parse(text), relaxpy.parse(TODAY))


def test_words_of_modules() -> None:
    """What TVM prints at the head of its tests' modules."""
    head = 'class Module:\n    I.module_global_infos({"dummy": [I.dummy_global_info()]})'
    mod = relaxpy.parse(TODAY.replace("class Module:", head))
    assert mod.global_infos == {"dummy": ("dummy",)}


def test_an_error_at_an_older_keyword_is_located_there() -> None:
    """The tree was changed, the text was not."""
    text = TODAY.replace("ty_args=R.Object", "sinfo_args=R.Nothing")
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert "sinfo_args=R.Nothing" in str(caught.value)
    assert "^" in str(caught.value)


def test_older_keywords_of_calls_from_python() -> None:
    program, out = GlobalVar("f"), R.Tensor((4,), "float32")
    older = R.call_tir(program, (), out_sinfo=out)
    assert older.ty_args == R.call_tir(program, (), out_ty=out).ty_args == (out,)
    assert R.call_packed("f", sinfo_args=out).ty_args == (out,)
    with pytest.raises(TypeError):
        R.call_tir(program, (), out_sinfo=out, out_ty=out)
