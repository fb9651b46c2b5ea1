"""Modules of torch, imported, beside themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.frontend.torch import import_program


class Block(nn.Module):
    """Linear, norm, attention, convolution; a buffer that a call changes; nested arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.c = nn.Conv1d(5, 7, 3, padding=1)
        self.n = nn.LayerNorm(16)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, more):
        y = self.n(F.gelu(self.a(x)))
        self.count.add_(1)
        q = y[:, None]
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0] + more["z"][0]
        return {"y": y, "rest": [y.sum(), self.c(y[:, :5])]}


def test_a_block_at_every_size() -> None:
    """One build, sizes down to none and one, and the new value of the buffer last."""
    torch.manual_seed(0)
    block = Block().eval()
    x, z = torch.randn(4, 7, 8), torch.randn(4, 7, 16)
    found = import_program(
        block,
        (x, {"z": (z,)}),
        dynamic_shapes=({0: Dim.DYNAMIC, 1: "length"}, {"z": ({0: Dim.AUTO, 1: "length"},)}),
    )
    main = found.mod["main"]
    assert [str(d) for d in main.params[0].annotation.shape] == ["x_0", "length", "8"]
    vm = relaxpy.VirtualMachine(relaxpy.build(found.mod, params=found.params))
    for batch, length in ((4, 7), (2, 13), (1, 5), (0, 6)):
        x, z, count = torch.randn(batch, length, 8), torch.randn(batch, length, 16), torch.zeros(1)
        with torch.no_grad():
            want = block(x, {"z": (z,)})
        y, total, short, count = map(torch.from_dlpack, vm["main"](x, z, count))
        torch.testing.assert_close(y, want["y"])
        torch.testing.assert_close(total, want["rest"][0])
        torch.testing.assert_close(short, want["rest"][1])
        assert count.item() == 1


class Even(nn.Module):
    def forward(self, x):
        if x.shape[0] % 2 == 0:
            return x + 1
        return x * 3


def test_a_condition_on_sizes_is_checked_at_its_line() -> None:
    """Torch keeps it in the guards only: without it an odd size gives the other branch's numbers."""
    mod, params = relaxpy.from_torch(Even(), (torch.ones(4, 3),), dynamic_shapes=({0: "n"},))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    assert vm["main"](torch.ones(6, 3)).numpy()[0, 0] == 2
    with pytest.raises(RelaxError, match="shape\\[0\\] % 2 == 0"):
        vm["main"](torch.ones(5, 3))


def test_sizes_by_a_factor() -> None:
    """Torch's guards compute them as floats, and round."""

    def program(x):
        big = torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest")
        return big + torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic")

    mod, _ = relaxpy.from_torch(
        program, (torch.rand(1, 1, 3, 5),), dynamic_shapes=({2: "h", 3: "w"},)
    )
    main = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))["main"]
    for x in (torch.rand(1, 1, 3, 5), torch.rand(1, 1, 7, 2)):
        torch.testing.assert_close(torch.from_dlpack(main(x)), program(x), rtol=1e-4, atol=1e-5)


def test_a_size_that_is_checked_to_be_a_number_is_that_number() -> None:
    """The linear layer behind `flatten` has a known width, and its weight can be packed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(60, 3)).eval()
    x = torch.randn(2, 2, 5, 7)
    auto = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    mod, params = relaxpy.from_torch(model, (x,), dynamic_shapes=auto)
    flat = next(b.var for b in mod["main"].body.bindings if b.var.name == "view")
    assert str(flat.annotation.shape[1]) == "60"
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    for shape in ((1, 2, 5, 7), (3, 2, 7, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.from_dlpack(vm["main"](x)), model(x).detach())
    with pytest.raises(RelaxError):
        vm["main"](torch.ones(2, 2, 5, 8))


def test_a_tensor_given_twice_is_two_arguments() -> None:
    x = torch.ones(3)
    mod, _ = relaxpy.from_torch(lambda a, b: a - b, (x, x))
    assert relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, x + 1).numpy().tolist() == [-1] * 3


def test_missing_operators_are_told_all_at_once() -> None:
    """Each with its count and the first line."""

    def program(x):
        y = torch.fft.fft(x).real
        z = torch.linalg.qr(x)[0]
        return torch.linalg.qr(z)[0] + y

    with pytest.raises(RelaxError) as caught:
        relaxpy.from_torch(program, (torch.ones(3, 3),))
    text = str(caught.value)
    assert caught.value.code == "torch-operator"
    assert "linalg_qr.default (2 times" in text
    assert "_fft_r2c.default (once" in text
    assert f"{__file__}:" in text


def test_what_checks_its_results_is_named() -> None:
    """Torch keeps checks of factorisations in order by a token, which is an argument more."""

    def program(x):
        return torch.linalg.cholesky(x) + torch.linalg.inv(x)

    with pytest.raises(RelaxError) as caught:
        relaxpy.from_torch(program, (torch.eye(3),))
    assert caught.value.code == "torch-operator"
    assert "linalg_cholesky_ex.default (once" in str(caught.value)
    assert "linalg_inv_ex.default (once" in str(caught.value)
    assert "with_effects" not in str(caught.value)


def test_derived_sizes_are_expressions_of_their_root() -> None:
    batch = Dim("batch")
    mod, _ = relaxpy.from_torch(
        lambda a, b: a[1:] + b,
        (torch.ones(5, 2), torch.ones(4, 2)),
        dynamic_shapes=({0: batch}, {0: batch - 1}),
    )
    sizes = [str(p.annotation.shape[0]) for p in mod["main"].params]
    assert sizes == ["batch", "batch - 1"]
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    assert vm["main"](torch.ones(2, 2), torch.ones(1, 2)).numpy().tolist() == [[2, 2]]


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()
    mod, params = relaxpy.from_torch(model, (torch.ones(2, 3, dtype=torch.long),))
    assert list(params) == ["embedding_weight"]
    assert params["embedding_weight"].ctypes.data == model.head.weight.data_ptr()
    relaxpy.build(mod, params=params)


class Small(nn.Module):
    """Takes another branch at 0 and 1, if there is no mask."""

    def forward(self, x, mask=None):
        if x.shape[0] == 0:
            return x.sum(0, keepdim=True)
        return x * 2 if x.shape[0] > 1 and mask is None else x + 1


def test_small_sizes_give_eagers_result_or_an_error() -> None:
    """Where the trace is the same at a size of 1, as with a mask, nothing is refused."""
    x, mask = torch.ones(3, 2), torch.ones(2)
    compiled = relaxpy.compile(Small(), x)
    assert compiled(x).tolist() == Small()(x).tolist()
    for rows in (1, 0):
        with pytest.raises(RelaxError, match=r"x\.shape\[0\]"):
            compiled(x[:rows])
    assert relaxpy.compile(Small(), x, mask)(x[:1], mask).tolist() == [[2, 2]]


def test_a_function_of_torch_itself() -> None:
    """It has no signature, so its inputs have no names of their own."""
    compiled = relaxpy.compile(torch.sin, torch.ones(3))
    torch.testing.assert_close(compiled(torch.arange(5.0)), torch.arange(5.0).sin())


def test_a_size_that_is_a_number_only_where_it_was_traced() -> None:
    """Torch's decompositions compare sizes, too: 2 rows in 3 parts are padded to 3, and 5 to 6. The arguments are those
    of `*tensors`, which torch's conditions name in another way than its signature."""

    def program(*tensors):
        return torch._chunk_cat(list(tensors), 0, 3)

    given = torch.randn(2, 5), torch.randn(2, 5, 7)
    mod, _ = relaxpy.from_torch(program, given, dynamic_shapes="auto")
    main = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))["main"]
    for rows in (2, 5, 1):
        given = torch.randn(rows, 5), torch.randn(rows, 5, 7)
        assert torch.equal(torch.from_dlpack(main(*given)), program(*given))


def test_what_torch_traces_from_a_size_of_2_on_is_told_below() -> None:
    """For all sizes, torch asks for a value of its own where a part begins at `n - n // 2`."""

    def program(x):
        rest = x[:, x.shape[1] - x.shape[1] // 2 :]
        return torch.cat([rest, x[:, ::2]], 1).roll(1, 1)

    compiled = relaxpy.compile(program, torch.randn(3, 7), target="llvm -opt-level=0")
    for shape in ((3, 7), (2, 2), (5, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), program(x))
    with pytest.raises(RelaxError, match="less than its lower bound 2"):
        compiled(torch.randn(3, 1))


def test_a_slice_may_have_one_element_or_none() -> None:
    """Torch takes what is copied into a part to have at least two."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[:, 2:] = x[:, :-2]
        return y

    compiled = relaxpy.compile(shifted, torch.ones(2, 5))
    for shape in ((2, 5), (3, 3), (1, 2), (0, 4)):
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), shifted(x))
    with pytest.raises(RelaxError, match="check"):
        compiled(torch.ones(2, 1))


def test_another_branch_for_small_sizes_is_told_with_its_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[:, 3:] if x.shape[1] > 3 else x * 2

    compiled = relaxpy.compile(function, torch.ones(2, 5))
    assert compiled(torch.ones(2, 4)).shape == (2, 1)
    with pytest.raises(RelaxError, match=r"\(3 < x_1\) does not hold[^|]*test_importer.py"):
        compiled(torch.ones(2, 3))


def test_a_size_has_a_name() -> None:
    with pytest.raises(RelaxError, match="'2 \\* n' is no name of a size"):
        relaxpy.from_torch(torch.abs, (torch.ones(4),), dynamic_shapes=({0: "2 * n"},))
