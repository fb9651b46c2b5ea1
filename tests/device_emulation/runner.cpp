// The threads of a group as fibers: what all kernels of a process share (`runner.h`).

#include "runner.h"

#include <cstdio>
#include <vector>

#include <ucontext.h>

namespace emulation {

Index groups, threads, group, thread;
char *dynamic_shared;
static char failure[256];  // the first error of a launch, or ""
static bool backwards;     // threads and groups run in descending order

constexpr size_t STACK = size_t(1) << 18;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK);
  uint32_t number = 0;  // of the thread that it runs
  bool waits = false;
  uint32_t site = 0, first = 0, last = 0;  // the barrier that it waits at, and whom for
};

struct Group {
  ucontext_t scheduler;
  std::vector<Fiber *> idle;
  Fiber *running = nullptr;
  uint32_t started = 0, count = 0;
  std::vector<char> ended;
  const Launch *launch = nullptr;
};
static Group state;

static uint32_t count_of(Index size) { return size.x * size.y * size.z; }

static Index index_of(uint32_t number, Index size) {
  return {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

void failed(const char *what) {
  if (!failure[0]) std::snprintf(failure, sizeof failure, "%s", what);
}

static void resume(Fiber *fiber) {
  state.running = fiber;
  thread = index_of(fiber->number, threads);
  swapcontext(&state.scheduler, &fiber->context);
}

// A fiber runs threads one after the other, and stays with one that waits at a barrier. All threads start before any
// goes on behind a barrier.
static void threads_of_fiber() {
  Fiber *own = state.running;
  while (state.started < state.count) {
    const uint32_t turn = state.started++;
    own->number = backwards ? state.count - 1 - turn : turn;
    thread = index_of(own->number, threads);
    state.launch->body(state.launch->given);
    state.ended[own->number] = 1;
  }
  state.idle.push_back(own);
  swapcontext(&own->context, &state.scheduler);
}

void meet(uint32_t site, uint32_t first, uint32_t last) {
  Fiber *own = state.running;
  own->site = site, own->first = first, own->last = last, own->waits = true;
  swapcontext(&own->context, &state.scheduler);
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

// The threads that meet at the barrier of `fiber`, if all of them have come: those of a warp may meet while others of the
// group wait for them elsewhere.
static std::vector<Fiber *> met(const Fiber *fiber, const std::vector<Fiber *> &waiting) {
  std::vector<Fiber *> found;
  for (Fiber *other : waiting) {
    if (other->number < fiber->first || other->number >= fiber->last) continue;
    if (other->site != fiber->site || other->first != fiber->first || other->last != fiber->last) {
      return {};
    }
    found.push_back(other);
  }
  for (uint32_t number = fiber->first; number < fiber->last; number++) {
    if (state.ended[number]) {
      failed("threads of a group have ended, and others wait for them at a barrier");
      return {};
    }
  }
  return found.size() == fiber->last - fiber->first ? found : std::vector<Fiber *>{};
}

static void run_group() {
  const Launch &launch = *state.launch;
  if (size_t bytes = size_t(launch.group_memory_end - launch.group_memory)) {
    std::memset(launch.group_memory, 0xff, bytes);
  }
  state.started = 0;
  state.count = count_of(threads);
  state.ended.assign(state.count, 0);
  std::vector<Fiber *> waiting;
  while (state.started < state.count) {
    Fiber *fiber = new_fiber();
    resume(fiber);
    if (fiber->waits) waiting.push_back(fiber);
  }
  while (!waiting.empty() && !failure[0]) {
    std::vector<Fiber *> go;
    for (const Fiber *fiber : waiting) {
      go = met(fiber, waiting);
      if (!go.empty() || failure[0]) break;
    }
    if (failure[0]) break;
    if (go.empty()) {
      failed("threads of a group wait at different barriers");
      break;
    }
    for (Fiber *fiber : go) fiber->waits = false;
    for (Fiber *fiber : go) resume(fiber);
    std::vector<Fiber *> rest;
    for (Fiber *fiber : waiting) {
      if (fiber->waits) rest.push_back(fiber);
    }
    waiting = rest;
  }
  // What waited when a launch failed is never gone on with.
  for (Fiber *fiber : waiting) state.idle.push_back(fiber);
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
