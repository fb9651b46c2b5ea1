// The tile instructions of Intel's processors, emulated: what tests of `relaxpy.backend.cpu.tiles` call where there are
// none. Stricter than the processor in nothing but this: a tile without a configuration ends the process with a message.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} configuration;
static _Thread_local uint8_t tiles[8][16][64];

static int rows_of(int8_t tile) {
  int rows = configuration.rows[tile];
  if (configuration.palette != 1 || rows < 1 || rows > 16 || configuration.row_bytes[tile] != 64) {
    fprintf(stderr, "tile %d is not configured: %d rows\n", tile, rows);
    abort();
  }
  return rows;
}

void emulated_ldtilecfg(const void *from) {
  memcpy(&configuration, from, 64);
  memset(tiles, 0, sizeof tiles);
}

void emulated_tilerelease(void) { memset(&configuration, 0, sizeof configuration); }

void emulated_tilezero(int8_t tile) {
  rows_of(tile);
  memset(tiles[tile], 0, 1024);
}

void emulated_tileloadd64(int8_t tile, const char *from, int64_t stride) {
  int rows = rows_of(tile);
  memset(tiles[tile], 0, 1024);
  for (int row = 0; row < rows; row++) memcpy(tiles[tile][row], from + row * stride, 64);
}

void emulated_tilestored64(int8_t tile, char *to, int64_t stride) {
  int rows = rows_of(tile);
  for (int row = 0; row < rows; row++) memcpy(to + row * stride, tiles[tile][row], 64);
}

static float widened(const uint8_t *at) {
  uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void emulated_tdpbf16ps(int8_t total, int8_t left, int8_t right) {
  int rows = rows_of(total), depth = rows_of(right);
  rows_of(left);
  for (int row = 0; row < rows; row++)
    for (int column = 0; column < 16; column++) {
      float sums[2] = {0, 0}, so_far;
      for (int k = 0; k < depth; k++)
        for (int half = 0; half < 2; half++) {
          const uint8_t *a = tiles[left][row] + 4 * k + 2 * half;
          const uint8_t *b = tiles[right][k] + 4 * column + 2 * half;
          sums[half] = fmaf(widened(a), widened(b), sums[half]);
        }
      memcpy(&so_far, tiles[total][row] + 4 * column, 4);
      so_far += sums[0] + sums[1];
      memcpy(tiles[total][row] + 4 * column, &so_far, 4);
    }
}

#define BYTES(name, left_type, right_type)                                                  \
  void emulated_##name(int8_t total, int8_t left, int8_t right) {                           \
    int rows = rows_of(total), depth = rows_of(right);                                      \
    rows_of(left);                                                                          \
    for (int row = 0; row < rows; row++)                                                    \
      for (int column = 0; column < 16; column++) {                                         \
        int32_t sum;                                                                        \
        memcpy(&sum, tiles[total][row] + 4 * column, 4);                                    \
        for (int k = 0; k < 4 * depth; k++)                                                 \
          sum += (int32_t)(left_type)tiles[left][row][k] *                                  \
                 (int32_t)(right_type)tiles[right][k / 4][4 * column + k % 4];              \
        memcpy(tiles[total][row] + 4 * column, &sum, 4);                                    \
      }                                                                                     \
  }

BYTES(tdpbssd, int8_t, int8_t)
BYTES(tdpbusd, uint8_t, int8_t)
BYTES(tdpbsud, int8_t, uint8_t)
