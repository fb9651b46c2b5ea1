// Floats of 16 bits, converted as devices do: to the nearest, ties to even.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulation {

struct half {
  uint16_t bits;

  explicit half(float value) {
    uint32_t own;
    std::memcpy(&own, &value, 4);
    const uint32_t sign = own >> 16 & 0x8000, size = own & 0x7fffffff;
    if (size > 0x7f800000) {
      bits = uint16_t(sign | 0x7e00);
    } else if (size >= 0x477ff000) {
      bits = uint16_t(sign | 0x7c00);
    } else {  // in units of the last place, to the nearest, ties to even
      int exponent = int(size >> 23) - 127;
      if (exponent < -14) exponent = -14;
      const float units = std::nearbyint(std::ldexp(std::fabs(value), 10 - exponent));
      bits = uint16_t(sign | (uint32_t(units) + (uint32_t(exponent + 14) << 10)));
    }
  }

  explicit operator float() const {
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    float size = exponent == 0    ? std::ldexp(float(digits), -24)
                 : exponent == 31 ? (digits ? NAN : INFINITY)
                                  : std::ldexp(float(digits + 1024), exponent - 25);
    return std::copysign(size, bits >> 15 ? -1.0f : 1.0f);
  }
};

}  // namespace emulation
