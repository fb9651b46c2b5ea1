"""Functions of a program, translated to Python and ready to run on the queues of a call.

A `Translation` is a function's compiled Python code, independent of queues. A `LinkedFunction` binds this code to the
names that it uses (`relaxpy.runtime.program.BoundProgram`), and has the frames that its calls reuse. An exception on a
line becomes an error that names the function, the binding and the source line.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from relaxpy.errors import RelaxError, RuntimeCheckError
from relaxpy.runtime.check_data import holds_data
from relaxpy.runtime.data import CLASSES
from relaxpy.runtime.entry import Arguments, entry_source
from relaxpy.runtime.ffi import OutOfMemory, OutOfRange
from relaxpy.runtime.frame import Frame, release
from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.links import Translated
from relaxpy.runtime.patterns import describe, explain
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.terms import TensorPattern
from relaxpy.runtime.updates import require_own

# What only errors and promises need is imported where they are made: most processes have none.
if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import Check, FunctionCode, Graph, Instr
    from relaxpy.runtime.devices.queue import Queue
    from relaxpy.runtime.graphs import Graphs, GraphUse
    from relaxpy.runtime.program import BoundProgram, Program
    from relaxpy.runtime.promises import Promise

MAX_NOTES = 6
"""The most callers that an error names; a deep recursion has very many."""

_numbers = count()


class Translation:
    """A function as compiled Python code, for any queues."""

    __slots__ = (
        "__weakref__",
        "_entries",
        "compiled",
        "executable",
        "generator",
        "hosted",
        "index",
        "listing",
        "made",
        "origin",
        "patterns",
        "public",
        "source",
    )

    def __init__(self, program: Program, index: int, generator: bool, made: Translated) -> None:
        self.executable = program.executable
        self.made = made
        self.index = index
        """Its index in the program."""
        self.generator = generator
        self.patterns = made.patterns
        self.public = made.public
        self.hosted = all(map(program.is_hosted, self.patterns))
        """Whether all its parameters are on the host."""
        self.listing = listing = made.listing
        self.source = listing.text
        self.origin = listing.origin
        file = f"<relaxpy {printable(listing.name)} {next(_numbers)}>"
        linecache.cache[file] = (
            len(self.source),
            None,
            self.source.splitlines(keepends=True),
            file,
        )
        weakref.finalize(self, linecache.cache.pop, file, None)
        self.compiled = _in_file(made.compiled, file)
        self._entries: dict[int, CodeType] = {}

    @property
    def name(self) -> str:
        return self.listing.name

    @property
    def code(self) -> FunctionCode:
        """The function as bytecode."""
        return self.executable.functions[self.index]

    def entry(self, captured: int, packed: Collection[int]) -> CodeType:
        """The code of the function for callers (`LinkedFunction.entry`). The parameters `packed` are packed weights."""
        found = self._entries.get(captured)
        if found is None:
            listing = self.listing
            own = len(self.patterns) - captured
            source = entry_source(listing.tests, own, packed, self.generator, listing.gives_new)
            file = f"<relaxpy call of {printable(self.name)}>"
            found = self._entries[captured] = compile(source, file, "exec")
        return found


def _in_file(code: CodeType, file: str) -> CodeType:
    """The same code as that of another file."""
    constants = (
        _in_file(each, file) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=tuple(constants))


class LinkedFunction:
    """A function of a program, bound to the queues of a call."""

    __slots__ = (
        "__weakref__",
        "_entries",
        "_graphs",
        "_layouts",
        "_recorders",
        "devices",
        "frames",
        "generator",
        "origin",
        "patterns",
        "program",
        "queues",
        "run",
        "translation",
    )

    def __init__(self, program: BoundProgram, translation: Translation) -> None:
        self.program = program
        self.translation = translation
        self.generator = translation.generator
        self.origin = translation.origin
        self.patterns = translation.patterns
        self._layouts = program.program.layouts.get(translation.index, {})
        """The layouts of parameters that are packed weights, by position."""
        self.frames: list[Frame] = []
        """Free frames. Their storage is memory of the program's queues."""
        self._entries: dict[int, Callable[..., Any]] = {}
        """The functions for callers by the number of captured values."""
        self.queues: Sequence[Queue] = () if translation.hosted else program.queues
        """The queues of the slots; empty if all parameters are on the host."""
        listing = translation.listing
        self._recorders = [program.recorder(graph) for graph in listing.graphs]
        self._graphs: WeakSet[Graphs] = WeakSet()
        # Names that all functions share replace Python's builtins (which they include), so they are stored once.
        scope: dict[str, Any] = {
            "__builtins__": program.scope,
            "pop": self.frames.pop,
            "push": self.frames.append,
            "frames": self.frames,
            "release": release,
            "new_frame": self._new_frame,
            "fail": self.fail,
            "misfit": self.misfit,
            "mismatch": self.mismatch,
            "unequal": self.unequal,
            "require_own": self.require_own,
            "promise": self.promise,
        }
        self.devices = listing.devices
        for names in listing.devices:
            scope |= names.bound(program)
        scope |= {f"q{number}": text for number, text in enumerate(listing.texts)}
        scope |= {f"D{number}": CLASSES[key] for number, key in enumerate(listing.classes)}
        exec(translation.compiled, scope)
        self.run: Callable[..., Any] = scope["run"]

    def _new_frame(self) -> Frame:
        graphs = [recorder.graphs() for recorder in self._recorders]
        self._graphs.update(graphs)
        return Frame(self.translation.listing.plan, self.program.allocators, graphs)

    def graph_use(self) -> GraphUse:
        """How often the function's graphs were used, in the frames that exist."""
        from relaxpy.runtime.graphs import GraphUse

        return sum((graphs.use() for graphs in list(self._graphs)), GraphUse())

    @property
    def code(self) -> FunctionCode:
        """The function as bytecode."""
        return self.translation.code

    @property
    def source(self) -> str:
        """The generated Python code."""
        return self.translation.source

    def entry(self, captured: int) -> Callable[..., Any]:
        """The function for callers (`relaxpy.runtime.entry`), whose first arguments are the values of this number of
        captured parameters."""
        found = self._entries.get(captured)
        if found is None:
            arguments = Arguments(self, len(self.patterns) - captured)
            scope: dict[str, Any] = {
                "__builtins__": self.program.scope,
                "run": self.run,
                "bind": arguments.bind,
                "enter": arguments.enter,
                "not_packed": arguments.not_packed,
                "layouts": self._layouts,
            }
            exec(self.translation.entry(captured, self._layouts), scope)
            found = self._entries[captured] = scope["call"]
        return found

    # Errors

    def _instr_at(self, trace: TracebackType | None) -> int:
        """The instruction that was running in this function, from an exception's traceback."""
        while trace is not None:
            if trace.tb_frame.f_code is self.run.__code__:
                line = trace.tb_lineno - 1
                if trace.tb_next is not None:
                    # A row of kernels is on its first line, and each kernel on one of the lines after it.
                    inner = trace.tb_next.tb_frame
                    rows = (names.position(inner.f_code, inner.f_locals) for names in self.devices)
                    line += max(rows) + 1
                return self.origin[line] if 0 <= line < len(self.origin) else -1
            trace = trace.tb_next
        return -1

    def fail(self, error: Exception) -> Exception:
        """Converts an exception that was raised inside the function to a located error that names the running
        instruction."""
        at = self._instr_at(error.__traceback__)
        instr = self.code.code[at] if at >= 0 else None
        place = self.code.place(instr) if instr else None
        binding = f", in the binding of {place.binding}" if place and place.binding else ""
        if isinstance(error, RelaxError):
            first = not any(note.startswith("in function ") for note in error.notes)
            if first and place and place.file:
                error.located(place.span)
            if len(error.notes) < MAX_NOTES:
                where = f", {place.file}:{place.line}" if place and place.file else ""
                how = "in function" if first else "called from"
                error.notes = (*error.notes, f"{how} {self.code.name}{binding}{where}")
            if first and error.code == "out-of-memory":
                error.notes = (*error.notes, *self._plan(error.__traceback__))
            return error
        if isinstance(error, (OutOfRange, OutOfMemory)):
            code = "tir-bounds" if isinstance(error, OutOfRange) else "out-of-memory"
            located = RuntimeCheckError(code, f"{self.code.name}: {_last_line(error)}")
        else:
            code, what = self._what(instr, error)
            reason = _reason(error)
            if code in ("shape-arithmetic", "out-of-memory") and isinstance(error, ArithmeticError):
                from relaxpy.runtime.integers import problem_of

                reason = problem_of(error)
            located = RuntimeCheckError(code, f"{self.code.name}: {what}: {reason}")
        located.__cause__ = error
        if place and place.file:
            located.located(place.span)
        located.notes = (f"in function {self.code.name}{binding}",)
        if located.code == "out-of-memory":
            located.notes = (*located.notes, *self._plan(error.__traceback__))
        return located

    def promise(self, instrs: tuple[int, ...], slots: tuple[tuple[int, int], ...]) -> Promise:
        """What these instructions, behind a tail call, compare its result with."""
        from relaxpy.runtime.promises import Promise

        return Promise(self, instrs, slots)

    def placed(self, error: RuntimeCheckError, at: int) -> RuntimeCheckError:
        """An error of an instruction of a call that has ended."""
        place = self.code.place(self.code.code[at])
        binding = f", in the binding of {place.binding}" if place.binding else ""
        where = f", {place.file}:{place.line}" if place.file else ""
        if place.file:
            error.located(place.span)
        error.notes = (*error.notes, f"in function {self.code.name}{binding}{where}")
        return error

    def _plan(self, trace: TracebackType | None) -> list[str]:
        """A note with the memory that the failing call needs, if the sizes that it depends on were known by then."""
        while trace is not None and trace.tb_frame.f_code is not self.run.__code__:
            trace = trace.tb_next
        if trace is None:
            return []
        from relaxpy.runtime.inspect.heap_values import symbol_slots
        from relaxpy.runtime.inspect.memory_plan import plan_note

        local = trace.tb_frame.f_locals
        slots = symbol_slots(self.code)
        return plan_note(
            self.code,
            {name: local[f"s{slot}"] for name, slot in slots.items() if f"s{slot}" in local},
        )

    def _what(self, instr: Instr | None, error: Exception) -> tuple[str, str]:
        """The error code and the subject for an exception that an instruction raised."""
        from relaxpy.runtime import bytecode as bc

        exe = self.program.executable
        if isinstance(error, MemoryError):
            return "out-of-memory", "not enough memory"
        if isinstance(error, OverflowError) and isinstance(instr, bc.Alloc):
            return "out-of-memory", "the size of its storage cannot be computed"
        if isinstance(error, ArithmeticError) and isinstance(
            instr, (bc.Eval, bc.Assert, bc.Match, bc.Alloc)
        ):
            return "shape-arithmetic", "a dimension cannot be computed"
        match instr:
            case bc.Kernel(index=index):
                return "kernel-failed", f"the kernel {exe.kernels[index].name} failed"
            case bc.Graph():
                return "kernel-failed", f"a graph of {self._launches(instr)} launches failed"
            case bc.Library(index=index):
                return "library-failed", f"the library function {exe.libraries[index]} failed"
            case bc.Packed(index=index):
                return "call-failed", f"the function {exe.packed[index]} failed"
            case bc.Invoke():
                return "callback-failed", "a function that was passed as an argument failed"
            case bc.Call(index=index):
                return "call-failed", f"the call of {exe.functions[index].name} failed"
            case _:
                return "execution", f"{type(instr).__name__ if instr else 'the function'} failed"

    def _launches(self, graph: Graph) -> int:
        """The number of launches of a graph of this function."""
        from relaxpy.runtime.bytecode import Kernel

        at = next(at for at, instr in enumerate(self.code.code) if instr is graph)
        return sum(isinstance(i, Kernel) for i in self.code.code[at + 1 : at + 1 + graph.length])

    def require_own(self, values: tuple[Any, ...], updated: tuple[int, ...]) -> None:
        """Checks the arguments of a call that updates some of them in place (`relaxpy.runtime.updates`)."""
        params = self.code.params
        try:
            require_own(values, updated, lambda position: params[position].name)
        except RuntimeCheckError as error:
            error.message = f"{self.code.name}: {error.message}"
            error.notes = tuple(
                f"{params[i].name} is annotated {params[i].annotation}, and is updated in place"
                for i in updated
            )
            raise

    def misfit(self, at: int, value: Any) -> str:
        """The reason why a value, with the data in it, does not fit a `Match`; empty if it does."""
        from relaxpy.runtime.bytecode import Match

        instr = self.code.code[at]
        assert isinstance(instr, Match)
        return self.program.executable.data_check.misfit(value, instr.pattern)

    def mismatch(self, at: int, value: Any, local: Mapping[str, Any]) -> RuntimeCheckError:
        """The error of a `Match` that failed."""
        from relaxpy.runtime.bytecode import Match

        instr = self.code.code[at]
        assert isinstance(instr, Match)
        check = self.code.checks[instr.check]
        reason = self.misfit(at, value) if holds_data(instr.pattern) else ""
        reason = reason or explain(value, instr.pattern)
        error = self._check_error(check, reason, describe(value), local)
        match instr.pattern:
            case TensorPattern(dtype=dtype) if isinstance(value, Tensor) and value.dtype != dtype:
                if dtype and check.what == "parameter":
                    error.help = f'there are no implicit casts: pass {check.name}.astype("{dtype}")'
            case _:
                pass
        return error

    def unequal(
        self, check_index: int, came: int, wanted: int, local: Mapping[str, Any]
    ) -> RuntimeCheckError:
        """The error of an `Assert` that failed."""
        check = self.code.checks[check_index]
        if check.what == "relation":
            # the condition names the sizes that do not fit
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
            notes.append(f"the actual value is {came}")
        if bound:
            notes.append(f"bound so far: {', '.join(bound)}")
        return RuntimeCheckError("check", f"{self.code.name}: {subject}{reason}", notes=notes)


def _reason(error: BaseException) -> str:
    """An exception in one line."""
    last = _last_line(error)
    return f"{type(error).__name__}: {last}" if last else type(error).__name__


def _last_line(error: BaseException) -> str:
    """The last line of an error message. TVM's messages begin with a C++ stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _TASK.sub("", lines[-1]) if lines else ""


_TASK = re.compile(r"^Task \d+ error: ")
"""The prefix with which TVM's thread pool names the failing task. It depends on the number of threads."""
