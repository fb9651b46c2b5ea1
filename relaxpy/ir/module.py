"""The module: a mapping from names to functions of all levels (paper §3.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from relaxpy import services
from relaxpy.errors import Span, UsageError, did_you_mean
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.data import TABLE as TYPES
from relaxpy.ir.data import TypeDecl
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import ExternFunc, Function, no_attrs
from relaxpy.ir.vdevice import TABLE, VDevice


@dataclass(frozen=True, slots=True)
class BufferParam:
    """A tensor parameter of a tensor program."""

    name: str
    shape: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar parameter of a tensor program; an integer is a symbolic variable."""

    name: str
    var: SymVar
    dtype: DType


INLINE = "inline"
"""Attribute of a private function: whether its calls are replaced by its body, whatever its length."""
CHECK_INDICES = "relaxpy.check_indices"
"""Attribute of a tensor program whose indices are checked at run time: its original name."""


APART = "relaxpy.apart"
"""Annotation of a block of a tensor program: no two positions of its spatial axes write one element. It is for indices
that are read from memory and were checked before, where nothing can be proved; if it is wrong, either is written."""


class TensorProgram(ABC):
    """A loop-level function (`T.prim_func`), as seen by the layers above. Immutable. `relaxpy.tir.PrimFunc` is the one
    implementation, and alone knows TVM's objects."""

    __slots__ = ()
    span: Span | None

    @property
    @abstractmethod
    def params(self) -> tuple[BufferParam | ScalarParam, ...]:
        """The parameters in order. Programs use destination-passing style: outputs are the last buffers."""

    @property
    @abstractmethod
    def opaque(self) -> bool:
        """Whether parameters are raw addresses (`T.handle`). Such a program has no `params`: it is parsed and printed,
        but not compiled."""

    @property
    @abstractmethod
    def attrs(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def script(self, name: str = "main") -> str:
        """TVMScript: a `@T.prim_func` definition with this name that parses back."""

    @abstractmethod
    def full_text(self) -> str:
        """The complete text, without names and places in the source: programs with equal text are equal."""

    @abstractmethod
    def structural_equal(self, other: TensorProgram) -> bool: ...

    @abstractmethod
    def structural_hash(self) -> int: ...

    @property
    @abstractmethod
    def work(self) -> Dim | None:
        """Approximate number of scalar operations of a run, in terms of the variables of `params`; None if unknown."""

    @property
    @abstractmethod
    def flops(self) -> Dim | None:
        """Floating-point operations of a run, in terms of the variables of `params`; None if unknown."""

    @property
    @abstractmethod
    def bytes_moved(self) -> Dim | None:
        """Bytes of `params` that a run must read or write, each once; None if unknown."""

    @property
    @abstractmethod
    def written(self) -> frozenset[int]:
        """Positions in `params` of the buffers that a run writes."""

    @property
    @abstractmethod
    def unset(self) -> frozenset[int]:
        """Positions in `params` of the buffers that a run is not proved to write wholly, and before it reads them."""

    @property
    @abstractmethod
    def read_first(self) -> frozenset[int]:
        """Positions in `params` of written buffers of which a run certainly reads an element before it writes any."""


BaseFunc: TypeAlias = Function | TensorProgram | ExternFunc
"""A function of a module, of any level."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class IRModule:
    """Functions by global name, in the order of definition, and the module's attributes. Immutable: the `with_…`
    methods return a new module."""

    functions: Mapping[str, BaseFunc] = field(default_factory=dict[str, BaseFunc])
    attrs: Mapping[str, Any] = field(default_factory=no_attrs)
    global_infos: Mapping[str, tuple[Any, ...]] = field(default_factory=no_attrs)
    name: str = field(default="Module")
    """Name of the class in printed script."""
    span: Span | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", MappingProxyType(dict(self.functions)))

    @property
    def vdevices(self) -> tuple[VDevice, ...]:
        """The virtual devices that the module lists."""
        return tuple(v for v in self.global_infos.get(TABLE, ()) if isinstance(v, VDevice))

    @property
    def data_types(self) -> tuple[TypeDecl, ...]:
        """The data types that the module declares."""
        return self.global_infos.get(TYPES, ())

    @property
    def types(self) -> Any:
        """Its data types, to make values of: `mod.types.List.Cons(x, tail)`."""
        return services.types_of_module(self)

    def __getitem__(self, name: str) -> BaseFunc:
        """The function with this name. Raises UsageError if there is none."""
        try:
            return self.functions[name]
        except KeyError:
            known = ", ".join(self.functions) or "no functions"
            raise UsageError(
                "unknown-function",
                f"the module has no function {name!r}",
                help=did_you_mean(name, self.functions) or f"it has {known}",
            ) from None

    def __getattr__(self, name: str) -> Any:
        """`Module.main` as a callable. It is compiled for this machine at the first call, and cached."""
        if name.startswith("__") or name in IRModule.__slots__:
            raise AttributeError(name)
        function = self.functions.get(name)
        if isinstance(function, Function):
            return services.function_of_module(self, name)
        message = f"a module has no attribute {name!r}"
        near = did_you_mean(name, [*self.graph_functions, *_METHODS])
        if function is not None:
            message = f"{name} is not a graph function: run a graph function that calls it with R.call_tir"
        elif name in _INSTEAD:
            message += f": {_INSTEAD[name]}"
        elif near:
            message += f": {near}"
        raise AttributeError(message)

    def __setitem__(self, name: str, function: object) -> NoReturn:
        raise UsageError(
            "arguments",
            "a module is immutable",
            help=f"mod = mod.with_function({name!r}, function)",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call its only public function, or `main`: `Module(x)`. It is compiled at the first call, and cached."""
        return services.call_module(self, args, kwargs)

    def graph_function(self, name: str) -> Function:
        """The graph function with this name. Raises UsageError if there is none."""
        function = self.functions.get(name)
        if not isinstance(function, Function):
            raise UsageError(
                "unknown-function",
                f"the module has no graph function {name!r}",
                help=f"it has {', '.join(self.graph_functions) or 'none'}",
            )
        return function

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def graph_functions(self) -> dict[str, Function]:
        """The functions of the graph level."""
        return {name: f for name, f in self.functions.items() if isinstance(f, Function)}

    @property
    def prim_funcs(self) -> dict[str, TensorProgram]:
        """The tensor programs."""
        return {name: f for name, f in self.functions.items() if isinstance(f, TensorProgram)}

    def with_functions(self, functions: Mapping[str, BaseFunc]) -> IRModule:
        """A module with exactly these functions; self if they are the same objects in the same order."""
        if list(functions.items()) == list(self.functions.items()):
            return self
        return replace(self, functions=functions)

    def with_function(self, name: str, function: BaseFunc) -> IRModule:
        """A module with one function added or replaced."""
        return self.with_functions({**self.functions, name: function})

    def map_graph_functions(self, change: Callable[[str, Function], Function]) -> IRModule:
        """A module with every graph-level function replaced by `change(name, function)`."""
        return self.with_functions(
            {n: change(n, f) if isinstance(f, Function) else f for n, f in self.functions.items()}
        )

    def fresh_name(self, hint: str) -> str:
        """`hint`, or the first of `hint1`, `hint2`, … that is free."""
        name, count = hint, 0
        while name in self.functions:
            count += 1
            name = f"{hint}{count}"
        return name

    def annotation_of(self, name: str) -> Annotation | None:
        """The type of a graph-level function; None for a tensor program or external function."""
        function = self.functions.get(name)
        return function.annotation if isinstance(function, Function) else None

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (dict(self.functions), dict(self.attrs), dict(self.global_infos), self.name)
        return IRModule, (*parts, self.span)

    def __repr__(self) -> str:
        """The names of its functions; `print(mod)` prints its script."""
        return f"<relaxpy IRModule {self.name}: {', '.join(self.functions) or 'no functions'}>"

    def __str__(self) -> str:
        """The script; large constants are abbreviated to a few values."""
        return services.print_module(self, abbreviated=True)

    def script(self, constants: str | PathLike[str] | None = None) -> str:
        """TVMScript that parses back to an equal module. The data of large constants follows the program, or is written
        to the `.npz` file `constants`; a script saved in the same folder finds it there."""
        return services.print_module(self, constants)

    def _repr_html_(self) -> str:
        """The notebook display: highlighted script, with large constants abbreviated to a few values."""
        return services.html(services.print_module(self, abbreviated=True))

    def show(self) -> None:
        """Print the script, highlighted if stdout is a terminal; large constants are abbreviated to a few values."""
        services.show(services.print_module(self, abbreviated=True))


_INSTEAD = {
    "astext": "use mod.script()",
    "get_global_var": "use mod.functions, a mapping by name",
    "get_global_vars": "use mod.functions, a mapping by name",
    "update": "a module is immutable: mod.with_functions({…}) returns another",
    "update_func": "a module is immutable: mod.with_function(name, function) returns another",
}
"""Methods of TVM's modules → hint with the equivalent here."""
_METHODS = tuple(name for name in vars(IRModule) if not name.startswith("_"))
