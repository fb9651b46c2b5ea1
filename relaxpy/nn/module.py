"""Modules and their parameters: a tree of Python objects, named by attribute as in torch and TVM's `nn`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import DType, Expr, IRModule, TensorType
from relaxpy.ir.array import as_array
from relaxpy.nn.construction import Construction
from relaxpy.nn.export import export_module
from relaxpy.nn.tensor import Value

M = TypeVar("M", bound="Module")


class Parameter(Value):
    """A weight of fixed shape and dtype; `data` is None until it is loaded.

    Raises: UsageError (`bad-spec`) for a dimension that is no integer from 0 up.
    """

    def __init__(self, shape: Sequence[int], dtype: str = "float32") -> None:
        for dim in shape:
            if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 0:
                raise UsageError(
                    "bad-spec",
                    f"{dim!r} in a parameter's shape {tuple(shape)} is not a non-negative integer",
                    help="sizes of parameters must be integers; only those of arguments can be symbolic",
                )
        self._shape = tuple(int(dim) for dim in shape)
        self.dtype = DType(dtype)
        self._data: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._shape

    @property
    def data(self) -> np.ndarray | None:
        """Its values; None until they are loaded."""
        return self._data

    @data.setter
    def data(self, value: np.ndarray) -> None:
        """Set the values. UsageError if shape or dtype differ from the parameter's."""
        value = as_array(value)
        if value.shape != self.shape or value.dtype != self.dtype.numpy:
            turned = len(self.shape) > 1 and value.shape == self.shape[::-1]
            message = f"the parameter is {self.dtype}{list(self.shape)}, the value {value.dtype}{list(value.shape)}"
            help = None
            if turned:
                help = "the value is transposed (torch's Linear has shape (out, in)): pass value.T"
            elif value.shape == self.shape:
                help = f'there are no implicit casts: pass value.astype("{self.dtype}"), or declare "{value.dtype}"'
            raise UsageError("bad-weights", message, help=help)
        self._data = value

    @property
    def annotation(self) -> TensorType:
        """Its annotation as a value of the program."""
        return TensorType(self.shape, self.dtype)

    @property
    def __relax_expr__(self) -> Expr:
        return Construction.current().parameter(self)

    def __repr__(self) -> str:
        return f"Parameter({self.dtype}{list(self.shape)})"


class Module:
    """Base class of layers and models. Assign parameters and modules as attributes, write `forward`, and call the
    module like a function.

    `forward` runs once, during export, on symbolic tensors; the operators applied to them become the program.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    forward: Callable[..., Any]

    def __setattr__(self, name: str, value: Any) -> None:
        is_array = hasattr(value, "__array__") and not isinstance(value, Value)
        if is_array and isinstance(vars(self).get(name), Parameter):
            raise UsageError(
                "bad-weights",
                f"{name} is a parameter, and cannot be replaced by an array",
                help=f"set its value: module.{name}.data = array; or set all at once: module.load(state)",
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        advice = _INSTEAD.get(name, "")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{advice}")

    def children(self) -> Iterator[tuple[str, Module | Parameter]]:
        """Direct submodules and parameters, by attribute name."""
        for name, value in vars(self).items():
            if isinstance(value, (Module, Parameter)):
                yield name, value

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, by dotted path, in the order of definition; a shared one under its first path."""
        seen: set[int] = set()
        for name, parameter in self._walk(prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, part in self.children():
            if isinstance(part, Parameter):
                yield prefix + name, part
            else:
                yield from part._walk(f"{prefix}{name}.")

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Load the values of all parameters, strictly. UsageError lists missing, unexpected and mis-shaped names."""
        if not isinstance(state, Mapping):
            raise UsageError(
                "bad-weights",
                f"weights must be a dict of arrays by name, got {type(state).__name__}",
                help="read the file first: numpy.load(path), or safetensors.numpy.load_file(path)",
            )
        parameters = dict(self.named_parameters())
        problems = [f"missing: {name}" for name in parameters if name not in state]
        problems += [f"unexpected: {name}" for name in state if name not in parameters]
        for name, parameter in parameters.items():
            if name in state:
                try:
                    parameter.data = state[name]
                except UsageError as error:
                    advice = f" ({error.help})" if error.help else ""
                    problems.append(f"{name}: {error.message}{advice}")
        if problems:
            notes = [*problems, *(f"{place}: {advice}" for place, advice in self.hidden())]
            raise UsageError(
                "bad-weights", "the weights do not match the parameters of the module", notes=notes
            )

    def hidden(self, path: str = "self") -> Iterator[tuple[str, str]]:
        """Attributes with modules or parameters in a list, tuple or dictionary, where they are not registered; each
        with advice."""
        found = {id(part) for _, part in self.children()}
        for name, value in vars(self).items():
            inside = list(value.values()) if isinstance(value, dict) else value
            if isinstance(inside, list | tuple) and any(
                isinstance(item, (Module, Parameter)) and id(item) not in found for item in inside
            ):
                place = f"{path}.{name}"
                kind = type(value).__name__
                if all(isinstance(item, Module) for item in inside) and kind != "dict":
                    yield place, f"a {kind} hides its modules: {place} = nn.ModuleList({place})"
                else:
                    yield place, f"a {kind} hides its parts: make each an attribute of its own"
        for name, part in self.children():
            if isinstance(part, Module):
                yield from part.hidden(f"{path}.{name}")

    def methods(self) -> list[str]:
        """Names of the methods that can be exported: `forward`, and the class's own methods."""
        own = [n for n in dir(self) if not n.startswith("_") and n not in dir(Module)]
        names = ["forward"] * hasattr(self, "forward") + own
        found = {name: getattr(self, name) for name in names}
        return [
            n for n, value in found.items() if callable(value) and not isinstance(value, Module)
        ]

    def export(
        self, spec: Mapping[str, Mapping[str, Any]]
    ) -> tuple[IRModule, dict[str, np.ndarray]]:
        """Export the methods named in `spec` as functions of a module. Returns the module, and the loaded parameters by
        name.

        `spec` describes the arguments of each method: `{"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}`. A
        dimension given by name is symbolic, and the same throughout the method. Every function takes the parameters of
        this module after the arguments, named by their paths with `_` for `.`; `relaxpy.build(mod, params=params)`
        binds them. The counterpart of TVM's `Module.export_tvm`.
        """
        return export_module(self, spec)


_RUN = ": export the module, mod, params = model.export(spec), and build mod"
_INSTEAD = {
    "forward": ": write def forward(self, x), or export another method by its name",
    "state_dict": ": use dict(model.named_parameters()); each parameter has .data",
    "parameters": ": write model.named_parameters()",
    "modules": ": write model.children()",
    "load_state_dict": ": write model.load(state), which checks names, shapes and dtypes",
    "export_tvm": ": write model.export(spec)",
    "jit": _RUN,
    "register_buffer": ": assign an nn.Parameter instead",
    **dict.fromkeys(
        ("to", "cuda", "cpu", "half", "bfloat16", "float", "eval", "train", "compile"), _RUN
    ),
}
"""Methods of torch's and TVM's modules → hint with the equivalent here."""


class ModuleList(Module, Generic[M]):
    """A sequence of modules, named by their index."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        self.modules = list(modules) if isinstance(modules, Iterable) else [modules]
        for i, module in enumerate(self.modules):
            if not isinstance(module, Module):
                raise UsageError(
                    "bad-spec",
                    f"a ModuleList contains modules, got {type(module).__name__} at index {i}",
                    help="write nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])",
                )

    def children(self) -> Iterator[tuple[str, Module | Parameter]]:
        return ((str(i), module) for i, module in enumerate(self.modules))

    def __iter__(self) -> Iterator[M]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, index: int) -> M:
        return self.modules[index]

    def forward(self, x: Any) -> Any:
        """Apply the modules one after the other."""
        for module in self.modules:
            x = module(x)
        return x
