"""The virtual machine: an executable, linked and ready to be called."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from relaxpy.errors import UsageError, did_you_mean
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.function import Function
from relaxpy.runtime.pool import MemoryUse, total
from relaxpy.runtime.program import BoundProgram, Program
from relaxpy.runtime.tensor import Tensor, from_any

if TYPE_CHECKING:
    from relaxpy.runtime.graphs import GraphUse
    from relaxpy.runtime.inspect.profile import Profile, Recorder
    from relaxpy.runtime.pack import PackedWeights
    from relaxpy.runtime.safetensors import Source
    from relaxpy.runtime.signature import Signature
    from relaxpy.runtime.terms import Slot


class VirtualMachine:
    """Runs an executable: `vm["main"](x, y)`. Any number of threads may call it at the same time.

    Memory for intermediate values is kept for later calls, and so is some memory of freed results. `memory` reports the
    amounts, and `release_memory` frees it. `check_memory` is a slow mode that checks after every instruction that no
    live tensor was overwritten (`relaxpy.runtime.inspect.watch`), and waits for every kernel of a device.

    A program built for devices other than the CPU lists them in `executable.slots`. By default each slot is the first
    device of its kind on this machine. `devices={"gpu": "opencl:1"}` chooses others, and `device` chooses that of the
    last slot. Arrays are copied to a device at each call; `upload` copies them once.

    If kernels were built for several CPUs (`target="llvm -mcpu=x86-64-v3,x86-64-v4"`), the variant that uses most of
    this CPU's features runs. `without_features` excludes features: with `["avx512f"]` the AVX2 kernels run. `images`
    lists the selected variants.

    Calls put their work into one queue per device. To run two calls concurrently, or to order a call with other work,
    use `on`, which returns the same machine on other queues:

        side = vm.on({"gpu": vm.open_queue("gpu")})
        y = side["main"](x)

    Raises: ExecutableError if a library function is not registered (`library-missing`), the CPU or a device lacks a
    feature (`cpu-features`, `device-features`) or the kernels cannot be linked (`object-code`).
    """

    def __init__(
        self,
        executable: Executable,
        device: Device | str | None = None,
        *,
        devices: Mapping[int | str, Device | str] | None = None,
        check_memory: bool = False,
        without_features: Collection[str] = (),
    ) -> None:
        if not isinstance(executable, Executable):
            raise UsageError(
                "executable",
                f"a VirtualMachine runs an Executable, got {type(executable).__name__}",
                help="relaxpy.build(module) returns one, relaxpy.load(path) reads one from a file",
            )
        executable.require_host()
        chosen = choose_devices(executable.slots, device, devices or {})
        if isinstance(without_features, str):
            raise UsageError(
                "arguments",
                f"without_features must be a list of names, got the string {without_features!r}",
                help=f"write without_features=[{without_features!r}]",
            )
        without = frozenset(without_features)
        program = Program(executable, chosen, check_memory, without_features=without)
        self._bind(program, chosen, BoundProgram(program, program.open_queues()))

    def _bind(self, program: Program, devices: tuple[Device, ...], bound: BoundProgram) -> None:
        self.executable = program.executable
        self.devices = devices
        """The device of each slot of the executable."""
        self._bound = bound
        self._profiled: tuple[Recorder, dict[str, Function]] | None = None
        self._functions = public_functions(bound)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions that can be called."""
        return tuple(self._functions)

    def __getitem__(self, name: str) -> Function:
        """The function `name`. Raises: UsageError (`function-name`)."""
        found = self._functions.get(name)
        if found is None:
            known = f"there are: {', '.join(self._functions) or 'none'}"
            hint = did_you_mean(name, self._functions) or known
            raise UsageError("function-name", f"the executable has no function {name!r}", help=hint)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the only function, or `main`. Raises: UsageError (`function-name`) if there is neither."""
        functions = self.executable.functions
        packers = {functions[w.packer].name for w in self.executable.weight_params if w.packer >= 0}
        names = [name for name in self.functions if name not in packers]
        if len(names) != 1 and "main" not in names:
            raise UsageError(
                "function-name",
                "a VirtualMachine can be called only if it has one function, or a main",
                help=f'choose one of {", ".join(names)}: vm["{names[0]}"](…)'
                if names
                else "it has none",
            )
        return self._functions[names[0] if len(names) == 1 else "main"](*args, **kwargs)

    def __getattr__(self, name: str) -> NoReturn:
        known = vars(self).get("_functions", {})
        shown = next(iter(known), "main")
        hint = f'; its function is vm["{name}"]' if name in known else ""
        if (
            not hint
            and not name.startswith("_")
            and (near := did_you_mean(name, known, 'vm["{}"]'.format))
        ):
            hint = f"; {near}"
        if name in (
            "run",
            "invoke",
            "forward",
            "execute",
            "set_input",
            "invoke_stateful",
            "get_outputs",
        ):
            hint = f'; its functions are called: vm["{shown}"](…)'
        raise AttributeError(f"a VirtualMachine has no attribute {name!r}{hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def signature(self, name: str) -> Signature:
        """The parameters and the result of the function `name`; prints as script."""
        return self[name].signature

    def profile(self, name: str, *args: Any, repeat: int = 10, **kwargs: Any) -> Profile:
        """Profiles calls of function `name`, by kernel and by source line: medians over `repeat` calls, after one call
        that is not counted. The functions run with clocks in them, on this thread.

        Raises: the errors of the call; UsageError (`arguments`) for a `repeat` below 1.
        """
        from relaxpy.runtime.inspect.profile import Profile, Recorder

        if repeat < 1:
            raise UsageError("arguments", f"repeat must be 1 or more, got {repeat}")
        self[name]  # report an unknown name before linking again
        if self._profiled is None:
            exe = self.executable
            recorder = Recorder(
                {code.name: code for code in exe.functions},
                [kernel.name for kernel in exe.kernels],
                exe.libraries,
                exe.packed,
            )
            program = Program(
                exe, self.devices, recorder=recorder, without_features=self._bound.program.without
            )
            bound = BoundProgram(program, self._bound.queues, self._bound.state.communicator)
            self._profiled = recorder, public_functions(bound)
        recorder, functions = self._profiled
        function = functions[name]
        function(*args, **kwargs)
        recorder.events.clear()
        seconds: list[float] = []
        for turn in range(repeat):
            recorder.begin(turn)
            start = perf_counter()
            function(*args, **kwargs)
            seconds.append(perf_counter() - start)
        events = tuple(recorder.events)
        recorder.events.clear()
        return Profile(name, float(np.median(seconds)), repeat, events)

    def links(self) -> bytes | None:
        """Its executable's linked functions (`relaxpy.runtime.links`); None if it needs devices."""
        from relaxpy.runtime.links import dump_links

        return dump_links(self._bound.program)

    @property
    def device(self) -> Device:
        """The device where the program runs: that of its last slot, or the host if there is no other slot."""
        return self.devices[-1]

    @property
    def images(self) -> tuple[str, ...]:
        """The requirements that the running kernels were built for: names of `executable.requirements`, each once."""
        requirements = self.executable.requirements
        needs = dict.fromkeys(info.image.needs for info in self._bound.program.chosen)
        return tuple(requirements[number].name for number in needs if number >= 0)

    def upload(self, value: Any, slot: int | str | None = None) -> Tensor:
        """Copies an array, or anything that converts to a tensor, to the memory of a slot's device. Use it for
        arguments that a function updates in place or receives repeatedly. The default is the last slot.

        Raises: UsageError (`device`) for an unknown slot, or a value that is not a tensor; RuntimeCheckError.
        """
        tensor = from_any(value)
        if tensor is None:
            raise UsageError("device", f"a {type(value).__name__} is not a tensor")
        queue = self._bound.queues[self._slot(slot)]
        if queue.owns(tensor):
            return tensor.copy()
        return queue.take(tensor)

    def pack(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any],
        *,
        names: Mapping[str, str | Source] | None = None,
        keep: bool = True,
        unused: Collection[str] | None = None,
    ) -> PackedWeights:
        """Makes the weights of all functions from a checkpoint, for an executable that was built with `pack`:

            weights = vm.pack("model.safetensors")
            y = vm["main"](x, *weights["main"])

        `source` is a safetensors file, a directory with `model.safetensors` or its shards, several of these, or arrays
        by name. `names` maps parameters (`"w"`, `"main.w"`, or as `nn` has them, `"layers.0.weight"`) to names of
        tensors where they differ; for a parameter of `nn`, `layers_0_weight`, the tensor `layers.0.weight` is found by
        itself. `Source(name, transpose=True)`
        transposes a matrix. Tensors that no parameter needs are ignored, or, with `unused`, only those that it names:
        others are an error.

        Weights are packed one after the other while the files are mapped. The result is kept on disk, under a digest of
        the files and the packers, and mapped the next time (`relaxpy.runtime.weight_cache`); not with `keep=False`, and
        not for arrays.

        Raises: UsageError: `bad-checkpoint` for a file that cannot be read, `bad-weights` for missing tensors and other
        shapes or types, and unexpected ones (all of them at once), `pack` for an executable without weights to pack.
        """
        from relaxpy.runtime.pack import pack_weights

        return pack_weights(self, source, names, keep, unused)

    # Queues

    def open_queue(self, slot: int | str | None = None) -> Queue:
        """Opens a new queue of a slot's device, with its own memory. The default is the last slot. Open few queues and
        keep them: the machine keeps state for every queue that it ran on.

        Raises: UsageError (`device`) for a slot that is not there, and for the host, which has no queues.
        """
        number = self._slot(slot)
        runtime = self._bound.program.runtimes[number]
        if self._bound.queues[number].is_host:
            raise UsageError(
                "device",
                f"{self.devices[number]} has no queues",
                help="calls run in the calling thread; several threads may call one machine at once",
            )
        return runtime.queue()

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The queues that calls run on, by slot name. The host has none."""
        return self._bound.state.queues

    def on(
        self,
        queues: Mapping[Any, Queue] | Queue | None = None,
        *,
        communicator: object = None,
    ) -> VirtualMachine:
        """The same machine with calls on these queues, by the numbers or names of their slots. A single queue is that
        of the last slot. Slots that are not named keep their queues. `communicator` is passed to collective functions
        (`relaxpy.runtime.CallState`); None keeps the current one.

        Nothing is compiled or loaded again, and constants are shared. Results, and function values that calls return,
        stay on the queues of their call. Memory for intermediate values belongs to the queues. Keep the returned
        machine: creating it links its functions once more, to other names.

        Raises: UsageError (`device`) for a slot that is not there, a queue of another device than the slot's, and one
        queue for two slots.
        """
        bound = self._bound
        slots = self.executable.slots
        given = {len(slots) - 1: queues} if isinstance(queues, Queue) else dict(queues or {})
        chosen = list(bound.queues)
        for slot, queue in given.items():
            number = slot_number(slots, slot)
            runtime = bound.program.runtimes[number]
            if not isinstance(queue, Queue) or queue.runtime is not runtime or queue.is_host:
                what = f"a queue of {queue.device}" if isinstance(queue, Queue) else f"{queue!r}"
                raise UsageError(
                    "device",
                    f"slot {slots[number].name} runs on queues of {self.devices[number]}, got {what}",
                    help=f'open a queue: vm.open_queue("{slots[number].name}")',
                )
            chosen[number] = queue
        taken = [queue for queue in chosen if not queue.is_host]
        if len(set(taken)) < len(taken):
            raise UsageError(
                "device",
                "two slots cannot share a queue",
                help="open a queue for each slot",
            )
        heard = bound.state.communicator if communicator is None else communicator
        machine = object.__new__(VirtualMachine)
        machine._bind(bound.program, self.devices, BoundProgram(bound.program, chosen, heard))
        return machine

    def _slot(self, slot: int | str | None) -> int:
        """The number of a slot; None: of the last slot."""
        slots = self.executable.slots
        return len(slots) - 1 if slot is None else slot_number(slots, slot)

    def synchronise(self) -> None:
        """Waits until all devices have finished the work of calls on this machine's queues.

        Raises: RuntimeCheckError (`device-failed`) for failed work.
        """
        for queue in self._bound.queues:
            queue.synchronise()

    def release_memory(self) -> int:
        """Frees the memory that its queues keep for later calls. Returns the number of bytes."""
        for linked in self._bound.functions:
            linked.frames.clear()
        return sum(queue.pool.release() for queue in dict.fromkeys(self._bound.queues))

    @property
    def memory(self) -> MemoryUse:
        """The memory of its queues in bytes, by kind, without weights, summed over all devices."""
        return total(queue.pool.use() for queue in dict.fromkeys(self._bound.queues))

    @property
    def graphs(self) -> GraphUse:
        """How often calls replayed the graphs of its functions, and recorded them (`relaxpy.runtime.graphs`)."""
        from relaxpy.runtime.graphs import GraphUse

        return sum((linked.graph_use() for linked in self._bound.functions), GraphUse())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a VirtualMachine belongs to this process, so it can be neither pickled nor copied: pickle its Executable, "
            "or save it with exe.save(path), and create a VirtualMachine from that"
        )

    def __repr__(self) -> str:
        return f"<relaxpy VirtualMachine on {self.device}: {', '.join(self._functions)}>"


def public_functions(program: BoundProgram) -> dict[str, Function]:
    """The public functions of a program, by name."""
    return {f.translation.name: Function(f) for f in program.functions if f.translation.public}


def choose_devices(
    slots: Sequence[Slot],
    device: Device | str | None,
    devices: Mapping[int | str, Device | str],
) -> tuple[Device, ...]:
    """The device of each slot. `device` is that of the last slot; `devices` are those of slots by number or name. Other
    slots get the first device of their kind.

    Raises: UsageError (`device`) for one of another kind, and for a slot that is not there.
    """
    chosen = {slot_number(slots, slot): Device.of(given) for slot, given in devices.items()}
    if device is not None:
        chosen.setdefault(len(slots) - 1, Device.of(device))
    for number, given in chosen.items():
        if given.kind != slots[number].kind:
            raise UsageError(
                "device",
                f"the program was built for {slots[number].kind}, not for {given}",
                help=f'build it for that device: relaxpy.build(mod, target="{given.kind}")'
                if given.kind != "cpu"
                else 'build it for that device: relaxpy.build(mod, target="llvm")',
            )
    return tuple(
        chosen.get(number) or Device(slot.kind, slot.index) for number, slot in enumerate(slots)
    )


def slot_number(slots: Sequence[Slot], slot: int | str) -> int:
    """The index of a slot given by number or name. Raises: UsageError (`device`)."""
    names = [each.name for each in slots]
    if isinstance(slot, str) and slot in names:
        return names.index(slot)
    if isinstance(slot, int) and 0 <= slot < len(names):
        return slot
    raise UsageError(
        "device", f"the program has no slot {slot!r}", help=f"there are: {', '.join(names)}"
    )
