// What products of rows of whole numbers with panels of codes share, whatever the rows are rounded to: the way through
// a panel's blocks, and numbers in and out of coded rows. Included by *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/linear_tile.h"

namespace quire::ops::cpu::QUIRE_ISA {

// Without instructions for them products are loops over lanes, and more of them at once only make longer code.
#if defined(__AVX2__)
constexpr bool kHasByteProducts = true;
#else
constexpr bool kHasByteProducts = false;
#endif
constexpr int kUnrolledQuads = kHasByteProducts ? 8 : 1;

constexpr int kPanelTiles = kPanelColumns / kTileColumns;

QUIRE_INLINE float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
QUIRE_INLINE void put(uint8_t* p, float value) {
  std::memcpy(p, &value, sizeof(value));
}

// Below it a scale has no inverse; what is so small is taken for 0.
constexpr float kLeastScale = 1e-37f;

// R rows of T tiles of a panel, from `tile` on, over all of k. Blocks are read in the order in which they lie.
template <class Format, template <class, int, int> class Group, int R, int T>
QUIRE_INLINE void sum_tiles(const LinearTile& t, int64_t row, int64_t panel, int tile) {
  constexpr int V = kTileVectors;
  const uint8_t* block = t.panels + panel * t.panel_bytes + tile * Format::kBlockBytes;
  const uint8_t* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = t.rows + (row + r) * t.row_bytes;
  FW sums[T][R][V] = {};
  const Fetching fetching = Fetching::begin(t.fetch, R, T, Format::kBlock);
  for (int64_t step = 0; step < t.k; step += Format::kBlock) {
    fetching.some();
    if (row == 0) prefetch_ahead<T == kPanelTiles, kIntoSecond>(block, kPanelTiles * Format::kBlockBytes);
    for (int i = 0; i < T; ++i) {
      const uint8_t* const of_tile = block + i * Format::kBlockBytes;
      for (int group = 0; group < Format::kBlock / 32; ++group) {
        Scales scales[V];
        for (int v = 0; v < V; ++v) scales[v] = Format::scales(of_tile, group, v);
        const int64_t at = step + group * 32;
        Group<Format, R, V>::add(of_tile, group, scales, rows, t.k, at, sums[i]);
      }
    }
    block += kPanelTiles * Format::kBlockBytes;
  }
  for (int i = 0; i < T; ++i) store_sums(t, row, panel * kPanelColumns + (tile + i) * kTileColumns, sums[i]);
}

// Few rows are bound by memory, which is then read straight ahead; more rows find the panel in the first cache, and a
// tile a time leaves room for their sums in the registers. With large codes memory bounds more of them.
template <class Format>
constexpr int kGroupBytes = Format::kBlockBytes / (Format::kBlock / 32);  // of 32 steps of a tile
template <class Format>
constexpr int kStreamedRows = !kHasByteProducts                                ? 0
                              : kTileVectors == 1 && kGroupBytes<Format> > 400 ? 4
                                                                               : 2;

template <class Format, template <class, int, int> class Group>
struct Panel {
  template <int R>
  struct Rows {
    static void run(int64_t row, const LinearTile& t, int64_t panel) {
      if constexpr (R <= kStreamedRows<Format>) {
        sum_tiles<Format, Group, R, kPanelTiles>(t, row, panel, 0);
      } else {
        for (int tile = 0; tile < kPanelTiles; ++tile) sum_tiles<Format, Group, R, 1>(t, row, panel, tile);
      }
    }
  };
};

// Whole-number sums of these rows and a tile fill half the registers; the floats are added to once in 16 or 32 steps
// and may lie in memory.
constexpr int kMostRows = !kHasByteProducts ? 1 : kTileVectors == 1 ? 8 : 4;

template <class Format, template <class, int, int> class Group>
void linear(const LinearTile& t) {
  for (int64_t panel = 0; panel < t.num_panels; ++panel)
    in_even_groups<Panel<Format, Group>::template Rows, kMostRows>(t.num_rows, t, panel);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
