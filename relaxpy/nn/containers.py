"""Modules that hold others: in order, by number, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from relaxpy.nn.construction import mistake
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter

M = TypeVar("M", bound=Module)


class Sequential(Module):
    """Modules that run one after the other: `Sequential(a, b)`, or by name, `Sequential({"up": a, "down": b})`."""

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            given = list(modules[0].items())
        else:
            given = list(enumerate(modules))
        found: dict[str, Module] = vars(self).setdefault("_modules", {})
        found.update(
            {
                _name(str(key) if isinstance(key, int) else key, self): _module(m, self, key)
                for key, m in given
            }
        )
        self._modules = found

    def direct_parts(self) -> Iterator[tuple[str, Module | Parameter]]:
        yield from super().direct_parts()
        yield from self._modules.items()

    def append(self, module: Module) -> Sequential:
        """Add a module at the end. Returns itself."""
        count = len(self._modules)
        name = str(count)
        if name in self._modules:
            raise mistake(
                "bad-module",
                f"the Sequential already has a module {name!r}",
                help="name the module: model.add_module(name, module)",
            )
        self._modules[name] = _module(module, self, count)
        return self

    def extend(self, modules: Iterable[Module]) -> Sequential:
        """Add modules at the end. Returns itself."""
        for module in modules:
            self.append(module)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """A module becomes the last one, or replaces the one with this name."""
        super().__setattr__(name, value)
        if isinstance(value, Module):
            own = vars(self)
            own.setdefault("_modules", {})[name] = own.pop(name)

    def __setitem__(self, index: int, module: Module) -> None:
        self._modules[list(self._modules)[index]] = _module(module, self, index)

    def __delitem__(self, index: int | slice) -> None:
        """Remove modules; the others are numbered anew, as in torch."""
        kept = list(self)
        del kept[index]
        self._modules = {str(i): module for i, module in enumerate(kept)}

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Sequential(dict(list(self._modules.items())[index]))
        return list(self)[index]

    def __getattr__(self, name: str) -> Any:
        found = vars(self).get("_modules", {}).get(name)
        return found if found is not None else super().__getattr__(name)

    def forward(self, x: Any) -> Any:
        """Apply the modules one after the other; a tuple is what the next one gets as it is."""
        for module in self:
            x = module(x)
        return x


class ModuleList(Module, Generic[M]):
    """A sequence of modules, named by their index."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        self._list: list[M] = []
        given = modules if isinstance(modules, Iterable) else [modules]
        self.extend(given)

    def direct_parts(self) -> Iterator[tuple[str, Module | Parameter]]:
        yield from super().direct_parts()
        yield from ((str(i), module) for i, module in enumerate(self._list))

    def append(self, module: M) -> ModuleList[M]:
        """Add a module at the end. Returns itself."""
        self._list.append(_module(module, self, len(self._list)))
        return self

    def extend(self, modules: Iterable[M]) -> ModuleList[M]:
        """Add modules at the end. Returns itself."""
        for module in modules:
            self.append(module)
        return self

    def __iadd__(self, modules: Iterable[M]) -> ModuleList[M]:
        return self.extend(modules)

    def pop(self, index: int = -1) -> M:
        """Remove and return the module at `index`."""
        return self._list.pop(index)

    def insert(self, index: int, module: M) -> None:
        """Insert a module before the one at `index`."""
        self._list.insert(index, _module(module, self, index))

    def __setitem__(self, index: int, module: M) -> None:
        self._list[index] = _module(module, self, index)

    def __delitem__(self, index: int) -> None:
        del self._list[index]

    def __iter__(self) -> Iterator[M]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int | slice) -> Any:
        return ModuleList(self._list[index]) if isinstance(index, slice) else self._list[index]

    def forward(self, x: Any) -> Any:
        """Apply the modules one after the other."""
        for module in self._list:
            x = module(x)
        return x


class ModuleDict(Module, Generic[M]):
    """Modules by name, in the order of insertion."""

    def __init__(self, modules: Mapping[str, M] | Iterable[tuple[str, M]] = ()) -> None:
        self._dict: dict[str, M] = {}
        self.update(modules)

    def direct_parts(self) -> Iterator[tuple[str, Module | Parameter]]:
        yield from super().direct_parts()
        yield from self._dict.items()

    def update(self, modules: Mapping[str, M] | Iterable[tuple[str, M]]) -> None:
        """Add or replace modules."""
        for name, module in dict(modules).items():
            self[name] = module

    def __setitem__(self, name: str, module: M) -> None:
        self._dict[_name(name, self)] = _module(module, self, name)

    def __delitem__(self, name: str) -> None:
        del self._dict[name]

    def __getitem__(self, name: str) -> M:
        if name not in self._dict:
            raise mistake(
                "bad-module",
                f"the ModuleDict has no module {name!r}",
                help=f"it has {', '.join(self._dict) or 'none'}",
            )
        return self._dict[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __contains__(self, name: object) -> bool:
        return name in self._dict

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._dict.keys()

    def values(self) -> Iterable[M]:
        """The modules."""
        return self._dict.values()

    def items(self) -> Iterable[tuple[str, M]]:
        """The names with the modules."""
        return self._dict.items()


class ParameterList(Module):
    """A sequence of parameters, named by their index."""

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        self._list: list[Parameter] = []
        for parameter in parameters:
            self.append(parameter)

    def direct_parts(self) -> Iterator[tuple[str, Module | Parameter]]:
        yield from super().direct_parts()
        yield from ((str(i), parameter) for i, parameter in enumerate(self._list))

    def append(self, parameter: Parameter) -> ParameterList:
        """Add a parameter at the end. Returns itself."""
        if not isinstance(parameter, Parameter):
            raise mistake(
                "bad-spec",
                f"a ParameterList contains parameters, got {type(parameter).__name__} at index {len(self._list)}",
                help="write nn.ParameterList([nn.Parameter((4,)), …])",
            )
        self._list.append(parameter)
        return self

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Parameter:
        return self._list[index]


def _module(value: Any, holder: Module, key: int | str) -> Any:
    """`value`, which must be a module. Raises UsageError (`bad-spec`)."""
    if isinstance(value, Module):
        return value
    kind = type(holder).__name__
    at = f"index {key}" if isinstance(key, int) else repr(key)
    example = {
        "ModuleDict": 'nn.ModuleDict({"up": nn.Linear(4, 4)})',
        "Sequential": "nn.Sequential(nn.Linear(4, 4), nn.ReLU())",
    }.get(kind, "nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])")
    given, package = type(value).__name__, type(value).__module__.partition(".")[0]
    help = f"write {example}"
    if kind == "Sequential" and isinstance(value, (list, tuple)):
        help = "unpack them: nn.Sequential(*layers)"
    if package == "torch":
        given = f"torch.nn.{given}"
        help = "layers are relaxpy's here; a whole model is imported: relaxpy.from_torch(model, args=(x,))"
    raise mistake("bad-spec", f"a {kind} contains modules, got {given} at {at}", help=help)


def _name(name: Any, holder: Module) -> str:
    """The name of a module in a container. Raises UsageError (`bad-module`)."""
    if not isinstance(name, str) or not name or "." in name:
        raise mistake(
            "bad-module",
            f"{name!r} is not a valid name in a {type(holder).__name__}",
            help="use a string without dots",
        )
    return name
