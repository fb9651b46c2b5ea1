"""Functions that torch traces for the sizes of the example alone, as others that keep the sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from relaxpy.frontend.torch.replaced import replaced


@contextmanager
def kept_sizes() -> Iterator[None]:
    """Let calls of these functions keep sizes that vary, while the block runs: `tensor` is of numbers, `linspace`
    takes its steps as an int, `affine_grid` is made of it, `take_along_dim`, `kron` and `fill_diagonal_` read sizes as
    ints, `einsum` of three tensors chooses an order by them, `tril_indices` counts, `math.sqrt` is of numbers, and
    layers of `nn.Transformer` look whether the values of a mask are a causal one's. Margin losses are those of eager,
    too."""
    import torch
    from torch.backends import opt_einsum
    from torch.nn.modules import transformer
    from torch.overrides import TorchFunctionMode

    class Kept(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in _losses():
                return _losses()[func](*args, **kwargs)
            other = _functions().get(func)
            if other is not None and _varies([*args, *kwargs.values()]):
                found = other(*args, **kwargs)
                if found is not None:
                    return found
            return func(*args, **kwargs)

    ordered = opt_einsum.flags(enabled=False) if opt_einsum.is_available() else nullcontext()
    own = math.sqrt

    def root(value: Any) -> Any:
        return value**0.5 if isinstance(value, (torch.SymInt, torch.SymFloat)) else own(value)

    def said_to_be_causal(*args: Any) -> bool:
        return args[1] is True  # else the mask is applied as it is, which is right for any values

    with (
        replaced(math, "sqrt", root),
        replaced(transformer, "_detect_is_causal_mask", said_to_be_causal),
        ordered,
        Kept(),
    ):
        yield


@cache
def _functions() -> dict[Any, Callable[..., Any]]:
    """Torch's function → ours, which gives None where torch's is to be called."""
    import torch

    return {
        torch.tensor: _tensor,
        torch.Tensor.new_tensor: _new_tensor,
        torch.linspace: _linspace,
        torch.affine_grid_generator: _affine_grid,
        torch.nn.functional.affine_grid: _affine_grid,
        torch.Tensor.fill_diagonal_: _fill_diagonal,
        torch.take_along_dim: _take_along_dim,
        torch.Tensor.take_along_dim: _take_along_dim,
        torch.tril_indices: partial(_triangle, torch.tril),
        torch.triu_indices: partial(_triangle, torch.triu),
        torch.kron: _kron,
        torch.Tensor.kron: _kron,
    }


@cache
def _losses() -> dict[Any, Callable[..., Any]]:
    """Losses that torch's decompositions do not give as eager does, of any sizes."""
    from torch.nn import functional

    return {
        functional.multi_margin_loss: _multi_margin_loss,
        functional.multilabel_margin_loss: _multilabel_margin_loss,
    }


def _multi_margin_loss(input: Any, *args: Any, **options: Any) -> Any:
    """Of one row it is a scalar; the decomposition gives (1,), if there is no reduction."""
    from torch.nn import functional

    found = functional.multi_margin_loss(input, *args, **options)
    return found.reshape(()) if input.dim() < 2 else found


def _multilabel_margin_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """The labels of a row end before its first -1; the decomposition counts what comes after as the label 0."""
    import torch
    from torch.nn import _reduction

    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    x, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    is_label = (labels == -1).cumsum(1) == 0
    of_labels = x.gather(1, torch.where(is_label, labels, 0))
    numbers = torch.arange(x.shape[1], device=x.device)
    wanted = (torch.where(is_label, labels, -1)[:, :, None] == numbers).any(1)
    margins = (1 - of_labels[:, :, None] + x[:, None]).clamp(min=0)
    counted = is_label[:, :, None] & ~wanted[:, None]
    rows = torch.where(counted, margins, 0).sum((1, 2)) / x.shape[1]
    if reduction == "none":
        return rows.reshape(()) if input.dim() < 2 else rows
    return rows.mean() if reduction == "mean" else rows.sum()


def _varies(values: Any) -> bool:
    """Is a size of these tensors and sizes a symbol?"""
    import torch

    return any(
        isinstance(each, torch.SymInt)
        or (isinstance(each, torch.Tensor) and _varies(each.shape))
        or (isinstance(each, (list, tuple)) and _varies(each))
        for each in values
    )


def _tensor(data: Any, *, dtype: Any = None, **options: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(data)
    numbers = (int, float, torch.SymInt)
    if not any(isinstance(each, torch.SymInt) for each in leaves) or options.get("requires_grad"):
        return None
    if any(isinstance(each, bool) or not isinstance(each, numbers) for each in leaves):
        return None
    if dtype is None:
        floats = any(isinstance(each, float) for each in leaves)
        dtype = torch.get_default_dtype() if floats else torch.int64
    return _stacked(data, dtype)


def _new_tensor(x: Any, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    return _tensor(data, dtype=dtype or x.dtype, **options)


def _stacked(data: Any, dtype: Any) -> Any:
    """A tensor of each number, in the shape of nested lists."""
    import torch

    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(each, dtype) for each in data])
    return torch.scalar_tensor(data, dtype=dtype)


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **options: Any) -> Any:
    """From both ends to the middle, as torch computes it."""
    import torch

    dtype = dtype or torch.get_default_dtype()
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        return None
    if not dtype.is_floating_point or set(options) - {"device", "requires_grad"}:
        return None
    place = torch.arange(steps, dtype=torch.int64)
    last = torch.full((), torch.sym_max(steps - 1, 1), dtype=torch.int64)
    wide = dtype if dtype == torch.float64 else torch.float32
    step = (float(end) - float(start)) / last.to(wide)
    front = float(start) + place.to(wide) * step
    back = float(end) - (steps - 1 - place).to(wide) * step
    return torch.where(place < torch.sym_max(steps // 2, 1), front, back).to(dtype)


def _affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    import torch

    if theta.ndim != 3 or len(size) != theta.shape[1] + 2 or not theta.dtype.is_floating_point:
        return None

    def positions(count: Any) -> Any:
        """From -1 to 1, or half an element inside; 0 for one element."""
        last = torch.full((), count - 1, dtype=theta.dtype)
        scale = (
            last.clamp(max=1) if align_corners else last / torch.full((), count, dtype=theta.dtype)
        )
        return _linspace(-1, 1, count, dtype=theta.dtype) * scale

    axes = torch.meshgrid(*(positions(count) for count in size[2:]), indexing="ij")
    one = torch.ones_like(axes[0])
    base = torch.stack([*reversed(axes), one], dim=-1)
    count = len(axes)
    found = base.reshape(1, -1, count + 1) @ theta.transpose(1, 2)
    return found.reshape(size[0], *size[2:], count)


def _take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Any:
    import torch

    if dim is None:
        return x.reshape(-1).gather(0, indices.reshape(-1))
    if x.ndim != indices.ndim or indices.dtype != torch.int64 or not x.ndim:
        return None
    axis = dim % x.ndim
    shapes = [[1 if a == axis else s for a, s in enumerate(t.shape)] for t in (x, indices)]
    wide = list(torch.broadcast_shapes(*shapes))
    source, places = (
        t.expand([t.shape[axis] if a == axis else s for a, s in enumerate(wide)])
        for t in (x, indices)
    )
    return source.gather(axis, places)


def _kron(a: Any, b: Any) -> Any:
    if a.ndim != b.ndim:
        return None
    above = [part for size in a.shape for part in (size, 1)]
    below = [part for size in b.shape for part in (1, size)]
    return (a.reshape(above) * b.reshape(below)).reshape(
        [one * other for one, other in zip(a.shape, b.shape, strict=True)]
    )


def _triangle(part: Any, rows: Any, columns: Any, offset: int = 0, **options: Any) -> Any:
    import torch

    if options.get("dtype", torch.int64) != torch.int64:
        return None
    return part(torch.ones(rows, columns, dtype=torch.bool), offset).nonzero().T


def _fill_diagonal(x: Any, value: Any, wrap: bool = False) -> Any:
    if x.ndim != 2 or wrap:
        return None
    x.diagonal().fill_(value)
    return x
