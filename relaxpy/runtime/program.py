"""An executable linked into this process: kernels loaded, names resolved, functions translated to Python.

The code that `relaxpy.runtime.link` writes refers to names. A `Program` is the part that is the same for all calls:
translated functions, loaded kernels, constants. A `BoundProgram` binds the names to the queues and the communicator of
particular calls (`relaxpy.runtime.call_state`), so calls have the same overhead on any queues.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from ctypes import c_bool
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from relaxpy.errors import ExecutableError, RuntimeCheckError, UsageError, did_you_mean
from relaxpy.runtime import library
from relaxpy.runtime.call_state import CallState, with_state
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.aliasing import apart
from relaxpy.runtime.devices.base import DeviceRuntime
from relaxpy.runtime.devices.checked import checked
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.emit_functions import (
    argument,
    begin,
    invoke,
    is_generator,
    read,
    require_room,
    require_seen,
    shown,
    truth,
    view_of,
)
from relaxpy.runtime.entry import MISSING
from relaxpy.runtime.frame import Allocate, record_of
from relaxpy.runtime.images import choose_images
from relaxpy.runtime.integers import int64
from relaxpy.runtime.late_handle import put
from relaxpy.runtime.library_call import call_library
from relaxpy.runtime.linked_function import LinkedFunction, Translation
from relaxpy.runtime.links import Links
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.patterns import enter, leave, prim_fits, to_value
from relaxpy.runtime.tensor import Shape, Tensor, from_numpy, tensor_at
from relaxpy.runtime.terms import HOST, Pattern, TensorPattern, TuplePattern
from relaxpy.runtime.trampoline import TailCall, drive

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable
    from relaxpy.runtime.function_listing import GraphPlan
    from relaxpy.runtime.graphs import GraphRecorder
    from relaxpy.runtime.inspect.profile import Recorder


class Program:
    """An executable linked for its devices."""

    def __init__(
        self,
        executable: Executable,
        devices: Sequence[Device],
        check_memory: bool = False,
        recorder: Recorder | None = None,
        without_features: Collection[str] = (),
    ) -> None:
        """`devices` are the devices of the executable's slots. Kernel images that need a feature in `without_features`
        are not selected."""
        self.check_memory = check_memory
        self.recorder = recorder
        self.executable = executable
        self.without = without_features
        self.libraries = [library.find_library(name) for name in executable.libraries]
        self.packed = [library.find_function(name) for name in executable.packed]
        self.runtimes = [runtime_of(device.kind, device.index) for device in devices]
        """The runtime of each slot."""
        self._check_features(without_features)
        if executable.links is None:  # they are of CPUs only
            self._require_offsets()
        self.chosen = choose_images(
            executable.kernels,
            executable.requirements,
            executable.slots,
            {slot: runtime.missing for slot, runtime in enumerate(self.runtimes)},
            without_features,
        )
        """The kernels, each with its selected image."""
        self.kernels = self._loaded()
        """The kernels as loaded by their runtimes, on no queue yet."""
        self.constants = [from_numpy(array, constant=True) for array in executable.constants]
        for tensor in self.constants:
            tensor.constant = True  # also where from_numpy had to copy
        self.layouts: dict[int, dict[int, str]] = {}
        """Function → the layouts of its parameters that are packed weights, by position."""
        for weight in executable.weight_params:
            if weight.packer >= 0:
                self.layouts.setdefault(weight.function, {})[weight.param] = weight.layout
        self._uploaded: dict[tuple[int, DeviceRuntime], DeviceTensor] = {}
        """Constants in device memory, each with the queue that uploaded it."""
        self._lock = Lock()
        found = self._linked()
        self.functions = [
            Translation(self, index, index in found.generators, made)
            for index, made in enumerate(found.functions)
        ]
        self._constants_used = found.constants

    def links(self) -> Links:
        """Its functions, as they are linked."""
        generators = frozenset(each.index for each in self.functions if each.generator)
        return Links(tuple(each.made for each in self.functions), generators, self._constants_used)

    def _linked(self) -> Links:
        """The functions of the executable, as it brings them along, or translated now."""
        exe = self.executable
        if exe.links and not (self.check_memory or self.recorder or self.without):
            return exe.links
        from relaxpy.runtime.translation import links_of  # takes long to import

        return links_of(self)

    def open_queues(self) -> list[Queue]:
        """Opens a queue for each slot. All slots on the host share one."""
        host = self.runtimes[HOST].queue()
        others = self.runtimes[1:]
        return [host, *(host if r is self.runtimes[HOST] else r.queue() for r in others)]

    def _check_features(self, names: Collection[str]) -> None:
        """Raises: UsageError (`arguments`) for names of features that neither a device nor the executable knows."""
        known = {each for runtime in self.runtimes for each in runtime.features}
        known |= {
            each for requirement in self.executable.requirements for each in requirement.features
        }
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise UsageError(
                    "arguments",
                    f"without_features: there is no feature {name!r}",
                    help=f"{f'{hint} ' if hint else ''}known are {', '.join(sorted(known))}",
                )

    def _require_offsets(self) -> None:
        """Raises: ExecutableError (`device-offset`) if a device does not support the alignment of the planned
        storage."""
        from relaxpy.runtime.bytecode import Alloc

        for code in self.executable.functions:
            for instr in code.code:
                if isinstance(instr, Alloc) and instr.storage >= 0:
                    runtime = self.runtimes[instr.slot]
                    if instr.offset % runtime.offset_alignment:
                        raise ExecutableError(
                            "device-offset",
                            f"{code.name} has a tensor at byte {instr.offset} of its storage, but on {runtime.kind} "
                            f"tensors begin at multiples of {runtime.offset_alignment}",
                            help="build it again, for this device",
                        )

    def _loaded(self) -> list[Any]:
        exe = self.executable
        kernels: list[Any] = [None] * len(exe.kernels)
        for runtime in dict.fromkeys(self.runtimes):
            mine = [i for i, info in enumerate(exe.kernels) if self.runtimes[info.slot] is runtime]
            infos = [self.chosen[i] for i in mine]
            loaded = runtime.load(exe.objects, infos) if infos else ()
            for i, kernel in zip(mine, loaded, strict=True):
                kernels[i] = kernel
        return kernels

    def is_hosted(self, pattern: Pattern) -> bool:
        """Whether all tensors of a matching value are on the host."""
        if isinstance(pattern, TuplePattern):
            return all(map(self.is_hosted, pattern.fields))
        return not isinstance(pattern, TensorPattern) or self.is_host(pattern.slot)

    def is_host(self, slot: int) -> bool:
        """Whether a slot's memory is this process's."""
        return self.runtimes[slot].is_host

    def constants_used(self, host: bool) -> list[tuple[int, int]]:
        """The (constant, slot) pairs of constants that are used on the host, or on other devices."""
        return [each for each in self._constants_used if self.is_host(each[1]) == host]

    def constants_on(self, queue: Queue, indices: Sequence[int]) -> list[Tensor]:
        """Constants in the memory of a queue's device, for work of the queue. A constant that is there already is not
        uploaded again; later work of the queue waits for its upload."""
        with self._lock:
            found: list[DeviceTensor] = []
            for index in indices:
                there = self._uploaded.get((index, queue.runtime))
                if there is None:
                    there = queue.upload(self.constants[index], constant=True)
                    self._uploaded[index, queue.runtime] = there
                found.append(there)
            queue.behind({tensor.queue for tensor in found})
            return [queue.seen(tensor) for tensor in found]


def _guarded() -> Allocate:
    """The allocator of the slow mode that checks memory."""
    from relaxpy.runtime.inspect.watch import allocate_guarded

    return allocate_guarded


class BoundProgram:
    """A program bound to the queues and the communicator of calls: its functions can be called.

    Memory that calls allocate belongs to these queues, including the frames. Function values that the program creates
    run on them.
    """

    def __init__(
        self, program: Program, queues: Sequence[Queue], communicator: object = None
    ) -> None:
        """`queues` are the queues of the slots."""
        self.program = program
        self.executable = program.executable
        self.queues = queues
        slots = program.executable.slots
        self.state = CallState(
            {
                slot.name: queue
                for slot, queue in zip(slots, queues, strict=True)
                if not queue.is_host
            },
            communicator,
        )
        self.allocators: list[Allocate] = [
            _guarded() if program.check_memory and queue.is_host else queue.storage
            for queue in queues
        ]
        self.kernels = self._launchers()
        self.scope = self._names()
        self.functions = [LinkedFunction(self, function) for function in program.functions]
        for index, function in enumerate(self.functions):
            self.scope[f"f{index}"] = function.run

    def _launchers(self) -> list[Any]:
        """The handles of the kernels, in the form that the devices' code calls."""
        handles: list[Any] = []
        for info, kernel in zip(self.executable.kernels, self.program.kernels, strict=True):
            queue = self.queues[info.slot]
            launcher = queue.runtime.launcher(kernel, queue.raw)
            if self.program.check_memory and not queue.is_host:
                launcher = checked(launcher, info, queue)
            distinct = queue.runtime.distinct_buffers
            handles.append(apart(launcher, info, queue) if distinct else launcher)
        return handles

    def recorder(self, graph: GraphPlan) -> GraphRecorder:
        """The recorder of a graph of one of the functions."""
        from relaxpy.runtime.graphs import GraphRecorder  # few programs have graphs

        queue, program = self.queues[graph.slot], self.program
        return GraphRecorder(queue, graph, program.kernels, program.chosen, self.kernels)

    def launched(self, index: int) -> None:
        """Waits for a kernel after it was put into its queue. Raises: RuntimeCheckError (`kernel-failed`)."""
        info = self.executable.kernels[index]
        try:
            self.queues[info.slot].synchronise()
        except RuntimeCheckError as error:
            raise RuntimeCheckError(
                "kernel-failed", f"the kernel {info.name} failed: {error.message}"
            ) from error

    def _names(self) -> dict[str, Any]:
        """The names that the code of every function may refer to, except for the functions themselves."""
        program = self.program
        scope: dict[str, Any] = {
            **vars(builtins),
            "Tensor": Tensor,
            "tensor_at": tensor_at,
            "PackedTensor": PackedTensor,
            "DeviceTensor": DeviceTensor,
            "Shape": Shape,
            "empty": self.queues[HOST].pool.empty,
            "launched": self.launched,
            "read": read,
            "argument": argument,
            "truth": truth,
            "truth_at": c_bool.from_address,
            "view_of": view_of,
            "shown": shown,
            "fit": self.fit,
            "room": require_room,
            "seen": require_seen,
            "int64": int64,
            "prim_fits": prim_fits,
            "to_value": to_value,
            "make_tuple": tuple.__new__,
            "item_of": tuple.__getitem__,
            "library": call_library,
            "closure": self.closure,
            "is_generator": is_generator,
            "begin": begin,
            "invoke": invoke,
            "missing": MISSING,
            "drive": drive,
            "TailCall": TailCall,
            "leave": leave,
        }
        if program.check_memory:
            from relaxpy.runtime.inspect.watch import Watch

            scope["Watch"] = Watch
        if program.recorder is not None:
            scope |= {"clock": perf_counter, "note": program.recorder.note}
        for index, tensor in enumerate(program.constants):
            scope[f"c{index}"] = tensor
        for index, _ in program.constants_used(host=True):
            scope[f"ct{index}"] = record_of(program.constants[index])
        for slot, queue in enumerate(self.queues):
            scope |= {f"copy_to{slot}": queue.take, f"queue{slot}": queue}
            if not queue.is_host:
                scope[f"empty{slot}"] = queue.empty
        for i, (info, kernel) in enumerate(zip(self.executable.kernels, self.kernels, strict=True)):
            if self.queues[info.slot].is_host:
                put(scope, f"small{i}", kernel.serial)
            else:
                scope[f"launch{i}"] = kernel
        scope |= self._constants()
        scope |= {f"l{i}": with_state(f, self.state) for i, f in enumerate(program.libraries)}
        scope |= {f"p{i}": with_state(f, self.state) for i, f in enumerate(program.packed)}
        return scope

    def _constants(self) -> Mapping[str, Tensor]:
        """The constants in device memory, by the names in the code."""
        names: dict[str, Tensor] = {}
        used = self.program.constants_used(host=False)
        for slot in sorted({slot for _, slot in used}):
            indices = [index for index, place in used if place == slot]
            tensors = self.program.constants_on(self.queues[slot], indices)
            for index, tensor in zip(indices, tensors, strict=True):
                names[f"c{index}_{slot}"] = tensor
        return names

    def fit(self, index: int, args: tuple[Any, ...]) -> None:
        """Compares arguments with the parameters of a kernel. Raises: RuntimeCheckError (`check`)."""
        from relaxpy.runtime.kernel_params import require_fit  # of kernels that are not proved

        info = self.executable.kernels[index]
        require_fit(info, args)
        queue = self.queues[info.slot]
        for number, arg in enumerate(args):
            # A tensor without memory only describes a shape.
            if isinstance(arg, Tensor) and arg.owner is not None and not queue.owns(arg):
                raise RuntimeCheckError(
                    "check",
                    f"argument {number} of the kernel {info.name} must be on {queue.device}, is on {arg.device}",
                )

    def closure(self, index: int, captured: tuple[Any, ...]) -> Any:
        """A function value of the program."""
        from relaxpy.runtime.function import Function  # a function value refers back to its program

        return Function(self.functions[index], captured)

    def own(self, value: Any) -> Any:
        """Binds a function value of this program that a call on other queues created to these queues. Other values are
        returned unchanged."""
        linked = getattr(value, "linked", None)
        if linked is None or linked.program is self or linked.program.program is not self.program:
            return value
        mine = self.functions[linked.translation.index]
        patterns = mine.patterns[len(mine.patterns) - len(value.captured) :]
        captured = [
            enter(each, pattern, mine.queues, self.own)
            for each, pattern in zip(value.captured, patterns, strict=True)
        ]
        return self.closure(mine.translation.index, tuple(captured))
