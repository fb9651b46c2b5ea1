"""The devices of a module, numbered as slots of its executable.

Slot 0 is the processor that runs the virtual machine. Each other device that the module's virtual devices name gets a
further slot, in the order of the module's table. Virtual devices of processors are the host, whatever their options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relaxpy.errors import BuildError, Span
from relaxpy.ir.annotation import Annotation, CallableType, TensorType, TupleType
from relaxpy.ir.expr import Binding, Call, GlobalVar, If, SeqExpr, Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.vdevice import VDevice, vdevice_of
from relaxpy.op.device import ToVDevice
from relaxpy.op.memory import CallDPS
from relaxpy.runtime.bytecode import HOST, HOST_SLOT, Slot
from relaxpy.target import Target

HOST_KINDS = ("llvm", "c")
"""Targets of processors, recognised without parsing them."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The devices of a module; see the module docstring."""

    slots: tuple[Slot, ...]
    targets: tuple[Target | None, ...]
    """For each slot, the target of its kernels; None: this machine."""
    numbers: Mapping[tuple[str, int], int]
    """Target and number of a virtual device → its slot."""

    def number(self, vdevice: str | None) -> int:
        """The slot of an annotation's virtual device (None: the host's)."""
        if vdevice is None:
            return HOST
        found = vdevice_of(vdevice)
        if found.target in HOST_KINDS:  # the table of a module on the host alone may lack it
            return HOST
        return self.numbers[found.target, found.device]


ONLY_HOST = Slots((HOST_SLOT,), (None,), {})


def slots_of(mod: IRModule, target: Target | None = None) -> Slots:
    """The slots of a module that is built for `target` (None: this machine).

    Raises: BuildError for a virtual device whose target is unknown.
    """
    host = target if target is not None and on_host(target) else None
    slots, targets = [HOST_SLOT], [host]
    numbers: dict[tuple[str, int], int] = {}
    for vdevice in mod.vdevices:
        key = vdevice.target, vdevice.device
        if vdevice.target in HOST_KINDS:
            numbers[key] = HOST
            continue
        same = target is not None and vdevice.target == target.kind
        own = target if same and target is not None else _target(vdevice, mod)
        if on_host(own):
            numbers[key] = HOST
        elif key not in numbers:
            numbers[key] = len(slots)
            name = own.device if vdevice.device == 0 else f"{own.device}{vdevice.device}"
            slots.append(Slot(name, own.device, vdevice.device))
            targets.append(own)
    return Slots(tuple(slots), tuple(targets), numbers)


def _target(vdevice: VDevice, mod: IRModule) -> Target:
    """The target of kernels for a virtual device. Raises: BuildError, located where the module names it."""
    try:
        return Target.parse(vdevice.target)
    except BuildError as error:
        for name, span in named_devices(mod):
            if span is not None and vdevice_of(name).target == vdevice.target:
                error.located(span)
                break
        said = f'I.vdevice("{vdevice.target}", {vdevice.device})'
        error.notes = (*error.notes, f"it is the target of a virtual device of the module, {said}")
        raise


def named_devices(mod: IRModule) -> Iterator[tuple[str, Span | None]]:
    """The devices that annotations and operators name, with their locations."""
    for function in mod.graph_functions.values():
        for param in function.params:
            yield from _named(param.annotation, param.span)
        yield from _named(function.ret, function.span)
        for binding in bindings(function.body):
            value = binding.value
            if isinstance(value, Call) and isinstance(value.op, ToVDevice):
                yield value.op.dst_vdevice, value.span
            yield from _named(binding.var.annotation, binding.span or value.span)


def _named(annotation: Annotation, span: Span | None) -> Iterator[tuple[str, Span | None]]:
    waiting = [annotation]
    while waiting:
        match waiting.pop():
            case TensorType(vdevice=str(name)):
                yield name, span
            case TupleType(fields=fields):
                waiting += fields
            case CallableType(params=params, ret=ret):
                waiting += (*(params or ()), ret)
            case _:
                pass


def on_host(target: Target) -> bool:
    """Do kernels for a target run on the processor that runs the virtual machine?"""
    return target.device == HOST_SLOT.kind


def program_targets(mod: IRModule, target: Target | None = None) -> dict[str, Target]:
    """The target of each tensor program that a lowered module calls: that of the device of its arguments. Empty for a
    module on one device, in which all programs are built for `target`."""
    slots = slots_of(mod, target)
    if len(slots.slots) == 1:
        return {}
    targets = [own or Target.host() for own in slots.targets]
    return {name: targets[slot] for name, slot in program_slots(mod, slots).items()}


def program_slots(mod: IRModule, slots: Slots) -> dict[str, int]:
    """The slot of each tensor program that a lowered module calls: that of the device of its arguments."""
    found: dict[str, int] = {}
    for function in mod.graph_functions.values():
        for call in calls(function.body):
            if isinstance(call.op, CallDPS) and isinstance(call.args[0], GlobalVar):
                places = (a.annotation for a in call.args[1:] if isinstance(a, Var))
                numbers = (slots.number(p.vdevice) for p in places if isinstance(p, TensorType))
                found[call.args[0].name] = max(numbers, default=HOST)
    return found


def call_of(mod: IRModule, name: str) -> Span | None:
    """The place of the first call of a lowered tensor program, for errors: generated programs have no place."""
    for function in mod.graph_functions.values():
        for binding in bindings(function.body):
            call = binding.value
            if isinstance(call, Call) and isinstance(call.op, CallDPS):
                callee = call.args[0]
                if isinstance(callee, GlobalVar) and callee.name == name:
                    return call.span or binding.span
    return None


def calls(seq: SeqExpr) -> Iterator[Call]:
    """The calls that a body and its branches bind."""
    for binding in bindings(seq):
        if isinstance(binding.value, Call):
            yield binding.value


def bindings(seq: SeqExpr) -> Iterator[Binding]:
    """The bindings of a body and its branches."""
    waiting = [seq]
    while waiting:
        for binding in waiting.pop().bindings:
            yield binding
            if isinstance(binding.value, If):
                waiting += (binding.value.then, binding.value.otherwise)
