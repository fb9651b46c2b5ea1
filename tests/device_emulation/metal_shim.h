// The part of Metal's language that kernels use, in C++ for the processor. What the language lacks does not compile.

#pragma once

#include <cmath>

#include "half.h"
#include "runner.h"

using uchar = uint8_t;

#define UNARY(name) \
  inline float name(float x) { return std::name(x); }
#define BINARY(name) \
  inline float name(float x, float y) { return std::name(x, y); }
#define OF_INTEGERS(name, type, expression) \
  inline type name(type x, type y) { return expression; }
#define EXTREMES(type)                      \
  OF_INTEGERS(max, type, x > y ? x : y)     \
  OF_INTEGERS(min, type, x < y ? x : y)

namespace metal {

struct uint3 {
  uint32_t x, y, z;
};

using emulation::half;

template <class To, class From>
To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From));
  union {  // a half has no default
    From from;
    To to;
  } both{value};
  return both.to;
}

namespace precise {
UNARY(acos) UNARY(acosh) UNARY(asin) UNARY(asinh) UNARY(atan) UNARY(atanh) UNARY(ceil) UNARY(cos) UNARY(cosh) UNARY(exp)
UNARY(exp2) UNARY(fabs) UNARY(floor) UNARY(log) UNARY(log10) UNARY(log2) UNARY(rint) UNARY(round) UNARY(sin) UNARY(sinh)
UNARY(sqrt) UNARY(tan) UNARY(tanh) UNARY(trunc) BINARY(atan2) BINARY(copysign) BINARY(fmod) BINARY(pow)
inline float exp10(float x) { return std::pow(10.0f, x); }
inline float ldexp(float x, int exponent) { return std::ldexp(x, exponent); }
}  // namespace precise
using namespace precise;

inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return std::fabs(x) == INFINITY; }

EXTREMES(char) EXTREMES(uchar) EXTREMES(short) EXTREMES(ushort) EXTREMES(int) EXTREMES(uint) EXTREMES(long)
EXTREMES(ulong)

inline int popcount(int x) { return __builtin_popcount(unsigned(x)); }
inline uint popcount(uint x) { return unsigned(__builtin_popcount(x)); }
inline long popcount(long x) { return __builtin_popcountl(ulong(x)); }
inline ulong popcount(ulong x) { return ulong(__builtin_popcountl(x)); }
inline int clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline uint clz(uint x) { return x ? unsigned(__builtin_clz(x)) : 32; }
inline long clz(long x) { return x ? __builtin_clzl(ulong(x)) : 64; }
inline ulong clz(ulong x) { return x ? ulong(__builtin_clzl(x)) : 64; }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

template <class Position>
Position position(emulation::Index at) {
  if constexpr (sizeof(Position) == sizeof(uint)) {
    return at.x;
  } else {
    return {at.x, at.y, at.z};
  }
}

// The last two parameters are the positions of the group in the grid and of the thread in the group.
template <class... Params, size_t... Place>
void launch(void (*call)(Params...), const uint32_t grid[3], const uint32_t block[3], const void *const *args,
            std::index_sequence<Place...>) {
  using All = std::tuple<Params...>;
  using GroupPosition = std::tuple_element_t<sizeof...(Place), All>;
  using ThreadPosition = std::tuple_element_t<sizeof...(Place) + 1, All>;
  emulation::run(grid, block, 0, [=] {
    call(emulation::argument<std::remove_reference_t<std::tuple_element_t<Place, All>>>(args, Place)...,
         position<GroupPosition>(emulation::group), position<ThreadPosition>(emulation::thread));
  });
}

template <class... Params>
void launch(void (*call)(Params...), const uint32_t grid[3], const uint32_t block[3], const void *const *args) {
  launch(call, grid, block, args, std::make_index_sequence<sizeof...(Params) - 2>{});
}

}  // namespace metal

#undef UNARY
#undef BINARY
#undef OF_INTEGERS
#undef EXTREMES
#undef EMULATION_ENTRY
#define EMULATION_ENTRY(NAME)                                                                           \
  extern "C" void NAME##__launch(const uint32_t grid[3], const uint32_t block[3], uint32_t,             \
                                 const void *const *args) {                                             \
    metal::launch(&NAME, grid, block, args);                                                            \
  }

#define threadgroup_barrier(flags) (void(flags), emulation::meet(__LINE__))
#define kernel
#define device
#define constant const
#define thread
#define threadgroup EMULATION_GROUP_MEMORY

// Names that C++ has, and the language lacks.
#pragma GCC poison double acosf asinf atanf atan2f cbrt ceilf copysignf cosf coshf erf erfc erff exp10f exp2f expf expm1
#pragma GCC poison expm1f fabsf floorf fmaf fmaxf fminf fmodf hypot hypotf ldexpf log10f log1p log1pf log2f logf
#pragma GCC poison nearbyint nearbyintf nextafter nextafterf powf remainder rintf roundf sinf sinhf sqrtf tanf tanhf
#pragma GCC poison truncf lgamma tgamma std
