"""Reading and writing at indices: what torch refuses is refused, and masks and sizes of every kind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import full, sweep

X = torch.arange(35.0).reshape(5, 7)


def machine(function, *args, dims=None):
    mod, params = relaxpy.from_torch(function, args, dynamic_shapes=dims)
    exe = relaxpy.build(mod, params=params, target="llvm -opt-level=0")
    return relaxpy.VirtualMachine(exe)["main"]


READS = {
    "embedding": (lambda x, i: F.embedding(i, x), 5, False),
    "index": (lambda x, i: x[i], 5, True),
    "index of the last axis": (lambda x, i: x[:, i], 7, True),
    "two axes": (lambda x, i: x[i, i], 5, True),
    "index_select": (lambda x, i: torch.index_select(x, 1, i), 7, False),
    "gather": (lambda x, i: torch.gather(x, 1, i.expand(5, -1)), 7, False),
    "take": (lambda x, i: torch.take(x, i), 35, True),
    "scatter": (lambda x, i: x.scatter(1, i.expand(5, -1), 2.0), 7, False),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[:, None], x[:1, :1].expand(3, 1)), 5, False),
    "index_put": (lambda x, i: x.index_put((i,), x[:1, :1]), 5, True),
    "put": (lambda x, i: x.put(i, x[0, :3]), 35, True),
}


@sweep(4)
@pytest.mark.parametrize("name", READS)
def test_indices_out_of_range_are_refused(name: str) -> None:
    """The last index of an axis is taken; one more is an error, and so is a negative one unless it counts from the
    end."""
    function, size, negative = READS[name]
    main = machine(function, X, torch.tensor([0, 1, 2]))
    for good in ([0, size - 1, 1], [0, -size, -1] if negative else [2, 0, size - 1]):
        given = torch.tensor(good)
        assert torch.equal(torch.from_dlpack(main(X, given)), function(X, given))
    for bad in ([0, size, 1], [0, 1, -size - 1 if negative else -1]):
        with pytest.raises((IndexError, RuntimeError)):
            function(X, torch.tensor(bad))
        with pytest.raises(RelaxError, match="out_of_range"):
            main(X, torch.tensor(bad))


MASKED = {
    "one mask": lambda x, m: x[m],
    "a mask and an index": lambda x, m: x[m[:, 0], torch.tensor([3])],
    "rows": lambda x, m: x[m[:, 0]],
    "put": lambda x, m: x.masked_fill(m, -1.0).index_put((m[:, 1],), x[0]),
    "scattered": lambda x, m: x.masked_scatter(m, torch.arange(100, 170)[:70].float()),
    "nonzero": lambda x, m: torch.nonzero(m),
}


@sweep(2)
@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str) -> None:
    """The number of true elements is known only when it runs; none and all are numbers, too."""
    function = MASKED[name]
    main = machine(function, X, X % 3 == 1)
    for mask in (X % 3 == 1, X % 5 == 0, X < 0, X >= 0):
        assert torch.equal(torch.from_dlpack(main(X, mask)), function(X, mask))


def test_unique_values() -> None:
    """Flat, of slices, of neighbours; a NaN is no other NaN; of no elements there are none."""

    def function(x):
        return (
            *torch.unique(x, return_inverse=True, return_counts=True), torch.unique(x[:, 0]),
            *torch.unique(x, dim=0, return_inverse=True), *torch.unique_consecutive(x, return_counts=True),
            torch.unique(x > 1),
        )  # fmt: skip

    def compare(x, main):
        for found, want in zip(main(x), function(x), strict=True):
            torch.testing.assert_close(torch.from_dlpack(found), want, equal_nan=True)

    main = machine(function, torch.zeros(5, 3), dims=({0: torch.export.Dim.AUTO},))
    for rows in (5, 2, 1, 0, 37):
        compare(torch.randint(0, 4, (rows, 3)).float(), main)
    nan = float("nan")
    x = torch.tensor([nan, 1.0, nan, nan, 1.0, 0.0])
    main = machine(
        lambda x: torch.unique_consecutive(x, dim=1, return_inverse=True), torch.ones(2, 4)
    )
    y = torch.tensor([[1.0, 1.0, 1.0, 2.0], [3.0, 3.0, 4.0, 4.0]])
    for found, want in zip(main(y), torch.unique_consecutive(y, dim=1, return_inverse=True)):
        assert torch.equal(torch.from_dlpack(found), want)
    main = machine(lambda x: torch.unique(x, return_counts=True), x)
    for found, want in zip(main(x), torch.unique(x, return_counts=True), strict=True):
        torch.testing.assert_close(torch.from_dlpack(found), want, equal_nan=True)


def test_one_build_for_all_sizes() -> None:
    """Axes of 0 and 1 are among them."""

    def function(x, i):
        y = x[:, i].sum(1) + torch.gather(x, 1, i.expand(x.shape[0], -1)).amax(1)
        z = x.clone()
        z[:, i] = y[:, None]
        return y, z, F.pad(x, (1, -2))

    main = machine(function, X, torch.tensor([1, 6, 2]), dims=({0: "n", 1: "m"}, {0: "k"}))
    for rows, columns, count in ((5, 7, 3), (1, 4, 2), (0, 3, 5), (3, 2, 1)):
        x = torch.randn(rows, columns)
        i = torch.randint(0, columns, (count,)).unique()
        for got, want in zip(main(x, i), function(x, i), strict=True):
            torch.testing.assert_close(torch.from_dlpack(got), want)


def test_an_index_of_each_place() -> None:
    """Indexed axes that are no neighbours put the result's axes first, as in numpy."""
    x = torch.randn(2, 3, 5, 4)
    i, j = torch.tensor([[0], [1]]), torch.tensor([2, 0, 1])
    functions = [
        lambda x, i, j: x[i, :, j],
        lambda x, i, j: x[:, j, i],
        lambda x, i, j: x[:, :, i, j],
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[:, j, :, i],
    ]
    main = machine(lambda *args: [f(*args) for f in functions], x, i, j)
    for got, function in zip(main(x, i, j), functions, strict=True):
        assert torch.equal(torch.from_dlpack(got), function(x, i, j))


BAGS = {
    "sum": (torch.nn.EmbeddingBag(7, 3), False),
    "mean": (torch.nn.EmbeddingBag(7, 3, mode="mean", padding_idx=2), False),
    "max": (torch.nn.EmbeddingBag(7, 3, mode="max", padding_idx=-1), False),
    "with factors": (torch.nn.EmbeddingBag(7, 3, mode="sum", include_last_offset=True), True),
}


@sweep(4)
@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings(name: str) -> None:
    """Bags of any number of rows, none among them, and rows of a matrix; rows behind the last bag, if it has an end."""
    bag, weighted = BAGS[name]
    starts = [0, 0, 3, 5] + ([5] if weighted else [])
    given = (
        torch.tensor([2, 6, 0, 2, 2]),
        torch.tensor(starts),
        *([torch.rand(5)] if weighted else []),
    )
    dims = ({0: "n"}, {0: "bags"}, *([{0: "n"}] if weighted else []))
    main = machine(bag, *given, dims=dims)
    longer = (
        torch.tensor([1, 1, 6]),
        torch.tensor([0, 2, 3]),
        *([torch.rand(3)] if weighted else []),
    )
    behind = (longer[0], torch.tensor([0, 0, 1]), *longer[2:])
    for each in (given, longer, behind):
        torch.testing.assert_close(torch.from_dlpack(main(*each)), bag(*each).detach())
    with pytest.raises(RelaxError, match="out_of_range"):
        main(torch.tensor([7, 1, 1, 2, 3]), *given[1:])
    if not weighted:
        rows = torch.tensor([[1, 2], [2, 2], [0, 6]])
        torch.testing.assert_close(
            torch.from_dlpack(machine(bag, rows, dims=({0: "n"},))(rows[:2])),
            bag(rows[:2]).detach(),
        )


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_rows_of_an_embedding_are_shortened(order: float) -> None:
    """Those that are read, in the layer's own weight."""
    layer = torch.nn.Embedding(7, 5, max_norm=1.0, norm_type=order)
    with torch.no_grad():
        layer.weight[3] *= 0.01
    mine = copy.deepcopy(layer)
    first = torch.tensor([[1, 2], [0, 1]])
    compiled = relaxpy.compile(
        mine, first, dynamic_shapes={"input": {0: torch.export.Dim("n", max=9)}}
    )
    for read in (first, torch.tensor([[3, 3]]), torch.tensor([[6, 1], [1, 1], [2, 5]])):
        torch.testing.assert_close(compiled(read), layer(read))
        torch.testing.assert_close(mine.weight, layer.weight)


def test_a_weight_that_is_changed_is_nobody_elses() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(5, 7, bias=False)
            self.table = torch.nn.Embedding(7, 5, max_norm=1.0)
            self.table.weight = self.head.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(x))

    with pytest.raises(RelaxError, match="a parameter or buffer that has two names") as error:
        relaxpy.from_torch(Tied(), (torch.tensor([1, 2]),))
    assert error.value.code == "torch-export"


def test_windows_and_triangles() -> None:
    def windows(x):
        rows, columns = torch.tril_indices(3, 4, -1)
        upper = torch.triu_indices(3, 4, 1)
        return (
            x.unfold(1, 3, 2),
            x.unfold(0, 2, 1).sum(-1),
            x[rows, columns],
            x[:3, :4][upper[0], upper[1]],
        )

    sizes = {0: torch.export.Dim("n", min=3), 1: torch.export.Dim("m", min=4)}
    main = machine(windows, X, dims=(sizes,))
    for x in (X, torch.rand(4, 11), torch.rand(3, 5)):
        for found, expected in zip(main(x), windows(x), strict=True):
            assert torch.equal(torch.from_dlpack(found), expected)


def test_assertions_on_values_are_checked() -> None:
    def classes(x):
        return F.one_hot(x, 5)

    main = machine(classes, torch.tensor([1, 4, 0]), dims=({0: "n"},))
    assert torch.equal(torch.from_dlpack(main(torch.tensor([2, 3]))), classes(torch.tensor([2, 3])))
    with pytest.raises(RelaxError, match="check_one_hot_class_values_must_be_smaller"):
        main(torch.tensor([5]))
    with pytest.raises(RelaxError, match="check_one_hot_class_values_must_be_non_negative"):
        main(torch.tensor([-1]))


def test_diagonals_are_written_at_every_size() -> None:
    def program(x):
        y, z = x.clone(), x.clone()
        y.diagonal(dim1=0, dim2=2).add_(1)
        z.diagonal(-1, 2, 1).mul_(z.new_tensor(-2.0))
        return y, z, torch.diagonal_scatter(x[0], x[0].diagonal(2) + 5, 2)

    compiled = relaxpy.compile(program, torch.randn(3, 5, 4), target="llvm -opt-level=0")
    for shape in ((3, 5, 4), (2, 3, 7), (5, 1, 3), (1, 1, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), program(x))


def test_counts_are_as_many_as_the_largest_number_asks_for() -> None:
    def program(x):
        weights = x / 2
        return x.bincount(), torch.bincount(x, weights).sum(), torch.bincount(x, minlength=7)

    def given(*numbers):
        return torch.tensor(numbers, dtype=torch.int64)

    compiled = relaxpy.compile(program, given(3, 1, 3), target="llvm -opt-level=0")
    for call in (given(3, 1, 3), given(0), given(2, 12, 5, 2)):
        torch.testing.assert_close(compiled(call), program(call))
    assert [len(each) if each.ndim else each.item() for each in compiled(given())] == [0, 0, 7]
    with pytest.raises(RelaxError, match="indices_out_of_range"):
        compiled(given(3, -1, 2))


@full
def test_offsets_in_steps_of_a_size() -> None:
    """As an embedding bag of rows has them."""
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(20, 3, mode="sum", padding_idx=0).eval()
    call = torch.randint(0, 20, (3, 7)), torch.rand(3, 7)
    compiled = relaxpy.compile(lambda i, w: bag(i, per_sample_weights=w), *call)
    for shape in ((3, 7), (1, 5), (4, 1)):
        call = torch.randint(0, 20, shape), torch.rand(shape)
        torch.testing.assert_close(compiled(*call), bag(call[0], per_sample_weights=call[1]))
