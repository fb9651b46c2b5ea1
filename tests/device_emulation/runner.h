// Runs a kernel for all threads of a grid: groups one after the other, the threads of a group as fibers that take turns
// at barriers. Everything is in one thread of the process.
//
// What devices leave undefined ends a launch with an error (`failure`): threads that wait at different barriers, or for
// threads that have ended. Memory that a group shares is filled with NaN before each group. The order of threads is
// either direction, so that results that depend on it differ.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include <ucontext.h>

// Memory of a group is static, in a section of its own.
#define EMULATION_GROUP_MEMORY static __attribute__((section("group_memory")))
extern char __start_group_memory[] __attribute__((weak));
extern char __stop_group_memory[] __attribute__((weak));

namespace emulation {

struct Index {
  uint32_t x, y, z;
};

inline Index groups, threads;  // of the launch
inline Index group, thread;    // of what runs now
inline char *dynamic_shared;   // as many bytes as the launch asks for
inline char failure[256];      // the first error of a launch, or ""
inline bool backwards;         // threads and groups run in descending order

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
  void (*body)(void *) = nullptr;
  void *given = nullptr;
};
inline Group state;

inline uint32_t count_of(Index size) { return size.x * size.y * size.z; }

inline Index index_of(uint32_t number, Index size) {
  return {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

inline void failed(const char *what) {
  if (!failure[0]) std::snprintf(failure, sizeof failure, "%s", what);
}

inline void resume(Fiber *fiber) {
  state.running = fiber;
  thread = index_of(fiber->number, threads);
  swapcontext(&state.scheduler, &fiber->context);
}

// A fiber runs threads one after the other, and stays with one that waits at a barrier. All threads start before any
// goes on behind a barrier.
inline void threads_of_fiber() {
  Fiber *own = state.running;
  while (state.started < state.count) {
    const uint32_t turn = state.started++;
    own->number = backwards ? state.count - 1 - turn : turn;
    thread = index_of(own->number, threads);
    state.body(state.given);
    state.ended[own->number] = 1;
  }
  state.idle.push_back(own);
  swapcontext(&own->context, &state.scheduler);
}

// The barrier `site` of the threads from `first` to before `last` of the group.
inline void meet(uint32_t site, uint32_t first, uint32_t last) {
  Fiber *own = state.running;
  own->site = site, own->first = first, own->last = last, own->waits = true;
  swapcontext(&own->context, &state.scheduler);
}

inline void meet(uint32_t site) { meet(site, 0, state.count); }

inline uint32_t number_of_thread() { return state.running->number; }

inline Fiber *new_fiber() {
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
inline std::vector<Fiber *> met(const Fiber *fiber, const std::vector<Fiber *> &waiting) {
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

inline void run_group() {
  if (size_t bytes = size_t(__stop_group_memory - __start_group_memory)) {
    std::memset(__start_group_memory, 0xff, bytes);
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

template <class Body>
void run(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, Body body) {
  groups = {grid[0], grid[1], grid[2]};
  threads = {block[0], block[1], block[2]};
  failure[0] = 0;
  std::vector<char> shared(shared_bytes + 256);
  dynamic_shared = shared.data() + (256 - uintptr_t(shared.data()) % 256);
  state.body = [](void *given) { (*static_cast<Body *>(given))(); };
  state.given = &body;
  const uint32_t count = count_of(groups);
  for (uint32_t turn = 0; turn < count && !failure[0]; turn++) {
    group = index_of(backwards ? count - 1 - turn : turn, groups);
    std::memset(dynamic_shared, 0xff, shared_bytes);
    run_group();
  }
  dynamic_shared = nullptr;
}

template <class T>
T &argument(const void *const *args, size_t place) {
  return *static_cast<T *>(const_cast<void *>(args[place]));
}

template <class... Params, size_t... Place>
void call(void (*kernel)(Params...), const void *const *args, std::index_sequence<Place...>) {
  kernel(argument<std::remove_reference_t<Params>>(args, Place)...);
}

// A kernel whose parameters are the arguments.
template <class... Params>
void launch(void (*kernel)(Params...), const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
            const void *const *args) {
  run(grid, block, shared_bytes, [=] { call(kernel, args, std::index_sequence_for<Params...>{}); });
}

}  // namespace emulation

extern "C" const char *emulation_failure() { return emulation::failure; }
extern "C" void emulation_backwards(bool yes) { emulation::backwards = yes; }

// The entry point of a kernel: a pointer to the value of each of its parameters; for memory a pointer to the pointer.
#define EMULATION_ENTRY(NAME)                                                                                \
  extern "C" void NAME##__launch(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,     \
                                   const void *const *args) {                                                  \
    emulation::launch(&NAME, grid, block, shared_bytes, args);                                               \
  }
