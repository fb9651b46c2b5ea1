"""A call in torch's terms: nested arguments to the parameters of `main`, and its results back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.frontend.signature import Output, Signature, arranged, check_constant
from relaxpy.frontend.torch.trees import read_tree


class Calls:
    """Converts arguments and results as a signature says."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.arguments = [i for i in signature.inputs if i.kind not in ("buffer", "seed")]
        self.draws = any(i.kind == "seed" for i in signature.inputs)
        """Whether `main` takes a seed after the arguments."""
        self.returned = [o for o in signature.outputs if o.kind != "update"]
        self.updates = [o for o in signature.outputs if o.kind == "update"]
        self.values = sum(o.index >= 0 for o in signature.outputs)
        self.plain = all(i.kind == "tensor" for i in self.arguments)
        """Whether every leaf of the arguments is a tensor."""

    @cached_property
    def expected(self) -> Any:
        """The structure of `(args, kwargs)`."""
        return read_tree(self.signature.arguments)

    @cached_property
    def flat(self) -> bool:
        """Are the arguments some tensors by position?"""
        positional, named = self.expected.children()
        return (
            self.plain and not named.num_leaves and all(c.is_leaf() for c in positional.children())
        )

    @cached_property
    def single(self) -> bool:
        """Is the result one tensor or number, in nothing?"""
        return self.results.is_leaf() and self.returned[0].kind in ("tensor", "number")

    @cached_property
    def results(self) -> Any:
        return read_tree(self.signature.results)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments, in the order of the parameters. UsageError (`arguments`) for another
        structure, or another constant."""
        import torch
        from torch.utils import _pytree as pytree

        fits = self.flat and not kwargs and len(args) == len(self.arguments)
        if fits and all(isinstance(arg, torch.Tensor) for arg in args):
            # Calls of small models pass here: trees take longer than their kernels.
            return [*args, new_seed()] if self.draws else list(args)
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if structure != self.expected:
            args, kwargs = self._as_traced(args, kwargs)
            leaves, structure = pytree.tree_flatten((args, kwargs))
            if structure != self.expected:
                raise UsageError(
                    "arguments",
                    f"the arguments are {_shown(structure)}, and the program was traced with {_shown(self.expected)}",
                    help="call it with arguments of the structure of the example, or import it again with these",
                )
        for given, wanted in zip(leaves, self.arguments, strict=True):
            if wanted.kind == "constant":
                check_constant(given, wanted)
        found = [
            g for g, wanted in zip(leaves, self.arguments, strict=True) if wanted.kind != "constant"
        ]
        return [*found, new_seed()] if self.draws else found

    def _as_traced(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position and by name as in the example, in its order."""
        positional, named = (spec for spec in self.expected.children())
        keys = list(named.context or ())
        return arranged(args, kwargs, self.signature.names, positional.num_children, keys)

    def unflatten(self, found: Sequence[Any]) -> Any:
        """The nested results of a call, of the results of `main`."""
        if self.single:
            return found[self.returned[0].index]
        from torch.utils import _pytree as pytree

        leaves = [_leaf(each, found) for each in self.returned]
        return pytree.tree_unflatten(leaves, self.results)


def _leaf(output: Output, found: Sequence[Any]) -> Any:
    """A leaf of the results."""
    match output.kind:
        case "constant":
            return output.value
        case "float":
            return found[output.index].item()
        case "bool":
            return bool(found[output.index])
        case _:
            return found[output.index]


def new_seed() -> Any:
    """A seed by torch's own generator, which `torch.manual_seed` sets."""
    import torch

    return torch.randint(0, 2**62, (), dtype=torch.int64)


def _shown(spec: Any) -> str:
    """A structure in Python's terms."""
    if spec.is_leaf():
        return "*"
    name = getattr(spec.type, "__name__", str(spec.type))
    parts = [_shown(child) for child in spec.children()]
    if name == "tuple":
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if name == "list":
        return f"[{', '.join(parts)}]"
    keys = spec.context if isinstance(spec.context, list) else []
    if len(keys) == len(parts) and name == "dict":
        return "{" + ", ".join(f"{k!r}: {p}" for k, p in zip(keys, parts, strict=True)) + "}"
    return f"{name}({', '.join(parts)})"
