"""Runs the suite on the virtual machine of `relaxpy.runtime`, with each executable written to a file, read and
verified."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from relaxpy.build.build import build
from relaxpy.errors import RelaxError
from relaxpy.runtime.bytecode import (
    Eval,
    FunctionCode,
    Heap,
    IntExpr,
    MakePrim,
    ObjectPattern,
    Packed,
    PrimPattern,
    Reg,
    Return,
    Slot,
)
from relaxpy.runtime.codec import decode, from_exact_json
from relaxpy.runtime.executable import Executable, load
from relaxpy.runtime.library import register_library
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.script.parser import parse
from tests.machine.cases import function
from tests.machine.formulas import (
    DIVISION,
    OVERFLOW,
    SLOTS,
    int_expr_of,
    value_of,
)
from tests.machine.values import from_json, to_json


def _negate(x: Any, out: Any) -> None:
    """The library function of the cases."""
    out[...] = -x.numpy()


@cache
def _kernels(programs: str, names: tuple[str, ...]) -> Executable:
    """An executable with the kernels of the cases, in order."""
    register_library("suite.negate", _negate)
    built = build(parse(programs))
    by_name = {kernel.name: kernel for kernel in built.kernels}
    return replace(built, functions=(), kernels=tuple(by_name[name] for name in names))


def loaded(exe: Executable) -> Executable:
    """The executable after writing it to a file and reading it again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.rxe"
        exe.save(path)
        return load(path)


@dataclass(frozen=True)
class Problem:
    """A failing case."""

    case: str
    text: str


def check_instructions(suite: dict[str, Any]) -> Iterator[Problem]:
    """Runs the cases of `instructions.json`."""
    base = _kernels(suite["programs"], tuple(suite["kernels"]))
    for case in suite["cases"]:
        for text in _check_case(base, case):
            yield Problem(case["name"], text)


def _check_case(base: Executable, case: dict[str, Any]) -> Iterator[str]:
    functions = decode(from_exact_json(case["functions"]), tuple[FunctionCode, ...])
    constants = tuple(from_json({"tensor": each}) for each in case.get("constants", ()))
    packed, libraries = (tuple(case.get(each, ())) for each in ("packed", "libraries"))
    slots = decode(case["slots"], tuple[Slot, ...]) if "slots" in case else base.slots
    exe = replace(
        base,
        functions=functions,
        constants=constants,
        packed=packed,
        libraries=libraries,
        slots=slots,
    )
    refused = case.get("refused", "")
    try:
        machine = VirtualMachine(loaded(exe))
    except RelaxError as error:
        if error.code != refused:
            yield f"refused: {error}"
        return
    if refused:
        yield f"not refused with {refused}"
        return
    for number, run in enumerate(case["runs"]):
        for text in _check_run(machine, run):
            yield f"run {number}: {text}"


def _check_run(machine: VirtualMachine, run: dict[str, Any]) -> Iterator[str]:
    functions = {code.name: machine[code.name] for code in machine.executable.functions}
    args = [from_json(arg, functions) for arg in run["args"]]
    try:
        found = {"result": to_json(machine["main"](*args))}
    except RelaxError as error:
        found = {"error": error.code}
    wanted = {key: run[key] for key in ("result", "error") if key in run}
    if found != wanted:
        yield f"{json.dumps(found)} where {json.dumps(wanted)} was wanted"
    if "after" in run:
        after = list(map(to_json, args))
        if after != run["after"]:
            yield f"its arguments are {json.dumps(after)} afterwards"


def check_builtins(suite: dict[str, Any]) -> Iterator[Problem]:
    """Runs the cases of `builtins.json`, each as a function that passes its arguments on."""
    for number, case in enumerate(suite["cases"]):
        count = len(case["args"])
        call = Packed(0, count, 0, tuple(map(Reg, range(count))))
        code = function([ObjectPattern()] * count, [call, Return(0, count)], regs=count + 1)
        machine = VirtualMachine(loaded(Executable((code,), packed=(case["builtin"],))))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            problems = list(_check_run(machine, case))
        if output.getvalue() != case.get("output", ""):
            problems.append(f"it has written {output.getvalue()!r}")
        for text in problems:
            yield Problem(f"{number}: {case['builtin']}", text)


def check_formulas(suite: dict[str, Any], every: int = 1) -> Iterator[Problem]:
    """Computes the formulas of `formulas.json` from arguments, and every `every`th also from constants of the heap."""
    edges = list(map(int, suite["edges"]))
    heaps = [list(map(int, heap)) for heap in suite["heaps"]]
    pairs = [
        (
            [op, "h0", "h1"],
            [
                ([a, b, 0, 0, 0], row[j])
                for a, row in zip(edges, rows, strict=True)
                for j, b in enumerate(edges)
            ],
        )
        for op, rows in suite["pairs"].items()
    ]
    rows = [
        (formula, [(heaps[at], want) for at, want in found])
        for formula, *found in suite["formulas"]
    ]
    work = [*pairs, *rows]
    for formula, found in work:
        for heap, wanted in found:
            got = value_of(formula, heap)
            if str(got) != str(wanted):
                yield Problem(
                    json.dumps(formula), f"the evaluator gives {got} for {heap}, not {wanted}"
                )
    for begin in range(0, len(work), _TOGETHER):
        part = work[begin : begin + _TOGETHER]
        exprs = [int_expr_of(formula) for formula, _ in part]
        machine = VirtualMachine(
            loaded(Executable(tuple(_computing(i, expr) for i, expr in enumerate(exprs))))
        )
        for number, (formula, found) in enumerate(part):
            for heap, wanted in found:
                yield from _compare(machine, f"f{number}", heap, formula, wanted)
    constant = [
        (formula, heap, wanted) for formula, found in work[::every] for heap, wanted in found[:2]
    ]
    for begin in range(0, len(constant), _TOGETHER):
        some = constant[begin : begin + _TOGETHER]
        codes = [
            _constant(i, int_expr_of(formula), heap) for i, (formula, heap, _) in enumerate(some)
        ]
        machine = VirtualMachine(loaded(Executable(tuple(codes))))
        for number, (formula, _, wanted) in enumerate(some):
            yield from _compare(machine, f"f{number}", (), formula, wanted)


_TOGETHER = 500
"""The number of formulas in one executable."""


def _computing(number: int, expr: IntExpr) -> FunctionCode:
    """A function that computes a formula from its arguments."""
    body = [Eval(0, SLOTS, expr), MakePrim(0, SLOTS, Heap(SLOTS), "int64"), Return(0, SLOTS)]
    slots = [PrimPattern("int64", Heap(slot)) for slot in range(SLOTS)]
    return function(slots, body, name=f"f{number}", regs=SLOTS + 1, heap=[0] * (SLOTS + 1))


def _constant(number: int, expr: IntExpr, heap: Sequence[int]) -> FunctionCode:
    """A function without parameters that computes a formula from constants."""
    body = [Eval(0, SLOTS, expr), MakePrim(0, 0, Heap(SLOTS), "int64"), Return(0, 0)]
    return function([], body, name=f"f{number}", regs=1, heap=[*heap, 0])


def _compare(
    machine: VirtualMachine, name: str, heap: Sequence[int], formula: Any, wanted: Any
) -> Iterator[Problem]:
    try:
        got: Any = machine[name](*heap)
    except RelaxError as error:
        got = error.code
        if got == "shape-arithmetic":
            got = OVERFLOW if "64 bits" in error.message else DIVISION
    if str(got) != str(wanted):
        yield Problem(json.dumps(formula), f"{got} for {list(heap)}, not {wanted}")
