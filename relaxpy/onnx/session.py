"""`InferenceSession`: an ONNX model, built once for all sizes."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from relaxpy.build_cache import BuildCache
from relaxpy.errors import RelaxError, Span, UsageError
from relaxpy.frontend.onnx.model import read_model
from relaxpy.narrow import is_sequence, is_tuple
from relaxpy.onnx import errors, kept_sessions
from relaxpy.onnx.kept_sessions import KeptSession
from relaxpy.onnx.options import PROVIDER, RunOptions, SessionOptions
from relaxpy.onnx.values import IOBinding
from relaxpy.runtime import VirtualMachine

_NAMES = {"float32": "float", "float64": "double"}
"""Dtypes whose name in ONNX Runtime is another."""
_OURS = {theirs: ours for ours, theirs in _NAMES.items()}

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
    A file that was built before is loaded from the build cache.
    `target` and further options are those of `relaxpy.build`.

    Raises: NoSuchFile, InvalidGraph, NotImplemented: errors of the reader; and the errors of a build.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Any = None,
        **options: Any,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        self._options.check()
        _check_providers(providers)
        self._build_options = options
        self._source = path_or_bytes
        self._needed: tuple[str, ...] = ()
        self._builds: dict[Any, _Built] = {}
        self._lock = threading.Lock()
        self.builds = 0
        """How many builds the session has, with one that it found in the cache."""
        if not self._load():
            self._read()
        self._checks = {each.name: _Check(each) for each in self._inputs}

    def _load(self) -> bool:
        """The session as the build cache has it."""
        self._kept = _kept(self._source, self._build_options)
        found = None if self._kept is None else kept_sessions.find(*self._kept)
        if found is None:
            return False
        facts, executable = found
        _warn(facts.warnings)
        self._inputs = [NodeArg(**each) for each in facts.inputs]
        self._outputs = [NodeArg(**each) for each in facts.outputs]
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
            stored = {each.name for each in proto.graph.initializer}
            self._inputs = [_node_arg(i) for i in proto.graph.input if i.name not in stored]
            self._outputs = [_node_arg(i) for i in proto.graph.output]
            self._metadata = ModelMetadata(
                proto.producer_name, proto.graph.name, proto.domain, proto.doc_string,
                proto.graph.doc_string, proto.model_version,
                {each.key: each.value for each in proto.metadata_props},
            )  # fmt: skip
            self._built({})
        except ConstantNeededError as error:
            if not error.inputs:
                raise errors.of(error) from None
            self._needed = error.inputs
        except UsageError as error:
            raise errors.of(error) from None

    # What the model says

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

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
        given = self._given(input_feed)
        built = self._built(given)
        arguments: list[Any] = [given[name] for name in built.order]
        if built.draws:
            arguments.append(np.int64(secrets.randbits(62)))
        with _of_the_model(built.place):
            found = built.main(*arguments)
        results = list(found) if is_sequence(found) else [found]
        names = [each.name for each in self._outputs]
        for name in output_names or ():
            if name not in names:
                raise errors.InvalidArgument(
                    "onnx-session",
                    f"the model has no output {name!r}",
                    help=f"its outputs are {', '.join(names)}",
                )
        arrays = dict(zip(names, (np.asarray(each.numpy()) for each in results), strict=True))
        return [arrays[name] for name in output_names or names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        iobinding.run()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError("onnx-session", f"InferenceSession.{name} is not supported")

    def _given(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The inputs as arrays that the model takes."""
        unknown = [name for name in feed if name not in self._checks]
        missing = [name for name in self._checks if name not in feed]
        if unknown or missing:
            what = (
                f"no input {unknown[0]!r}"
                if unknown
                else f"the input {missing[0]!r}, which is missing"
            )
            raise errors.InvalidArgument(
                "onnx-session",
                f"the model has {what}",
                help=f"its inputs are {', '.join(self._checks)}",
            )
        sizes: dict[str, tuple[int, str]] = {}
        return {name: check(feed[name], sizes) for name, check in self._checks.items()}

    def _built(self, given: Mapping[str, np.ndarray]) -> _Built:
        """The build for these inputs: the only one, unless the structure depends on their values."""
        from relaxpy.frontend.onnx.importer import ConstantNeededError

        while True:
            needed = self._needed
            key = tuple((given[n].shape, given[n].tobytes()) for n in needed) if given else ()
            with self._lock:
                if key in self._builds:
                    return self._builds[key]
                try:
                    return self._build(key, {name: given[name] for name in needed} if given else {})
                except ConstantNeededError as error:
                    if not given or not set(error.inputs) - set(needed):
                        raise
                    self._needed = (*needed, *error.inputs)

    def _build(self, key: Any, constants: Mapping[str, np.ndarray]) -> _Built:
        from relaxpy.build import build
        from relaxpy.frontend.onnx.importer import import_model

        program = import_model(self._source, constants=constants)
        _warn(program.warnings)
        with _of_the_model(program.place):
            executable = build(program.mod, params=program.params, **self._build_options)
        order = [each.name for each in program.inputs]
        main = VirtualMachine(executable)["main"]
        built = _Built(order, program.draws, program.place, main)
        while len(self._builds) >= MOST_BUILDS:
            self._builds.pop(next(iter(self._builds)))
        self._builds[key] = built
        self.builds += 1
        if self._kept is not None and not constants:
            session = KeptSession(
                [asdict(each) for each in self._inputs], [asdict(each) for each in self._outputs],
                asdict(self._metadata), order, program.draws, program.place.file, list(program.warnings),
            )  # fmt: skip
            kept_sessions.keep(*self._kept, session, executable)
        return built


@contextmanager
def _of_the_model(place: Span) -> Iterator[None]:
    """Errors without a place are the whole model's."""
    try:
        yield
    except RelaxError as error:
        raise error.located(place) from None


class _Check:
    """Refuses values of an input that the model does not take."""

    def __init__(self, info: NodeArg) -> None:
        self.info = info
        self.dtype = info.type.removeprefix("tensor(").removesuffix(")")
        self.own = _OURS.get(self.dtype, self.dtype)

    def __call__(self, value: Any, sizes: dict[str, tuple[int, str]]) -> np.ndarray:
        """The value as an array. `sizes` are those of the inputs before, by name: equal names are equal sizes."""
        name, shape = self.info.name, self.info.shape
        array = self._array(value)
        found = _NAMES.get(str(array.dtype), str(array.dtype))
        if found != self.dtype:
            raise _wrong(
                f"the input {name!r} is tensor({found}), and the model takes {self.info.type}"
            )
        if array.ndim != len(shape):
            raise _wrong(
                f"the input {name!r} has {array.ndim} dimensions, and the model takes {len(shape)}: {shape}"
            )
        for axis, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)):
            place = f"axis {axis} of {name!r}"
            if isinstance(wanted, int) and size != wanted:
                raise _wrong(f"{place} is {size}, and the model takes {wanted}")
            if isinstance(wanted, str) and wanted != "?":
                other, where = sizes.setdefault(wanted, (size, place))
                if other != size:
                    raise _wrong(f"{place} is {size}, and {where} is {other}: both are {wanted!r}")
        return array

    def _array(self, value: Any) -> np.ndarray:
        """An array as it is; a list of numbers in the model's dtype."""
        if hasattr(value, "numpy"):
            return value.numpy()
        try:
            return np.array(value, self.own) if isinstance(value, list) else np.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _wrong(
                f"the input {self.info.name!r} is no array, and no list that makes {self.info.type}: {error}"
            ) from None


def _wrong(message: str) -> errors.InvalidArgument:
    return errors.InvalidArgument("onnx-session", message)


def _node_arg(info: Any) -> NodeArg:
    """An input or output as ONNX Runtime shows it."""
    from relaxpy.frontend.onnx.arrays import NAMES
    from relaxpy.frontend.onnx.importer import declared

    tensor = info.type.tensor_type
    dtype = NAMES.get(tensor.elem_type, "undefined")
    shape = declared(tensor)
    return NodeArg(
        info.name, f"tensor({_NAMES.get(dtype, dtype)})", [] if shape is None else list(shape)
    )


def _kept(source: Any, options: Mapping[str, Any]) -> tuple[BuildCache, bytes] | None:
    """The cache and the key of a session; None where it is not kept."""
    own = dict(options)
    cache = BuildCache.chosen(own.pop("cache", True))
    if isinstance(source, (str, os.PathLike)):
        try:
            source = Path(cast("str", source)).read_bytes()
        except (OSError, ValueError):
            return None  # the reader says why
    if cache is None or not isinstance(source, bytes):
        return None
    key = kept_sessions.key_of(source, own)
    return None if key is None else (cache, key)


def _warn(texts: Sequence[str]) -> None:
    for each in texts:
        warnings.warn(each, stacklevel=5)


def _check_providers(providers: Sequence[Any] | None) -> None:
    """Say of other providers that there are none, as ONNX Runtime does where they are not installed."""
    for each in providers or ():
        name = each[0] if is_tuple(each) else each
        if name != PROVIDER:
            warnings.warn(
                f"the provider {name!r} is not available: the model runs by {PROVIDER}",
                UserWarning,
                stacklevel=3,
            )
