"""Hostile ONNX files, by hand: what an attacker, or a broken exporter, may write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnx.damaged import Write
from tests.onnx.small_models import model, stored, weight

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LARGEST = (1 << 63) - 1
NAMES = {
    "empty": "", "code": "__import__('os').system('touch owned')", "quotes": "\"'\"\"\"'''\\",
    "lines": "a\nb\r\nc\x0bd\u2028e\x00f", "unicode": "变量\u202e\U0001f600é", "keyword": "lambda", "long": "x" * (1 << 20),
    "format": "{0.__class__} %s %n {x!r}", "script": "R.call_pure_packed", "separators": "a/b:c.d[0]",
    "terminal": "\x1b[2J\x1b]0;owned\x07",
}  # fmt: skip


def cases() -> Mapping[str, Write]:
    """The cases by name."""
    return {f"hostile {name}": _writer(make) for name, make in _CASES.items()}


_CASES: dict[str, Callable[[], Any] | Callable[[Path], Any]] = {}


def case(function: Any) -> Any:
    """Decorator: a case that gives a model, bytes, or a text; or that writes files into a folder and gives the model."""
    _CASES[function.__name__.replace("_", "-").strip("-")] = function
    return function


def each(**values: Any) -> Any:
    """Decorator: a case for each of these values."""

    def register(function: Any) -> Any:
        for name, value in values.items():
            title = f"{function.__name__} {name}".replace("_", "-").strip("-")
            _CASES[title] = lambda value=value: function(value)
        return function

    return register


def _writer(make: Any) -> Write:
    def write(folder: Path) -> Path:
        takes_folder = make.__code__.co_varnames[: make.__code__.co_argcount] == ("folder",)
        found = make(folder) if takes_folder else make()
        path = folder / "model.onnx"
        if isinstance(found, onnx.ModelProto):
            found = found.SerializeToString()
        path.write_bytes(found.encode() if isinstance(found, str) else found)
        return path

    return write


def node(
    op: str, *values: Any, opset: int = 18, outputs: int = 1, domain: str = "", **attributes: Any
) -> Any:
    """A model of one node. Arrays are weights; a tuple of a dtype and a shape is an input; None is left out."""
    infos: list[Any] = []
    weights: list[Any] = []
    names: list[str] = []
    for k, value in enumerate(values):
        names.append("" if value is None else f"x{k}")
        if isinstance(value, tuple):
            infos.append(helper.make_tensor_value_info(f"x{k}", *value))
        elif value is not None:
            weights.append(stored(f"x{k}", value))
    results = [f"y{k}" for k in range(outputs)]
    made = helper.make_node(op, names, results, domain=domain, **attributes)
    outs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([made], "g", infos, outs, weights)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


X = (FLOAT, ["n", 3])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# Graphs that are none


@case
def cycle() -> Any:
    return model("g (float[n] x) => (float[n] y) { y = Add(x, z)  z = Neg(y) }")


@case
def cycle_of_one() -> Any:
    return model("g (float[n] x) => (float[n] y) { y = Add(x, y) }")


@case
def named_twice() -> Any:
    return model("g (float[n] x) => (float[n] y) { a = Neg(x)  a = Exp(x)  y = Abs(a) }")


@case
def result_named_as_input() -> Any:
    return model("g (float[n] x) => (float[n] y) { x = Neg(x)  y = Abs(x) }")


@case
def results_named_alike() -> Any:
    return model("g (float[4] x) => (float[2] y) { y, y = Split<num_outputs = 2>(x) }")


@case
def inputs_named_alike() -> Any:
    return model("g (float[n] x, float[n] x) => (float[n] y) { y = Neg(x) }")


@case
def weights_named_alike() -> Any:
    return model(
        "g (float[n, 3] x) => (float[n, 3] y) { y = Add(x, w) }", weight("w", 3), stored("w", np.ones(3, np.float32))
    )  # fmt: skip


@case
def output_twice() -> Any:
    return model("g (float[n] x) => (float[n] y, float[n] y) { y = Neg(x) }")


@case
def no_nodes() -> Any:
    return model("g (float[n] x) => (float[n] x) { }")


@case
def nothing() -> Any:
    return model("g () => () { }")


@case
def no_inputs() -> Any:
    return model("g () => (float[3] y) { y = Neg(w) }", weight("w", 3))


@case
def output_of_a_branch_from_outside() -> Any:
    return model("""g (float[n] x, bool flag) => (float[n] y) {
        y = If(flag)<then_branch = t () => (float[n] x) { }, else_branch = e () => (float[n] b) { b = Neg(x) }>
    }""")


@case
def branch_sees_what_comes_later() -> Any:
    return model("""g (float[n] x, bool flag) => (float[n] z) {
        y = If(flag)<then_branch = t () => (float[n] a) { a = Neg(z) }, else_branch = e () => (float[n] b) { b = Neg(x) }>
        z = Exp(y)
    }""")


@case
def branches_of_other_counts() -> Any:
    return model("""g (float[n] x, bool flag) => (float[n] y) {
        y = If(flag)<then_branch = t () => (float[n] a, float[n] c) { a = Neg(x)  c = Exp(x) },
                     else_branch = e () => (float[n] b) { b = Neg(x) }>
    }""")


@case
def branches_with_inputs() -> Any:
    return model("""g (float[n] x, bool flag) => (float[n] y) {
        y = If(flag)<then_branch = t (float[n] u) => (float[n] a) { a = Neg(u) },
                     else_branch = e () => (float[n] b) { b = Neg(x) }>
    }""")


# Functions


@case
def function_of_itself() -> Any:
    return model(
        """g (float[n] x) => (float[n] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 18, "mine" : 1]> f(x) => (y) { y = mine.f(x) }"""
    )


@case
def functions_of_each_other() -> Any:
    return model(
        """g (float[n] x) => (float[n] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 18, "mine" : 1]> f(x) => (y) { a = mine.h(x)  y = mine.h(a) }
        <domain: "mine", opset_import: ["" : 18, "mine" : 1]> h(x) => (y) { a = mine.f(x)  y = mine.f(a) }"""
    )


@case
def function_in_a_branch_of_itself() -> Any:
    return model(
        """g (float[n] x, bool flag) => (float[n] y) { y = mine.f(x, flag) }
        <domain: "mine", opset_import: ["" : 18, "mine" : 1]> f(x, flag) => (y) {
            y = If(flag)<then_branch = t () => (float[n] a) { a = mine.f(x, flag) },
                         else_branch = e () => (float[n] b) { b = Neg(x) }>
        }"""
    )


@case
def functions_that_double() -> Any:
    """Forty functions, each of which calls the next one twice."""
    head = '<domain: "mine", opset_import: ["" : 18, "mine" : 1]>'
    bodies = [
        f"{head} f{k}(x) => (y) {{ a = mine.f{k + 1}(x)  y = mine.f{k + 1}(a) }}" for k in range(40)
    ]
    last = f"{head} f40(x) => (y) {{ y = Neg(x) }}"
    return model("\n".join(["g (float[n] x) => (float[n] y) { y = mine.f0(x) }", *bodies, last]))


@case
def function_named_as_an_operator() -> Any:
    return model(
        """g (float[n] x) => (float[n] y) { y = Neg(x) }
        <domain: "", opset_import: ["" : 18]> Neg(x) => (y) { y = Neg(x) }"""
    )


@case
def function_with_too_many_arguments() -> Any:
    return model(
        """g (float[n] x) => (float[n] y, float[n] z) { y, z = mine.f(x, x, x) }
        <domain: "mine", opset_import: ["" : 18]> f(x) => (y) { y = Neg(x) }"""
    )


@case
def function_twice() -> Any:
    return model(
        """g (float[n] x) => (float[n] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 18]> f(x) => (y) { y = Neg(x) }
        <domain: "mine", opset_import: ["" : 18]> f(x) => (y) { y = Exp(x) }"""
    )


@case
def attribute_of_no_function() -> Any:
    found = model("g (float[n, 3] x) => (float[n, 3] y) { y = Softmax<axis = 1>(x) }")
    attribute = found.graph.node[0].attribute[0]
    attribute.ClearField("i")
    attribute.ref_attr_name = "nobody"
    return found


# Nesting


def nested_ifs(depth: int) -> str:
    before = "".join(
        f"a = If(flag)<then_branch = t{k} () => (float[n] a) {{ " for k in range(depth)
    )
    after = " }, else_branch = e () => (float[n] b) { b = Exp(x) }>" * depth
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    return f"{head}\ng (float[n] x, bool flag) => (float[n] a) {{ {before}a = Neg(x){after} }}"


@each(deep=60, deeper=1000, deepest=100_000)
def text_of_nested_branches(depth: int) -> Any:
    return nested_ifs(depth)


def field(number: int, data: bytes) -> bytes:
    """A field of protobuf."""
    length, size = len(data), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + data


@each(deep=15, deeper=1000)
def nested_branches(depth: int) -> Any:
    """Nested deeper than protobuf writes."""
    result = helper.make_empty_tensor_value_info("a")
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["a"])], "e", [], [result])
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["a"])], "t", [], [result]
    ).SerializeToString()
    head = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH)
    for _ in range(depth):
        chosen = helper.make_node("If", ["flag"], ["a"], else_branch=other).SerializeToString()
        attribute = head.SerializeToString() + field(6, graph)
        outer = helper.make_graph([], "t", [], [result]).SerializeToString()
        graph = field(1, chosen + field(5, attribute)) + outer
    x = helper.make_tensor_value_info("x", FLOAT, ["n"])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    graph += field(11, x.SerializeToString()) + field(11, flag.SerializeToString())
    head = onnx.ModelProto(ir_version=9, opset_import=[helper.make_opsetid("", 18)])
    return head.SerializeToString() + field(7, graph)


@each(three=3, twenty=20)
def nested_loops(depth: int) -> Any:
    text = f"c{depth} = Neg(a{depth - 1})  d{depth} = Exp(c{depth})"
    for k in range(depth - 1, -1, -1):
        outer = f"a{k - 1}" if k else "x"
        text = (
            f"c{k}, d{k} = Loop(most, yes, {outer})<body = b{k} (int64 i{k}, bool going{k}, float[n] a{k}) => "
            f"(bool on{k}, float[n] c{k + 1}, float d{k + 1}) {{ on{k} = Identity(going{k})  {text} }}>"
        )
    return model(
        f"g (float[n] x) => (float[n] c0, float d0) {{ {text} }}",
        stored("most", np.int64(2)), stored("yes", True),
    )  # fmt: skip


# Huge numbers


@case
def loop_without_end() -> Any:
    """Of constants only: it must not be run when the model is read. Each step makes a row."""
    return model(
        """g (int64 begin) => (int64 last) {
            last = Loop(most, yes, begin)<body = b (int64 i, bool going, int64 a) => (bool on, int64 c) {
                on = Identity(going)
                c = Add(a, one)
            }>
        }""",
        stored("most", np.int64(3)), stored("yes", True), stored("one", np.int64(1)),
    )  # fmt: skip


@case
def loop_that_stacks_for_ever() -> Any:
    return model(
        """g (float[3] begin) => (float[3] last, float[k, 3] all) {
            last, all = Loop(most, yes, begin)<body = b (int64 i, bool going, float[3] a) => (bool on, float[3] c, float[3] d) {
                on = Identity(going)
                c = Neg(a)
                d = Exp(a)
            }>
        }""",
        stored("most", np.int64(LARGEST)), stored("yes", True),
    )  # fmt: skip


@case
def sequences_in_a_long_loop() -> Any:
    return model(
        """g (float[3] x) => (float[k] y) {
            empty = SequenceEmpty()
            all = Loop(most, yes, empty)<body = b (int64 i, bool going, seq(float[3]) s) => (bool on, seq(float[3]) t) {
                on = Identity(going)
                t = SequenceInsert(s, x)
            }>
            y = ConcatFromSequence<axis = 0>(all)
        }""",
        stored("most", np.int64(1 << 40)), stored("yes", True),
    )  # fmt: skip


HUGE = {"many": ints(1 << 20, 1 << 20), "overflow": ints(1 << 32, 1 << 32), "largest": ints(LARGEST), "negative": ints(-5),
        "least": ints(-LARGEST - 1), "none": ints(0, LARGEST)}  # fmt: skip


@each(**HUGE)
def constant_of_shape(shape: Any) -> Any:
    return node("ConstantOfShape", shape)


@each(**HUGE)
def expand(shape: Any) -> Any:
    return node("Expand", (FLOAT, [1, 1]), shape)


@each(**HUGE)
def reshape(shape: Any) -> Any:
    return node("Reshape", X, shape, allowzero=1)


@each(
    many=ints(1 << 20, 1 << 20), overflow=ints(1 << 62, 1 << 62), negative=ints(-1, 2), few=ints(2)
)
def tile(repeats: Any) -> Any:
    return node("Tile", X, repeats)


@each(many=ints(1 << 30, 0, 1 << 30, 0), overflow=ints(LARGEST, 0, LARGEST, 0), negative=ints(-9, 0, 0, 0), few=ints(1),
      least=ints(-LARGEST - 1, 0, 0, 0))  # fmt: skip
def pad(widths: Any) -> Any:
    return node("Pad", X, widths)


@case
def pad_reflects_further_than_the_tensor() -> Any:
    return node("Pad", (FLOAT, [2, 3]), ints(50, 50, 50, 50), mode="reflect")


@each(many=(0, 1 << 40, 1), overflow=(-LARGEST, LARGEST, 1), zero=(0, 9, 0), backward=(0, 9, -1))
def range_of(values: Any) -> Any:
    return node("Range", *(np.int64(each) for each in values))


@case
def range_of_floats() -> Any:
    return node("Range", np.float32(0), np.float32(1e30), np.float32(1e-30))


@case
def range_of_nan() -> Any:
    return node("Range", np.float32(0), np.float32(np.nan), np.float32(1))


@each(many=1 << 40, negative=-3, zero=0, largest=LARGEST)
def one_hot(depth: int) -> Any:
    return node("OneHot", (INT64, ["n"]), np.int64(depth), np.array([0, 1], np.float32))


@each(many=[1.0, 1.0, 1e9, 1e9], nan=[1.0, 1.0, np.nan, 1.0], infinite=[1.0, 1.0, np.inf, 1.0], negative=[1.0, 1.0, -2.0, 1.0],
      zero=[1.0, 1.0, 0.0, 1.0], few=[2.0])  # fmt: skip
def resize_by(scales: Any) -> Any:
    return node("Resize", (FLOAT, [1, 1, 4, 4]), None, np.array(scales, np.float32))


@each(many=ints(1, 1, 1 << 30, 1 << 30), negative=ints(1, 1, -4, 4), zero=ints(1, 1, 0, 4))
def resize_to(sizes: Any) -> Any:
    return node("Resize", (FLOAT, [1, 1, 4, 4]), None, None, sizes)


@case
def doubled_until_huge() -> Any:
    """Forty concatenations of a value with itself."""
    steps = "\n".join(f"a{k + 1} = Concat<axis = 0>(a{k}, a{k})" for k in range(40))
    return model(
        f"g (float[n] x) => (float y) {{ a0 = Neg(x)\n{steps}\n y = ReduceSum<keepdims = 0>(a40) }}"
    )


@case
def constant_doubled_until_huge() -> Any:
    steps = "\n".join(f"a{k + 1} = Concat<axis = 0>(a{k}, a{k})" for k in range(40))
    return model(f"g () => (float[n] a40) {{ {steps} }}", weight("a0", 1000))


@case
def constants_multiplied_until_huge() -> Any:
    """Sizes that are computed until they overflow."""
    steps = "\n".join(f"s{k + 1} = Mul(s{k}, s{k})" for k in range(9))
    return model(
        f"g (float[n, 3] x) => (float[a, b] y) {{ s = Shape(x)  s0 = Add(s, s)\n{steps}\n y = Expand(x, s9) }}"
    )


@case
def symbols_multiplied() -> Any:
    """A size that is a polynomial of many terms."""
    steps = "\n".join(f"t{k} = Add(s{k}, one)  s{k + 1} = Mul(s{k}, t{k})  " for k in range(7))
    return model(
        f"""g (float[n, m, k] x) => (float[q] y) <int64[1] one = {{1}}> {{
            s = Shape(x)  s0 = ReduceSum(s)
            {steps} y = ConstantOfShape(s7)
        }}"""
    )


@each(many=[1 << 20, 1 << 20], overflow=[1 << 40, 1 << 40], largest=[LARGEST], negative=[-7])
def input_of_size(shape: Any) -> Any:
    return node("Neg", (FLOAT, shape))


@case
def input_of_a_thousand_dimensions() -> Any:
    return node("Neg", (FLOAT, [1] * 1000))


@case
def transpose_of_a_thousand_dimensions() -> Any:
    return node("Unsqueeze", X, np.arange(1000))


@each(wide=[1 << 20, 1 << 20], negative=[-1, 3], zero=[0, 0], overflow=[LARGEST, LARGEST])
def kernel_shape(shape: Any) -> Any:
    return node("MaxPool", (FLOAT, [1, 1, 8, 8]), kernel_shape=shape)


@each(zero=[0, 0], negative=[-1, -1], overflow=[LARGEST, LARGEST])
def strides(found: Any) -> Any:
    return node("Conv", (FLOAT, [1, 1, 8, 8]), np.ones((1, 1, 3, 3), np.float32), strides=found)


@each(huge=[1 << 40] * 4, negative=[-9] * 4, few=[1])
def conv_pads(found: Any) -> Any:
    return node("Conv", (FLOAT, [1, 1, 8, 8]), np.ones((1, 1, 3, 3), np.float32), pads=found)


@each(zero=0, negative=-1, huge=LARGEST)
def groups(count: int) -> Any:
    return node("Conv", (FLOAT, [1, 4, 8, 8]), np.ones((4, 4, 3, 3), np.float32), group=count)


@each(zero=0, negative=-2, huge=LARGEST)
def block_size(size: int) -> Any:
    return node("DepthToSpace", (FLOAT, [1, 4, 8, 8]), blocksize=size)


@each(large=9, negative=-9, largest=LARGEST, least=-LARGEST - 1)
def axis(value: int) -> Any:
    return node("Softmax", X, axis=value)


@each(twice=[0, 0], out=[5])
def axes(value: Any) -> Any:
    return node("ReduceSum", X, ints(*value))


@each(twice=[0, 0], few=[0], out=[0, 7])
def permutation(value: Any) -> Any:
    return node("Transpose", X, perm=value)


@each(zero=0, huge=LARGEST, negative=-1)
def split_into(count: int) -> Any:
    return node("Split", X, axis=1, num_outputs=count, outputs=2)


@each(zero=0, least=-LARGEST - 1)
def slice_steps(step: int) -> Any:
    return node("Slice", X, ints(0), ints(LARGEST), ints(1), ints(step))


@case
def slice_from_beyond() -> Any:
    return node("Slice", X, ints(LARGEST), ints(-LARGEST - 1), ints(1), ints(-1))


@case
def gather_outside() -> Any:
    return node("Gather", np.ones((3, 2), np.float32), ints(LARGEST, -LARGEST - 1, 99))


@case
def scatter_outside() -> Any:
    return node("ScatterND", (FLOAT, [3]), ints(99, -99).reshape(2, 1), np.ones(2, np.float32))


@each(many=1 << 40, negative=-1, more=9)
def top_k(k: int) -> Any:
    return node("TopK", X, ints(k), outputs=2)


@each(zero=0, negative=-5, huge=LARGEST)
def hidden_size(size: int) -> Any:
    w, r = np.ones((1, 20, 3), np.float32), np.ones((1, 20, 5), np.float32)
    return node("LSTM", (FLOAT, ["t", 2, 3]), w, r, outputs=1, hidden_size=size)


@case
def activations_of_nobody() -> Any:
    w, r = np.ones((1, 20, 3), np.float32), np.ones((1, 20, 5), np.float32)
    return node("LSTM", (FLOAT, ["t", 2, 3]), w, r, hidden_size=5, activations=["exec", "os", "x"])


@each(huge=1 << 40, negative=-4, zero=0)
def window(size: int) -> Any:
    return node("HannWindow", np.int64(size))


@case
def dft_of_a_huge_length() -> Any:
    return node("DFT", (FLOAT, [1, 8, 1]), np.int64(1 << 40), opset=20)


@case
def mel_matrix_of_a_huge_size() -> Any:
    values = (
        np.int64(1 << 30),
        np.int64(1 << 30),
        np.int64(16000),
        np.float32(0),
        np.float32(8000),
    )
    return node("MelWeightMatrix", *values)


@case
def eye_of_a_huge_size() -> Any:
    return node("EyeLike", (FLOAT, [1 << 24, 1 << 24]))


@case
def rotary_of_odd_size() -> Any:
    cos = np.ones((7, 3), np.float32)
    return node("RotaryEmbedding", (FLOAT, [1, 2, 7, 5]), cos, cos, opset=23)


@each(letters="ij,jk->ik" * 1000, dots="...,...,...->......", empty="", code="__import__('os')", arrows="i->->i", wrong="ij->k",
      long=",".join(["i"] * 2) + "->" + "i" * 5000, unicode="日,本->語", spaces="   ,   ")  # fmt: skip
def einsum(equation: str) -> Any:
    return node("Einsum", X, X, equation=equation)


@case
def einsum_of_many_letters() -> Any:
    return node("Einsum", (FLOAT, [2] * 30), equation="abcdefghijklmnopqrstuvwxyzABCD->")


# Weights that lie


def with_tensor(change: Callable[[Any], None]) -> Any:
    """A model with one weight, changed."""
    found = model("g (float[n, 3] x) => (float[n, 3] y) { y = Add(x, w) }", weight("w", 3))
    change(found.graph.initializer[0])
    return found


def lying(**fields: Any) -> Any:
    def change(tensor: Any) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(tensor, name)[:]
                getattr(tensor, name).extend(value)
            elif value is None:
                tensor.ClearField(name)
            else:
                setattr(tensor, name, value)

    return with_tensor(change)


@each(short={"raw_data": b"abc"}, empty={"raw_data": b""}, none={"raw_data": None}, long={"raw_data": b"\0" * 1000},
      huge={"dims": [1 << 40]}, overflow={"dims": [1 << 32, 1 << 32]}, wraps={"dims": [1 << 62, 1 << 2]}, negative={"dims": [-3]},
      two_negative={"dims": [-1, -3]}, zero={"dims": [0, LARGEST]}, many={"dims": [1] * 1000 + [3]}, texts={"data_type": 8},
      unknown={"data_type": 999}, undefined={"data_type": 0}, double={"data_type": 11}, nibbles={"data_type": 22},
      both={"float_data": [1.0, 2.0, 3.0]}, location={"data_location": 1})  # fmt: skip
def weight_is(fields: Any) -> Any:
    return lying(**fields)


@case
def list_of_integers_that_wrap() -> Any:
    found = model("g (uint8[n, 3] x) => (uint8[n, 3] y) { y = Add(x, w) }")
    tensor = found.graph.initializer.add(name="w", data_type=TensorProto.UINT8, dims=[3])
    tensor.int32_data.extend([1 << 30, -1, 300])
    return found


@case
def sparse_with_bad_places() -> Any:
    found = model("g (float[n, 3] x) => (float[n, 3] y) { y = Add(x, w) }")
    sparse = found.graph.sparse_initializer.add(dims=[LARGEST, 3])
    sparse.values.CopyFrom(weight("w", 2))
    sparse.indices.CopyFrom(stored("", ints(-1, LARGEST)))
    return found


@case
def sparse_constant() -> Any:
    sparse = helper.make_sparse_tensor(weight("w", 2), stored("", ints(5, 1)), [1 << 40])
    return node("Constant", sparse_value=sparse)


@case
def constant_of_texts() -> Any:
    return node("Constant", value_strings=["a", "b"])


@case
def constant_of_two_values() -> Any:
    return node("Constant", value_float=1.0, value_int=2)


@case
def weight_in_a_segment() -> Any:
    def change(tensor: Any) -> None:
        tensor.segment.begin, tensor.segment.end = 0, LARGEST

    return with_tensor(change)


# External data


def external(folder: Path, location: str, **entries: Any) -> Any:
    found = model("g (float[n, 3] x) => (float[n, 3] y) { y = Add(x, w) }")
    tensor = found.graph.initializer.add(name="w", data_type=FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    (folder / "weights").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return found


def located(name: str, location: str, prepare: Any = None, **entries: Any) -> None:
    def make(folder: Path) -> Any:
        if prepare is not None:
            prepare(folder)
        return external(folder, location, **entries)

    _CASES[f"external {name}"] = make


def _outside(folder: Path) -> Path:
    outside = folder.parent / "outside"
    outside.write_bytes(b"\0" * 12)
    return outside


located("right", "weights", length=12)
located("without-length", "weights")
located("above", "../outside", _outside)
located("above-and-below", "sub/../../outside", _outside)
located("absolute", "/etc/hostname")
located("device", "/dev/zero")
located("nowhere", "no/such/file")
located("empty", "")
located("folder", ".")
located("zero-byte", "wei\0ghts")
located("long", "w" * 100_000)
located("url", "https://example.org/weights")
located("windows", "..\\outside")
located("link", "link", lambda folder: os.symlink(_outside(folder), folder / "link"))
located("link-of-folder", "link/outside", lambda folder: os.symlink(folder.parent, folder / "link"))
located("link-to-itself", "link", lambda folder: os.symlink("link", folder / "link"))
located("hard-link", "link", lambda folder: os.link(_outside(folder), folder / "link"))
located("pipe", "pipe", lambda folder: os.mkfifo(folder / "pipe"))
located("model-itself", "model.onnx", offset=0, length=12)
located("past-the-end", "weights", offset=40, length=12)
located("offset-negative", "weights", offset=-4, length=12)
located("offset-huge", "weights", offset=1 << 70, length=12)
located("offset-float", "weights", offset=1.5)
located("offset-underscores", "weights", offset="1_6")
located("offset-odd", "weights", offset=3)
located("length-negative", "weights", length=-12)
located("length-huge", "weights", length=1 << 70)
located("length-other", "weights", length=8)
located("length-zero", "weights", length=0)


@case
def external_overlapping(folder: Path) -> Any:
    found = external(folder, "weights", offset=0, length=12)
    other = found.graph.initializer.add()
    other.CopyFrom(found.graph.initializer[0])
    other.name = "v"
    other.external_data[1].value = "4"
    found.graph.node.add().CopyFrom(helper.make_node("Add", ["y", "v"], ["z"]))
    found.graph.output[0].name = "z"
    return found


@case
def external_twice_the_key(folder: Path) -> Any:
    found = external(folder, "/etc/hostname")
    found.graph.initializer[0].external_data.add(key="location", value="weights")
    return found


@case
def external_in_an_attribute(folder: Path) -> Any:
    _outside(folder)
    tensor = external(folder, "../outside").graph.initializer[0]
    return node("Constant", value=tensor)


# Names


@each(**NAMES)
def named(name: str) -> Any:
    """Everything that has a name has this one, or one that begins so."""
    found = model(
        "g (float[n, 3] x) => (float[n, 3] y) { p = Add(x, w)  y = Neg(p) }", weight("w", 3)
    )
    graph = found.graph
    graph.name = found.producer_name = graph.doc_string = name
    x, w, p, y = (f"{name}{end}" if name else end for end in ("", "_w", "_p", "_y"))
    graph.input[0].name = graph.node[0].input[0] = x or "x"
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    graph.initializer[0].name = graph.node[0].input[1] = w
    graph.node[0].output[0] = graph.node[1].input[0] = p
    graph.node[1].output[0] = graph.output[0].name = y
    graph.node[0].name = graph.node[0].doc_string = name
    found.metadata_props.add(key=name, value=name)
    return found


@each(**NAMES)
def operator_named(name: str) -> Any:
    return node(name, X, domain=name)


@each(**{name: value for name, value in NAMES.items() if name != "empty"})
def attribute_named(name: str) -> Any:
    found = node("Softmax", X)
    found.graph.node[0].attribute.add().CopyFrom(helper.make_attribute(name, 1))
    return found


@case
def names_that_become_one() -> Any:
    """Names of which the same name of script is made."""
    found = model("g (float[n] x, float[n] y, float[m] z) => (float[n] a) { a = Add(x, y) }")
    for info, name in zip(found.graph.input, ("a b", "a_b", "a:b"), strict=True):
        info.name = name
        info.type.tensor_type.shape.dim[0].dim_param = name
    found.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "a b"
    found.graph.node[0].input[:] = ["a b", "a_b"]
    return found


@case
def names_that_are_no_text() -> Any:
    """A name that is no UTF-8."""
    data = model(
        "g (float[n] someinput) => (float[n] y) { y = Neg(someinput) }"
    ).SerializeToString()
    return data.replace(b"someinput", b"some\xff\xfe\xc0\x80\x00")


@case
def metadata_that_is_huge() -> Any:
    found = model("g (float[n] x) => (float[n] y) { y = Neg(x) }")
    for k in range(100_000):
        found.metadata_props.add(key=f"key{k % 10}", value="v" * 100)
    found.doc_string = "d" * (16 << 20)
    return found


# Versions and attributes


@each(none=[], zero=[("", 0)], huge=[("", 10**9)], largest=[("", LARGEST)], negative=[("", -1)], twice=[("", 18), ("", 13)],
      twice_alike=[("", 18), ("ai.onnx", 18)], unknown=[("nobody", 1)], old=[("", 1)])  # fmt: skip
def opsets(imports: Any) -> Any:
    found = node("Softmax", X)
    del found.opset_import[:]
    found.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in imports)
    return found


@each(zero=0, huge=10**9, negative=-5, largest=LARGEST)
def ir_version(version: int) -> Any:
    found = node("Softmax", X)
    found.ir_version = version
    return found


@each(
    text="x",
    floats=[1.0],
    tensor=stored("t", 1),
    floating=1.5,
    integers=[1],
    graph=model("g () => () { }").graph,
)
def axis_is(value: Any) -> Any:
    return node("Softmax", X, axis=value)


@each(number=1, text="x", integers=[1, 2])
def body_is(value: Any) -> Any:
    return node("If", np.array(True), then_branch=value, else_branch=value)


@case
def attribute_twice() -> Any:
    found = node("Softmax", X, axis=0)
    found.graph.node[0].attribute.add().CopyFrom(helper.make_attribute("axis", 1))
    return found


@case
def attribute_without_type() -> Any:
    found = node("Softmax", X, axis=0)
    found.graph.node[0].attribute[0].ClearField("type")
    return found


@each(huge=999, texts=8, negative=-1, undefined=0, largest=(1 << 31))
def cast_to(number: int) -> Any:
    return node("Cast", X, to=number)


@case
def texts_as_inputs() -> Any:
    return node("StringNormalizer", (TensorProto.STRING, ["n"]))


@case
def texts_through_identity() -> Any:
    return node("Identity", (TensorProto.STRING, ["n"]))


@case
def input_is_a_map() -> Any:
    found = node("Neg", X)
    kind = found.graph.input[0].type
    kind.map_type.key_type = INT64
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(FLOAT, ["n"]))
    return found


@case
def sequence_nested_deeply() -> Any:
    found = node("Identity", X)
    kind = found.graph.input[0].type
    for _ in range(90):
        kind = kind.sequence_type.elem_type
    kind.CopyFrom(helper.make_tensor_type_proto(FLOAT, ["n"]))
    return found


@case
def a_thousand_results() -> Any:
    return node("Split", X, axis=1, outputs=1000, num_outputs=1000)


@case
def a_thousand_inputs_of_one_value() -> Any:
    found = model("g (float[n, 3] x) => (float[n, m] y) { y = Concat<axis = 1>(x, x) }")
    found.graph.node[0].input.extend(["x"] * 1000)
    return found


# Files that are none


@each(nothing=b"", zeros=b"\0" * 1000, ones=b"\xff" * 1000, pickle=b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.", zip=b"PK\x03\x04" * 50,
      varint=b"\x0a" + b"\xff" * 11, groups=b"\x0b" * 5000, length=b"\x3a\xff\xff\xff\xff\x07", nested=b"\x3a\x05" * 5000,
      text=b"<ir_version: 9>", open=b"<" * 200_000, half=b"<ir_version: 9, opset_import: [", lfs=b"version https://git-lfs.github.com/spec/v1",
      quote=b'<ir_version: 9, producer_name: "' + b"x" * 1000, number=b"<ir_version: " + b"9" * 5000 + b">")  # fmt: skip
def bytes_are(data: bytes) -> Any:
    return data


@each(range="99999999999999999999", digits="9" * 400, exponent="1e999999", minus="-", nan="nan")
def text_number(number: str) -> Any:
    return (
        '<ir_version: 9, opset_import: ["" : 18]>\n'
        f"g (float[n] x) => (float[n] y) <float[1] w = {{{number}}}> {{ y = Add(x, w) }}"
    )


@each(range="99999999999999999999", negative="-3", float="1.5", letters="a b")
def text_size(size: str) -> Any:
    return f'<ir_version: 9, opset_import: ["" : 18]>\ng (float[{size}] x) => (float[n] y) {{ y = Neg(x) }}'
