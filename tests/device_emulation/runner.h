// Runs a kernel for all threads of a grid: groups one after the other, the threads of a group as fibers that take turns
// at barriers. Everything is in one thread of the process.
//
// What devices leave undefined ends a launch with an error (`failure`): threads that wait at different barriers, or for
// threads that have ended. Memory that a group shares is filled with NaN before each group. The order of threads is
// either direction, so that results that depend on it differ.
//
// Each kernel is compiled with this text; `runner.cpp` is a library of its own, which all kernels of a process share.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

// Memory of a group is static, in a section of its own.
#define EMULATION_GROUP_MEMORY static __attribute__((section("group_memory")))
extern char __start_group_memory[] __attribute__((weak));
extern char __stop_group_memory[] __attribute__((weak));

namespace emulation {

struct Index {
  uint32_t x, y, z;
};

extern Index groups, threads;  // of the launch
extern Index group, thread;    // of what runs now
extern char *dynamic_shared;   // as many bytes as the launch asks for

// The launch fails, with the first of its errors.
void failed(const char *what);

// The barrier `site` of the threads from `first` to before `last` of the group, or of all of them.
void meet(uint32_t site, uint32_t first, uint32_t last);
void meet(uint32_t site);

// Of the thread that runs now, in its group.
uint32_t number_of_thread();

struct Launch {
  const uint32_t *grid, *block;
  uint32_t shared_bytes;
  void (*body)(void *);  // of a thread
  void *given;
  char *group_memory, *group_memory_end;
};
void run(const Launch &launch);

template <class Body>
void run(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, Body body) {
  const auto call = [](void *given) { (*static_cast<Body *>(given))(); };
  run({grid, block, shared_bytes, call, &body, __start_group_memory, __stop_group_memory});
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

// The entry point of a kernel: a pointer to the value of each of its parameters; for memory a pointer to the pointer.
#define EMULATION_ENTRY(NAME)                                                                                \
  extern "C" void NAME##__launch(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,     \
                                   const void *const *args) {                                                  \
    emulation::launch(&NAME, grid, block, shared_bytes, args);                                               \
  }
