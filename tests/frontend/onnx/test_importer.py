"""ONNX models as IR: sizes, names, constants, functions, branches, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.frontend.onnx import from_onnx
from relaxpy.testing.interpret import interpret

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def graph(text: str) -> Any:
    return parser.parse_model(f"{HEAD}\n{text}")


def run(model: Any, *arrays: Any, **options: Any) -> Any:
    """The results of a model, whose text comes back as the same program."""
    mod, params = from_onnx(model, **options)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    return interpret(mod, "main", *arrays, *params.values())


def with_graph(change: Any) -> Any:
    """A model of one product, changed."""
    model = graph(
        "g (float[n, 7] x) => (float[n, 3] y) <float[7, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21}> { y = MatMul(x, w) }"
    )
    change(model.graph)
    return model


def test_nodes_may_stand_in_any_order() -> None:
    """As converters leave them (ONNX Runtime's to float16 appends its casts), in graphs of nodes, too."""
    model = graph("""g (float[n] x, bool c) => (float[n] y) {
        y = Mul(b, a)
        b = If(c) <then_branch = t () => (float[n] p) { p = Neg(q)
            q = Add(a, x) }, else_branch = e () => (float[n] r) { r = Identity(late) }>
        late = Relu(a)
        a = Add(x, x)
    }""")
    x = data(5)
    for taken, wanted in ((True, -3 * x * 2 * x), (False, np.maximum(2 * x, 0) * 2 * x)):
        np.testing.assert_allclose(run(model, x, np.array(taken)), wanted, rtol=1e-6)
    mod = from_onnx(model)[0]
    back = onnx.ModelProto()
    back.CopyFrom(model)
    del back.graph.node[:]
    back.graph.node.extend([model.graph.node[k] for k in (3, 2, 1, 0)])
    assert from_onnx(back)[0].script() == mod.script()


def test_names_are_any_text() -> None:
    model = with_graph(lambda g: None)
    x = model.graph.input[0]
    x.name = model.graph.node[0].input[0] = "serving:0/x y"
    x.type.tensor_type.shape.dim[0].dim_param = "floor(height/2 - 1/2)"
    model.graph.name = "class"
    text = from_onnx(model)[0].script()
    assert 'serving_0_x_y: R.Tensor(("floor_height_2___1_2_", 7), dtype="float32")' in text
    found = run(model, data(5, 7))
    assert found.shape == (5, 3)


@pytest.mark.parametrize("size", ["?", "", -1, None])
def test_unknown_sizes_are_symbols_of_their_own(size: Any) -> None:
    def change(g: Any) -> None:
        dim = g.input[0].type.tensor_type.shape.dim[0]
        dim.Clear()
        if isinstance(size, int):
            dim.dim_value = size
        elif size is not None:
            dim.dim_param = size

    mod, _ = from_onnx(with_graph(change))
    assert 'x: R.Tensor(("x_0", 7)' in mod.script()


def test_shapes_are_computed_when_it_is_read() -> None:
    model = graph("""g (float[b, t, 12] x) => (float[p, q, r] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] left = {-1}> {
        s = Shape(x)
        b = Gather(s, zero)
        t = Gather(s, one)
        bt = Mul(b, t)
        shape = Concat<axis = 0>(bt, four, left)
        y = Reshape(x, shape)
    }""")
    mod, _ = from_onnx(model)
    assert "R.reshape(x, R.shape([b * t, 4, 3]))" in mod.script()
    for b, t in ((2, 5), (1, 1), (0, 3)):
        x = data(b, t, 12)
        np.testing.assert_array_equal(run(model, x), x.reshape(b * t, 4, 3))


def test_a_shape_that_is_an_input_is_read_when_it_runs() -> None:
    model = graph("g (float[a, b] x, int64[3] s) => (float[c, d, e] y) { y = Reshape(x, s) }")
    x = data(4, 6)
    for shape in ((2, 3, 4), (-1, 2, 2), (0, 3, -1), (4, 0, 1)):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
        np.testing.assert_array_equal(run(model, x, np.array(shape)), x.reshape(wanted))


@pytest.mark.parametrize("widths", [(4, -6), (-4, 3), (-2, -1), (3, -9), (-9, 0)])
def test_padding_removes_what_it_added(widths: tuple[int, int]) -> None:
    model = graph("g (float[n] x, int64[2] w) => (float[m] y) { y = Pad(x, w) }")
    before, after = widths
    for size in (3, 7):
        x = data(size)
        whole = np.pad(x, (max(before, 0), max(after, 0)))
        wanted = whole[max(-before, 0) : max(len(whole) - max(-after, 0), 0)]
        for constants in ({}, {"w": np.array(widths)}):
            given = [x] if constants else [x, np.array(widths)]
            np.testing.assert_array_equal(run(model, *given, constants=constants), wanted)


def test_places_that_are_found_have_an_index_for_each_axis() -> None:
    """Whose number GatherND and ScatterND must know; how many places there are is known only when it runs."""
    model = graph("""g (float[n, m] x) => (float[n, m] y) {
        zero = Constant<value = float {0.0}>()
        more = Greater(x, zero)
        places = NonZero(more)
        rows = Transpose<perm = [1, 0]>(places)
        found = GatherND(x, rows)
        less = Neg(found)
        y = ScatterND(x, rows, less)
    }""")
    for shape in ((3, 5), (1, 1), (0, 2)):
        x = data(*shape)
        np.testing.assert_array_equal(run(model, x), -np.abs(x))


def test_steps_are_read_when_it_runs() -> None:
    model = graph("""g (float[a, b, c] x, int64[2] begin, int64[2] end, int32[2] step) => (float[d, e, f] y)
        <int64[2] axes = {2, -3}> {
        steps = Cast<to = 7>(step)
        y = Slice(x, begin, end, axes, steps)
    }""")
    x = data(5, 3, 7)
    for begin, end, step in (((0, 1), (7, 5), (2, 3)), ((-1, 4), (-99, 0), (-2, -1))):
        found = run(model, x, np.array(begin), np.array(end), np.array(step, np.int32))
        first, last = map(slice, begin, end, step)
        np.testing.assert_array_equal(found, x[last, :, first])


def test_windows_are_read_when_it_runs() -> None:
    model = graph("""g (float[n, 2, h] x, float[3, 2, k] w, float[2, 3, l] v) => (float[n, 3, m] y, float[n, 3, o] z) {
        y = Conv<pads = [1, 2], strides = [2]>(x, w)
        z = ConvTranspose<strides = [2], auto_pad = "SAME_UPPER">(x, v)
    }""")
    x = data(2, 2, 11)
    for k in (1, 3, 4):
        w, v = data(3, 2, k), data(2, 3, k + 1)
        own, turned = run(model, x, w, v)
        wide = np.pad(x, ((0, 0), (0, 0), (1, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, k, axis=2)[:, :, ::2]
        np.testing.assert_allclose(own, np.einsum("nchk,ock->noh", windows, w), 1e-4, 1e-5)
        wanted = np.zeros((2, 3, 2 * 10 + k + 1), np.float32)
        for i in range(11):
            wanted[:, :, 2 * i : 2 * i + k + 1] += np.einsum("nc,cok->nok", x[:, :, i], v)
        more = wanted.shape[2] - 22
        kept = np.pad(wanted, ((0, 0), (0, 0), (0, max(-more, 0))))[:, :, max(more, 0) // 2 :][
            :, :, :22
        ]
        np.testing.assert_allclose(turned, kept, 1e-4, 1e-5)


def test_axes_must_be_known() -> None:
    model = graph(
        "g (float[a, b] x, int64[1] axes) => (float[c] y) { y = ReduceSum<keepdims = 0>(x, axes) }"
    )
    with pytest.raises(UsageError, match="ReduceSum: the axes must be known") as caught:
        from_onnx(model)
    assert caught.value.code == "onnx-constant"
    assert "depends on the input 'axes'" in str(caught.value)
    x = data(3, 5)
    found = run(model, x, constants={"axes": np.array([1])})
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-5)
    with pytest.raises(UsageError, match="no input 'other'"):
        from_onnx(model, constants={"other": 1})


def test_a_rank_that_the_model_does_not_say_must_be_given() -> None:
    model = with_graph(lambda g: g.input[0].type.tensor_type.ClearField("shape"))
    with pytest.raises(UsageError, match="how many dimensions") as caught:
        from_onnx(model)
    assert caught.value.code == "onnx-shape"
    assert run(model, data(2, 7), shapes={"x": ("n", 7)}).shape == (2, 3)


def test_false_shapes_of_outputs_are_warnings() -> None:
    def change(g: Any) -> None:
        g.output[0].type.tensor_type.shape.dim[1].dim_value = 4

    with pytest.warns(UserWarning, match=r"'y' has the shape \(n, 4\), and it has \(n, 3\)"):
        from_onnx(with_graph(change))


def test_functions_of_the_model_are_written_out() -> None:
    model = parser.parse_model("""
<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
g (float[n] x) => (float[n] y) { a = mine.scaled<by = 3.0>(x)  y = mine.scaled(a) }
<domain: "mine", opset_import: ["" : 18]> scaled<by: float = 2.0>(x) => (y) { f = Constant<value_float: float = @by>()  y = Mul(x, f) }
""")
    x = data(5)
    np.testing.assert_allclose(run(model, x), x * 6, rtol=1e-6)


def test_a_function_that_calls_itself_is_refused() -> None:
    model = parser.parse_model("""
<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
g (float[n] x) => (float[n] y) { y = mine.again(x) }
<domain: "mine", opset_import: ["mine" : 1]> again(x) => (y) { y = mine.again(x) }
""")
    with pytest.raises(UsageError, match="nested too deeply"):
        from_onnx(model)


BRANCHES = """g (float[a, b] x) => (float[c, d] y) <int64[1] one = {1}, int64 two = {2}, int64 last = {1}> {
    s = Shape(x)
    n = Gather(s, last)
    only = Equal(n, one)
    flag = Squeeze(only)
    v = If(flag) <
        then_branch = g1 () => (float[a] p) { p = Squeeze(x, one) },
        else_branch = g2 () => (float[a, b] q) { q = Relu(x) }
    >
    r = Shape(v)
    rank = Size(r)
    flat = Less(rank, two)
    y = If(flat) <
        then_branch = g3 () => (float[a, b] p) { p = Unsqueeze(v, one) },
        else_branch = g4 () => (float[a, b] q) { q = Neg(v) }
    >
}"""


def test_branches_of_different_ranks() -> None:
    """What follows is in both of them, where conditions on the rank are decided."""
    model = graph(BRANCHES)
    for b in (1, 3):
        x = data(4, b)
        np.testing.assert_array_equal(run(model, x), x if b == 1 else -np.maximum(x, 0))
    assert from_onnx(model)[0].script().count("if ") == 1


def test_a_branch_that_is_no_program_is_never_taken() -> None:
    text = BRANCHES[: BRANCHES.index("    r = Shape")].replace("float[c, d] y", "float[c] y")
    model = graph(f'{text} w = Identity(v) y = Einsum<equation = "i->i">(w) }}')
    x = data(4, 1)
    np.testing.assert_array_equal(run(model, x), x[:, 0])
    with pytest.raises(RelaxError, match=r"does not hold\n.*\n.*\n.*v = If"):
        run(model, data(4, 3))


def test_loops_of_any_length_and_with_a_condition() -> None:
    model = graph("""g (int64 m, float[n] x) => (float[n] last, float[k, n] all) <bool true = {1}> {
        last, all = Loop(m, true, x) <
            body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] z) <float two = {2}, float most = {40}> {
                w = Mul(v, two)  z = Identity(v)  total = ReduceSum<keepdims = 0>(w)  d = Less(total, most)
            }
        >
    }""")
    x = np.array([1, 2], np.float32)
    last, every = run(model, np.int64(3), x)
    np.testing.assert_array_equal(last, x * 8)
    np.testing.assert_array_equal(every, [x, x * 2, x * 4])
    last, every = run(model, np.int64(30), x)  # until 2 ** k * 3 >= 40
    np.testing.assert_array_equal(last, x * 16)
    assert every.shape == (4, 2)
    last, every = run(model, np.int64(0), x)
    np.testing.assert_array_equal(last, x)


def test_all_that_is_missing_is_said_at_once() -> None:
    model = graph(
        "g (float[n] x) => (float[n] y) { a = Strange(x) b = Strange(a) y = StringNormalizer(b) }"
    )
    with pytest.raises(UsageError) as caught:
        from_onnx(model)
    text = str(caught.value)
    assert caught.value.code == "onnx-operator"
    assert "2 operators of this program are not supported: Strange (2 times, first at" in text
    assert "StringNormalizer (once" in text
    assert "a = Strange(x)" in text


@pytest.mark.parametrize("kind", [TensorProto.COMPLEX64, TensorProto.STRING, 99])
def test_other_dtypes_are_refused(kind: int) -> None:
    def change(g: Any) -> None:
        g.input[0].type.tensor_type.elem_type = kind

    with pytest.raises(UsageError) as caught:
        from_onnx(with_graph(change))
    assert caught.value.code == "onnx-dtype"


def _cycle(g: Any) -> None:
    g.node[0].input[0] = "y"


def _unknown(g: Any) -> None:
    g.node[0].input[1] = "nobody"


def _no_output(g: Any) -> None:
    g.output[0].name = "z"


def _short(g: Any) -> None:
    g.initializer[0].ClearField("float_data")
    g.initializer[0].raw_data = b"\0" * 5


def _huge(g: Any) -> None:
    del g.initializer[0].dims[:]
    g.initializer[0].dims.extend([1 << 40, 1 << 40])


def _negative(g: Any) -> None:
    g.initializer[0].dims[0] = -7


def _attribute(g: Any) -> None:
    g.node[0].op_type = "Gather"
    g.node[0].attribute.append(helper.make_attribute("axis", "text"))


def _too_many(g: Any) -> None:
    g.node[0].input.extend(["x", "x", "x"])


def _too_few(g: Any) -> None:
    del g.node[0].input[:]


@pytest.mark.parametrize(
    "change",
    [_cycle, _unknown, _no_output, _short, _huge, _negative, _attribute, _too_many, _too_few],
)
def test_damaged_graphs_are_refused(change: Any) -> None:
    with pytest.raises(RelaxError) as caught:
        from_onnx(with_graph(change))
    assert caught.value.code.startswith(("onnx-", "op-", "shape-"))


def test_no_model_is_refused(tmp_path: Path) -> None:
    for source in (b"", b"\xff" * 40, b"<ir_version", tmp_path, tmp_path / "none", 3, "a\0b"):
        with pytest.raises(UsageError) as caught:
            from_onnx(source)
        assert caught.value.code == "onnx-file"


def test_every_cut_of_a_file_is_refused_or_a_model() -> None:
    whole = with_graph(lambda g: None).SerializeToString()
    codes = set()
    for size in range(0, len(whole), 7):
        try:
            from_onnx(whole[:size])
        except RelaxError as error:
            codes.add(error.code)
    assert codes
    assert codes <= {"onnx-file", "onnx-dtype", "onnx-shape", "onnx-operator"}


def test_external_data_is_read_below_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    w = data(40, 30)
    model = graph("g (float[n, 40] x) => (float[n, 30] y) { y = MatMul(x, w) }")
    tensor = numpy_helper.from_array(w, "w")
    model.graph.initializer.append(tensor)
    onnx.save(
        model,
        folder / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    _, params = from_onnx(folder / "m.onnx")
    np.testing.assert_array_equal(params["w"], w)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    for location in ("weights.bin", "../weights.bin", str(tmp_path / "weights.bin"), ""):
        broken = onnx.load(folder / "m.onnx", load_external_data=False)
        broken.graph.initializer[0].external_data[0].value = location
        (folder / "b.onnx").write_bytes(broken.SerializeToString())
        with pytest.raises(UsageError, match="no file below the model's folder") as caught:
            from_onnx(folder / "b.onnx")
        assert caught.value.code == "onnx-file"


def test_random_numbers_have_their_distribution() -> None:
    model = graph(
        "g (float[n] x) => (float[n] u, float[n] z, float[n] b) { u = RandomUniformLike<low = 2.0, high = 4.0>(x) z = RandomNormalLike<mean = 1.0, scale = 3.0>(x) b = Bernoulli(x) }"
    )
    x = np.full(4001, 0.25, np.float32)
    u, z, b = run(model, x, np.int64(11))
    assert abs(u.mean() - 3) < 0.05
    assert u.min() >= 2
    assert u.max() < 4
    assert abs(z.mean() - 1) < 0.2
    assert abs(z.std() - 3) < 0.2
    assert abs(b.mean() - 0.25) < 0.03
    again = run(model, x, np.int64(12))
    assert not np.array_equal(again[0], u)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = Softmax<axis = 2>(x)", "Softmax: there is no axis 2 of 2 dimensions"),
        ("y = Transpose<perm = [0]>(x)", "does not say where all 2 axes go"),
        ("y = Transpose<perm = [1, -1]>(x)", "an axis is there twice"),
        ("y = Softmax<axis = 1.5>(x)", "takes an integer as the attribute 'axis'"),
        ("y = Cast(x)", "needs the attribute 'to'"),
        ("y = Add(x)", "takes 2 inputs, and has 1"),
        ("y, z = Neg(x)", "takes 1 result, and has 2"),
        ("y = Neg(x)  y = Exp(x)", "two values of 'g' have the name 'y'"),
        ("y = Gather<axis = 1>(x, seven)", "an index is outside of an axis of size 7"),
        ("y, z = Split<axis = 1>(x, parts)", "the parts are 6 and the axis is 7"),
        ("y = Pad(x, seven)", "takes 4 widths for 2 dimensions, and not 1"),
        ("y = Less(x, seven)", "takes inputs of one dtype, and has float32 and int64"),
        ("y = Gelu(x)", "is there from version 20 of the opset on, and the model's is 18"),
        ("y = GlobalMaxPool(x)", "takes at least 3 dimensions, and its input has 2"),
        ("y, z = TopK(x, eight)", "no more elements than there are"),
    ],
)
def test_calls_that_the_standard_does_not_allow_are_refused(text: str, message: str) -> None:
    weights = "int64[1] seven = {7}, int64[1] eight = {8}, int64[2] parts = {2, 4}"
    with pytest.raises(RelaxError, match=message) as caught:
        from_onnx(graph(f"g (float[n, 7] x) => (float[n, 7] y) <{weights}> {{ {text} }}"))
    assert caught.value.span is not None
    assert "<g>:" in str(caught.value)


def test_errors_of_the_running_program_show_the_node() -> None:
    model = graph("g (float[n, 7] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }")
    from relaxpy.onnx import InferenceSession

    session = InferenceSession(model, target="llvm -opt-level=0")
    with pytest.raises(RelaxError, match=r"y = Reshape\(x, s\)"):
        session.run(None, {"x": data(3, 7), "s": np.array([4, 5])})


def test_versions_of_opsets_are_known_ones() -> None:
    for version in (0, -1, 10**9):
        model = with_graph(lambda g: None)
        model.opset_import[0].version = version
        with pytest.raises(UsageError, match="known are 1 to"):
            from_onnx(model)


def test_functions_have_opsets_of_their_own() -> None:
    """`Softmax` of the function is that of version 11, and the model has no opset of the standard's."""
    model = parser.parse_model("""
<ir_version: 9, opset_import: ["mine" : 1]>
g (float[2, 3, 5] x) => (float[2, 3, 5] y) { y = mine.f(x) }
<domain: "mine", opset_import: ["" : 11]> f(x) => (y) { y = Softmax(x) }
""")
    x = data(2, 3, 5)
    power = np.exp(x)
    wanted = power / power.sum((1, 2), keepdims=True)
    np.testing.assert_allclose(run(model, x), wanted, rtol=1e-4)


@pytest.mark.parametrize("at", range(-3, 4))
def test_a_position_of_an_insertion_counts_from_the_end(at: int) -> None:
    """Of the tensors that were there before."""
    text = f"""
<ir_version: 9, opset_import: ["" : 18]>
g (float[1] x, float[1] y) => (float[n] z)
<int64 at = {{{at}}}>
{{
    before = SequenceConstruct(x, x, x)
    after = SequenceInsert(before, y, at)
    z = ConcatFromSequence<axis = 0>(after)
}}
"""
    x, y = np.array([1], np.float32), np.array([2], np.float32)
    mod, _ = relaxpy.from_onnx(parser.parse_model(text))
    wanted = [1.0, 1.0, 1.0]
    wanted.insert(at, 2.0)
    assert interpret(mod, "main", x, y).tolist() == wanted
