// The part of CUDA C that kernels use, in C++ for the processor, without the preamble of
// relaxpy/backend/cuda/source.py, whose functions are here.

#pragma once

#include <math.h>

#include "half.h"
#include "runner.h"

using uchar = uint8_t;
using nv_bfloat16 = uint16_t;

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline float relaxpy_float_of_half(ushort bits) {
  emulation::half own(0.0f);
  own.bits = bits;
  return float(own);
}
inline ushort relaxpy_half_of_float(float value) { return emulation::half(value).bits; }

struct half {
  ushort bits;
  half() = default;
  half(float x) : bits(relaxpy_half_of_float(x)) {}
  operator float() const { return relaxpy_float_of_half(bits); }
};

template <class To, class From>
To relaxpy_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

template <class T>
T max(T a, T b) {
  static_assert(T(1) / 2 == 0, "which of a NaN and a number is the larger one?");
  return a > b ? a : b;
}
template <class T>
T min(T a, T b) {
  static_assert(T(1) / 2 == 0, "which of a NaN and a number is the smaller one?");
  return a < b ? a : b;
}

inline int __popc(uint x) { return __builtin_popcount(x); }
inline int __popcll(ulong x) { return __builtin_popcountl(x); }
inline int __clz(int x) { return x ? __builtin_clz(uint(x)) : 32; }
inline int __clzll(long x) { return x ? __builtin_clzl(ulong(x)) : 64; }

namespace emulation {

// `mma.sync`: a thread's sums of 16 x 8 words times 8 x 8 words, whose fragments all threads of its warp have.
struct Fragments {
  uint32_t a[4], b[2];
};
inline Fragments fragments[1024];

template <class Element, class Wide, class Sum>
void multiply(Sum *c, const uint32_t *a, const uint32_t *b, Wide (*widened)(Element)) {
  constexpr uint32_t PER_WORD = 4 / sizeof(Element), SITE = 0x80000000;
  const uint32_t number = number_of_thread(), first = number / 32 * 32, lane = number % 32;
  std::memcpy(fragments[number].a, a, sizeof fragments[number].a);
  std::memcpy(fragments[number].b, b, sizeof fragments[number].b);
  meet(SITE, first, first + 32);
  for (uint32_t part = 0; part < 4; part++) {
    const uint32_t row = lane / 4 + part / 2 * 8, column = lane % 4 * 2 + part % 2;
    Wide sum = Wide(c[part]);
    for (uint32_t word = 0; word < 8; word++) {
      const Fragments &left = fragments[first + row % 8 * 4 + word % 4], &right = fragments[first + column * 4 + word % 4];
      Element x[PER_WORD], y[PER_WORD];
      std::memcpy(x, &left.a[row / 8 + word / 4 * 2], 4);
      std::memcpy(y, &right.b[word / 4], 4);
      for (uint32_t n = 0; n < PER_WORD; n++) sum += widened(x[n]) * widened(y[n]);
    }
    c[part] = Sum(sum);
  }
  meet(SITE, first, first + 32);  // nobody writes before all have read
}

// `ldmatrix`: words of four squares of 8 x 8 numbers of 16 bits, of which each thread gives a row.
inline const ushort *rows_of_squares[1024];

inline void read_squares(uint32_t *words, const void *row, bool turned) {
  constexpr uint32_t SITE = 0x80000001;
  const uint32_t number = number_of_thread(), first = number / 32 * 32, lane = number % 32;
  if (uintptr_t(row) % 16) failed("ldmatrix of a row that is not aligned to 16 bytes");
  rows_of_squares[number] = static_cast<const ushort *>(row);
  meet(SITE, first, first + 32);
  for (uint32_t square = 0; square < 4; square++) {
    const uint32_t at = lane / 4, pair = lane % 4 * 2;
    const ushort *const *rows = rows_of_squares + first + square * 8;
    const uint32_t low = turned ? rows[pair][at] : rows[at][pair];
    const uint32_t high = turned ? rows[pair + 1][at] : rows[at][pair + 1];
    words[square] = low | high << 16;
  }
  meet(SITE, first, first + 32);
}

// The sum, or the largest, of four neighbouring threads, in the order of a butterfly.
inline float numbers_of_threads[1024];

template <class Combine>
float of_four(float own, Combine combine) {
  constexpr uint32_t SITE = 0x80000002;
  const uint32_t number = number_of_thread(), first = number / 32 * 32;
  for (uint32_t step = 1; step < 4; step *= 2) {
    numbers_of_threads[number] = own;
    meet(SITE, first, first + 32);
    own = combine(own, numbers_of_threads[number ^ step]);
    meet(SITE, first, first + 32);
  }
  return own;
}

// `cp.async`: memory is read at the latest moment, when the thread waits for its copies (`copied`). A commit makes a group
// of the copies since the last one; `copied_but` waits for all groups but the last `number`.
void copy(void *to, const void *from, bool exists);
void commit();
void copied_but(size_t number);
void copied();
void forget_copies();

// Parameters as the driver gets them: in order, each at a multiple of its size.
template <class... Params>
void launch_packed(void (*kernel)(Params...), const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                   const char *params) {
  const size_t sizes[] = {sizeof(Params)..., 0};
  const void *places[sizeof...(Params) + 1];
  for (size_t i = 0, at = 0; i < sizeof...(Params); at += sizes[i++]) {
    at = (at + sizes[i] - 1) / sizes[i] * sizes[i];
    places[i] = params + at;
  }
  forget_copies();
  launch(kernel, grid, block, shared_bytes, places);
}

// A bit for each parameter that is a pointer.
template <class... Params>
constexpr uint64_t pointers(void (*)(Params...)) {
  uint64_t found = 0, bit = 1;
  ((found |= std::is_pointer<Params>::value ? bit : 0, bit <<= 1), ...);
  return found;
}

}  // namespace emulation

inline void relaxpy_mma_float16(float *c, const uint *a, const uint *b) {
  emulation::multiply<ushort, double>(c, a, b, [](ushort bits) { return double(relaxpy_float_of_half(bits)); });
}
inline void relaxpy_mma_bfloat16(float *c, const uint *a, const uint *b) {
  emulation::multiply<ushort, double>(c, a, b, [](ushort bits) { return double(relaxpy_bits<float>(uint(bits) << 16)); });
}
inline void relaxpy_mma_int8(int *c, const uint *a, const uint *b) {
  emulation::multiply<int8_t, int>(c, a, b, [](int8_t value) { return int(value); });
}

inline void relaxpy_squares(uint *words, const void *row) { emulation::read_squares(words, row, false); }
inline void relaxpy_turned_squares(uint *words, const void *row) { emulation::read_squares(words, row, true); }
inline float relaxpy_largest_of_four(float x) {
  return emulation::of_four(x, [](float x, float y) { return x > y ? x : y; });
}
inline float relaxpy_total_of_four(float x) {
  return emulation::of_four(x, [](float x, float y) { return x + y; });
}
inline void relaxpy_copy(void *to, const void *from, bool exists) { emulation::copy(to, from, exists); }
inline void relaxpy_copied() { emulation::copied(); }
inline void relaxpy_commit() { emulation::commit(); }
inline void relaxpy_copied_but_1() { emulation::copied_but(1); }
inline void relaxpy_copied_but_2() { emulation::copied_but(2); }
inline uint relaxpy_pair_float16(float first, float second) {
  return relaxpy_half_of_float(first) | uint(relaxpy_half_of_float(second)) << 16;
}
inline uint relaxpy_pair_bfloat16(float first, float second) {
  const auto rounded = [](float x) {
    const uint bits = relaxpy_bits<uint>(x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
  };
  return rounded(first) | rounded(second) << 16;
}

#undef EMULATION_ENTRY
#define EMULATION_ENTRY(NAME)                                                                                \
  extern "C" const uint64_t NAME##__pointers = emulation::pointers(&NAME);                                   \
  extern "C" void NAME##__launch(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,     \
                                 const char *params) {                                                       \
    emulation::launch_packed(&NAME, grid, block, shared_bytes, params);                                      \
  }

#define __global__
#define __launch_bounds__(...)
#define __shared__ EMULATION_GROUP_MEMORY
#define __syncthreads() emulation::meet(__LINE__)
#define blockIdx emulation::group
#define threadIdx emulation::thread
// Behind `static` the compiler takes no standard attributes.
#define alignas(bytes) __attribute__((aligned(bytes)))
