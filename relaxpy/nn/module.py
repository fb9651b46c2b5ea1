"""Modules: a tree of Python objects with parameters, buffers and `forward`, named by attribute as in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from relaxpy.errors import did_you_mean
from relaxpy.ir import DType, IRModule
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import describe
from relaxpy.nn.export import export_module
from relaxpy.nn.parameter import Buffer, Parameter
from relaxpy.nn.state import LoadedKeys, checked_state, load_state
from relaxpy.nn.tensor import Value


class Module:
    """Base class of layers and models. Assign parameters and modules as attributes, write `forward`, and call the
    module like a function.

    `forward` runs once, during export, on symbolic tensors; the operators applied to them become the program. A module
    is always that of inference: `eval()` does nothing.
    """

    ignored_state: ClassVar[tuple[str, ...]] = ()
    """Names in a `state_dict` of torch's layer that this one does not need."""
    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        is_part = isinstance(value, (Module, Parameter))
        if is_part and hasattr(Module, name) and name not in _SHORTHANDS:
            raise mistake(
                "bad-module",
                f"{name!r} is a method of every module, and cannot be the name of a {type(value).__name__}",
                help="use another name",
            )
        is_array = hasattr(value, "__array__") and not isinstance(value, Value)
        if is_array and isinstance(vars(self).get(name), Parameter):
            raise mistake(
                "bad-weights",
                f"{name} is a parameter, and cannot be replaced by an array",
                help=f"set its value: module.{name}.data = array; or set all at once: module.load_state_dict(state)",
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        advice = _INSTEAD.get(name, "")
        if not advice and not name.startswith("_") and (near := did_you_mean(name, dir(self))):
            advice = f": {near}"
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{advice}")

    def __repr__(self) -> str:
        return describe(self)

    def extra_repr(self) -> str:
        """The options of the module in `repr`, without its parts."""
        return ""

    # Parts

    def direct_parts(self) -> Iterator[tuple[str, Module | Parameter]]:
        """Direct submodules, parameters and buffers, by attribute name."""
        for name, value in vars(self).items():
            if isinstance(value, (Module, Parameter)):
                yield name, value

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules by attribute name, each once."""
        seen: set[int] = set()
        for name, part in self.direct_parts():
            if isinstance(part, Module) and id(part) not in seen:
                seen.add(id(part))
                yield name, part

    def children(self) -> Iterator[Module]:
        """Direct submodules, each once."""
        return (module for _, module in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, each once, by dotted path; this one's path is `prefix`."""
        seen: set[int] = set()
        for path, module in _modules(self, prefix, ()):
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def modules(self) -> Iterator[Module]:
        """This module and all inside it, each once."""
        return (module for _, module in self.named_modules())

    def named_tensors(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter and buffer once, by dotted path, in the order of definition; a shared one under its first
        path, or with `remove_duplicate=False` under all. UsageError (`bad-module`) for two of the same path."""
        seen: set[int] = set()
        paths: dict[str, Parameter] = {}
        for path, tensor in _tensors(self, prefix, (), recurse):
            if paths.setdefault(path, tensor) is not tensor:
                raise mistake(
                    "bad-module",
                    f"two parameters have the path {path!r}",
                    help="names of modules and parameters must not contain dots: a.b is b in a",
                )
            if not (remove_duplicate and id(tensor) in seen):
                seen.add(id(tensor))
                yield path, tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter that is not a buffer; arguments and order as in `named_tensors`."""
        found = self.named_tensors(prefix, recurse, remove_duplicate)
        return ((name, part) for name, part in found if not isinstance(part, Buffer))

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter that is not a buffer, once."""
        return (parameter for _, parameter in self.named_parameters("", recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """Every buffer; arguments and order as in `named_tensors`."""
        found = self.named_tensors(prefix, recurse, remove_duplicate)
        return ((name, part) for name, part in found if isinstance(part, Buffer))

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Every buffer, once."""
        return (buffer for _, buffer in self.named_buffers("", recurse))

    def get_submodule(self, path: str) -> Module:
        """The module at a dotted path; "" is this one. AttributeError if there is none."""
        found: Module = self
        for name in filter(None, path.split(".")):
            inner = dict(found.direct_parts()).get(name)
            if not isinstance(inner, Module):
                raise AttributeError(f"{type(found).__name__} has no module {name!r}")
            found = inner
        return found

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """Make an attribute that is a buffer: from an array, a `Buffer`, or None."""
        if value is not None and not isinstance(value, Buffer):
            value = Buffer(value, persistent=persistent)
        setattr(self, _checked_name(self, name), value)

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Make an attribute that is a parameter, or None."""
        setattr(self, _checked_name(self, name), parameter)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make an attribute that is a module, or None."""
        setattr(self, _checked_name(self, name), module)

    register_module = add_module

    def apply(self, function: Callable[[Module], Any]) -> Self:
        """Call a function with every module, those inside first. Returns itself."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    # Values

    def state_dict(self, prefix: str = "") -> dict[str, np.ndarray]:
        """The values of all parameters and persistent buffers, by path, as in torch; a shared one under each of its
        paths. Nothing is copied. UsageError (`bad-weights`) if some have no values."""
        found = {n: t for n, t in self._all_tensors().items() if getattr(t, "persistent", True)}
        empty = [name for name, tensor in found.items() if tensor.data is None]
        if empty:
            shown = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
            raise mistake(
                "bad-weights",
                f"{len(empty)} parameters have no values: {shown}",
                help="load them first: model.load_state_dict(state)",
            )
        return {f"{prefix}{n}": t.data for n, t in found.items() if t.data is not None}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Load the values of parameters and buffers from arrays by path: those of torch's `state_dict` as they are.

        Shapes and dtypes must match, and nothing is set if one does not: UsageError (`bad-weights`) lists all problems.
        Arrays are not copied. With `strict`, missing and unexpected names are problems, too; otherwise they are
        returned. A buffer with values may be missing.
        """
        state = checked_state(state)
        tensors = self._all_tensors()
        ignored = [
            f"{path}.{name}" if path else name
            for path, module in self.named_modules()
            for name in module.ignored_state
        ]
        optional = {
            n
            for n, t in tensors.items()
            if isinstance(t, Buffer) and n not in state and not (t.persistent and t.data is None)
        }
        needed = {n: t for n, t in tensors.items() if n not in optional}
        return load_state(needed, state, strict, ignored, list(self.hidden_parts()))

    def load(self, state: Mapping[str, Any]) -> None:
        """`load_state_dict` with `strict`."""
        self.load_state_dict(state)

    def _all_tensors(self) -> dict[str, Parameter]:
        return dict(self.named_tensors(remove_duplicate=False))

    def to(self, dtype: Any = None, **options: Any) -> Self:
        """Change the dtype of all floating-point parameters and buffers, and convert their values. Returns itself."""
        given = str(dtype).removeprefix("torch.")
        if options or dtype is None or given.split(":")[0] in _DEVICES:
            raise mistake(
                "bad-spec",
                f"a module has no device: to({given if dtype is not None else options})",
                help="choose the device when building: relaxpy.build(mod, target=…); to(dtype) changes dtypes",
            )
        wanted = DType(given)
        if not wanted.is_float:
            raise mistake("bad-spec", f"to() takes a float dtype, got {wanted}")
        for _, tensor in self.named_tensors():
            if tensor.dtype.is_float:
                tensor.to(wanted)
        return self

    def half(self) -> Self:
        """`to("float16")`."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """`to("bfloat16")`."""
        return self.to("bfloat16")

    def float(self) -> Self:
        """`to("float32")`."""
        return self.to("float32")

    def double(self) -> Self:
        """`to("float64")`."""
        return self.to("float64")

    def eval(self) -> Self:
        """This module: it is always that of inference."""
        return self

    # Export

    def hidden_parts(self) -> Iterator[tuple[str, str]]:
        """Attributes with modules or parameters in a list, tuple, set or dictionary, where they are not registered;
        each with advice."""
        for base, module in _modules(self, "", ()):
            found = {id(part) for _, part in module.direct_parts()}
            for name, value in vars(module).items():
                if any(id(part) not in found for part in _inside(value)):
                    place = ".".join(filter(None, ("self", base, name)))
                    yield place, _advice(place, value)

    def exportable_methods(self) -> list[str]:
        """Names of the methods that can be exported: `forward`, and the class's own methods."""
        kind = type(self)
        own = [n for n in dir(kind) if not n.startswith("_") and not hasattr(Module, n)]
        return sorted(
            (n for n in own if inspect.isroutine(getattr(kind, n))), key=lambda n: n != "forward"
        )

    def export(
        self, spec: Mapping[str, Mapping[str, Any]]
    ) -> tuple[IRModule, dict[str, np.ndarray]]:
        """Export the methods named in `spec` as functions of a module. Returns the module, and the loaded parameters by
        name.

        `spec` describes the arguments of each method: `{"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}`. A
        dimension given by name is symbolic, and the same throughout the method. After the arguments, a function takes
        the parameters that it uses, named by their paths with `_` for `.`; `relaxpy.build(mod, params=params)` binds
        them. A function that updates memory in place is impure: its buffers are not in `params`, its caller keeps them.
        The counterpart of TVM's `Module.export_tvm`.
        """
        return export_module(self, spec)


def _modules(module: Module, path: str, above: tuple[Module, ...]) -> Iterator[tuple[str, Module]]:
    """A module and those inside it by path, a shared one under each of its paths. UsageError for a module inside
    itself."""
    _check_outside(module, path, above)
    yield path, module
    for name, part in module.direct_parts():
        if isinstance(part, Module):
            yield from _modules(part, f"{path}.{name}" if path else name, (*above, module))


def _tensors(
    module: Module, path: str, above: tuple[Module, ...], recurse: bool
) -> Iterator[tuple[str, Parameter]]:
    """The parameters and buffers of a module in the order of definition, shared ones under each of their paths."""
    _check_outside(module, path, above)
    for name, part in module.direct_parts():
        inner = f"{path}.{name}" if path else name
        if isinstance(part, Parameter):
            yield inner, part
        elif recurse:
            yield from _tensors(part, inner, (*above, module), recurse)


def _inside(value: Any, above: tuple[int, ...] = ()) -> Iterator[Module | Parameter]:
    """The modules and parameters in an attribute's value: itself, or those in lists, tuples, sets and dictionaries."""
    if isinstance(value, (Module, Parameter)):
        yield value
    elif isinstance(value, (dict, list, tuple, set, frozenset)) and id(value) not in above:
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _inside(item, (*above, id(value)))


def _advice(place: str, value: Any) -> str:
    """How to register the modules and parameters in the value of an attribute."""
    kind = type(value).__name__
    items: list[Any] = list(value.values() if isinstance(value, dict) else value)
    if all(isinstance(item, Parameter) for item in items):
        return f"a {kind} hides its parameters: {place} = nn.ParameterList({place})"
    if all(isinstance(item, Module) for item in items):
        holder = "ModuleDict" if isinstance(value, dict) else "ModuleList"
        return f"a {kind} hides its modules: {place} = nn.{holder}({place})"
    return f"a {kind} hides its parts: use nn.ModuleList, nn.ModuleDict and nn.ParameterList, also for what is nested"


def _check_outside(module: Module, path: str, above: tuple[Module, ...]) -> None:
    """Raise UsageError (`bad-module`) if a module contains itself."""
    if any(module is each for each in above):
        raise mistake(
            "bad-module",
            f"module {path!r} ({type(module).__name__}) contains itself",
            help="a submodule must not hold its parent; store what it needs of it (sizes, a configuration)",
        )


def _checked_name(module: Module, name: Any) -> str:
    """A name for a part of a module. Raises UsageError (`bad-module`)."""
    if not isinstance(name, str) or not name or "." in name:
        raise mistake("bad-module", f"{name!r} is not a valid name", help="use a name without dots")
    if hasattr(type(module), name):
        raise mistake(
            "bad-module",
            f"{type(module).__name__} already has an attribute {name!r}",
            help="use another name",
        )
    return name


_RUN = ": export the module, mod, params = model.export(spec), and build mod"
_INSTEAD = {
    "forward": ": write def forward(self, x), or export another method by its name",
    "export_tvm": ": write model.export(spec)",
    "jit": _RUN,
    **dict.fromkeys(
        ("train", "training", "zero_grad", "requires_grad_"),
        ": modules compute as in evaluation; relaxpy.train.Step trains a function (docs/gradients.md)",
    ),
    **dict.fromkeys(
        ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
        ": write what it does in `forward`, which may return several values",
    ),
    **dict.fromkeys(("cuda", "cpu", "compile", "backward"), _RUN),
}
"""Methods of torch's and TVM's modules → hint with the equivalent here."""
_SHORTHANDS = frozenset({"half", "bfloat16", "float", "double", "eval"})
"""Methods that an attribute may hide: nothing else uses them."""
_DEVICES = frozenset({"cpu", "cuda", "mps", "meta", "xpu"})
"""Names of torch's devices."""
