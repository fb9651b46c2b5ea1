// Copies that threads wait for (`cuda_shim.h`).

#include "runner.h"

#include <vector>

namespace emulation {

struct Copy {
  void *to;
  const void *from;
};
static std::vector<Copy> copies[1024];  // of each thread of the group

void copy(void *to, const void *from, bool exists) {
  if (uintptr_t(to) % 16 || (exists && uintptr_t(from) % 16)) failed("cp.async that is not aligned to 16 bytes");
  copies[number_of_thread()].push_back({to, exists ? from : nullptr});
}

void copied() {
  for (const Copy &each : copies[number_of_thread()]) {
    if (each.from) std::memcpy(each.to, each.from, 16);
    else std::memset(each.to, 0, 16);
  }
  copies[number_of_thread()].clear();
}

void forget_copies() {
  for (std::vector<Copy> &of_thread : copies) of_thread.clear();
}

}  // namespace emulation
