"""Two-dimensional convolutions by cuDNN (`pip install 'relaxpy[cudnn]'`; `relaxpy.runtime.devices.cuda.library`).

A call is `out = activation(conv2d(data, weight) + residual + bias)`. cuDNN takes it as a graph of operations, described
by objects with attributes (its *backend API*), and gives engines that can compute the graph, the best first. We take
the first one that computes as the kernel would (float32 as such, sums in float32, always the same numbers), that
compiles nothing, and whose workspace is no larger than ours.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, ClassVar, TypeAlias

from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.cuda.driver import Context
from relaxpy.runtime.devices.cuda.library import (
    ALIGNMENT,
    Library,
    Plan,
    Tensors,
    check_workspace,
    opened,
    paths,
)
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import LibraryCall

_FILES, _WINDOWS_FILES = ("libcudnn.so.9",), ("cudnn64_9.dll",)
_FOLDERS = "cudnn/lib", "cudnn/bin", "cudnn/bin/x86_64"
"""Where NVIDIA's packages have the library, below the folder `nvidia`."""
_OLDEST = 90000
_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
_ORDERS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1)}
"""Layout → its axes by their numbers in NCHW, in which cuDNN has extents and strides."""

# Constants of cudnn_graph.h: types of attributes,
_HANDLE, _DTYPE, _BOOL, _INT64, _FLOAT, _POINTERS = 0, 1, 2, 3, 4, 6
_CONV_MODE, _HEURISTIC, _NUMERICAL, _POINTWISE_MODE, _OBJECT, _BEHAVIOUR = 7, 8, 11, 14, 15, 19
_C_TYPES: Mapping[int, Any] = {
    _HANDLE: ctypes.c_void_p, _DTYPE: ctypes.c_int, _BOOL: ctypes.c_bool, _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float, _POINTERS: ctypes.c_void_p, _CONV_MODE: ctypes.c_int, _HEURISTIC: ctypes.c_int,
    _NUMERICAL: ctypes.c_int, _POINTWISE_MODE: ctypes.c_int, _OBJECT: ctypes.c_void_p, _BEHAVIOUR: ctypes.c_int,
}  # fmt: skip
# kinds of objects,
_POINTWISE, _CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN = range(6)
_CONVOLVE, _APPLY, _GRAPH, _PACK, _TENSOR = 10, 13, 15, 16, 17
# attributes of each kind,
_MODE, _PRECISION = 0, 1
_SUMS_IN, _CROSS, _DILATION, _STRIDES, _AFTER, _BEFORE, _AXES = range(100, 107)
_HEURISTIC_MODE, _HEURISTIC_GRAPH, _HEURISTIC_RESULTS = 200, 201, 202
_CONFIG_ENGINE = 300
_PLAN_HANDLE, _PLAN_CONFIG, _PLAN_WORKSPACE = 400, 401, 402
_CONVOLVE_ALPHA, _CONVOLVE_BETA, _CONVOLVE_AS, _CONVOLVE_W, _CONVOLVE_X, _CONVOLVE_Y = range(
    700, 706
)
_APPLY_AS, _APPLY_X, _APPLY_B, _APPLY_Y = range(750, 754)
_GRAPH_HANDLE, _GRAPH_OPERATIONS = 800, 801
_ALIGNED, _ELEMENTS, _EXTENTS, _TENSOR_STRIDES = range(900, 904)
_NAME, _IS_VIRTUAL = 906, 907
_PACK_NAMES, _PACK_POINTERS, _, _PACK_WORKSPACE = range(1000, 1004)
_NOTES_OF_NUMBERS, _NOTES_OF_BEHAVIOUR = 1303, 1305
# and values.
_CROSS_CORRELATION = 1
_ADD, _RELU = 0, 100
_BEST, _ANY = 3, 2
"""The ways to ask for engines: by heuristics, and all that work."""
_COMPILES = 0
"""The note of engines that compile a kernel when they are first used: it may be unloaded while a graph has it."""
_TENSOR_CORES, _NARROWER, _NARROW_SUMS, _FOURIER, _NOT_ALWAYS_THE_SAME, *_WINOGRAD = range(9)
_WRONG_NOTES = {_NARROWER, _NARROW_SUMS, _FOURIER, _NOT_ALWAYS_THE_SAME}
"""The notes of engines whose numbers are not those of a kernel of ours."""
_MOST_NOTES = 16
_NOT_SUPPORTED = range(3000, 4000)

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (_POINTER,),
    "cudnnDestroy": (_POINTER,),
    "cudnnSetStream": (_POINTER, _POINTER),
    "cudnnBackendCreateDescriptor": (_INT, _POINTER),
    "cudnnBackendDestroyDescriptor": (_POINTER,),
    "cudnnBackendSetAttribute": (_POINTER, _INT, _INT, _LONG, _POINTER),
    "cudnnBackendGetAttribute": (_POINTER, _INT, _INT, _LONG, _POINTER, _POINTER),
    "cudnnBackendFinalize": (_POINTER,),
    "cudnnBackendExecute": (_POINTER, _POINTER, _POINTER),
    "cudnnGetErrorString": (_INT,),
    "cudnnGetVersion": (),
}
Attributes: TypeAlias = Mapping[int, tuple[int, Sequence[Any]]]
"""Attribute → the type of its values, and the values."""


@cache
def library() -> ctypes.CDLL:
    """cuDNN: of NVIDIA's package, else of the system. Raises: OSError where there is none, or one that is too old."""
    found = opened(_paths(), _SIGNATURES)
    found.cudnnGetErrorString.restype = ctypes.c_char_p
    found.cudnnGetVersion.restype = ctypes.c_size_t
    if found.cudnnGetVersion() < _OLDEST:
        raise OSError("it is older than version 9")
    return found


def _paths() -> Iterator[str]:
    return paths(_FILES, _WINDOWS_FILES, _FOLDERS)


class Cudnn(Library):
    """cuDNN, and the convolutions that it has."""

    title: ClassVar[str] = "cuDNN"
    extra: ClassVar[str] = "cudnn"
    functions: ClassVar[re.Pattern[str]] = re.compile(r"conv2d(_bias(_residual)?(_relu)?)?")
    tensors: ClassVar[frozenset[str]] = frozenset({"data", "weight", "out", "workspace"})
    dtypes: ClassVar[dict[str, int]] = _DTYPES
    count: ClassVar[int] = 13

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.library = library()
        self.handle = _POINTER()
        self.check(self.library.cudnnCreate(ctypes.byref(self.handle)))
        context.finally_do(self, self.library.cudnnDestroy, self.handle)
        self.lock = Lock()
        """Held from the choice of the handle's stream to its work there."""

    @classmethod
    def lacks(cls, call: LibraryCall) -> str:
        options = dict(call.options)
        layout = options.pop("layout", None)
        known = {*options} == {"strides", "dilation", "before", "after"}
        if not known or not all(map(_is_pair, options.values())) or layout not in _ORDERS:
            return f"{call.name!r} with other options than it has"
        return super().lacks(call)

    def text_of(self, status: int) -> bytes | None:
        return self.library.cudnnGetErrorString(status)

    def plan(self, call: LibraryCall, numbers: Sequence[int]) -> Plan | None:
        return _planned(self, call, numbers)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(each) is int and 0 <= each < 1 << 31 for each in value)
    )


class _Refused(Exception):
    """An object that the library does not support."""


class _Objects:
    """The objects of a call. They are destroyed together."""

    def __init__(self, cudnn: Cudnn) -> None:
        self._cudnn = cudnn
        self._library = cudnn.library

    def made(self, kind: int, attributes: Attributes) -> int:
        """The address of an object that is finished. Raises: _Refused, DeviceError."""
        found, cudnn, library = self.bare(kind), self._cudnn, self._library
        for key, (type_, values) in attributes.items():
            array = (_C_TYPES[type_] * len(values))(*values)
            cudnn.check(library.cudnnBackendSetAttribute(found, key, type_, len(values), array))
        status = library.cudnnBackendFinalize(found)
        if status in _NOT_SUPPORTED:
            raise _Refused
        cudnn.check(status)
        return found

    def bare(self, kind: int) -> int:
        """The address of an object without attributes. Raises: DeviceError."""
        cudnn, found = self._cudnn, _POINTER()
        cudnn.check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(found)))
        cudnn.context.finally_do(self, self._library.cudnnBackendDestroyDescriptor, found)
        assert found.value is not None
        return found.value

    def values(self, owner: int, key: int, type_: int, most: int) -> list[Any]:
        """The values of an attribute. Raises: DeviceError."""
        array, count = (_C_TYPES[type_] * most)(), ctypes.c_int64()
        place = ctypes.byref(count)
        get = self._library.cudnnBackendGetAttribute
        self._cudnn.check(get(owner, key, type_, most, place, array))
        return list(array)[: count.value]

    def objects(self, owner: int, key: int, kind: int) -> list[int]:
        """The objects that an attribute consists of. Raises: DeviceError."""
        count, get = ctypes.c_int64(), self._library.cudnnBackendGetAttribute
        self._cudnn.check(get(owner, key, _OBJECT, 0, ctypes.byref(count), None))
        found = [self.bare(kind) for _ in range(count.value)]
        array = (_POINTER * len(found))(*found)
        self._cudnn.check(get(owner, key, _OBJECT, len(found), ctypes.byref(count), array))
        return found[: count.value]


_UIDS = {"data": 1, "weight": 2, "out": 3, "bias": 4, "residual": 5}
"""The numbers of tensors in a graph. Those of values between operations follow."""


def _planned(cudnn: Cudnn, call: LibraryCall, numbers: Sequence[int]) -> Plan | None:
    """The plan by the first engine that is right."""
    objects = _Objects(cudnn)
    wrong = _WRONG_NOTES | ({_TENSOR_CORES} if call.dtype == "float32" else {*_WINOGRAD})
    try:
        graph = _graph(objects, cudnn, call, numbers)
    except _Refused:
        return None
    for mode in (_BEST, _ANY):
        for config in _configs(objects, graph, mode):
            (engine,) = objects.objects(config, _CONFIG_ENGINE, _ENGINE)
            notes = objects.values(engine, _NOTES_OF_NUMBERS, _NUMERICAL, _MOST_NOTES)
            habits = objects.values(engine, _NOTES_OF_BEHAVIOUR, _BEHAVIOUR, _MOST_NOTES)
            if not wrong.isdisjoint(notes) or _COMPILES in habits:
                continue
            own = _Objects(cudnn)
            try:
                plan = own.made(
                    _PLAN,
                    {_PLAN_HANDLE: (_HANDLE, [cudnn.handle]), _PLAN_CONFIG: (_OBJECT, [config])},
                )
            except (_Refused, DeviceError):  # there are others
                continue
            (need,) = own.values(plan, _PLAN_WORKSPACE, _INT64, 1)
            if need <= call.workspace:
                return _Convolution(cudnn, call, (objects, own), plan)
    return None


def _configs(objects: _Objects, graph: int, mode: int) -> list[int]:
    """Engines with their settings, the best first."""
    wanted = {_HEURISTIC_GRAPH: (_OBJECT, [graph]), _HEURISTIC_MODE: (_HEURISTIC, [mode])}
    try:
        heuristics = objects.made(_HEURISTICS, wanted)
    except _Refused:
        return []
    return objects.objects(heuristics, _HEURISTIC_RESULTS, _CONFIG)


def _graph(objects: _Objects, cudnn: Cudnn, call: LibraryCall, numbers: Sequence[int]) -> int:
    """The graph of a call: the convolution, and what is applied to each element of its result. The library knows it in
    this order: residual, bias, activation. Values between are float32. Raises: _Refused, DeviceError."""
    options, made = call.options, objects.made
    order = _ORDERS[options["layout"]]
    dtype, wide = _DTYPES[call.dtype], _DTYPES["float32"]
    uids = iter(range(len(_UIDS) + 1, 99))

    def by_axis(stored: Sequence[int]) -> list[int]:
        """Extents in the order NCHW."""
        return [stored[order.index(axis)] for axis in range(4)]

    data, weight, out = (by_axis(numbers[at : at + 4]) for at in (1, 5, 9))

    def tensor(name: str, extents: Sequence[int]) -> int:
        """A tensor of the call, or a value between if it has no name. It has no gaps."""
        strides, stride = [0] * 4, 1
        for axis in reversed(order):
            strides[axis] = stride
            stride *= extents[axis]
        return made(_TENSOR, {
            _NAME: (_INT64, [_UIDS[name] if name else next(uids)]),
            _ELEMENTS: (_DTYPE, [dtype if name else wide]),
            _ALIGNED: (_INT64, [ALIGNMENT]),
            _EXTENTS: (_INT64, extents),
            _TENSOR_STRIDES: (_INT64, strides),
            _IS_VIRTUAL: (_BOOL, [not name]),
        })  # fmt: skip

    applied = [each for each in ("residual", "bias") if each in call.places]
    applied += ["relu"] if call.name.endswith("_relu") else []
    value = tensor("" if applied else "out", out)
    convolution = made(_CONVOLUTION, {
        _SUMS_IN: (_DTYPE, [wide]), _CROSS: (_CONV_MODE, [_CROSS_CORRELATION]), _AXES: (_INT64, [2]),
        _STRIDES: (_INT64, options["strides"]), _DILATION: (_INT64, options["dilation"]),
        _BEFORE: (_INT64, options["before"]), _AFTER: (_INT64, options["after"]),
    })  # fmt: skip
    operations = [made(_CONVOLVE, {
        _CONVOLVE_AS: (_OBJECT, [convolution]), _CONVOLVE_Y: (_OBJECT, [value]),
        _CONVOLVE_X: (_OBJECT, [tensor("data", data)]), _CONVOLVE_W: (_OBJECT, [tensor("weight", weight)]),
        _CONVOLVE_ALPHA: (_FLOAT, [1.0]), _CONVOLVE_BETA: (_FLOAT, [0.0]),
    })]  # fmt: skip
    for step in applied:
        result = tensor("out" if step == applied[-1] else "", out)
        how = made(_POINTWISE, {
            _MODE: (_POINTWISE_MODE, [_RELU if step == "relu" else _ADD]), _PRECISION: (_DTYPE, [wide])
        })  # fmt: skip
        given = {
            _APPLY_AS: (_OBJECT, [how]),
            _APPLY_X: (_OBJECT, [value]),
            _APPLY_Y: (_OBJECT, [result]),
        }
        if step != "relu":
            other = tensor(step, [1, out[1], 1, 1] if step == "bias" else out)
            given[_APPLY_B] = (_OBJECT, [other])
        operations.append(made(_APPLY, given))
        value = result
    return made(
        _GRAPH, {_GRAPH_HANDLE: (_HANDLE, [cudnn.handle]), _GRAPH_OPERATIONS: (_OBJECT, operations)}
    )


class _Convolution(Plan):
    """A convolution of one size: its graph and an engine."""

    def __init__(
        self, cudnn: Cudnn, call: LibraryCall, objects: Sequence[_Objects], plan: int
    ) -> None:
        """`objects` are kept as long as the plan."""
        self._cudnn, self._objects, self._plan = cudnn, objects, plan
        self._names = [name for name in _UIDS if name in call.places]
        count = len(self._names)
        self._pointers, self._workspace = (_POINTER * count)(), (_POINTER * 1)()
        uids = (_LONG * count)(*(_UIDS[name] for name in self._names))
        self._given = (
            (_PACK_NAMES, _INT64, count, uids),
            (_PACK_POINTERS, _POINTERS, count, self._pointers),
            (_PACK_WORKSPACE, _POINTERS, 1, self._workspace),
        )
        """The attributes of a call's object, with the places of addresses."""

    def run(self, tensors: Tensors, stream: Stream) -> None:
        cudnn, library = self._cudnn, self._cudnn.library
        self._workspace[0] = check_workspace(cudnn.title, tensors)
        for number, name in enumerate(self._names):
            self._pointers[number] = tensors[name]
        pack = _POINTER()
        cudnn.check(library.cudnnBackendCreateDescriptor(_PACK, ctypes.byref(pack)))
        try:
            for attribute in self._given:
                cudnn.check(library.cudnnBackendSetAttribute(pack, *attribute))
            cudnn.check(library.cudnnBackendFinalize(pack))
            with cudnn.lock:
                cudnn.check(library.cudnnSetStream(cudnn.handle, stream.address))
                cudnn.check(library.cudnnBackendExecute(cudnn.handle, self._plan, pack))
        finally:
            library.cudnnBackendDestroyDescriptor(pack)
