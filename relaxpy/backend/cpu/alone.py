"""One machine code for a kernel on all threads and for the same kernel on the calling thread alone.

A parallel loop calls the thread pool through a pointer in the kernel's library, which the loader sets. A second load of
the same object becomes the serial kernel by setting that pointer to a function that runs the loop's body as the only
task. Each kernel is compiled with a function that sets the pointer (`switch`); the function that the pointer is set to
is an object of its own (`runner_object`). A large kernel is then compiled once instead of twice, and both variants give
the same bits because they run the same instructions. The price is an indirect call of some nanoseconds, so small
kernels get a serial twin instead (`relaxpy.tir.schedule.serial_twin`).
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from relaxpy.backend.cpu.compile import object_of
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.schedule import FINISHED, has_parallel_loop
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

RUNNER = "relaxpy_run_alone"
"""The function of the runner's object. It has no parameters and returns an address."""

_LARGE = 1200
"""The smallest program, in nodes, for which a second compilation (some 50 ms) costs more than the indirect call."""

_POOL = "__TVMBackendParallelLaunch"
"""The pointer that TVM's code generator calls through (`CodeGenCPU::InitGlobalContext`). It has the signature of
`TVMBackendParallelLaunch` in `tvm/runtime/c_backend_api.h`: a task, its data, the number of tasks. A task is called
with its number, the number of tasks (with a counter for barriers), and its data."""

_SET = f"""
@{_POOL} = external global ptr
define i32 @relaxpy_set_pool(i64 %address) {{
  %pool = inttoptr i64 %address to ptr
  store ptr %pool, ptr @{_POOL}
  ret i32 0
}}
"""

_RUN = f"""
define internal i32 @run(ptr %task, ptr %data, i32 %tasks) {{
  %counter = alloca i32
  store i32 0, ptr %counter
  %group = alloca {{ ptr, i32 }}
  store ptr %counter, ptr %group
  %count = getelementptr {{ ptr, i32 }}, ptr %group, i32 0, i32 1
  store i32 1, ptr %count
  %status = call i32 %task(i32 0, ptr %group, ptr %data)
  ret i32 %status
}}
define i32 @__tvm_ffi_{RUNNER}(ptr %self, ptr %args, i32 %number, ptr %result) {{
  store {{ i32, i32, ptr }} {{ i32 1, i32 0, ptr @run }}, ptr %result
  ret i32 0
}}
"""


def shares_code(func: tirx.PrimFunc, target: CpuTarget) -> bool:
    """Is a kernel's serial variant its parallel code in a second library?"""
    if target.triple != CpuTarget.host().triple or not has_parallel_loop(func):
        return False
    nodes = 0

    def count(_: object) -> object:
        nonlocal nodes
        nodes += 1
        return tvm_ffi.VisitInterrupt(True) if nodes >= _LARGE else None

    return tvm_ffi.structural_walk(func.body, ((tirx.Stmt, tvm.ir.Expr), count)) is not None


def switch(symbol: str) -> dict[str, tirx.PrimFunc]:
    """The function compiled beside the kernel `symbol`. Called with the runner's address, it makes its library run on
    the calling thread from then on."""
    address = tirx.Var("address", "int64")
    call = tirx.Evaluate(tirx.call_extern("int32", "relaxpy_set_pool", address))
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", _SET, call)
    func = tirx.PrimFunc([address], body).with_attr(FINISHED, True)
    return {switch_symbol(symbol): func}


def switch_symbol(symbol: str) -> str:
    """The name of that function."""
    return f"{symbol}_alone"


@cache
def runner_object() -> bytes:
    """The object file of `RUNNER`, for any processor of this machine's architecture."""
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        path = Path(folder, "runner.ll")
        path.write_text(_RUN, encoding="utf-8")
        return object_of(tvm.runtime.load_module(str(path)))
