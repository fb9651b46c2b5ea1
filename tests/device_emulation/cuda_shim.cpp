// Copies that threads wait for (`cuda_shim.h`).

#include "runner.h"

#include <deque>
#include <vector>

namespace emulation {

struct Copy {
  void *to;
  const void *from;
};
// Of each thread of the group: copies since its last commit, and those of each commit.
static std::vector<Copy> copies[1024];
static std::deque<std::vector<Copy>> committed[1024];

void copy(void *to, const void *from, bool exists) {
  if (uintptr_t(to) % 16 || (exists && uintptr_t(from) % 16)) failed("cp.async that is not aligned to 16 bytes");
  copies[number_of_thread()].push_back({to, exists ? from : nullptr});
}

void commit() {
  committed[number_of_thread()].push_back(std::move(copies[number_of_thread()]));
  copies[number_of_thread()].clear();
}

void copied_but(size_t number) {
  std::deque<std::vector<Copy>> &own = committed[number_of_thread()];
  for (; own.size() > number; own.pop_front()) {
    for (const Copy &each : own.front()) {
      if (each.from) std::memcpy(each.to, each.from, 16);
      else std::memset(each.to, 0, 16);
    }
  }
}

void copied() {
  commit();
  copied_but(0);
}

void forget_copies() {
  for (std::vector<Copy> &of_thread : copies) of_thread.clear();
  for (std::deque<std::vector<Copy>> &of_thread : committed) of_thread.clear();
}

}  // namespace emulation
