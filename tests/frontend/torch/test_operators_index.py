"""Reading and writing at indices: what torch refuses is refused, and masks and sizes of every kind."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError

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
}


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


@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str) -> None:
    """The number of true elements is known only when it runs; none and all are numbers, too."""
    function = MASKED[name]
    main = machine(function, X, X % 3 == 1)
    for mask in (X % 3 == 1, X % 5 == 0, X < 0, X >= 0):
        assert torch.equal(torch.from_dlpack(main(X, mask)), function(X, mask))


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
