"""The functions that a kernel's parallel loop is launched by, as machine code: on all threads, or on one.

A parallel loop calls the thread pool through a pointer in the kernel's library, which the linker sets. So the launcher
is chosen when an object is linked (`relaxpy.runtime.devices.cpu.launchers`), and one object serves for both variants of
a kernel: it is compiled once instead of twice, and both variants give the same bits because they run the same
instructions. The price is an indirect call of one or two nanoseconds.

* *alone* runs the whole loop as the only task, on the calling thread.
* *shared* starts TVM's thread pool, which gives each of T threads one task, the T-th part of the loop's iterations. It
  cuts each of these parts into pieces. A thread takes the pieces of its own part one after the other, and then those
  that are left of the other threads' parts. So a thread that was interrupted, started late or runs on a slower core
  does less of the work, and otherwise each thread computes what it would without pieces, near what it computed of the
  kernel before. Who computes a piece changes no result: iterations are independent.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from relaxpy.backend.cpu.compile import object_of
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.runtime.devices.cpu.launchers import ALONE, SHARED
from relaxpy.tir.schedule import has_parallel_loop
from relaxpy.tir.tvm import tirx, tvm

PIECES = 8
"""Pieces of a thread's part: a thread waits at most about an eighth of its time for the others, and a piece costs some
ten nanoseconds."""

COUNTERS = 16
"""The counters of pieces that are taken. With more threads than this several of them share a part."""

LINE = 128
"""Bytes between counters: processors fetch cache lines in pairs."""

# Only the counters: LLVM takes 70 ms to split a store of a whole array of parts.
_CLEARED = "\n".join(
    f"  %counter{part} = getelementptr %part, ptr %parts, i32 {part}\n  store i32 0, ptr %counter{part}"
    for part in range(COUNTERS)
)

# The signatures are those of `TVMBackendParallelLaunch` in `tvm/runtime/c_backend_api.h`: a launcher gets a task, its
# data, and the number of tasks (0: one for each thread). A task is called with its number, its group (a counter for
# barriers, which kernels do not use, and the number of tasks), and its data.
_TEXT = f"""
%group = type {{ ptr, i32 }}
%job = type {{ ptr, ptr, ptr }}
%part = type {{ i32, [{LINE - 4} x i8] }}
declare i32 @TVMBackendParallelLaunch(ptr, ptr, i32)

define internal i32 @alone(ptr %task, ptr %data, i32 %tasks) {{
  %counter = alloca i32
  store i32 0, ptr %counter
  %group = alloca %group
  store ptr %counter, ptr %group
  %count = getelementptr %group, ptr %group, i32 0, i32 1
  store i32 1, ptr %count
  %status = call i32 %task(i32 0, ptr %group, ptr %data)
  ret i32 %status
}}

; The memory of a launch: a counter of taken pieces for each part, and the job: a task, its data, and the counters.
define internal i32 @shared(ptr %task, ptr %data, i32 %tasks) {{
  %parts = alloca [{COUNTERS} x %part], align {LINE}
{_CLEARED}
  %job = alloca %job
  store ptr %task, ptr %job
  %job.data = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %data, ptr %job.data
  %job.parts = getelementptr %job, ptr %job, i32 0, i32 2
  store ptr %parts, ptr %job.parts
  %status = call i32 @TVMBackendParallelLaunch(ptr @work, ptr %job, i32 %tasks)
  ret i32 %status
}}

; The work of thread `id`: what is left of each part, its own first.
define internal i32 @work(i32 %id, ptr %threads, ptr %job) {{
start:
  %count = getelementptr %group, ptr %threads, i32 0, i32 1
  %n = load i32, ptr %count
  %pieces = mul i32 %n, {PIECES}
  %barrier = load ptr, ptr %threads
  %group = alloca %group
  store ptr %barrier, ptr %group
  %group.count = getelementptr %group, ptr %group, i32 0, i32 1
  store i32 %pieces, ptr %group.count
  %task = load ptr, ptr %job
  %job.data = getelementptr %job, ptr %job, i32 0, i32 1
  %data = load ptr, ptr %job.data
  %job.parts = getelementptr %job, ptr %job, i32 0, i32 2
  %parts = load ptr, ptr %job.parts
  %fits = icmp ule i32 %n, {COUNTERS}
  %count.parts = select i1 %fits, i32 %n, i32 {COUNTERS}
  %scaled = mul i32 %id, %count.parts
  %own = udiv i32 %scaled, %n
  br label %visit
visit:
  %turn = phi i32 [ 0, %start ], [ %turn.next, %leave ]
  %sum = add i32 %own, %turn
  %number = urem i32 %sum, %count.parts
  %number.next = add i32 %number, 1
  %first.scaled = mul i32 %number, %pieces
  %first = udiv i32 %first.scaled, %count.parts
  %last.scaled = mul i32 %number.next, %pieces
  %last = udiv i32 %last.scaled, %count.parts
  %length = sub i32 %last, %first
  %taken = getelementptr %part, ptr %parts, i32 %number
  br label %take
take:
  %k = atomicrmw add ptr %taken, i32 1 monotonic
  %is.left = icmp ult i32 %k, %length
  br i1 %is.left, label %run, label %leave
run:
  %piece = add i32 %first, %k
  %status = call i32 %task(i32 %piece, ptr %group, ptr %data)
  %is.good = icmp eq i32 %status, 0
  br i1 %is.good, label %take, label %fail
leave:
  %turn.next = add i32 %turn, 1
  %others = icmp ult i32 %turn.next, %count.parts
  br i1 %others, label %visit, label %done
fail:
  ret i32 -1
done:
  ret i32 0
}}

define i32 @__tvm_ffi_{ALONE}(ptr %self, ptr %args, i32 %number, ptr %result) {{
  store {{ i32, i32, ptr }} {{ i32 1, i32 0, ptr @alone }}, ptr %result
  ret i32 0
}}
define i32 @__tvm_ffi_{SHARED}(ptr %self, ptr %args, i32 %number, ptr %result) {{
  store {{ i32, i32, ptr }} {{ i32 1, i32 0, ptr @shared }}, ptr %result
  ret i32 0
}}
"""


def has_launchers(func: tirx.PrimFunc, target: CpuTarget) -> bool:
    """Is a kernel linked with the launchers of its executable? They are compiled for this machine's architecture. A
    kernel for another one is launched by TVM's pool, without pieces, and has a serial twin."""
    return target.triple == CpuTarget.host().triple and has_parallel_loop(func)


@cache
def launchers_object() -> bytes:
    """The object file of the launchers, for any processor of this machine's architecture. Its functions have no
    parameters and return the address of a launcher."""
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        path = Path(folder, "launchers.ll")
        path.write_text(_TEXT, encoding="utf-8")
        return object_of(tvm.runtime.load_module(str(path)))
