"""Tensor programs: TVM's TensorIR function behind the interface that the IR knows
(`relaxpy.ir.TensorProgram`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from relaxpy import services
from relaxpy.errors import Span, UsageError
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.module import BufferParam, ScalarParam, TensorProgram
from relaxpy.tir import te
from relaxpy.tir.analyzer import VarTable, int64, to_tvm_var
from relaxpy.tir.extents import with_parsed_extents
from relaxpy.tir.regions import with_regions
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.tvm import te as _te
from relaxpy.tir.walk import contains, rewritten, walk
from relaxpy.tir.written import written_buffers

GIVEN = "relaxpy.workspaces"
"""Attribute of a PrimFunc: the numbers of the parameters that are its workspaces. Their contents before and after a run
are undefined, and a schedule rule may use them for more than the program's text shows."""

LIBRARY = "relaxpy.library"
"""Attribute of a function of the graph, and of the tensor program that it becomes: the library function that computes
the same. A target may call it instead (`relaxpy.backend.cuda.library`)."""
LIBRARY_OPTIONS = "relaxpy.library_options"
"""Attribute of such a function or program: what the library function takes beside tensors, as JSON."""
LIBRARY_ATTRIBUTES = (LIBRARY, LIBRARY_OPTIONS)
"""The attributes that a tensor program has from its function of the graph."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrimFunc(TensorProgram):
    """A TensorIR function. `func` is TVM's object; only `relaxpy.tir` and the schedule rules access it."""

    func: Any
    span: Span | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """The parameters, in short; `print(program)` prints the script."""
        names = ", ".join(str(param.name) for param in self.func.params)
        return f"<relaxpy PrimFunc({names})>"

    def __str__(self) -> str:
        return self.script()

    @property
    def params(self) -> tuple[BufferParam | ScalarParam, ...]:
        return _read_params(self.func)[0]

    @property
    def opaque(self) -> bool:
        return any(isinstance(param.ty, tvm.ir.PointerType) for param in self.func.params)

    @property
    def attrs(self) -> Mapping[str, Any]:
        attrs = self.func.attrs
        return {} if attrs is None else {str(key): value for key, value in attrs.items()}

    def script(self, name: str = "main") -> str:
        from relaxpy.tir.printer import print_prim_func

        return print_prim_func(self.func, name)

    def full_text(self) -> str:
        """The complete text of the program, as a key: see `relaxpy.tir.printer.full_text`."""
        from relaxpy.tir.printer import full_text

        return full_text(self.func)

    def listing(self, name: str) -> str:
        """The program as text for display. `script` is the text that is sure to parse back to the same program."""
        from relaxpy.tir.printer import listing

        return listing(self.func, name)

    def structural_equal(self, other: TensorProgram) -> bool:
        return isinstance(other, PrimFunc) and bool(
            tvm_ffi.structural_equal(
                _without_symbol(self.func), _without_symbol(other.func), map_free_vars=True
            )
        )

    def structural_hash(self) -> int:
        return int(tvm_ffi.structural_hash(_without_symbol(self.func), map_free_vars=True))

    @property
    def work(self) -> Dim | None:
        return services.work(self.func)

    @property
    def flops(self) -> Dim | None:
        return services.flops(self.func)

    @property
    def bytes_moved(self) -> Dim | None:
        return services.bytes_moved(self.func)

    @property
    def written(self) -> frozenset[int]:
        return _written(self.func)

    @property
    def unset(self) -> frozenset[int]:
        return services.unset_outputs(self.func)

    @property
    def read_first(self) -> frozenset[int]:
        return services.read_before_written(self.func)

    @property
    def read(self) -> frozenset[int]:
        """Positions of the parameters whose contents before a call it may read. A sum that begins in a block's `init`
        does not read them."""
        return _read(self.func)

    @staticmethod
    def from_te(
        inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor], scalars: Sequence[SymVar] = ()
    ) -> PrimFunc:
        """The program that computes `outputs` from `inputs`; `scalars` become int64 parameters at the end."""
        func = _te.create_prim_func([*inputs, *outputs, *map(to_tvm_var, scalars)])
        func = with_regions(_int64_ranges(func.without_attr("global_symbol")))
        return PrimFunc(with_parsed_extents(func))


@lru_cache(maxsize=4096)
def _written(func: Any) -> frozenset[int]:
    """Positions of the parameters that are written, under any alias, including workspaces."""
    written = written_buffers(func)
    found = (i for i, param in enumerate(func.params) if param in written)
    return frozenset((*found, *given_workspaces(func)))


@lru_cache(maxsize=4096)
def _read(func: Any) -> frozenset[int]:
    """Positions of the buffers that are loaded, passed to a function, or viewed. The loads by which a block accumulates
    onto its own `init` do not count."""
    loads: list[Any] = []
    given: list[Any] = []
    sums: list[Any] = []

    def block(node: Any) -> None:
        given.extend(match.source.source for match in node.match_buffers)
        if node.init is None or contains(node.body, s_tir.SBlock):
            return
        begun: list[Any] = []
        walk(node.init, (tirx.BufferStore, lambda store: begun.append(store.buffer)))
        own: list[Any] = []
        walk(node.body, (tvm.ir.TensorLoad, lambda load: own.append(load.source)))
        sums.extend(each for each in own if any(each.same_as(other) for other in begun))

    walk(
        func.body,
        (tvm.ir.TensorLoad, lambda load: loads.append(load.source)),
        (tvm.ir.Call, lambda call: given.extend(call.args)),
        (s_tir.SBlock, block),
    )

    def count(param: Any, found: list[Any]) -> int:
        return sum(param.same_as(each) for each in found)

    return frozenset(
        number
        for number, param in enumerate(func.params)
        if count(param, loads) > count(param, sums) or count(param, given)
    )


def given_workspaces(func: Any) -> tuple[int, ...]:
    """The numbers of the workspace parameters (`GIVEN`)."""
    return tuple(map(int, func.attrs[GIVEN])) if GIVEN in (func.attrs or {}) else ()


def _int64_ranges(func: Any) -> Any:
    """Return the function with all ranges in int64. te starts its axes at an int32 zero, whatever their extent, and
    gives blocks without axes one of int32, which nothing reads."""

    def same(found: Any) -> Any:
        dtype = str(found.extent.ty.dtype)
        if isinstance(found.min, tirx.IntImm) and str(found.min.ty.dtype) != dtype:
            return tvm.ir.Range.from_min_extent(tirx.IntImm(dtype, found.min.value), found.extent)
        return found

    def wide(realize: Any) -> Any:
        block, values = realize.block, list(realize.iter_values)
        if len(values) != 1 or not isinstance(values[0], tirx.IntImm):
            return realize
        (axis,) = block.iter_vars
        one = tvm.ir.Range.from_min_extent(int64(0), int64(1))
        var = tirx.Var(axis.var.name, "int64")
        axes = [tirx.IterVar(one, var, axis.iter_type, axis.thread_tag)]
        made = s_tir.SBlock(
            axes, block.reads, block.writes, block.name_hint, block.body, block.init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip
        return s_tir.SBlockRealize([int64(0)], realize.predicate, made)

    ranged = rewritten(func, (tvm.ir.Range, same))
    return rewritten(ranged, (s_tir.SBlockRealize, wide))


def _without_symbol(func: Any) -> Any:
    return func.without_attr("global_symbol")


@lru_cache(maxsize=4096)
def _read_params(func: Any) -> tuple[tuple[BufferParam | ScalarParam, ...], VarTable]:
    table = VarTable()
    read: list[BufferParam | ScalarParam] = []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            shape = tuple(table.to_dim(size) for size in param.ty.shape)
            read.append(BufferParam(str(param.name), shape, DType(str(param.ty.dtype))))
        elif isinstance(param.ty, tvm.ir.PointerType):
            raise UsageError(
                "tir-script",
                f"the parameter {param.name} is a pointer to an unknown buffer",
                help='declare the buffer: x: T.Buffer((n, 4), "float32"), or T.match_buffer(x, …) in the program',
            )
        else:
            read.append(
                ScalarParam(str(param.name), table.symbol(param), DType(str(param.ty.dtype)))
            )
    return tuple(read), table


def read_symbols(func: Any) -> VarTable:
    """The program's variables and the corresponding `SymVar`s in `PrimFunc.params`."""
    return _read_params(func)[1]
