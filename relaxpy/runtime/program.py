"""An executable linked into this process: kernels loaded, names resolved, functions compiled to Python.

What `relaxpy.runtime.link` writes refers to names; this module gives them their values, runs the generators of
recursive functions, and turns what fails on a line into an error that names the function, the binding and the source
line.
"""

from __future__ import annotations

import builtins
import linecache
import re
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from relaxpy.errors import ExecutableError, RelaxError, RuntimeCheckError, Span
from relaxpy.runtime import library
from relaxpy.runtime.bytecode import (
    HOST,
    Alloc,
    Assert,
    Call,
    Check,
    Const,
    Eval,
    FunctionCode,
    Instr,
    Invoke,
    Kernel,
    Library,
    Location,
    Match,
    Move,
    Packed,
    Pattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.apart import apart
from relaxpy.runtime.devices.base import DeviceRuntime
from relaxpy.runtime.devices.cpu import threads
from relaxpy.runtime.devices.cpu.kernels import HANDOVER_SECONDS, OutOfRange
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.frame import Allocate, Frame, record_of, release
from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.inspect.profile import ProfilingEmitter, Recorder
from relaxpy.runtime.inspect.watch import Watch, WatchedEmitter, allocate_guarded
from relaxpy.runtime.integers import int64
from relaxpy.runtime.kernel_params import require_fit
from relaxpy.runtime.line_functions import (
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
from relaxpy.runtime.link import Devices, translate
from relaxpy.runtime.nesting import compile_nested, nesting_checked
from relaxpy.runtime.patterns import ANYTHING, describe, explain, prim_fits, to_value
from relaxpy.runtime.tensor import Shape, Tensor, from_numpy
from relaxpy.runtime.updates import require_own
from relaxpy.runtime.verifier.verify import Unproved

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

Suspended: TypeAlias = Generator[Any, Any, Any]
MAX_NOTES = 6
"""Callers that an error names; a deep recursion has as many as it is deep."""
MAX_DEPTH = 100
"""Chains of calls that go deeper run on the trampoline, as recursion does."""

MAX_CALLS = 1_000_000
"""Calls in calls on the trampoline: some 2.5 GB, and a recursion that does not end gets there."""

_numbers = count()


def _span(place: Location) -> Span:
    """Where in the user's source a location is."""
    end_line = place.line if place.end_column else 0
    return Span(place.file, place.line, place.column, end_line, place.end_column)


class LinkedFunction:
    """A function of a program, ready to run."""

    __slots__ = (
        "__weakref__",
        "code",
        "devices",
        "direct",
        "frames",
        "generator",
        "movable",
        "origin",
        "patterns",
        "program",
        "queues",
        "run",
        "serial_seconds",
        "source",
    )

    def __init__(
        self,
        program: Program,
        code: FunctionCode,
        generators: frozenset[int],
        generator: bool,
        movable: bool,
        unproved: Unproved,
    ) -> None:
        self.program = program
        self.code = code
        self.generator = generator
        self.movable = movable
        """May run in another thread than the caller's."""
        self.serial_seconds = 0.0
        """What the last call took in a thread that runs serial kernels."""
        self.frames: list[Frame] = []
        """Frames that no call uses."""
        self.patterns = parameter_patterns(code)
        hosted = all(map(program.is_hosted, self.patterns))
        self.direct = Tensor if hosted else None
        """The class of arguments that are what the function takes."""
        self.queues: Sequence[Queue] = () if hosted else program.queues
        """Those of the slots; none where all parameters live on the host."""
        with nesting_checked(code.name):
            emitter = WatchedEmitter if program.check_memory else program.emitter
            listing = translate(code, generators, generator, emitter, unproved, program.devices)
        self.source = listing.text
        self.origin = listing.origin
        file = f"<relaxpy {printable(code.name)} {next(_numbers)}>"
        linecache.cache[file] = (
            len(self.source),
            None,
            self.source.splitlines(keepends=True),
            file,
        )
        weakref.finalize(self, linecache.cache.pop, file, None)
        plan = listing.plan
        # What all functions share takes the place of Python's builtins (which it contains), so it is stored once.
        scope: dict[str, Any] = {
            "__builtins__": program.scope,
            "pop": self.frames.pop,
            "push": self.frames.append,
            "frames": self.frames,
            "release": release,
            "new_frame": lambda: Frame(plan, program.allocators),
            "fail": self.fail,
            "mismatch": self.mismatch,
            "unequal": self.unequal,
            "require_own": self.require_own,
        }
        self.devices = listing.devices
        for lines in listing.devices:
            scope |= lines.names(program)
        scope |= {f"q{number}": text for number, text in enumerate(listing.texts)}
        with nesting_checked(code.name):
            compiled = compile_nested(listing.lines, listing.arms, file)
        exec(compiled, scope)
        self.run: Callable[..., Any] = scope["run"]

    def __call__(self, *args: Any) -> Any:
        """Run with runtime values; no conversion of arguments or result.

        A thread that may not launch parallel kernels hands long calls to the thread that may, if nothing of the
        caller's runs in them (Python functions may depend on their thread).
        """
        if self.generator:
            return drive(self.run(*args))
        if self.movable and not threads.is_launching_thread():
            return self._call_from_another_thread(args)
        return self.run(*args)

    def _call_from_another_thread(self, args: tuple[Any, ...]) -> Any:
        start = perf_counter()
        if self.serial_seconds > HANDOVER_SECONDS:
            done, value = threads.run_elsewhere(self.run, args)
            if done:
                # Two threads at best halve the time; a call that was short after all stays here the next time.
                self.serial_seconds = 2 * (perf_counter() - start)
                return value
        value = self.run(*args)
        self.serial_seconds = perf_counter() - start
        return value

    # Errors

    def _instr_at(self, trace: TracebackType | None) -> int:
        """The instruction that was running in this function, from an exception's traceback."""
        while trace is not None:
            if trace.tb_frame.f_code is self.run.__code__:
                line = trace.tb_lineno - 1
                if trace.tb_next is not None:
                    # A row of kernels stands on its first line, and each kernel on one of the lines behind it.
                    inner = trace.tb_next.tb_frame
                    rows = (lines.position(inner.f_code, inner.f_locals) for lines in self.devices)
                    line += max(rows) + 1
                return self.origin[line] if 0 <= line < len(self.origin) else -1
            trace = trace.tb_next
        return -1

    def fail(self, error: Exception) -> Exception:
        """The error that leaves the function for one that was raised inside it: located, told what was running."""
        at = self._instr_at(error.__traceback__)
        instr = self.code.code[at] if at >= 0 else None
        place = self.code.place(instr) if instr else None
        binding = f", in the binding of {place.binding}" if place and place.binding else ""
        if isinstance(error, RelaxError):
            first = not any(note.startswith("in function ") for note in error.notes)
            if first and place and place.file:
                error.located(_span(place))
            if len(error.notes) < MAX_NOTES:
                where = f", {place.file}:{place.line}" if place and place.file else ""
                how = "in function" if first else "called from"
                error.notes = (*error.notes, f"{how} {self.code.name}{binding}{where}")
            return error
        if isinstance(error, OutOfRange):
            located = RuntimeCheckError("tir-bounds", f"{self.code.name}: {_last_line(error)}")
        else:
            code, what = self._what(instr, error)
            located = RuntimeCheckError(code, f"{self.code.name}: {what}: {_reason(error)}")
        located.__cause__ = error
        if place and place.file:
            located.located(_span(place))
        located.notes = (f"in function {self.code.name}{binding}",)
        return located

    def _what(self, instr: Instr | None, error: Exception) -> tuple[str, str]:
        """Error code and subject for an exception that an instruction ended in."""
        exe = self.program.executable
        if isinstance(error, MemoryError):
            return "out-of-memory", "not enough memory"
        if isinstance(error, OverflowError) and isinstance(instr, Alloc):
            return "out-of-memory", "the size of its storage cannot be computed"
        if isinstance(error, ArithmeticError) and isinstance(instr, (Eval, Assert, Match, Alloc)):
            return "shape-arithmetic", "a dimension cannot be computed"
        match instr:
            case Kernel(index=index):
                return "kernel-failed", f"the kernel {exe.kernels[index].name} failed"
            case Library(index=index):
                return "library-failed", f"the library function {exe.libraries[index]} failed"
            case Packed(index=index):
                return "call-failed", f"the function {exe.packed[index]} failed"
            case Invoke():
                return "callback-failed", "a function that was passed in failed"
            case Call(index=index):
                return "call-failed", f"the call of {exe.functions[index].name} failed"
            case _:
                return "execution", f"{type(instr).__name__ if instr else 'the function'} failed"

    def require_own(self, values: tuple[Any, ...], updated: tuple[int, ...]) -> None:
        """Check the arguments of a call that updates some of them in place (`relaxpy.runtime.updates`)."""
        params = self.code.params
        try:
            require_own(values, updated, lambda position: params[position].name)
        except RuntimeCheckError as error:
            error.message = f"{self.code.name}: {error.message}"
            error.notes = tuple(
                f"{params[i].name} is annotated {params[i].annotation}, and updated in place"
                for i in updated
            )
            raise

    def mismatch(self, at: int, value: Any, local: Mapping[str, Any]) -> RuntimeCheckError:
        """The error of a `Match` that does not hold."""
        instr = self.code.code[at]
        assert isinstance(instr, Match)
        check = self.code.checks[instr.check]
        error = self._check_error(check, explain(value, instr.pattern), describe(value), local)
        match instr.pattern:
            case TensorPattern(dtype=dtype) if isinstance(value, Tensor) and value.dtype != dtype:
                if dtype and check.what == "parameter":
                    error.help = f'types are never cast; pass {check.name}.astype("{dtype}")'
            case _:
                pass
        return error

    def unequal(
        self, check_index: int, came: int, wanted: int, local: Mapping[str, Any]
    ) -> RuntimeCheckError:
        """The error of an `Assert` that does not hold."""
        check = self.code.checks[check_index]
        if check.what == "relation":
            # the condition says it all: which sizes do not fit
            return self._check_error(check, check.detail, "", local)
        detail = f"{check.detail} " if check.detail else ""
        return self._check_error(check, f"{detail}must be {wanted}, got {came}", "", local)

    def _check_error(
        self, check: Check, reason: str, came: str, local: Mapping[str, Any]
    ) -> RuntimeCheckError:
        subject = "" if check.what == "relation" else f"{check.what} {check.name}: "
        bound = [
            f"{name} = {local[f's{slot}']}" for name, slot in check.symbols if f"s{slot}" in local
        ]
        notes = [f"{check.name} is annotated {check.annotation}"] if check.annotation else []
        if came:
            notes.append(f"what came is {came}")
        if bound:
            notes.append(f"bound so far: {', '.join(bound)}")
        return RuntimeCheckError("check", f"{self.code.name}: {subject}{reason}", notes=notes)


class Program:
    """An executable linked for its devices."""

    def __init__(
        self,
        executable: Executable,
        devices: Sequence[Device],
        check_memory: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """`devices` are those of the executable's slots."""
        self.check_memory = check_memory
        self.recorder = recorder
        self.emitter = None if recorder is None else ProfilingEmitter
        self.executable = executable
        unproved = executable.unproved
        self.libraries = [library.find_library(name) for name in executable.libraries]
        self.packed = [library.find_function(name) for name in executable.packed]
        runtimes = [runtime_of(device.kind, device.index) for device in devices]
        self.queues = self._queues(runtimes)
        self.devices = Devices(
            tuple(runtime.lines for runtime in runtimes), tuple(executable.kernels)
        )
        self.allocators: list[Allocate] = [
            allocate_guarded if check_memory and queue.is_host else queue.storage
            for queue in self.queues
        ]
        self.kernels = self._kernels()
        self.constants = [from_numpy(array, constant=True) for array in executable.constants]
        for tensor in self.constants:
            tensor.constant = True  # also where from_numpy had to copy
        self.scope = self._names()
        generators = trampolined(executable.functions)
        movable = without_python(executable.functions) - generators
        self.functions = [
            LinkedFunction(
                self, code, generators, index in generators, index in movable, unproved[index]
            )
            for index, code in enumerate(executable.functions)
        ]
        for index, function in enumerate(self.functions):
            self.scope[f"f{index}"] = function.run

    def _queues(self, runtimes: Sequence[DeviceRuntime]) -> list[Queue]:
        """A queue for each slot; slots on the host have one together."""
        host = runtimes[HOST].queue()
        queues = [host, *(host if r is runtimes[HOST] else r.queue() for r in runtimes[1:])]
        for code in self.executable.functions:
            for instr in code.code:
                if isinstance(instr, Alloc) and instr.storage >= 0:
                    runtime = runtimes[instr.slot]
                    if instr.offset % runtime.offset_alignment:
                        raise ExecutableError(
                            "device-offset",
                            f"{code.name} has a tensor at byte {instr.offset} of its storage, and on {runtime.kind} "
                            f"tensors begin at multiples of {runtime.offset_alignment}",
                            help="build it again, for this device",
                        )
        return queues

    def _kernels(self) -> list[Any]:
        """The handles of the kernels, as the lines of their devices call them."""
        exe = self.executable
        kernels: list[Any] = [None] * len(exe.kernels)
        for queue in dict.fromkeys(self.queues):
            mine = [i for i, info in enumerate(exe.kernels) if self.queues[info.slot] is queue]
            infos = [exe.kernels[i] for i in mine]
            handles = queue.runtime.load(exe.objects, infos, queue.raw) if infos else ()
            for i, info, handle in zip(mine, infos, handles, strict=True):
                distinct = queue.runtime.distinct_buffers
                kernels[i] = apart(handle, info, queue) if distinct else handle
        return kernels

    def is_hosted(self, pattern: Pattern) -> bool:
        """Whether all tensors in a value that matches live on the host."""
        if isinstance(pattern, TuplePattern):
            return all(map(self.is_hosted, pattern.fields))
        return not isinstance(pattern, TensorPattern) or self.queues[pattern.slot].is_host

    def constant(self, index: int, slot: int) -> Tensor:
        """A constant in the memory of a slot. One that no function uses there is not copied."""
        tensor, queue = self.constants[index], self.queues[slot]
        return tensor if queue.is_host else queue.upload(tensor, constant=True)

    def launched(self, index: int) -> None:
        """A kernel was put into its queue: wait for it. Raises: RuntimeCheckError (`kernel-failed`)."""
        info = self.executable.kernels[index]
        try:
            self.queues[info.slot].synchronise()
        except RuntimeCheckError as error:
            raise RuntimeCheckError(
                "kernel-failed", f"the kernel {info.name} failed: {error.message}"
            ) from error

    def _names(self) -> dict[str, Any]:
        """What the source of every function may refer to, but for the functions themselves."""
        scope: dict[str, Any] = {
            **vars(builtins),
            "Tensor": Tensor,
            "DeviceTensor": DeviceTensor,
            "Shape": Shape,
            "empty": self.queues[HOST].empty,
            "launched": self.launched,
            "read": read,
            "Watch": Watch,
            "argument": argument,
            "truth": truth,
            "view_of": view_of,
            "shown": shown,
            "fit": self.fit,
            "room": require_room,
            "seen": require_seen,
            "int64": int64,
            "prim_fits": prim_fits,
            "to_value": to_value,
            "closure": self.closure,
            "is_generator": is_generator,
            "begin": begin,
            "invoke": invoke,
        }
        if self.recorder is not None:
            scope |= {"clock": perf_counter, "note": self.recorder.note}
        for index, tensor in enumerate(self.constants):
            scope[f"c{index}"] = tensor
            scope[f"ct{index}"] = record_of(tensor)
        for slot, queue in enumerate(self.queues):
            scope |= {f"copy_to{slot}": queue.take, f"queue{slot}": queue}
            if not queue.is_host:
                scope[f"empty{slot}"] = queue.empty
        for i, (info, kernel) in enumerate(zip(self.executable.kernels, self.kernels, strict=True)):
            name = "launch" if not self.queues[info.slot].is_host else "small"
            scope[f"{name}{i}"] = kernel if name == "launch" else kernel.serial
        for index, slot in sorted(self._constants_used()):
            scope[f"c{index}_{slot}"] = self.constant(index, slot)
        scope |= {f"l{i}": func for i, func in enumerate(self.libraries)}
        scope |= {f"p{i}": func for i, func in enumerate(self.packed)}
        return scope

    def _constants_used(self) -> set[tuple[int, int]]:
        """Constants and slots other than the host's that they are used in."""
        return {
            (instr.index, instr.slot)
            for code in self.executable.functions
            for instr in code.code
            if isinstance(instr, Const) and not self.queues[instr.slot].is_host
        }

    def fit(self, index: int, args: tuple[Any, ...]) -> None:
        """Compare arguments with what a kernel takes. Raises: RuntimeCheckError (`check`)."""
        info = self.executable.kernels[index]
        require_fit(info, args)
        queue = self.queues[info.slot]
        for number, arg in enumerate(args):
            # one without memory tells only of its shape
            if isinstance(arg, Tensor) and arg.owner is not None and not queue.owns(arg):
                raise RuntimeCheckError(
                    "check",
                    f"argument {number} of the kernel {info.name} must be on {queue.device}, is on {arg.device}",
                )

    def closure(self, index: int, captured: tuple[Any, ...]) -> Any:
        """A function value of the program."""
        from relaxpy.runtime.function import Function  # a function value refers back to its program

        return Function(self.functions[index], captured)


def parameter_patterns(code: FunctionCode) -> tuple[Pattern, ...]:
    """What each parameter must look like: the pattern of its first `Match`, or anything."""
    found: dict[int, Pattern] = {}
    holds = {i: i for i in range(len(code.params))}
    """Register → parameter that it holds."""
    for instr in code.code:
        if isinstance(instr, Match):
            if instr.src in holds and code.checks[instr.check].what == "parameter":
                found.setdefault(holds[instr.src], instr.pattern)
            continue
        dst = getattr(instr, "dst", -1)
        if isinstance(instr, Move) and instr.src in holds:
            holds[dst] = holds[instr.src]
        else:
            holds.pop(dst, None)
    return tuple(found.get(i, ANYTHING) for i in range(len(code.params)))


def trampolined(functions: tuple[FunctionCode, ...]) -> frozenset[int]:
    """Functions that run on the trampoline: in a cycle of calls, calling function values, deep, or calling such."""
    calls = [sorted({i.index for i in code.code if isinstance(i, Call)}) for code in functions]
    result = {
        n for n, code in enumerate(functions) if any(isinstance(i, Invoke) for i in code.code)
    }
    depth: dict[int, int] = {}
    # Depth from the leaves, level by level; what is left over after MAX_DEPTH levels is in a cycle, above one, or deep.
    for level in range(MAX_DEPTH):
        ready = [
            n for n in range(len(functions)) if n not in depth and all(c in depth for c in calls[n])
        ]
        if not ready:
            break
        depth |= dict.fromkeys(ready, level)
    result |= {n for n in range(len(functions)) if n not in depth}
    changed = True
    while changed:
        more = {
            n
            for n in range(len(functions))
            if n not in result and any(c in result for c in calls[n])
        }
        result |= more
        changed = bool(more)
    return frozenset(result)


def without_python(functions: tuple[FunctionCode, ...]) -> frozenset[int]:
    """Functions in whose calls no Python of users runs."""
    foreign = (Invoke, Packed, Library)
    result = {
        n for n, code in enumerate(functions) if not any(isinstance(i, foreign) for i in code.code)
    }
    calls = [{i.index for i in code.code if isinstance(i, Call)} for code in functions]
    while True:
        fewer = {n for n in result if calls[n] <= result}
        if fewer == result:
            return frozenset(result)
        result = fewer


def drive(running: Suspended) -> Any:
    """Run a generator of a function and those that it yields, on a stack of our own."""
    stack: list[Suspended] = []
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            called = running.send(value) if error is None else running.throw(error)
        except StopIteration as stop:
            value, error = stop.value, None
            if not stack:
                return value
            running = stack.pop()
        except BaseException as raised:
            # Every function on the stack gets it, to locate it and to give its frame back.
            if not stack:
                raise
            value, error = None, raised
            running = stack.pop()
        else:
            if len(stack) >= MAX_CALLS:
                called.close()
                message = f"calls are nested more than {MAX_CALLS} deep"
                help = "does the recursion end for these arguments?"
                value, error = None, RuntimeCheckError("recursion", message, help=help)
                continue
            stack.append(running)
            running, value, error = called, None, None


def _reason(error: BaseException) -> str:
    """An exception in one line."""
    last = _last_line(error)
    return f"{type(error).__name__}: {last}" if last else type(error).__name__


def _last_line(error: BaseException) -> str:
    """The last line of an error's message: TVM's messages begin with a C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _TASK.sub("", lines[-1]) if lines else ""


_TASK = re.compile(r"^Task \d+ error: ")
"""How TVM's thread pool says which of its tasks an error is of: that depends on the number of threads."""
