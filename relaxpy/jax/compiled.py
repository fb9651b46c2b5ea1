"""`relaxpy.jax.compile`: a function of JAX, built once for all sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.frontend.signature import Signature, arranged, check_constant
from relaxpy.jax.trees import read_tree, write_tree
from relaxpy.runtime import Executable, VirtualMachine, companion

_SECTION, _WHAT = "jax", "a compiled function of JAX"


class CompiledFunction:
    """A compiled function: called as the function is, with arrays of JAX or numpy, which are not copied if they are
    contiguous. Results are arrays of JAX, or of numpy if all arguments are.

    Sizes that the program was not traced for are refused (`check`), never computed wrongly.
    """

    def __init__(
        self,
        executable: Executable,
        signature: Signature,
        arguments: Any,
        results: Any,
        devices: Mapping[Any, Any] | None = None,
    ) -> None:
        """`arguments` and `results` are JAX's trees of them."""
        self.executable = executable
        self.signature = signature
        self.vm = (
            VirtualMachine(executable, devices=devices) if devices else VirtualMachine(executable)
        )
        self._arguments, self._results = arguments, results
        self._main = self.vm["main"]
        self._values = sum(output.index >= 0 for output in signature.outputs)

    def __repr__(self) -> str:
        return f"<compiled function: main{self.executable.signature('main').removeprefix('main')}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results.

        Raises: UsageError (`arguments`) for arguments of another structure than the example's; RuntimeCheckError
        (`check`) for sizes and dtypes that the program was not traced for.
        """
        import jax

        leaves = self._leaves(args, kwargs)
        given: list[Any] = []
        as_jax = not leaves
        for leaf, wanted in zip(leaves, self.signature.inputs, strict=True):
            as_jax = as_jax or isinstance(leaf, jax.Array)
            if wanted.kind == "constant":
                check_constant(leaf, wanted)
            elif wanted.kind == "key":
                given.append(jax.random.key_data(leaf))
            else:
                given.append(_as_jax_takes(leaf))
        found = self._main(*given)
        values = [found] if self._values == 1 else found
        results: list[Any] = []
        for output in self.signature.outputs:
            if output.kind == "constant":
                results.append(output.value)
            elif output.kind == "key":
                words = jax.numpy.asarray(values[output.index].numpy())
                results.append(jax.random.wrap_key_data(words, impl="threefry2x32"))
            else:
                value = values[output.index]
                results.append(jax.numpy.from_dlpack(value) if as_jax else value.numpy())
        return jax.tree_util.tree_unflatten(self._results, results)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments, in the structure of the example."""
        import jax

        leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
        if tree == self._arguments:
            return leaves
        positional, named = self._arguments.children()
        keys = named.node_data()[1]
        args, kwargs = arranged(
            args, kwargs, self.signature.names, len(positional.children()), keys
        )
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._arguments:
            raise UsageError(
                "arguments",
                f"the arguments are {_shown(tree)}, and the program was traced with {_shown(self._arguments)}",
                help="call it with arguments of the structure of the example, or import it again with these",
            )
        return leaves

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable, and the structure of arguments and results, to one file, which `relaxpy.jax.load`
        reads, and `relaxpy.load` as an executable.

        Raises: ExecutableError (`file-write`); UsageError (`jax-tree`) for classes that are no plain data.
        """
        signature = replace(
            self.signature,
            arguments=write_tree(self._arguments),
            results=write_tree(self._results),
        )
        data = {"signature": signature.to_json()}
        companion.save(path, self.executable, _SECTION, data, {}, _WHAT)


def compile(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    sizes: Any = "auto",
    constraints: Sequence[str] = (),
    devices: Mapping[Any, Any] | None = None,
    **options: Any,
) -> CompiledFunction:
    """Compile a function of JAX once for all sizes.

    `args` and `kwargs` are an example call; arrays that the function holds are its weights. `sizes` says which sizes
    may vary: for each argument a text such as "b, t, 16", or "auto": equal sizes above 1 in the example are one size,
    and those vary that JAX can trace so; None: none. `constraints` are what is known of them ("b >= 8",
    "mod(b, 8) == 0"). `options` are those of `relaxpy.build`: `target`, `bounds`, `cache` and others.

    Raises: UsageError (`jax-trace`, `jax-operator`, `jax-dtype`), and the errors of a build.
    """
    from relaxpy.build import build
    from relaxpy.frontend.jax import import_function
    from relaxpy.frontend.jax.auto import specs_of

    specs, named = specs_of(function, args, dict(kwargs or {}), sizes, constraints)
    found = import_function(function, specs, named)
    executable = build(found.mod, params=found.params, **options)
    signature = Signature(found.inputs, found.outputs, "", "", found.names)
    return CompiledFunction(executable, signature, found.arguments, found.results, devices)


def load(path: str | os.PathLike[str], devices: Any = None) -> CompiledFunction:
    """The compiled function that `CompiledFunction.save` wrote. Weights are mapped into memory, not read; nothing in
    the file is executed but its kernels.

    Raises: ExecutableError as `relaxpy.load` does, and (`file-format`) for an executable that is no compiled function;
    UsageError (`jax-tree`) for a class of arguments or results that nobody has imported.
    """
    executable, data, _ = companion.load(path, _SECTION, _WHAT)
    signature = Signature.from_json(data["signature"])
    trees = read_tree(signature.arguments), read_tree(signature.results)
    return CompiledFunction(executable, signature, *trees, devices)


def _as_jax_takes(value: Any) -> Any:
    """An argument as JAX takes it: numbers, and arrays of numpy, of 64 bits are of 32, unless JAX has 64."""
    from relaxpy.frontend.jax.arrays import array_of

    if not isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return value
    return array_of(value)


def _shown(tree: Any) -> str:
    """A structure without JAX's own word for it."""
    return str(tree).removeprefix("PyTreeDef(").removesuffix(")")
