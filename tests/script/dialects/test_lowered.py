"""The spellings of TVM's lowered programs: read, printed, read again, equal."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.script import ir as I
from relaxpy.script import relax as R
from relaxpy.testing.interpret import interpret

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
KERNEL = """@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(T.int64(4)):
        with T.sblock("copy"):
            v = T.axis.spatial(T.int64(4), i)
            y[v] = x[v] + T.float32(1)
"""
X = 'x: R.Tensor((4,), "float32")'
STORAGE = 'size=R.shape([16]), virtual_device_index=R.prim_value(0), storage_scope=R.str("global"), dtype=R.dtype("uint8")'
TENSOR = 'offset=R.prim_value(0), shape=R.shape([4]), dtype=R.dtype("float32")'
FIRST = 'shape=R.shape([4]), dtype=R.dtype("float32"), runtime_device_index=R.prim_value(0), storage_scope=R.str("global")'

BODIES = {
    "storage": f"s = R.memory.alloc_storage({STORAGE})\n"
    f"y = R.memory.alloc_tensor(storage=s, {TENSOR})\n_ = cls.kernel(x, y)\nreturn y",
    "storage by position": 's = R.memory.alloc_storage(R.shape([16]), R.prim_value(0), R.str("global"), R.dtype("uint8"))\n'
    'y = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([4]), R.dtype("float32"), R.prim_value(0))\n'
    "_: R.Tuple = cls.kernel(x, y)\nreturn y",
    "machine's storage": 's = R.vm.alloc_storage(shape=R.shape([16]), runtime_device_index=R.prim_value(0), dtype="uint8")\n'
    f"y = R.vm.alloc_tensor(s, {TENSOR}, runtime_device_ind=R.prim_value(0))\n_1 = cls.kernel(x, y)\nreturn y",
    "tensor": f"y = R.builtin.alloc_tensor({FIRST})\ncls.kernel(x, y)\nreturn y",
    "tensor by position": 'y = R.builtin.alloc_tensor(R.shape([4]), "float32", 0, "global")\ncls.kernel(x, y)\nreturn y',
    "view": 'return R.memory.view(x, R.shape([2]), R.dtype("float32"), relative_byte_offset=R.prim_value(8))',
    "view by keyword": 'return R.memory.view(data=x, shape=R.shape([2, 2]), dtype=R.dtype("int32"))',
    "view of the rest": "return R.memory.view(x, relative_byte_offset=0)",
    "view as float32": 'y = R.memory.view(x, R.shape([4]), "int32")\nreturn R.memory.view(y, R.shape([4]), "float32")',
    "field": "t = (x, x)\nreturn R.TupleGetItem(t, 0)",
    "field by keyword": "t = (x, x)\nreturn R.TupleGetItem(tuple_value=t, index=R.prim_value(1))",
    "shape": "return R.reshape(x, R.ShapeExpr([2, 2]))",
    "name of an operator": "f = I.meta_var(R.nn.relu)\nreturn f(x)",
    "name of a value": "y = I.meta_var(x)\nreturn R.add(y, y)",
    "cast": 'y = x.astype("float16")\nreturn y',
    "annotation": 'return R.call_packed("f", x, ty_args=x.ty)',
    "older annotation": 'return R.call_dps_packed("f", (x,), out_sinfo=x.struct_info)',
    "parts of an annotation": "return R.zeros(x.ty.shape, x.ty.dtype)",
    "branch for its effect": 'if c:\n    R.print(x, format="{}")\nelse:\n    R.print(x, format="not {}")\nreturn x',
    "branch of two effects": 'if c:\n    y = R.add(x, x)\n    R.print(y, format="{}")\nelse:\n    R.assert_op(c)\nreturn x',
    "infinity": 'return R.clip(x, R.prim_value(T.float64("-inf")), R.prim_value(T.float64("inf")))',
    "no number": 'return (R.prim_value(T.float32("nan")), x)',
    "addresses": "_ = cls.opaque(x)\nreturn x",
    "offsets": 'return R.call_tir(cls.offsets, (x,), out_ty=R.Tensor((4,), "float32"))',
    "symbolic offsets": 'return R.call_tir(cls.factors, (x,), out_ty=R.Tensor((4,), "float32"))',
    "shape of a buffer": 'return R.call_tir(cls.shapes, (x,), out_ty=R.Tensor((4,), "float32"))',
}  # fmt: skip

PROGRAMS = """@T.prim_func(s_tir=True)
def opaque(a: T.handle):
    T.evaluate(0)

@T.prim_func(s_tir=True)
def offsets(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4,), "float32", elem_offset=T.int64(0), offset_factor=1)
    n = T.int64()
    B = T.match_buffer(b, (n,), "float32", strides=[1], elem_offset=0, scope="global", align=64, offset_factor=1)
    for i in range(4):
        with T.sblock("copy"):
            v = T.axis.spatial(4, i)
            B[v] = A[v]

@T.prim_func(s_tir=True)
def factors(a: T.handle, B: T.Buffer((4,), "float32", offset_factor=1, scope="global")):
    A = T.match_buffer(a, (4,), "float32", offset_factor=4)
    for i in range(4):
        with T.sblock("copy"):
            v = T.axis.spatial(4, i)
            B[v] = A[v]

@T.prim_func(s_tir=True)
def shapes(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    C = T.sblock_alloc_buffer(A.shape)
    D = T.sblock_alloc_buffer(A.shape, dtype=A.dtype)
    for i in range(A.shape[0]):
        with T.sblock("first"):
            v = T.axis.spatial(A.shape[0], i)
            C[v] = A[v]
            D[v] = A[v]
    for i in range(4):
        with T.sblock("second"):
            v = T.axis.spatial(4, i)
            B[v] = C[v] + D[v]
"""


def module(body: str) -> str:
    lines = [*KERNEL.splitlines(), *PROGRAMS.splitlines(), "@R.function(pure=False)"]
    lines += [f'def main({X}, c: R.Tensor((), "bool")):', "    cls = Module"]
    lines += [f"    {line}" for line in body.split("\n")]
    return f"{HEADER}@I.ir_module\nclass Module:\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_round_trip(body: str) -> None:
    mod = relaxpy.parse(module(body))
    assert relaxpy.structural_equal(relaxpy.parse(mod.script()), mod)


@pytest.mark.parametrize("name", ["storage", "machine's storage", "tensor"])
def test_lowered_programs_run(name: str) -> None:
    mod = relaxpy.parse(module(BODIES[name]))
    mod = relaxpy.IRModule({name: mod[name] for name in ("kernel", "main")})
    x = np.arange(4, dtype=np.float32)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    np.testing.assert_array_equal(vm["main"](x, np.array(True)).numpy(), x + 1)


def test_a_view_begins_where_its_offset_says() -> None:
    mod = relaxpy.parse(module(BODIES["view"]))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(interpret(mod, "main", x, np.array(True)), x[2:])
    mod = relaxpy.IRModule({"main": mod["main"]})
    with pytest.raises(RelaxError, match="a view with an offset"):
        relaxpy.build(mod)


def test_a_view_keeps_its_dtype() -> None:
    mod = relaxpy.parse(relaxpy.parse(module(BODIES["view as float32"])).script())
    assert 'R.memory.view(y, R.shape([4]), dtype="float32")' in mod.script()


def test_programs_of_addresses_are_not_compiled() -> None:
    with pytest.raises(RelaxError, match="the parameter a is a pointer"):
        relaxpy.build(relaxpy.parse(module(BODIES["addresses"])))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("return R.memory.alloc_storage(16, device=3)", "no argument 'device'"),
        ("s = R.memory.alloc_storage(16)\nreturn R.memory.alloc_tensor(storage=s)", "missing"),
        ("return R.memory.view(x, R.shape([2]), relative_byte_offset=-4)", "constant number of"),
        ("t = (x, x)\nreturn R.TupleGetItem(t, 2)", "out of range|2"),
        ("t = (x, x)\nreturn R.TupleGetItem(t, x)", "integer"),
        ("y = cls.kernel(x, x)\nreturn y", "call_tir"),
        ("return x.numpy()", "a value has no attributes"),
    ],
)
def test_what_is_wrong_says_so(body: str, match: str) -> None:
    with pytest.raises(RelaxError, match=match) as caught:
        relaxpy.parse(module(body))
    assert caught.value.span is not None


def test_numpy_integers_are_integers() -> None:
    axes = list(np.arange(2))[::-1]

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            return R.permute_dims(x, axes)

    assert "axes=[1, 0]" in Module.script()
    assert relaxpy.structural_equal(relaxpy.parse(Module.script()), Module)


@pytest.mark.parametrize(
    "body",
    [
        'f = R.ExternFunc("f")\nreturn R.call_dps_packed(f, [x], out_ty=R.Tensor((4,), "float32"))',
        "R.tuple()\nreturn x",
        'if c:\n    R.print(x, format="{}")\nelse:\n    R.tuple()\nreturn x',
        'return R.sum(x, axis=T.IntImm("int64", 0))',
        'y: R.Tensor((4,), "void") = R.add(x, x)\nreturn y',
        "return R.strided_slice(x, R.tuple(), R.tuple(), R.tuple(), assume_inbound=True)",
        'return R.memory.view(x, R.shape([2]), R.dtype("float64"), R.tuple())',
        "return R.memory.view(x, R.tuple(), R.tuple(), R.tuple())",
        "return R.one_hot(R.const([1]), T.float64(1.5), T.float64(0.0), depth=4, axis=-1)",
        "y: T.float64 = T.float64(0.5)\nreturn y",
    ],
)
def test_other_words_of_tvm(body: str) -> None:
    mod = relaxpy.parse(module(body))
    assert relaxpy.structural_equal(relaxpy.parse(mod.script()), mod)
