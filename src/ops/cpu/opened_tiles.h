// Tiles of codes whose bytes are taken apart once for many rows: done anew for every four rows it takes a fifth of the
// vector instructions with AVX2, which are what bounds these products. Included by *.kernels.cpp alone, as simd.h is.
//
// A stretch of a tile's steps is opened into scratch and then met by all rows; it stays in the first cache meanwhile.
// The sums of a stretch go on where those of the one before ended, so that an output has the same bits either way.
//
// How a kind of product opens a format is said by a struct
//   kPlanes                          vectors of whole numbers a group of 32 steps and kWide columns
//   kRows                            rows that are met at a time
//   open(block, group, v, put)       makes them and calls put(i, plane) for each
#pragma once

#include "ops/cpu/code_products.h"

namespace quire::ops::cpu::QUIRE_ISA {

// A format of blocks of 32 steps: the scales of a tile's columns as floats, then planes. All formats whose scales are
// shared by as many steps become the same one.
template <int kNumPlanes, int kStepsOfScale, int kStepsOfMin>
struct OpenedFormat {
  static constexpr bool kIsOpened = true;
  static constexpr int kBlock = 32;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 4;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = kStepsOfScale;
  static constexpr int kMinSteps = kStepsOfMin;

  static constexpr int kPlanes = kNumPlanes;
  static constexpr int kScaleVectors = 32 / kScaleSteps;
  static constexpr int kMinVectors = kMinSteps > 0 ? 32 / kMinSteps : 0;
  static constexpr int kVectorBytes = kTileVectors * static_cast<int>(sizeof(IW));
  static constexpr int kBlockBytes = (kScaleVectors + kMinVectors + kPlanes) * kVectorBytes;

  QUIRE_INLINE const uint8_t* vector(const uint8_t* block, int i, int v) {
    return block + i * kVectorBytes + v * static_cast<int>(sizeof(IW));
  }
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    Scales result{};
    for (int half = 0; half < 2; ++half) {
      result.d[half] = (FW)load_ints(vector(block, half % kScaleVectors, v));
      if constexpr (kMinVectors > 0)
        result.m[half] = (FW)load_ints(vector(block, kScaleVectors + half % kMinVectors, v));
    }
    return result;
  }
  QUIRE_INLINE IW plane(const uint8_t* block, int v, int i) {
    return load_ints(vector(block, kScaleVectors + kMinVectors + i, v));
  }

  QUIRE_INLINE void put_scales(uint8_t* block, int v, const Scales& scales) {
    for (int i = 0; i < kScaleVectors; ++i) put(block, i, v, (IW)scales.d[i]);
    for (int i = 0; i < kMinVectors; ++i) put(block, kScaleVectors + i, v, (IW)scales.m[i]);
  }
  QUIRE_INLINE void put_plane(uint8_t* block, int v, int i, IW plane) {
    put(block, kScaleVectors + kMinVectors + i, v, plane);
  }

 private:
  QUIRE_INLINE void put(uint8_t* block, int i, int v, IW value) {
    store_wide(reinterpret_cast<float*>(block + i * kVectorBytes + v * static_cast<int>(sizeof(IW))), (FW)value);
  }
};

template <class Format>
concept IsOpened = Format::kIsOpened;

// Steps [begin, end) of the tile whose first column is `column`. While it is met by rows as many bytes come to the
// second cache from `next` on, every row its part: all at once they would hold up what the first rows wait for.
struct Stretch {
  uint8_t* blocks;
  int64_t begin;
  int64_t end;
  int64_t column;
  const uint8_t* next;
  int64_t next_bytes;  // for each group of 32 steps; 0: nothing is to come
  int64_t first_row;   // rows that have met it before
  int64_t num_rows;    // that meet it in all
};

// Adds a stretch to the sums of R rows, which are in out where it is not the first; open(block) is called before a
// block is read.
template <class Format, template <class, int, int> class Group, int R, class Open>
QUIRE_INLINE void sum_stretch(int64_t row, const LinearTile& t, const Stretch& stretch, const Open& open) {
  constexpr int V = kTileVectors;
  const uint8_t* next = stretch.next;
  const int64_t lines = (stretch.next_bytes + 63) / 64;
  const int64_t first_line = (stretch.first_row + row) * lines / stretch.num_rows;
  const int64_t end_line = (stretch.first_row + row + R) * lines / stretch.num_rows;
  const uint8_t* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = t.rows + (row + r) * t.row_bytes;
  FW sums[R][V] = {};
  if (stretch.begin > 0) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        const int64_t at = stretch.column + v * kWide;
        sums[r][v] = load_columns(t.out + (row + r) * t.out_stride + at, t.columns - at);
      }
    }
  }
  uint8_t* block = stretch.blocks;
  const Fetching fetching = Fetching::begin(t.fetch, R, 1, 32);
  for (int64_t step = stretch.begin; step < stretch.end; step += 32) {
    open(block);
    fetching.some();
    for (int64_t line = first_line; line < end_line; ++line) __builtin_prefetch(next + line * 64, 0, kIntoSecond);
    next += stretch.next_bytes;
    Scales scales[V];
    for (int v = 0; v < V; ++v) scales[v] = Format::scales(block, 0, v);
    Group<Format, R, V>::add(block, 0, scales, rows, t.k, step, sums);
    block += Format::kBlockBytes;
  }
  LinearTile last = t;
  if (stretch.end < t.k) last.bias = nullptr;
  store_sums(last, row, stretch.column, sums);
}

template <class Format, template <class, int, int> class Group>
struct OpenedRows {
  template <int R>
  struct Rows {
    static void run(int64_t row, const LinearTile& t, const Stretch& stretch) {
      sum_stretch<Format, Group, R>(row, t, stretch, [](uint8_t*) {});
    }
  };
};

// Fewer rows do not make good for the writing.
constexpr int64_t kLeastOpenedRows = 5;

// The first rows open the blocks, which hides the wait for them, and for the writing, behind products.
template <class Format, template <class, int, int> class Group, template <class> class Planes>
void linear_opened(const LinearTile& t) {
  using P = Planes<Format>;
  using Opened = OpenedFormat<P::kPlanes, Format::kScaleSteps, Format::kMinSteps>;
  static_assert(P::kRows <= kLeastOpenedRows);
  constexpr int kGroups = Format::kBlock / 32;
  // Of a first cache of 32 KiB this leaves the rows a part; equal stretches, whole blocks each.
  constexpr int64_t kMostBytes = 26 << 10;
  constexpr int64_t kMostBlocks = kMostBytes / (kGroups * Opened::kBlockBytes);
  static_assert(kMostBlocks > 0 && kMostBytes <= kLinearScratchFloats * 4);
  const int64_t blocks = t.k / Format::kBlock;
  const int64_t stretches = (blocks + kMostBlocks - 1) / kMostBlocks;
  const int64_t stretch_blocks = (blocks + stretches - 1) / stretches;

  LinearTile others = t;
  others.rows += P::kRows * t.row_bytes;
  others.num_rows -= P::kRows;
  others.out += P::kRows * t.out_stride;
  for (int64_t column = 0; column < t.columns; column += kTileColumns) {
    const uint8_t* block =
        t.panels + column / kPanelColumns * t.panel_bytes + column % kPanelColumns / kTileColumns * Format::kBlockBytes;
    const uint8_t* const next_panel =
        column / kPanelColumns + 1 < t.num_panels ? t.panels + (column / kPanelColumns + 1) * t.panel_bytes : nullptr;
    int group = 0;
    const auto open_next = [&](uint8_t* to) {
      if (group == 0 && column == 0) prefetch_ahead<false, kIntoSecond>(block, kPanelTiles * Format::kBlockBytes);
      for (int v = 0; v < kTileVectors; ++v) {
        Opened::put_scales(to, v, Format::scales(block, group, v));
        P::open(block, group, v, [&](int i, IW plane) { Opened::put_plane(to, v, i, plane); });
      }
      // They are read back: else the compiler keeps all of them for their use and spills them beside.
      asm volatile("" : : "r"(to) : "memory");
      if (++group < kGroups) return;
      group = 0;
      block += kPanelTiles * Format::kBlockBytes;
    };
    for (int64_t begin = 0; begin < blocks; begin += stretch_blocks) {
      const int64_t end = blocks - begin < stretch_blocks ? blocks : begin + stretch_blocks;
      Stretch stretch{};
      stretch.blocks = reinterpret_cast<uint8_t*>(t.scratch);
      stretch.begin = begin * Format::kBlock;
      stretch.end = end * Format::kBlock;
      stretch.column = column;
      // Each tile fetches its half of what the next panel has of both.
      if (next_panel != nullptr) {
        const int64_t blocks_before = kPanelTiles * begin + column % kPanelColumns / kTileColumns * (end - begin);
        stretch.next = next_panel + blocks_before * Format::kBlockBytes;
        stretch.next_bytes = Format::kBlockBytes / kGroups;
      }
      stretch.num_rows = t.num_rows;
      sum_stretch<Opened, Group, P::kRows>(0, t, stretch, open_next);
      stretch.first_row = P::kRows;
      in_even_groups<OpenedRows<Opened, Group>::template Rows, P::kRows>(others.num_rows, others, stretch);
    }
  }
}

// The product by Group, of tiles that are opened where it is worth it.
template <class Format, template <class, int, int> class Group, template <class> class Planes>
void linear_opening(const LinearTile& t) {
  if constexpr (kPairSums) {
    if (t.num_rows >= kLeastOpenedRows) return linear_opened<Format, Group, Planes>(t);
  }
  linear<Format, Group>(t);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
