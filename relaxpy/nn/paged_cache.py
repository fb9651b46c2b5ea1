"""The paged cache of attention: the keys and values of all sequences in pages, updated in place.

    class Attention(nn.Module):
        def step(self, x, positions, starts, tables, lengths, pages):
            batch = nn.PagedBatch(positions, starts, tables, lengths, page_size=32)
            query, key, value = ...  # each (tokens, heads, width)
            return nn.PagedCache(pages, batch).attend(query, key, value)

    spec = {..., "pages": nn.PagedCache.spec("pages", 4, 64)}

`relaxpy.serve.PageBook` keeps the books: which page holds what. It never sees a page; those are made and copied by
exported functions (`PagedCache.empty`, `copy_pages`). Numbers of pages are integers of the caller: `check_pages` and
`copy_pages` refuse the wrong ones, and whatever comes without a check writes nothing outside the pages.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from typing import Any

from relaxpy.ir import DType, PrimValue, ShapeExpr, TensorProgram
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.module import APART
from relaxpy.nn import op, spec
from relaxpy.nn.calls import call_tir_inplace
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value

PAGE_SIZE = 32
"""The tokens of a page, unless another number is asked for."""

Pages = tuple[Value, ...]
"""The pages of a layer: keys and values, and if they are integers the scales of both."""


class PagedBatch:
    """Which tokens of a step belong to which sequence, and where the pages of a group of layers are. `positions`
    (tokens,), `starts` (sequences + 1,), `tables` (sequences, width), `lengths` (sequences,), as `nn.paged_attention`
    has them. Without positions the pages are only read. `lasts` (tokens,) are the last places that tokens attend to, if
    they are after their own."""

    def __init__(
        self,
        positions: Value | None,
        starts: Value,
        tables: Value,
        lengths: Value,
        page_size: int = PAGE_SIZE,
        lasts: Value | None = None,
    ) -> None:
        self.starts, self.tables, self.lengths, self.page_size = starts, tables, lengths, page_size
        self.lasts = lasts
        self.slots = None
        if positions is not None:
            self.slots = op.nn.page_slots(positions, starts, tables, page_size=page_size)


class PagedCache:
    """The pages of a layer in a step. After `attend`, `pages` are the updated ones."""

    def __init__(self, pages: Pages, batch: PagedBatch) -> None:
        if len(pages) not in (2, 4) or len(pages[0].shape) != 4:
            raise mistake(
                "shape-mismatch",
                "the pages of a layer must be two tensors of rank 4, or four with the scales of integers",
                help='the spec of the argument: nn.PagedCache.spec("pages", heads, width)',
            )
        self.pages, self.batch = tuple(pages), batch

    @staticmethod
    def spec(
        pages: int | str,
        heads: int,
        width: int,
        dtype: str = "float32",
        page_size: int = PAGE_SIZE,
    ) -> spec.Tuple:
        """The spec of the pages of a layer as an argument. `dtype` is that of the model, or int8."""
        return spec.Tuple(
            spec.Tensor((pages, *shape), kind)
            for shape, kind in _shapes(heads, width, dtype, page_size)
        )

    @staticmethod
    def empty(
        pages: DimLike,
        heads: int,
        width: int,
        dtype: str = "float32",
        page_size: int = PAGE_SIZE,
    ) -> Pages:
        """New pages of a layer."""
        shapes = _shapes(heads, width, dtype, page_size)
        return tuple(op.zeros((pages, *shape), dtype=kind) for shape, kind in shapes)

    def append(self, key: Value, value: Value) -> None:
        """Write the keys and values (tokens, heads, width) of the tokens into their pages, in place."""
        slots = self.batch.slots
        if slots is None:
            raise mistake("bad-spec", "tokens are written at positions, and the batch has none")
        new: list[Value] = [key, value]
        if len(self.pages) == 4:
            (key, scale), (value, other) = _quantised(key), _quantised(value)
            new = [key, value, scale, other]
        self.pages = tuple(
            _written(pages, tokens, slots, is_key=number == 0)
            for number, (pages, tokens) in enumerate(zip(self.pages, new, strict=True))
        )

    def attend(self, query: Value, key: Value, value: Value, **options: Any) -> Tensor:
        """Append the keys and values of the tokens, and let the queries (tokens, heads, width) attend to all. Every key
        is attended as it is in its page, so a result does not depend on when it came there. `options` are those of
        `nn.paged_attention`, and `sinks`."""
        self.append(key, value)
        return self._attended(query, options)

    def read(self, query: Value, **options: Any) -> Tensor:
        """Let the queries (tokens, heads, width) of each sequence attend to all keys of the sequence that are in the
        pages, before them or after: those of an encoder, which its decoder reads. Nothing is written."""
        return self._attended(query, {**options, "causal": False})

    def _attended(self, query: Value, options: dict[str, Any]) -> Tensor:
        batch, (keys, values, *scales) = self.batch, self.pages
        if scales:
            options["key_scales"], options["value_scales"] = scales
        if batch.lasts is not None:
            options["lasts"] = batch.lasts
        return op.nn.paged_attention(
            query, keys, values, batch.starts, batch.tables, batch.lengths, **options
        )


def check_pages(
    tables: Value,
    positions: Value,
    starts: Value,
    lengths: Value,
    rows: Value,
    pages: DimLike,
    page_size: int = PAGE_SIZE,
    windows: Sequence[int] = (0,),
) -> Tensor:
    """`tables` (groups, sequences, width), after a check at run time of all that a step is told: an index out of range,
    a position that does not follow from lengths, or two tokens for one place is an error of the call (`index-range`).
    `windows` has the sliding window of each group, 0 for none; `rows` are numbers of tokens."""
    return op.call_pure_packed(
        "relaxpy.check_pages",
        *(tables, positions, starts, lengths, rows),
        *(PrimValue(Dim.of(pages)), PrimValue(Dim.of(page_size)), ShapeExpr(tuple(windows))),
        ty_args=spec.Tensor(tables.shape, tables.dtype),
    )


def copy_pages(pages: Pages, sources: Value, targets: Value) -> Pages:
    """Copy pages of a layer in place: number sources[i] to number targets[i], one after the other; -1 is skipped. A
    number out of range is an error of the call (`index-range`)."""
    count = pages[0].shape[0]
    sources, targets = (
        op.astype(op.check_range(numbers, count, name, lowest=-1), "int64")
        for numbers, name in ((sources, "sources"), (targets, "targets"))
    )
    return tuple(
        call_tir_inplace(
            _copy_program(tuple(size.value for size in each.shape[1:]), each.dtype),
            (each, sources, targets),
            [0],
            name="copy_pages",
        )
        for each in pages
    )


def _shapes(
    heads: int, width: int, dtype: str, page_size: int
) -> list[tuple[tuple[int, ...], DType]]:
    """The shapes after the number of pages, and dtypes. Keys have the tokens of a page side by side, values the
    elements of a token, so that products and weighted sums read both in order."""
    kind = DType(dtype)
    found = [((heads, width, page_size), kind), ((heads, page_size, width), kind)]
    if kind.is_int:
        found += [((heads, page_size), DType("float32"))] * 2
    return found


def _quantised(x: Value) -> tuple[Tensor, Tensor]:
    """Keys or values as int8, and the scale of each token and head."""
    wide = op.astype(x, "float32")
    largest = op.max(op.abs(wide), axis=-1)
    scale = largest / 127.0
    steps = wide / op.expand_dims(op.maximum(scale, 1e-30), -1)
    return op.astype(op.round(steps), "int8"), scale


def _written(pages: Value, tokens: Value, slots: Value, is_key: bool) -> Tensor:
    """`pages` with the tokens (tokens, heads[, width]) written in place."""
    if tokens.dtype != pages.dtype:
        raise mistake(
            "op-dtype",
            f"the tokens are {tokens.dtype}, the pages {pages.dtype}",
            help="pages have the dtype of the model, or int8",
        )
    sizes = tuple(size.value for size in pages.shape[1:])
    program = _append_program(sizes, str(pages.dtype), is_key)
    return call_tir_inplace(program, (pages, tokens, slots), [0], name="append_to_pages")


@cache
def _append_program(sizes: tuple[int | None, ...], dtype: str, is_key: bool) -> TensorProgram:
    """The tensor program that writes tokens into pages, each into a place of its own (`check_pages`): of keys (pages,
    heads, width, page size), of values (pages, heads, page size, width), or of scales (pages, heads, page size)."""
    heads = sizes[0]
    size = sizes[-1] if is_key else sizes[1]
    inner = [] if len(sizes) == 2 else [sizes[1] if is_key else sizes[2]]
    token = ["t", heads, *inner]
    loops, axes = ["i", "h", "k"][: len(token)], ["vi", "vh", "vk"][: len(token)]
    page, slot = f"slots[vi] // {size}", f"slots[vi] % {size}"
    place = [page, "vh", *axes[2:], slot] if is_key else [page, "vh", slot, *axes[2:]]
    source = f"""
@T.prim_func(private=True)
def append_to_pages(
    pages: T.Buffer({_shape("n", *sizes)}, "{dtype}"),
    tokens: T.Buffer({_shape(*token)}, "{dtype}"),
    slots: T.Buffer(("t",), "int64"),
):
    n = T.int64()
    t = T.int64()
    for {", ".join(loops)} in T.grid({", ".join(map(str, token))}):
        with T.sblock("append"):
            T.sblock_attr({{"{APART}": 1}})
            {", ".join(axes)} = T.axis.remap("{"S" * len(axes)}", [{", ".join(loops)}])
            if slots[vi] >= 0 and slots[vi] < n * {size}:
                pages[{", ".join(place)}] = tokens[{", ".join(axes)}]
"""
    return _parsed(source)


@cache
def _copy_program(sizes: tuple[int | None, ...], dtype: str) -> TensorProgram:
    """The tensor program that copies pages."""
    loops = [f"i{n}" for n in range(len(sizes))]
    inner = ", ".join(loops)
    source = f"""
@T.prim_func(private=True)
def copy_pages(
    pages: T.Buffer({_shape("n", *sizes)}, "{dtype}"),
    sources: T.Buffer(("m",), "int64"),
    targets: T.Buffer(("m",), "int64"),
):
    n = T.int64()
    m = T.int64()
    for i in range(m):
        if sources[i] >= 0 and sources[i] < n and targets[i] >= 0 and targets[i] < n:
            for {inner} in T.grid({", ".join(map(str, sizes))}):
                pages[targets[i], {inner}] = pages[sources[i], {inner}]
"""
    return _parsed(source)


def _parsed(source: str) -> TensorProgram:
    from relaxpy.tir.parse import parse_prim_func  # loads TVM

    node: Any = ast.parse(source).body[0]
    return parse_prim_func(node, source, f"<{node.name}>", {})


def _shape(*dims: Any) -> str:
    """A buffer's shape as script."""
    return "(" + "".join(f'"{d}", ' if isinstance(d, str) else f"{d}, " for d in dims) + ")"
