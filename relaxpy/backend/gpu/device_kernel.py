"""Lower a launch to device code, split off its host part, and compute the sizes of its grid.

TVM's `SplitHostDevice` leaves a host function that only calls the kernel: with buffers, integers, and the numbers of
groups and of threads per group. These are extracted as data (`DeviceKernel`), so that no host code of TVM is needed at
run time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from relaxpy.backend.gpu.half import without_float16
from relaxpy.errors import BuildError, PassError
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.runtime.dtype import info
from relaxpy.tir.lowering.bfloat16 import without_bfloat16
from relaxpy.tir.lowering.compact import compact_buffers
from relaxpy.tir.lowering.exact import sealed, unnamed, unsealed
from relaxpy.tir.lowering.flat import flatten_buffers, without_empty_memory
from relaxpy.tir.lowering.float8 import FORMATS, without_float8
from relaxpy.tir.lowering.traps import without_traps
from relaxpy.tir.lowering.unnest import unnested
from relaxpy.tir.name_length import has_long_values
from relaxpy.tir.nodes import dtype_of, with_body
from relaxpy.tir.numerics.elementary import applied, function_of
from relaxpy.tir.prim_func import read_symbols
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Stmt
from relaxpy.tir.walk import contains_any, element_types, rewritten, walk

_DEVICE_KERNEL = 2
"""TVM's `CallingConv::kDeviceKernelLaunch`."""
_AXES = ("x", "y", "z")
MEETS = "relaxpy.meets"
"""Attribute of a function that contains all barriers of its groups. TVM adds them to others, and refuses functions for
which it cannot prove that it need not."""
WHOLE = "relaxpy.whole"
"""Attribute of a function whose buffers stay as they are. TVM shrinks others to the elements that are indexed, which
takes seconds for thousands of statements, and cuts what a function of the device is given by its first element."""


@dataclass(frozen=True)
class Given:
    """An argument of the program that a kernel takes."""

    position: int
    """Its position among the program's arguments."""
    is_memory: bool
    """Is it a buffer, not a scalar?"""


@dataclass(frozen=True)
class DeviceKernel:
    """A device kernel and its launch parameters, over the symbols of the program that it was made from."""

    func: tirx.PrimFunc
    """The device function. Its name is the attribute `global_symbol`."""
    args: tuple[Given | Dim, ...]
    """For each of its parameters, an argument of the program, or an integer expression over the program's sizes."""
    dtypes: tuple[str, ...]
    """The type of each parameter: of integers, and of the elements in memory."""
    groups: tuple[Dim, Dim, Dim]
    """The number of thread groups along each axis. If one is 0, the kernel does not run."""
    threads: tuple[int, int, int]
    """The number of threads per group along each axis."""


def device_kernel(func: tirx.PrimFunc, name: str, target: Any) -> DeviceKernel:
    """Lower a program whose loops are bound to threads to a kernel of this name, for a TVM target.

    A program that does nothing, because its loops are over no elements, is a kernel that does not run.

    Raises BuildError (`kernel-compile`) for a program that is more than one launch.
    """
    lowered = _lowered(func.with_attr({"global_symbol": name, "s_tir": True}), target)
    host, device = None, []
    for function in lowered.functions.values():
        if int(function.attrs.get("calling_conv", 0)) == _DEVICE_KERNEL:
            device.append(function)
        else:
            host = function
    if host is not None and not device and _is_nothing(host.body):
        found = device_kernel(_meeting(func), name, target)
        return replace(found, groups=(Dim.of(0),) * 3)
    if host is None or len(device) != 1:
        raise BuildError(
            "kernel-compile", f'the kernel "{name}" is {len(device)} launches on a device, not one'
        )
    return _read(_HostReader(host, func), device[0], name)


def _is_nothing(body: Stmt) -> bool:
    """Does the host's part of a program neither write nor call anything?"""
    called = (tirx.Evaluate, lambda stmt: isinstance(stmt.value, tvm.ir.Call))
    return not contains_any(body, (tirx.BufferStore, lambda _: True), called)


def _meeting(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A launch with the function's parameters, of one thread that waits for itself: what does less is left out."""
    axis = tirx.IterVar(
        tvm.ir.Range(0, 1), tirx.Var("thread", "int32"), tirx.IterVar.ThreadIndex, "threadIdx.x"
    )
    barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
    return func.with_body(tirx.AttrStmt(axis, "thread_extent", 1, barrier)).with_attr(MEETS, True)


def shared_bytes(func: tirx.PrimFunc) -> int:
    """The memory in bytes that the threads of a group of a device function share."""
    found: list[Any] = []
    walk(func.body, (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)))
    shared = [buffer for buffer in found if str(buffer.scope()).startswith("shared")]
    return sum(
        math.prod(int(size) for size in buffer.shape) * info(str(buffer.dtype)).itemsize
        for buffer in shared
    )


def _passes(is_whole: bool) -> list[tvm.transform.Pass]:
    """The passes from blocks to flat loops, as for processors, with those that threads need. Nothing is simplified: the
    device's own compiler does that, and the text keeps the names of loops."""
    shrink = [] if is_whole else [compact_buffers]
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        *shrink,
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        flatten_buffers,
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(False),  # a thread is a lane
        s_tir.transform.InjectVirtualThread(),
        tirx.transform.StorageRewrite(),
        tirx.transform.UnrollLoop(),
        tirx.transform.RemoveNoOp(),
        _each("WithoutEmptyMemory", without_empty_memory),
        _each("Unnamed", unnamed),
        s_tir.transform.RewriteUnsafeSelect(),
        _each("WithoutTraps", without_traps),
    ]


def _split_passes(meets: bool) -> list[tvm.transform.Pass]:
    barriers = [s_tir.transform.ThreadSync(scope) for scope in ("shared", "shared.dyn")]
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        *([] if meets else barriers),
        s_tir.transform.LowerThreadAllreduce(),
        s_tir.transform.MergeSharedMemoryAllocations(),
        tirx.transform.SplitHostDevice(),
    ]


def _each(name: str, change: Any) -> tvm.transform.Pass:
    """A pass that changes every function by itself."""

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return tvm.IRModule({var: change(func) for var, func in mod.functions.items()})

    return tvm.transform.module_pass(run, opt_level=0, name=f"relaxpy.{name}")


def _lowered(func: tirx.PrimFunc, target: Any) -> tvm.IRModule:
    """The host function and its device function."""
    meets, is_whole = MEETS in func.attrs, WHOLE in func.attrs
    func = without_traps(_with_next_numbers(func))
    found = element_types(func)
    if not found.isdisjoint(FORMATS):
        func = without_float8(func)
    if "bfloat16" in found:
        func = without_bfloat16(func)
    if "float16" in found:
        func = without_float16(func)
    mod = tvm.IRModule({str(func.attrs["global_symbol"]): func})
    mod = tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))(mod)
    mod = _each("Sealed", sealed)(mod)
    mod = tvm.transform.Sequential(_passes(is_whole))(mod)
    mod = _each("Unsealed", unsealed)(mod)
    mod = _each("StoredNames", _with_stored_names)(mod)
    return tvm.transform.Sequential(_split_passes(meets))(mod)


def _with_next_numbers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with `nextafter` of narrow floats by their bits: the next float32 is rounded to the number
    itself."""

    def on_bits(call: tvm.ir.Call) -> Any:
        if function_of(call) != "nextafter" or not DType(dtype_of(call)).is_narrow:
            return call
        return applied("nextafter", list(call.args))

    return with_body(func, rewritten(func.body, (tvm.ir.Call, on_bits)))


def _with_stored_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function, with values of names in registers where they are long: TVM's later passes, and those before its
    text, write out the names in values."""
    return unnested(func, "local") if has_long_values(func) else func


def _read(reader: _HostReader, device: tirx.PrimFunc, name: str) -> DeviceKernel:
    """The call of the device function in the host function, as data."""
    if reader.call is None:
        raise BuildError("kernel-compile", f'the kernel "{name}" is never launched')
    tags = [str(tag) for tag in reader.call.attrs["launch_params"]]
    given = list(reader.call.args[1:])
    count = len(device.params)
    sizes = dict(zip(tags, given[count:], strict=False))
    try:
        args = tuple(reader.argument(arg) for arg in given[:count])
        one = tirx.IntImm("int64", 1)
        groups = [reader.dim(sizes.get(f"blockIdx.{axis}", one)) for axis in _AXES]
        threads = [reader.dim(sizes.get(f"threadIdx.{axis}", one)).value for axis in _AXES]
    except PassError as error:
        raise BuildError(
            "kernel-compile",
            f'the launch size of the kernel "{name}" is not an expression of its arguments: {error.message}',
        ) from error
    if any(count is None for count in threads):
        raise BuildError(
            "kernel-compile",
            f'the kernel "{name}" has groups whose number of threads is not constant',
            help="bind a loop of constant extent to threadIdx",
        )
    dtypes = tuple(map(_element, device.params))
    return DeviceKernel(device, args, dtypes, tuple(groups), tuple(threads))  # type: ignore[arg-type]


def _element(param: Any) -> str:
    if isinstance(param.ty, tvm.ir.PointerType):
        return str(param.ty.element_type.dtype)
    return str(param.ty.dtype)


class _HostReader:
    """Reads the one launch in a host function."""

    def __init__(self, host: tirx.PrimFunc, program: tirx.PrimFunc) -> None:
        self._table = read_symbols(program)
        """Lowering keeps the variables of the program's shapes."""
        self._params = list(host.params)
        self._same: dict[Any, Any] = {}
        """Buffers and names → the values that they alias."""
        self.call: Any = None
        self.read(host.body)

    def read(self, stmt: Stmt) -> None:
        match type(stmt).__name__:
            case "SeqStmt":
                for part in stmt.seq:
                    self.read(part)
            case "Evaluate":
                if isinstance(stmt.value, tvm.ir.Call):
                    self.call = stmt.value
            case "Bind":
                self._same[stmt.var] = stmt.value
            case "DeclBuffer":
                self._same[stmt.buffer] = stmt.data
            case "AttrStmt":
                self.read(stmt.body)
            case kind:
                raise BuildError(
                    "kernel-compile", f"the host's part of a kernel has a {kind}: {stmt}"
                )

    def argument(self, arg: Any) -> Given | Dim:
        """An argument of the device function's call."""
        is_memory = isinstance(arg.ty, tvm.ir.PointerType)
        if not is_memory and "int" in str(arg.ty.dtype):
            return self.dim(arg)
        while True:
            arg = arg.args[0] if isinstance(arg, tvm.ir.Call) else arg
            if arg in self._params:
                return Given(self._params.index(arg), is_memory)
            arg = self._same[arg]

    def dim(self, expr: Any) -> Dim:
        def known(var: Any) -> Any:
            return self._same.get(var, var)

        return self._table.to_dim(rewritten(expr, (tvm.ir.Var, known)))
