"""Split calls of tensor programs into calls of their launches, with workspaces allocated by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaxpy.analysis.called_functions import without_unused_programs
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, GlobalVar, PrimValue, ShapeExpr
from relaxpy.ir.module import BufferParam, IRModule, ScalarParam, TensorProgram
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocTensor, CallDPS
from relaxpy.shape.lattice import accepts
from relaxpy.shape.prove import equal
from relaxpy.tir.lowering.workspace import Launch, Launches
from relaxpy.transform.rebuild import Rebuilder


def with_launches(mod: IRModule, divided: Mapping[str, Launches]) -> IRModule:
    """Return the module with each call (`R.vm.call_dps`) of a divided program replaced by calls of its launches. A call
    whose workspace sizes are not known stays unchanged."""
    if not divided:
        return mod
    launcher = _Launcher(mod, divided)
    new = launcher.run()
    return without_unused_programs(new.with_functions({**new.functions, **launcher.programs}), mod)


class _Launcher(Rebuilder):
    def __init__(self, mod: IRModule, divided: Mapping[str, Launches]) -> None:
        super().__init__(mod)
        self.divided = divided
        self.callees = {name: self.called(name, found) for name, found in divided.items()}
        """Names of the launches of each program."""
        self.programs: dict[str, TensorProgram] = {}
        """The new programs."""

    def called(self, name: str, found: Launches) -> list[str]:
        if len(found.launches) == 1:
            return [self.mod.fresh_name(f"{name}_lifted")]
        return [self.mod.fresh_name(f"{name}_{n}") for n in range(len(found.launches))]

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=CallDPS(), args=(GlobalVar(name=name), *args)) if name in self.divided:
                return self.launched(value, name, args)
            case _:
                return value

    def launched(self, call: Call, name: str, args: Sequence[Expr]) -> Call:
        """Emit the workspaces and all launches but the last, and return the last one."""
        found, program = self.divided[name], expect(TensorProgram, self.mod.functions[name])
        values = self.symbols(program, args)
        needed = [dim.vars for space in found.workspaces for dim in space.shape]
        if any(symbol not in values for symbols in needed for symbol in symbols):
            return call
        places = (deduce(arg, self.mod) for arg in args)
        device = next((t.vdevice for t in places if isinstance(t, TensorType)), None)
        given = [*args, *(self.allocated(space, values, device) for space in found.workspaces)]

        def arg(entry: int | SymVar) -> Expr:
            return given[entry] if isinstance(entry, int) else PrimValue(values[entry])

        def launch(number: int, part: Launch) -> Call:
            callee = self.callees[name][number]
            self.programs[callee] = part.program
            new = (GlobalVar(callee), *map(arg, part.args))
            return Call(call.op, new, call.ty_args, span=call.span)

        *before, last = (launch(n, part) for n, part in enumerate(found.launches))
        for each in before:
            self.emit(each, f"_{name}")
        return last

    def allocated(
        self, space: BufferParam, values: Mapping[SymVar, Dim], device: str | None
    ) -> Expr:
        """Allocate a workspace on the device of the call's tensors."""
        dims = tuple(dim.substitute(values) for dim in space.shape)
        tensor = AllocTensor(dtype=str(space.dtype), vdevice=device)(ShapeExpr(dims))
        return self.emit(tensor, "workspace", TensorType(dims, space.dtype, vdevice=device))

    def symbols(self, program: TensorProgram, args: Sequence[Expr]) -> dict[SymVar, Dim]:
        """The values of the program's symbols in a call."""
        bound: dict[SymVar, Dim] = {}
        for param, arg in zip(program.params, args, strict=False):
            if isinstance(param, BufferParam):
                accepts(TensorType(param.shape, param.dtype), deduce(arg, self.mod), bound, equal)
            elif (
                isinstance(param, ScalarParam)
                and isinstance(arg, PrimValue)
                and isinstance(arg.value, Dim)
            ):
                bound[param.var] = arg.value
        return bound
