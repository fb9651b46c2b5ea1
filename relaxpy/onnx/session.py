"""`InferenceSession`: an ONNX model, built once for all sizes."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from relaxpy.errors import RelaxError, Span, UsageError
from relaxpy.frontend.onnx.element_types import NAMES
from relaxpy.frontend.onnx.model import read_model
from relaxpy.narrow import is_sequence, is_tuple
from relaxpy.onnx import errors
from relaxpy.onnx.options import PROVIDER, RunOptions, SessionOptions, next_seed
from relaxpy.onnx.session_key import KeptSession, key_of
from relaxpy.onnx.values import IOBinding, OrtValue, dtype_named, type_name
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.dtype import to_numpy
from relaxpy.runtime.executable_cache import find_executable, keep_executable

if TYPE_CHECKING:
    from relaxpy.frontend.onnx.importer import Imported

MOST_BUILDS = 16
"""A model whose structure depends on the values of inputs has a build for each; no more are kept."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as the model says."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model, as ONNX Runtime names it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class _Built:
    """A build of the model."""

    order: list[str]
    """The inputs that `main` takes."""
    draws: bool
    """Does it take a seed after them?"""
    place: Span
    """The head of the graph."""
    main: Any


class InferenceSession:
    """A model, called as ONNX Runtime's session is: `session.run(None, {"x": x})`. It may be called from several
    threads at once.

    `path_or_bytes` is a path, the bytes of a file, or an `onnx.ModelProto`. The model is built here, once for all
    sizes; only if its structure depends on the values of inputs (axes, for instance) it is built when they are known.
    A file that was built before is loaded from the cache.
    `target` and further options are those of `relaxpy.build`.

    Raises: NoSuchFile, InvalidGraph, NotImplemented: errors of the reader; and the errors of a build.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Any = None,
        disabled_optimizers: Any = None,
        enable_fallback: int = 0,
        **options: Any,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        _check_options("sess_options", self._options, SessionOptions)
        self._options.check()
        _check_providers(providers)
        del disabled_optimizers, enable_fallback  # they change nothing here
        self._build_options = options
        self._source = path_or_bytes
        self._needed: tuple[str, ...] = ()
        self._defaults: list[NodeArg] = []
        self._builds: dict[Any, _Built] = {}
        self._lock = threading.Lock()
        self.builds = 0
        """How many builds the session has, with one that it found in the cache."""
        self._kept = _kept(path_or_bytes, options)
        if not self._load():
            self._read()
        self._required = frozenset(each.name for each in self._inputs)
        self._checks = {each.name: _Check(each) for each in (*self._inputs, *self._defaults)}

    def _load(self) -> bool:
        """The session as it is kept; False if it is not."""
        found = None if self._kept is None else find_executable(*self._kept)
        if found is None:
            return False
        executable, facts = found[0], KeptSession(**found[1])
        _warn(facts.warnings)
        self._inputs, self._defaults, self._outputs = (
            [NodeArg(**each) for each in infos]
            for infos in (facts.inputs, facts.defaults, facts.outputs)
        )
        self._metadata = ModelMetadata(**facts.metadata)
        main = VirtualMachine(executable)["main"]
        self._builds[()] = _Built(facts.order, facts.draws, Span(facts.file, 1), main)
        self.builds = 1
        return True

    def _read(self) -> None:
        """The session from the model."""
        from relaxpy.frontend.onnx.importer import ConstantNeededError

        try:
            proto, _ = read_model(self._source)
            model = proto.graph
            stored = {each.name for each in model.initializer}
            self._inputs = [_node_arg(each) for each in model.input if each.name not in stored]
            if proto.ir_version >= 4:
                self._defaults = [_node_arg(each) for each in model.input if each.name in stored]
            self._outputs = [_node_arg(each) for each in model.output]
            self._metadata = ModelMetadata(
                proto.producer_name, model.name, proto.domain, proto.doc_string, model.doc_string,
                proto.model_version, {each.key: each.value for each in proto.metadata_props},
            )  # fmt: skip
            program, machine = self._build((), {})
        except ConstantNeededError as error:
            if not error.inputs:
                raise errors.of(error) from None
            self._needed = error.inputs
            return
        except UsageError as error:
            raise errors.of(error) from None
        self._outputs = [
            NodeArg(each.name, type_name(each.dtype), list(each.shape or ()))
            for each in program.outputs
        ]
        if self._kept is not None:
            key, cache = self._kept
            inputs, defaults, outputs = (
                [asdict(each) for each in infos]
                for infos in (self._inputs, self._defaults, self._outputs)
            )
            built = self._builds[()]
            facts = KeptSession(
                inputs, defaults, outputs, asdict(self._metadata), built.order, built.draws, built.place.file,
                list(program.warnings),
            )  # fmt: skip
            keep_executable(key, machine, asdict(facts), cache)

    # What the model says

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Weights that a call may give another value; there is a build for each value."""
        return list(self._defaults)

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def get_session_options(self) -> SessionOptions:
        return self._options

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Any = None
    ) -> None:
        _check_providers(providers)

    # Calls

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """The outputs of these names (None: all) for inputs by name, as arrays of numpy.

        Raises: InvalidArgument for inputs that are missing, unknown, or of another dtype or shape than the model says.
        """
        if run_options is not None:
            _check_options("run_options", run_options, RunOptions)
        if run_options is not None and run_options.terminate:
            raise errors.Fail("onnx-session", "terminate is set in the options of this run")
        if isinstance(output_names, str):
            raise errors.InvalidArgument(
                "onnx-session",
                f"names of outputs are a list, and not the text {output_names!r}",
                help=f"pass [{output_names!r}]",
            )
        given = self._given(input_feed)
        built = self._built(given)
        arguments: list[Any] = [given[name] for name in built.order]
        if built.draws:
            arguments.append(np.int64(next_seed()))
        try:
            found = built.main(*arguments)
        except RelaxError as error:
            raise error.located(built.place) from None
        results = list(found) if is_sequence(found) else [found]
        arrays = [np.asarray(each.numpy()) for each in results]
        if not output_names:
            return arrays
        names = [each.name for each in self._outputs]
        for name in output_names:
            if name not in names:
                raise errors.InvalidArgument(
                    "onnx-session",
                    f"the model has no output {name!r}",
                    help=f"its outputs are {', '.join(names)}",
                )
        return [arrays[names.index(name)] for name in output_names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        iobinding.run(run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with values in place of arrays."""
        found = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(each) for each in found]

    def enable_fallback(self) -> None:
        """There is one provider: nothing falls back."""

    def disable_fallback(self) -> None:
        """There is one provider: nothing falls back."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a session belongs to this process, so it can be neither pickled nor copied: open the model's file there, "
            "which was built already"
        )

    def __getattr__(self, name: str) -> Any:
        raise errors.Unsupported(f"InferenceSession.{name}")

    def _given(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The inputs as arrays that the model takes."""
        if not hasattr(feed, "keys"):
            raise _wrong(
                f"inputs are arrays by name, {{name: array}}, and not a {type(feed).__name__}",
                help=f"its inputs are {', '.join(self._checks)}",
            )
        if not (self._required <= feed.keys() <= self._checks.keys()):
            raise self._other_inputs(feed)
        sizes: dict[str, tuple[int, int, str]] = {}
        return {
            name: check(feed[name], sizes) for name, check in self._checks.items() if name in feed
        }

    def _other_inputs(self, feed: Mapping[str, Any]) -> errors.InvalidArgument:
        """The error for inputs that the model does not have, or that are missing."""
        unknown = [name for name in feed if name not in self._checks]
        missing = [each.name for each in self._inputs if each.name not in feed]
        what = (
            f"no input {unknown[0]!r}" if unknown else f"the input {missing[0]!r}, which is missing"
        )
        return errors.InvalidArgument(
            "onnx-session",
            f"the model has {what}",
            help=f"its inputs are {', '.join(self._checks)}",
        )

    def _built(self, given: Mapping[str, np.ndarray]) -> _Built:
        """The build for these inputs: the only one, unless the structure depends on their values."""
        if not self._needed and not self._defaults:
            return self._builds[()]
        from relaxpy.frontend.onnx.importer import ConstantNeededError

        while True:
            others = [each.name for each in self._defaults if each.name in given]
            needed = (*self._needed, *others)
            key = tuple((name, given[name].shape, given[name].tobytes()) for name in needed)
            with self._lock:
                if key in self._builds:
                    return self._builds[key]
                try:
                    self._build(key, {name: given[name] for name in needed})
                    return self._builds[key]
                except ConstantNeededError as error:
                    if not set(error.inputs) - set(needed):
                        raise
                    self._needed = (*self._needed, *error.inputs)

    def _build(
        self, key: Any, constants: Mapping[str, np.ndarray]
    ) -> tuple[Imported, VirtualMachine]:
        """Build the model with these inputs as constants."""
        from relaxpy.analysis.called_operators import calls_operator
        from relaxpy.build import build
        from relaxpy.frontend.onnx.importer import import_model
        from relaxpy.op.quantization import Dequantize
        from relaxpy.transform import Realize

        program = import_model(self._source, constants=constants)
        _warn(program.warnings)
        try:
            mod, functions = program.mod, program.mod.graph_functions.values()
            if any(calls_operator(each, Dequantize) for each in functions):
                mod = Realize()(mod)  # products of pairs are of integers
            executable = build(mod, params=program.params, **self._build_options)
        except RelaxError as error:
            raise error.located(program.place) from None
        order = [each.name for each in program.inputs]
        machine = VirtualMachine(executable)
        while len(self._builds) >= MOST_BUILDS:
            self._builds.pop(next(iter(self._builds)))
        self._builds[key] = _Built(order, program.draws, program.place, machine["main"])
        self.builds += 1
        return program, machine


class _Check:
    """Refuses values of an input that the model does not take."""

    def __init__(self, info: NodeArg) -> None:
        self.info = info
        self.dtype = to_numpy(dtype_named(info.type))

    def __call__(self, value: Any, sizes: dict[str, tuple[int, int, str]]) -> np.ndarray:
        """The value as an array. `sizes` are those of the inputs before, by name: equal names are equal sizes."""
        name, shape = self.info.name, self.info.shape
        if hasattr(value, "numpy"):
            array = self._of_tensor(value)
        elif hasattr(value, "dtype"):
            array = np.asarray(value)
        else:
            array = self._of_numbers(value)
        if array.dtype != self.dtype:
            swapped = not array.dtype.isnative
            raise _wrong(
                f"the input {name!r} is {type_name(array.dtype)}, and the model takes {self.info.type}",
                help='its bytes are in another order: x.astype(x.dtype.newbyteorder("="))'
                if swapped
                else None,
            )
        if array.ndim != len(shape):
            raise _wrong(
                f"the input {name!r} has {array.ndim} dimensions, and the model takes {len(shape)}: {shape}"
            )
        for axis, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)):
            if isinstance(wanted, int) and size != wanted:
                raise _wrong(f"axis {axis} of {name!r} is {size}, and the model takes {wanted}")
            if isinstance(wanted, str) and wanted != "?":
                other, *where = sizes.setdefault(wanted, (size, axis, name))
                if other != size:
                    first = "axis {} of {!r}".format(*where)
                    raise _wrong(
                        f"axis {axis} of {name!r} is {size}, and {first} is {other}: both are {wanted!r}"
                    )
        return array

    def _of_tensor(self, value: Any) -> np.ndarray:
        """A tensor of another library as an array."""
        try:
            return np.asarray(value.numpy())
        except RelaxError:
            raise
        except Exception as error:  # each library has its own
            raise _wrong(
                f"the input {self.info.name!r} is a {type(value).__name__} that makes no array: {error}"
            ) from None

    def _of_numbers(self, value: Any) -> np.ndarray:
        """Numbers in lists as an array of the input's dtype."""
        try:
            found = np.asarray(value)
            if found.dtype.kind in "biuf":
                return np.array(value, self.dtype)
        except (ValueError, TypeError, OverflowError):
            pass
        raise _wrong(
            f"the input {self.info.name!r} is a {type(value).__name__} that makes no {self.info.type}"
        )


def _wrong(message: str, help: str | None = None) -> errors.InvalidArgument:
    return errors.InvalidArgument("onnx-session", message, help=help)


def _check_options(name: str, given: Any, kind: type[Any]) -> None:
    """Refuse options of another kind, ONNX Runtime's own among them."""
    if not isinstance(given, kind):
        came = f"{type(given).__module__}.{type(given).__qualname__}"
        raise _wrong(
            f"{name} must be a {kind.__name__}, and is a {came.removeprefix('builtins.')}",
            help=f"make one: relaxpy.onnx.{kind.__name__}()",
        )


def _node_arg(info: Any) -> NodeArg:
    """An input or output as the model says."""
    from relaxpy.frontend.onnx.importer import declared

    tensor = info.type.tensor_type
    shape = declared(tensor)
    return NodeArg(
        info.name, type_name(NAMES.get(tensor.elem_type, "undefined")), list(shape or ())
    )


def _kept(source: Any, options: Mapping[str, Any]) -> tuple[str, Path | None] | None:
    """The key of a session, and the cache in place of the user's; None where it is not kept."""
    own = dict(options)
    cache = own.pop("cache", True)
    if isinstance(source, (str, os.PathLike)):
        try:
            source = Path(cast("str", source)).read_bytes()
        except (OSError, ValueError):
            return None  # the reader says why
    if cache is False or not isinstance(source, bytes):
        return None
    key = key_of(source, own)
    return None if key is None else (key, None if cache is True else Path(cache))


def _warn(texts: Sequence[str]) -> None:
    for each in texts:
        warnings.warn(each, stacklevel=5)


def _check_providers(providers: Sequence[Any] | None) -> None:
    """Say of other providers that there are none, as ONNX Runtime does where they are not installed."""
    for each in (providers,) if isinstance(providers, str) else providers or ():
        name = each[0] if is_tuple(each) else each
        if name != PROVIDER:
            warnings.warn(
                f"the provider {name!r} is not available: the model runs by {PROVIDER}",
                UserWarning,
                stacklevel=3,
            )
