// What the kernels of matrix products share: columns of a tile in and out of memory, and the choice of a function by
// the number of rows. Included by *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/panel_formats.h"

namespace quire::ops::cpu::QUIRE_ISA {

// Weights come from memory far ahead of their use; the processor's own prefetch stops at pages. They come to the first
// cache or to the second, on the way to which more can be at once (8 rows of Q8_0: 1.5 times as fast).
enum Fetched { kIntoFirst = 3, kIntoSecond = 2 };  // as __builtin_prefetch() wants it
constexpr int64_t fetched_ahead(Fetched level) {
  return level == kIntoFirst ? 4096 : 8192;  // bytes
}

// kStraight: they are read byte after byte, which processors with AVX-512 see by themselves, on large pages faster than
// they can be told (24 against 29 GB/s).
template <bool kStraight, Fetched kLevel>
QUIRE_INLINE void prefetch_ahead([[maybe_unused]] const uint8_t* p, [[maybe_unused]] int bytes) {
#if defined(__AVX512F__)
  if constexpr (kStraight) return;
#endif
  for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + fetched_ahead(kLevel) + line, 0, kLevel);
}

// Fetches what is to be fetched beside a part of a product, a few lines a time: all at once they would hold up what the
// product itself waits for.
class Fetching {
 public:
  // Beside parts of `rows` rows, `tiles` tiles and `steps` steps.
  QUIRE_INLINE Fetching begin(FetchQueue* queue, int rows, int tiles, int steps) {
    Fetching fetching;
    if (queue == nullptr || queue->now.begin == queue->now.end) return fetching;
    fetching.queue_ = queue;
    const float lines = queue->lines * static_cast<float>(rows * tiles * steps) / 32.0f;
    fetching.lines_ = static_cast<int64_t>(lines) + 1;
    return fetching;
  }
  // Beside one of them.
  __attribute__((always_inline)) void some() const {
    if (queue_ == nullptr) return;
    MemoryRange& now = queue_->now;
    for (int64_t line = 0; line < lines_; ++line) __builtin_prefetch(now.begin + line * 64, 0, kIntoSecond);
    now.begin += lines_ * 64;
    if (now.begin < now.end) return;
    now = queue_->next == queue_->last ? MemoryRange{now.end, now.end} : *queue_->next++;
  }

 private:
  FetchQueue* queue_ = nullptr;
  int64_t lines_ = 0;
};

// kWide floats of which `columns` exist.
QUIRE_INLINE FW load_columns(const float* p, int64_t columns) {
  if (columns >= kWide) return load_wide(p);
  alignas(64) float padded[kWide] = {};
  for (int64_t i = 0; i < columns; ++i) padded[i] = p[i];
  return load_wide(padded);
}

QUIRE_INLINE void store_columns(float* p, int64_t columns, FW v) {
  if (columns >= kWide) return store_wide(p, v);
  alignas(64) float padded[kWide];
  store_wide(padded, v);
  for (int64_t i = 0; i < columns; ++i) p[i] = padded[i];
}

// The sums of R rows of V vectors from `column` on, with the bias where there is one.
template <int R, int V>
QUIRE_INLINE void store_sums(const LinearTile& t, int64_t row, int64_t column, const FW (&sums)[R][V]) {
  for (int v = 0; v < V; ++v) {
    const int64_t at = column + v * kWide;
    const FW bias = t.bias != nullptr ? load_columns(t.bias + at, t.columns - at) : FW{};
    for (int r = 0; r < R; ++r) {
      const FW sum = t.bias != nullptr ? sums[r][v] + bias : sums[r][v];
      store_columns(t.out + (row + r) * t.out_stride + at, t.columns - at, sum);
    }
  }
}

// Calls Rows<R>::run(args...) with R = rows. REQUIRES: 1 <= rows <= kMost.
template <template <int> class Rows, int kMost, typename... Args>
QUIRE_INLINE void with_rows(int64_t rows, const Args&... args) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<Rows, kMost - 1>(rows, args...);
  }
  Rows<kMost>::run(args...);
}

// Runs Rows over all rows in groups of at most kMost, as even as can be: a last group of one row would not fill the
// units.
template <template <int> class Rows, int kMost, typename... Args>
QUIRE_INLINE void in_even_groups(int64_t num_rows, const Args&... args) {
  int64_t row = 0;
  for (int64_t groups = (num_rows + kMost - 1) / kMost; groups > 0; --groups) {
    const int64_t rows = (num_rows - row + groups - 1) / groups;
    with_rows<Rows, kMost>(rows, row, args...);
    row += rows;
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
