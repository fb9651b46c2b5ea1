// SHA-256 (FIPS 180-4) of bytes, in hexadecimal.

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The fractional parts of the roots of the first primes are the algorithm's constants; they are computed.
static uint32_t fraction(unsigned prime, int cubic) {
  unsigned __int128 low = 0, high = (unsigned __int128)64 << 32;
  while (high - low > 1) {
    unsigned __int128 middle = (low + high) / 2;
    // middle is a root in units of 2^-32
    int over = (cubic ? middle * middle * middle >> 96 : middle * middle >> 64) >= prime;
    if (over) high = middle; else low = middle;
  }
  return (uint32_t)low;
}

static void block(uint32_t state[8], const unsigned char *at, const uint32_t k[64]) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)at[4 * i] << 24 | at[4 * i + 1] << 16 | at[4 * i + 2] << 8 | at[4 * i + 3];
  for (int i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] + (rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3)
         + (rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10);
  memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t a = v[0], e = v[4];
    uint32_t one = v[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
    uint32_t two = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += one;
    v[0] = one + two;
  }
  for (int i = 0; i < 8; i++) state[i] += v[i];
}

static void sha256(const char *bytes, size_t length, char digest[65]) {
  uint32_t k[64], state[8];
  for (unsigned prime = 2, count = 0; count < 64; prime++) {
    unsigned factor = 2;
    while (factor * factor <= prime && prime % factor) factor++;
    if (factor * factor <= prime) continue;
    k[count] = fraction(prime, 1);
    if (count < 8) state[count] = fraction(prime, 0);
    count++;
  }
  size_t whole = length / 64 * 64, left = length - whole;
  for (size_t i = 0; i < whole; i += 64) block(state, (const unsigned char *)bytes + i, k);
  unsigned char end[128] = {0};
  memcpy(end, bytes + whole, left);
  end[left] = 0x80;
  size_t size = left < 56 ? 64 : 128;
  for (int i = 0; i < 8; i++) end[size - 1 - i] = (unsigned char)((uint64_t)length * 8 >> 8 * i);
  for (size_t i = 0; i < size; i += 64) block(state, end + i, k);
  for (int i = 0; i < 8; i++) snprintf(digest + 8 * i, 9, "%08x", state[i]);
}
