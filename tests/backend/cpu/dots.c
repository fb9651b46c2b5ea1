// The dot products of bytes of AVX512_VNNI and AVX_VNNI, emulated with AVX2 or AVX-512: what tests of kernels for
// processors that have them call on those that do not.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static void dots(int32_t *sums, const uint8_t *unsigned_bytes, const int8_t *signed_bytes, int words) {
  for (int word = 0; word < words; word++)
    for (int byte = 4 * word; byte < 4 * word + 4; byte++)
      sums[word] = (int32_t)((uint32_t)sums[word] + (uint32_t)(unsigned_bytes[byte] * signed_bytes[byte]));
}

#define EMULATED(bits, vector)                                                        \
  vector emulated_vpdpbusd_##bits(vector sums, vector unsigned_bytes, vector signed_bytes) { \
    int32_t total[bits / 32];                                                         \
    uint8_t first[bits / 8];                                                          \
    int8_t second[bits / 8];                                                          \
    memcpy(total, &sums, bits / 8);                                                   \
    memcpy(first, &unsigned_bytes, bits / 8);                                         \
    memcpy(second, &signed_bytes, bits / 8);                                          \
    dots(total, first, second, bits / 32);                                            \
    memcpy(&sums, total, bits / 8);                                                   \
    return sums;                                                                      \
  }

EMULATED(256, __m256i)
#ifdef __AVX512F__
EMULATED(512, __m512i)
#endif
