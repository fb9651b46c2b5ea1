"""The functions that a kernel's parallel loop is launched by, as machine code: on all threads, or on one.

A parallel loop calls the thread pool through a pointer in the kernel's library, which the linker sets. So the launcher
is chosen when an object is linked (`relaxpy.runtime.devices.cpu.launchers`), and one object serves for both variants of
a kernel: it is compiled once instead of twice, and both variants give the same bits because they run the same
instructions. The price is an indirect call of one or two nanoseconds.

* *alone* runs the whole loop as the only task, on the calling thread.
* *shared* runs it on a team of T threads: the calling thread, and T - 1 workers that the runtime keeps
  (`relaxpy.runtime.host.team`). Each thread gets the T-th part of the loop's iterations, in pieces. A thread
  takes the pieces of its own part one after the other, and then those that are left of the other threads' parts. So a
  thread that was interrupted, started late or runs on a slower core does less of the work, and otherwise each thread
  computes what it would without pieces, near what it computed of the kernel before. Who computes a piece changes no
  result: iterations are independent.

A launch opens the team's job, works until no pieces are left, closes the job, and waits for the workers that joined it
while it was open. It does not wait for others: a worker that sleeps, or has no processor, is never waited for. Workers
look for a job for some ms, at first without calls of the system, and then sleep.

What many threads change at once costs some hundred nanoseconds for each of them, one after the other. So a worker
joins and leaves in the cache line of its own part, and looks at another's part before it tries to take a piece of it.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from functools import cache
from pathlib import Path
from string import Template

from relaxpy.backend.cpu.compile import object_of
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.runtime.devices.cpu.launchers import ALONE, SHARED, WORKER
from relaxpy.runtime.host.team import LINE, PARTS, TEAMS, Part, Team
from relaxpy.tir.schedule import has_parallel_loop
from relaxpy.tir.tvm import tirx, tvm

PIECES = 8
"""Pieces of a thread's part: a thread waits at most about an eighth of its time for the others, and a piece costs some
ten nanoseconds."""

PAUSES = 1000
"""How often a thread that waits looks before it calls the system: 15 to 45 µs, as long as the next launch of a program
may take to come."""

YIELDS = 10_000
"""How often a worker then looks, and lets other threads run in between, before it sleeps: some ms."""

_OPEN = 1 << 31
_LAUNCH = 1 << 32

_RELAX = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.hint(i32 1)"}
"""The instruction for a loop that waits, by architecture: it leaves the core to its other thread, and saves power."""

# A launcher has the signature of `TVMBackendParallelLaunch` in `tvm/runtime/c_backend_api.h`: a task, its data, and the
# number of tasks (0: one for each thread). A task is called with its number, its group (a counter for barriers, which
# kernels do not use, and the number of tasks), and its data.
#
# The state of a team counts its launches (from bit 32 on), and is open or closed (bit 31). Only the launching thread
# changes it. A worker adds one to the members of its part, and then looks at the state: if the job is open, it has
# joined, else it takes that back. The launching thread closes the job, and then looks at the members of each part. As
# all of this has one order (`seq_cst`), either the worker finds the job closed, or it is waited for. So once there are
# no members, the next launch may write the job. It looks at all parts, since a team that is resized meanwhile has other
# workers than the job has threads. The memory is laid out in `relaxpy.runtime.host.team`. (On x86
# these additions also order the stores past the caches that a task has made.)
_TEXT = Template("""
%group = type { ptr, i32 }
@teams = internal global ptr null

declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare void @TVMFFIErrorMoveFromRaised(ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
$DECLARE_RELAX

@kind = private constant [13 x i8] c"RuntimeError\\00"
@message = private constant [35 x i8] c"a thread of a parallel loop failed\\00"

define internal i32 @alone(ptr %task, ptr %data, i32 %tasks) {
  %counter = alloca i32
  store i32 0, ptr %counter
  %group = alloca %group
  store ptr %counter, ptr %group
  %count = getelementptr %group, ptr %group, i32 0, i32 1
  store i32 1, ptr %count
  %status = call i32 %task(i32 0, ptr %group, ptr %data)
  ret i32 %status
}

; Functions that take no part in the time of a kernel are not optimised, which takes LLVM half of the time.

; On the first team that has workers and that no other thread is using, else alone.
define internal i32 @shared(ptr %task, ptr %data, i32 %tasks) {
start:
  %teams = load ptr, ptr @teams
  br label %look
look:
  %number = phi i32 [ 0, %start ], [ %next, %skip ]
  %team = getelementptr [$TEAM_BYTES x i8], ptr %teams, i32 %number
  %size.at = getelementptr i8, ptr %team, i32 $at_size
  %size = load atomic i32, ptr %size.at monotonic, align 4
  %has.workers = icmp ugt i32 %size, 1
  br i1 %has.workers, label %claim, label %skip
claim:
  %used.at = getelementptr i8, ptr %team, i32 $at_used
  %claimed = cmpxchg ptr %used.at, i32 0, i32 1 acquire monotonic
  %is.ours = extractvalue { i32, i1 } %claimed, 1
  br i1 %is.ours, label %lead, label %skip
skip:
  %next = add i32 %number, 1
  %is.left = icmp ult i32 %next, $TEAMS
  br i1 %is.left, label %look, label %none
none:
  %status.alone = call i32 @alone(ptr %task, ptr %data, i32 %tasks)
  ret i32 %status.alone
lead:
  %status = call i32 @lead(ptr %team, ptr %task, ptr %data, i32 %size)
  store atomic i32 0, ptr %used.at release, align 4
  ret i32 %status
}

; A part: the counter of its pieces that are taken.
define internal ptr @part(ptr %team, i32 %number) alwaysinline {
  %parts = getelementptr i8, ptr %team, i32 $at_parts
  %part = getelementptr [$LINE x i8], ptr %parts, i32 %number
  ret ptr %part
}

; Where the members of a part are counted.
define internal ptr @members(ptr %team, i32 %number) alwaysinline {
  %part = call ptr @part(ptr %team, i32 %number)
  %members = getelementptr i8, ptr %part, i32 $at_members
  ret ptr %members
}

define internal i32 @lead(ptr %team, ptr %task, ptr %data, i32 %size) {
start:
  %fits = icmp ule i32 %size, $PARTS
  %parts = select i1 %fits, i32 %size, i32 $PARTS
  br label %clear
clear:
  %part = phi i32 [ 0, %start ], [ %part.next, %clear ]
  %counter = call ptr @part(ptr %team, i32 %part)
  store atomic i32 0, ptr %counter monotonic, align 4
  %part.next = add i32 %part, 1
  %more = icmp ult i32 %part.next, %parts
  br i1 %more, label %clear, label %open
open:
  %task.at = getelementptr i8, ptr %team, i32 $at_task
  store ptr %task, ptr %task.at
  %data.at = getelementptr i8, ptr %team, i32 $at_data
  store ptr %data, ptr %data.at
  %status.at = getelementptr i8, ptr %team, i32 $at_status
  store atomic i32 0, ptr %status.at monotonic, align 4
  %threads.at = getelementptr i8, ptr %team, i32 $at_threads
  store i32 %size, ptr %threads.at
  %was = atomicrmw add ptr %team, i64 $OPENED seq_cst
  %asleep.at = getelementptr i8, ptr %team, i32 $at_asleep
  %asleep = load atomic i32, ptr %asleep.at seq_cst, align 4
  %all.awake = icmp eq i32 %asleep, 0
  br i1 %all.awake, label %work, label %wake
wake:
  call void @wake(ptr %team)
  br label %work
work:
  %own = call i32 @work(i32 0, ptr %team)
  %open.was = atomicrmw sub ptr %team, i64 $OPEN seq_cst
  br label %wait
wait:
  %waited = phi i32 [ 0, %work ], [ %waited, %wait.on ], [ %waited.next, %wait.next ]
  %looks = phi i32 [ 0, %work ], [ %looks.next, %wait.on ], [ %looks, %wait.next ]
  %members.at = call ptr @members(ptr %team, i32 %waited)
  %members = load atomic i32, ptr %members.at seq_cst, align 4
  %all.left = icmp eq i32 %members, 0
  br i1 %all.left, label %wait.next, label %wait.on
wait.on:
  %looks.next = call i32 @look_later(i32 %looks)
  br label %wait
wait.next:
  %waited.next = add i32 %waited, 1
  %are.more = icmp ult i32 %waited.next, $PARTS
  br i1 %are.more, label %wait, label %done
done:
  %own.failed = icmp ne i32 %own, 0
  %status = load atomic i32, ptr %status.at monotonic, align 4
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %take.error, label %end
take.error:
  call void @raise(ptr %team, i1 %own.failed)
  ret i32 -1
end:
  ret i32 %own
}

; Keeps the error that this thread's task has raised. A previous one of this job is dropped.
define internal void @keep_error(ptr %team) noinline optnone {
  %raised = alloca ptr
  store ptr null, ptr %raised
  call void @TVMFFIErrorMoveFromRaised(ptr %raised)
  %new = load i64, ptr %raised
  %error.at = getelementptr i8, ptr %team, i32 $at_error
  %old = atomicrmw xchg ptr %error.at, i64 %new acq_rel
  call void @drop(i64 %old)
  %status.at = getelementptr i8, ptr %team, i32 $at_status
  store atomic i32 -1, ptr %status.at release, align 4
  ret void
}

; Raises the error that is kept, on this thread, unless this has one already.
define internal void @raise(ptr %team, i1 %has.one) noinline optnone {
  %error.at = getelementptr i8, ptr %team, i32 $at_error
  %error = atomicrmw xchg ptr %error.at, i64 0 acq_rel
  br i1 %has.one, label %end, label %look
look:
  %is.none = icmp eq i64 %error, 0
  br i1 %is.none, label %unknown, label %known
known:
  %object = inttoptr i64 %error to ptr
  call void @TVMFFIErrorSetRaised(ptr %object)
  br label %end
unknown:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @message)
  br label %end
end:
  call void @drop(i64 %error)
  ret void
}

define internal void @drop(i64 %error) noinline optnone {
  %is.none = icmp eq i64 %error, 0
  br i1 %is.none, label %end, label %drop
drop:
  %object = inttoptr i64 %error to ptr
  %ignored = call i32 @TVMFFIObjectDecRef(ptr %object)
  br label %end
end:
  ret void
}

; Waits a moment before one looks again: without a call of the system at first. Returns how often one has looked.
define internal i32 @look_later(i32 %looks) noinline optnone {
  $CALL_RELAX
  %looks.next = add i32 %looks, 1
  %is.early = icmp ult i32 %looks, $PAUSES
  br i1 %is.early, label %end, label %yield
yield:
  %ignored = call i32 @sched_yield()
  br label %end
end:
  ret i32 %looks.next
}

define internal void @wake(ptr %team) noinline optnone {
  %mutex = getelementptr i8, ptr %team, i32 $at_mutex
  %condition = getelementptr i8, ptr %team, i32 $at_condition
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %woken = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; The work of thread `id`: what is left of each part, its own first.
define internal i32 @work(i32 %id, ptr %team) noinline {
start:
  %threads.at = getelementptr i8, ptr %team, i32 $at_threads
  %n = load i32, ptr %threads.at
  %pieces = mul i32 %n, $PIECES
  %barrier = alloca i32
  store i32 0, ptr %barrier
  %group = alloca %group
  store ptr %barrier, ptr %group
  %group.count = getelementptr %group, ptr %group, i32 0, i32 1
  store i32 %pieces, ptr %group.count
  %task.at = getelementptr i8, ptr %team, i32 $at_task
  %task = load ptr, ptr %task.at
  %data.at = getelementptr i8, ptr %team, i32 $at_data
  %data = load ptr, ptr %data.at
  %fits = icmp ule i32 %n, $PARTS
  %count.parts = select i1 %fits, i32 %n, i32 $PARTS
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
  %taken = call ptr @part(ptr %team, i32 %number)
  br label %look
look:
  %taken.now = load atomic i32, ptr %taken monotonic, align 4
  %is.more = icmp ult i32 %taken.now, %length
  br i1 %is.more, label %take, label %leave
take:
  %k = atomicrmw add ptr %taken, i32 1 monotonic
  %is.left = icmp ult i32 %k, %length
  br i1 %is.left, label %run, label %leave
run:
  %piece = add i32 %first, %k
  %status = call i32 %task(i32 %piece, ptr %group, ptr %data)
  %is.good = icmp eq i32 %status, 0
  br i1 %is.good, label %look, label %fail
leave:
  %turn.next = add i32 %turn, 1
  %others = icmp ult i32 %turn.next, %count.parts
  br i1 %others, label %visit, label %done
fail:
  ret i32 -1
done:
  ret i32 0
}

; The life of a worker: it joins each job that it finds open, until the team ends.
define void @worker(ptr %team, i32 %id) noinline optnone {
start:
  %ends.at = getelementptr i8, ptr %team, i32 $at_ends
  %asleep.at = getelementptr i8, ptr %team, i32 $at_asleep
  %mutex = getelementptr i8, ptr %team, i32 $at_mutex
  %condition = getelementptr i8, ptr %team, i32 $at_condition
  %part = urem i32 %id, $PARTS
  %members = call ptr @members(ptr %team, i32 %part)
  br label %look
look:
  %seen = phi i64 [ -1, %start ], [ %seen, %look.on ], [ %seen, %missed ], [ %job, %left ], [ %seen, %awake ]
  %looks = phi i32 [ 0, %start ], [ %looks.next, %look.on ], [ %looks, %missed ], [ 0, %left ], [ 0, %awake ]
  %is.new = call i1 @is_new(ptr %team, i64 %seen)
  br i1 %is.new, label %join, label %idle
idle:
  %ends = load atomic i32, ptr %ends.at seq_cst, align 4
  %is.end = icmp ne i32 %ends, 0
  br i1 %is.end, label %end, label %look.or.sleep
look.or.sleep:
  %is.tired = icmp uge i32 %looks, $LOOKS
  br i1 %is.tired, label %sleep, label %look.on
look.on:
  %looks.next = call i32 @look_later(i32 %looks)
  br label %look
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %asleep.was = atomicrmw add ptr %asleep.at, i32 1 seq_cst
  br label %doze
doze:
  %is.new.now = call i1 @is_new(ptr %team, i64 %seen)
  %ends.now = load atomic i32, ptr %ends.at seq_cst, align 4
  %is.end.now = icmp ne i32 %ends.now, 0
  %is.up = or i1 %is.new.now, %is.end.now
  br i1 %is.up, label %awake, label %doze.on
doze.on:
  %woken = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %doze
awake:
  %asleep.now = atomicrmw sub ptr %asleep.at, i32 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %look
join:
  %before = atomicrmw add ptr %members, i32 1 seq_cst
  %state = load atomic i64, ptr %team seq_cst, align 8
  %job = lshr i64 %state, 32
  %is.open = call i1 @is_open(i64 %state)
  br i1 %is.open, label %work, label %missed
missed:
  %taken.back = atomicrmw sub ptr %members, i32 1 seq_cst
  br label %look
work:
  %status = call i32 @work(i32 %id, ptr %team)
  %is.good = icmp eq i32 %status, 0
  br i1 %is.good, label %left, label %fail
fail:
  call void @keep_error(ptr %team)
  br label %left
left:
  %left.now = atomicrmw sub ptr %members, i32 1 seq_cst
  br label %look
end:
  ret void
}

define internal i1 @is_open(i64 %state) noinline optnone {
  %bit = and i64 %state, $OPEN
  %is = icmp ne i64 %bit, 0
  ret i1 %is
}

; Whether the team has an open job that is not the one with this number.
define internal i1 @is_new(ptr %team, i64 %seen) noinline optnone {
  %state = load atomic i64, ptr %team seq_cst, align 8
  %job = lshr i64 %state, 32
  %is.other = icmp ne i64 %job, %seen
  %is.open = call i1 @is_open(i64 %state)
  %is = and i1 %is.other, %is.open
  ret i1 %is
}

define i32 @__tvm_ffi_$ALONE(ptr %self, ptr %args, i32 %number, ptr %result) noinline optnone {
  store { i32, i32, ptr } { i32 1, i32 0, ptr @alone }, ptr %result
  ret i32 0
}
define i32 @__tvm_ffi_$SHARED(ptr %self, ptr %args, i32 %number, ptr %result) noinline optnone {
  %first = getelementptr { i32, i32, ptr }, ptr %args, i32 0, i32 2
  %teams = load ptr, ptr %first
  store ptr %teams, ptr @teams
  store { i32, i32, ptr } { i32 1, i32 0, ptr @shared }, ptr %result
  ret i32 0
}
define i32 @__tvm_ffi_$WORKER(ptr %self, ptr %args, i32 %number, ptr %result) noinline optnone {
  store { i32, i32, ptr } { i32 1, i32 0, ptr @worker }, ptr %result
  ret i32 0
}
""")


def _text(architecture: str) -> str:
    """The functions in LLVM's language, for an architecture."""
    relax = _RELAX.get(architecture)
    return _TEXT.substitute(
        {f"at_{name}": getattr(Team, name).offset for name, *_ in Team._fields_},
        LINE=LINE,
        PARTS=PARTS,
        TEAMS=TEAMS,
        TEAM_BYTES=ctypes.sizeof(Team),
        PIECES=PIECES,
        PAUSES=PAUSES,
        LOOKS=PAUSES + YIELDS,
        OPEN=_OPEN,
        OPENED=_OPEN + _LAUNCH,
        at_members=Part.members.offset,
        ALONE=ALONE,
        SHARED=SHARED,
        WORKER=WORKER,
        DECLARE_RELAX="declare void " + re.sub(r"i32 \d+", "i32", relax) if relax else "",
        CALL_RELAX=f"call void {relax}" if relax else "",
    )


def has_launchers(func: tirx.PrimFunc, target: CpuTarget) -> bool:
    """Is a kernel linked with the launchers of its executable? They are compiled for this machine's architecture, and
    for systems with POSIX threads. A kernel for another one is launched by TVM's pool, without pieces, and has a serial
    twin."""
    host = CpuTarget.host().triple
    return target.triple == host and "windows" not in host and has_parallel_loop(func)


@cache
def launchers_object() -> bytes:
    """The object file of the launchers, for any processor of this machine's architecture. Its functions return the
    addresses of the launchers and of the workers' code."""
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        path = Path(folder, "launchers.ll")
        path.write_text(_text(CpuTarget.host().triple.split("-")[0]), encoding="utf-8")
        return object_of(tvm.runtime.load_module(str(path)))
