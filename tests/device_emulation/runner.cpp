// The threads of a group as fibers: what all kernels of a process share (`runner.h`).

#include "runner.h"

#include <cstdio>
#include <vector>

#undef _FORTIFY_SOURCE  // which takes a jump to another stack for an error
#include <setjmp.h>
#include <ucontext.h>

namespace emulation {

Index groups, threads, group, thread;
char *dynamic_shared;
static char failure[256];  // the first error of a launch, or ""
static bool backwards;     // threads and groups run in descending order

constexpr size_t STACK = size_t(1) << 18;

// A fiber begins by `setcontext`. From then on it is switched to by `_longjmp`, without system calls.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack = std::vector<char>(STACK);
  uint32_t number = 0;  // of the thread that it runs
  bool waits = false;
  uint32_t site = 0, first = 0, last = 0;  // the barrier that it waits at, and whom for
};

struct Group {
  jmp_buf scheduler;
  std::vector<Fiber *> idle;
  Fiber *running = nullptr;
  uint32_t started = 0, count = 0;
  const Launch *launch = nullptr;
};
static Group state;

static uint32_t count_of(Index size) { return size.x * size.y * size.z; }

// The thread whose turn is this one.
static uint32_t number_of(uint32_t turn) { return backwards ? state.count - 1 - turn : turn; }

static Index index_of(uint32_t number, Index size) {
  return {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

void failed(const char *what) {
  if (!failure[0]) std::snprintf(failure, sizeof failure, "%s", what);
}

static void start(Fiber *fiber) {
  state.running = fiber;
  if (!_setjmp(state.scheduler)) setcontext(&fiber->context);
}

static void resume(Fiber *fiber) {
  state.running = fiber;
  thread = index_of(fiber->number, threads);
  if (!_setjmp(state.scheduler)) _longjmp(fiber->place, 1);
}

// A fiber runs threads one after the other, and stays with one that waits at a barrier. All threads start before any
// goes on behind a barrier.
static void threads_of_fiber() {
  Fiber *own = state.running;
  while (state.started < state.count) {
    own->number = number_of(state.started++);
    thread = index_of(own->number, threads);
    state.launch->body(state.launch->given);
  }
  state.idle.push_back(own);
  _longjmp(state.scheduler, 1);
}

void meet(uint32_t site, uint32_t first, uint32_t last) {
  Fiber *own = state.running;
  own->site = site, own->first = first, own->last = last, own->waits = true;
  if (!_setjmp(own->place)) _longjmp(state.scheduler, 1);
}

void meet(uint32_t site) { meet(site, 0, state.count); }

uint32_t number_of_thread() { return state.running->number; }

static Fiber *new_fiber() {
  Fiber *fiber;
  if (state.idle.empty()) {
    fiber = new Fiber;
  } else {
    fiber = state.idle.back();
    state.idle.pop_back();
  }
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.data();
  fiber->context.uc_stack.ss_size = fiber->stack.size();
  fiber->context.uc_link = nullptr;
  fiber->waits = false;
  makecontext(&fiber->context, threads_of_fiber, 0);
  return fiber;
}

static bool same_barrier(const Fiber *one, const Fiber *other) {
  return one->site == other->site && one->first == other->first && one->last == other->last;
}

// Whether all threads that meet at the barrier of `fiber` have come: those of a warp may meet while others of the group
// wait for them elsewhere. `waiting` has the fiber of each thread that has not ended.
static bool met(const Fiber *fiber, const std::vector<Fiber *> &waiting) {
  bool ended = false;
  for (uint32_t number = fiber->first; number < fiber->last; number++) {
    if (!waiting[number]) ended = true;
    else if (!same_barrier(fiber, waiting[number])) return false;
  }
  if (ended) failed("threads of a group have ended, and others wait for them at a barrier");
  return !ended;
}

// A barrier whose threads all wait, by one of them; null if there is none. The order is that of the threads.
static const Fiber *next_barrier(const std::vector<Fiber *> &waiting) {
  const Fiber *before = nullptr;
  for (uint32_t turn = 0; turn < state.count && !failure[0]; turn++) {
    const Fiber *fiber = waiting[number_of(turn)];
    if (!fiber || (before && same_barrier(before, fiber))) continue;
    if (met(fiber, waiting)) return fiber;
    before = fiber;
  }
  return nullptr;
}

static void run_group() {
  const Launch &launch = *state.launch;
  if (size_t bytes = size_t(launch.group_memory_end - launch.group_memory)) {
    std::memset(launch.group_memory, 0xff, bytes);
  }
  state.started = 0;
  state.count = count_of(threads);
  std::vector<Fiber *> waiting(state.count), go;
  uint32_t left = 0;
  while (state.started < state.count) {
    Fiber *fiber = new_fiber();
    start(fiber);
    if (!fiber->waits) continue;
    waiting[fiber->number] = fiber;
    left++;
  }
  while (left) {
    const Fiber *barrier = next_barrier(waiting);
    if (!barrier) {
      failed("threads of a group wait at different barriers");
      break;
    }
    go.clear();
    for (uint32_t turn = 0; turn < state.count; turn++) {
      const uint32_t number = number_of(turn);
      if (number >= barrier->first && number < barrier->last) go.push_back(waiting[number]);
    }
    for (Fiber *fiber : go) {
      fiber->waits = false;
      resume(fiber);
      if (fiber->waits) continue;
      waiting[fiber->number] = nullptr;
      left--;
    }
    if (failure[0]) break;
  }
  // What waited when a launch failed is never gone on with.
  for (Fiber *fiber : waiting) {
    if (fiber) state.idle.push_back(fiber);
  }
}

void run(const Launch &launch) {
  groups = {launch.grid[0], launch.grid[1], launch.grid[2]};
  threads = {launch.block[0], launch.block[1], launch.block[2]};
  failure[0] = 0;
  std::vector<char> shared(launch.shared_bytes + 256);
  dynamic_shared = shared.data() + (256 - uintptr_t(shared.data()) % 256);
  state.launch = &launch;
  const uint32_t count = count_of(groups);
  for (uint32_t turn = 0; turn < count && !failure[0]; turn++) {
    group = index_of(backwards ? count - 1 - turn : turn, groups);
    std::memset(dynamic_shared, 0xff, launch.shared_bytes);
    run_group();
  }
  dynamic_shared = nullptr;
}

}  // namespace emulation

extern "C" const char *emulation_failure() { return emulation::failure; }
extern "C" void emulation_backwards(bool yes) { emulation::backwards = yes; }
