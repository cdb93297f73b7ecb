// Products with the factors of low-rank adapters: few outputs of long rows (shrink), many of short ones (expand). What
// a sum is made of and in which order follows from the sizes of its factor alone, so that any tile of rows, ranks or
// columns gives the same bits.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kTile = 16;  // ops::kLowRankColumns
constexpr int kTileVectors = kTile / kWide;

// A format says how many numbers are read at once, and how many vectors of floats they make. Numbers of 16 bits that
// only need to be moved to become floats (bfloat16) are taken two a lane: the numbers at even places are one vector,
// those at odd ones the other. Widening them in their order takes a shuffle more for each vector, as much time as a
// multiply-add.
struct Floats {
  static constexpr int64_t kBytes = 4;
  static constexpr int kVectors = 1;
  static constexpr int kAtOnce = kWide;
  QUIRE_INLINE void load(const uint8_t* p, FW (&out)[1]) { out[0] = load_wide(reinterpret_cast<const float*>(p)); }
};
struct Halves {
  static constexpr int64_t kBytes = 2;
  static constexpr int kVectors = 1;
  static constexpr int kAtOnce = kWide;
  QUIRE_INLINE void load(const uint8_t* p, FW (&out)[1]) { out[0] = load_halves(p); }
};
struct BFloat16s {
  static constexpr int64_t kBytes = 2;
  static constexpr int kVectors = 2;
  static constexpr int kAtOnce = 2 * kWide;
  QUIRE_INLINE void load(const uint8_t* p, FW (&out)[2]) {
    // Where there are registers for it, read once: the compiler would read memory for each of the two, which is the
    // narrower way.
    const IW pairs = kWide == 16 ? settled(load_ints(p)) : load_ints(p);
    out[0] = lower_bfloat16s(pairs);
    out[1] = upper_bfloat16s(pairs);
  }
};

// As many floats in the order in which a format reads its numbers.
QUIRE_INLINE void load_in_order(const float* p, FW (&out)[1]) {
  out[0] = load_wide(p);
}
QUIRE_INLINE void load_in_order(const float* p, FW (&out)[2]) {
  const FW a = load_wide(p);
  const FW b = load_wide(p + kWide);
#if QUIRE_WIDE_LANES == 8
  out[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  out[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  out[0] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  out[1] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#endif
}

// Adds the products of M rows' x and R ranks' weights, kAtOnce each.
template <typename Format, int M, int R>
QUIRE_INLINE void add_step(const float* x, int64_t x_stride, const uint8_t* down, int64_t down_stride,
                           FW (&sums)[M][R]) {
  FW values[M][Format::kVectors];
  for (int m = 0; m < M; ++m) load_in_order(x + m * x_stride, values[m]);
  for (int r = 0; r < R; ++r) {
    FW weights[Format::kVectors];
    Format::load(down + r * down_stride, weights);
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < Format::kVectors; ++v) sums[m][r] = fma(values[m][v], weights[v], sums[m][r]);
    }
  }
}

// out[m][r] for M rows and R ranks.
template <typename Format, int M, int R>
QUIRE_INLINE void shrink_tile(const LowRankShrink& s, int64_t row, int32_t rank) {
  constexpr int64_t kStep = Format::kAtOnce;
  const float* x = s.x + row * s.x_stride;
  const int64_t down_bytes = s.k * Format::kBytes;
  const uint8_t* down = s.down + rank * down_bytes;
  FW sums[M][R] = {};
  int64_t k = 0;
  for (; k + kStep <= s.k; k += kStep)
    add_step<Format, M, R>(x + k, s.x_stride, down + k * Format::kBytes, down_bytes, sums);
  if (k < s.k) {
    // Zeros behind what there is.
    float padded_x[M][kStep] = {};
    uint8_t padded[R][kStep * Format::kBytes] = {};
    const auto count = static_cast<size_t>(s.k - k);
    for (int m = 0; m < M; ++m) std::memcpy(padded_x[m], x + m * s.x_stride + k, count * sizeof(float));
    for (int r = 0; r < R; ++r)
      std::memcpy(padded[r], down + r * down_bytes + k * Format::kBytes, count * Format::kBytes);
    add_step<Format, M, R>(padded_x[0], kStep, padded[0], kStep * Format::kBytes, sums);
  }
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) s.out[(row + m) * s.out_stride + rank + r] = sum(sums[m][r]);
  }
}

template <typename Format, int M>
QUIRE_INLINE void shrink_rows(const LowRankShrink& s, int64_t row) {
  constexpr int kRanks = M == 1 ? 8 : 4;
  int32_t rank = 0;
  for (; rank + kRanks <= s.num_ranks; rank += kRanks) shrink_tile<Format, M, kRanks>(s, row, rank);
  for (; rank < s.num_ranks; ++rank) shrink_tile<Format, M, 1>(s, row, rank);
}

template <typename Format>
void shrink_all(const LowRankShrink& s) {
  constexpr int kRows = kWide == 8 ? 2 : 4;
  int64_t row = 0;
  for (; row + kRows <= s.num_rows; row += kRows) shrink_rows<Format, kRows>(s, row);
  for (; row < s.num_rows; ++row) shrink_rows<Format, 1>(s, row);
}

// A single row reads a factor once, from memory: what the next tile reads is asked for in the order in which it lies
// there, which the several short streams of this tile hide from the processor's own guesses. `bytes` from p on, of this
// step of the tile; `is_there`: whether the next tile is part of the work.
template <int M>
QUIRE_INLINE void ask_ahead([[maybe_unused]] bool is_there, const uint8_t* p, int64_t bytes) {
  if constexpr (M == 1) {
    if (!is_there) return;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at);
  }
}

// The sums of M rows over T tiles' ranks, by columns.
template <typename Format, int M, int T>
QUIRE_INLINE void sum_ranks(const LowRankExpand& e, const float* shrunk, const uint8_t* up, bool has_next,
                            FW (&sums)[M][T * kTileVectors]) {
  constexpr int V = T * kTileVectors;
  const int64_t rank_bytes = kTile * Format::kBytes;
  const int64_t tile_bytes = rank_bytes * e.rank;
  for (int32_t r = 0; r < e.rank; ++r) {
    if constexpr (T > 1) ask_ahead<M>(has_next, up + T * tile_bytes + r * T * rank_bytes, T * rank_bytes);
    FW weights[V][1];
    for (int v = 0; v < V; ++v) {
      Format::load(up + v / kTileVectors * tile_bytes + r * rank_bytes + v % kTileVectors * kWide * Format::kBytes,
                   weights[v]);
    }
    for (int m = 0; m < M; ++m) {
      const FW factor = broadcast_wide(shrunk[m * e.shrunk_stride + r]);
      for (int v = 0; v < V; ++v) sums[m][v] = fma(factor, weights[v][0], sums[m][v]);
    }
  }
}

// Onto M rows' columns from `column` on.
template <int M, int V>
QUIRE_INLINE void add_sums(const LowRankExpand& e, const FW (&sums)[M][V], int64_t row, int64_t column) {
  const FW scale = broadcast_wide(e.scale);
  float* out = e.out + row * e.out_stride + column;
  if (column + V * kWide <= e.columns && e.gain == nullptr) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        float* place = out + m * e.out_stride + v * kWide;
        store_wide(place, fma(sums[m][v], scale, load_wide(place)));
      }
    }
    return;
  }
  // In memory, where they may be counted: so the sums themselves stay in registers.
  FW kept[M][V];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) kept[m][v] = sums[m][v];
  }
  for (int m = 0; m < M; ++m) {
    for (int64_t v = 0; v < V; ++v) {
      float* place = out + m * e.out_stride + v * kWide;
      const int64_t at = column + v * kWide;
      const int64_t left = e.columns - at;
      if (left >= kWide) {
        FW sum = fma(kept[m][v], scale, load_wide(place));
        if (e.gain != nullptr) sum = fma(sum, load_wide(e.gain + at), load_wide(e.shift + at));
        store_wide(place, sum);
      } else if (left > 0) {
        FW sum = fma(kept[m][v], scale, load_some(place, left));
        if (e.gain != nullptr) sum = fma(sum, load_some(e.gain + at, left), load_some(e.shift + at, left));
        store_some(place, sum, left);
      }
    }
  }
}

// M rows and T tiles of columns, of which all but the last are whole.
template <typename Format, int M, int T>
QUIRE_INLINE void expand_tiles(const LowRankExpand& e, int64_t row, int64_t tile) {
  constexpr int V = T * kTileVectors;
  const uint8_t* up = e.up + tile * kTile * Format::kBytes * e.rank;
  const bool has_next = (tile + 2 * T) * kTile <= e.columns;
  FW sums[M][V] = {};
  sum_ranks<Format, M, T>(e, e.shrunk + row * e.shrunk_stride, up, has_next, sums);
  add_sums<M, V>(e, sums, row, tile * kTile);
}
// The same of paired ranks: a vector has the numbers of two ranks. Even and odd ranks are summed apart, which are then
// two short chains of additions; so a single row needs no more tiles at a time to keep the processor busy, and reads
// memory in its order. factor_of(m, r): what rank r of the m-th row is multiplied by, 0 behind an odd number of ranks.
template <typename Format, int M, int T, typename FactorOf>
QUIRE_INLINE void expand_paired_tiles(const LowRankExpand& e, int32_t rank, int64_t row, int64_t tile,
                                      const FactorOf& factor_of) {
  constexpr int V = T * kTileVectors;
  constexpr int64_t kPairBytes = 2 * kTile * Format::kBytes;
  const int64_t tile_bytes = kPairBytes * ((rank + 1) / 2);
  const uint8_t* up = e.up + tile * tile_bytes;
  FW sums[M][V] = {};
  FW odd_sums[M][V] = {};
#pragma GCC unroll 8
  for (int32_t r = 0; r < rank; r += 2) {
    const uint8_t* pair = up + r / 2 * kPairBytes;
    FW even[M];
    FW odd[M];
    for (int m = 0; m < M; ++m) {
      even[m] = factor_of(m, r);
      odd[m] = factor_of(m, r + 1);
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      FW weights[2];
      Format::load(pair + v / kTileVectors * tile_bytes + v % kTileVectors * kWide * 2 * Format::kBytes, weights);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        sums[m][v] = fma(even[m], weights[0], sums[m][v]);
        odd_sums[m][v] = fma(odd[m], weights[1], odd_sums[m][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sums[m][v] += odd_sums[m][v];
  }
  add_sums<M, V>(e, sums, row, tile * kTile);
}

template <typename Format, int M>
QUIRE_INLINE void expand_tiles_of_rows(const LowRankExpand& e, int64_t row) {
  constexpr int kTiles = kWide == 8 ? (M == 1 ? 4 : 2) : (M == 1 ? 8 : 4);
  const int64_t tiles = (e.columns + kTile - 1) / kTile;
  int64_t tile = 0;
  for (; tile + kTiles <= tiles; tile += kTiles) expand_tiles<Format, M, kTiles>(e, row, tile);
  if constexpr (kTiles > 4) {
    for (; tile + 4 <= tiles; tile += 4) expand_tiles<Format, M, 4>(e, row, tile);
  }
  for (; tile + 2 <= tiles; tile += 2) expand_tiles<Format, M, 2>(e, row, tile);
  for (; tile < tiles; ++tile) expand_tiles<Format, M, 1>(e, row, tile);
}

template <typename Format, int M>
QUIRE_INLINE void expand_paired_tiles_of_rows(const LowRankExpand& e, int64_t row) {
  const int64_t tiles = (e.columns + kTile - 1) / kTile;
  const float* shrunk = e.shrunk + row * e.shrunk_stride;
  int64_t tile = 0;
  constexpr int32_t kUsualRank = 16;
  if (M == 1 && e.rank == kUsualRank) {
    FW factors[kUsualRank];  // in registers, where there are enough of them
    for (int32_t r = 0; r < kUsualRank; ++r) factors[r] = broadcast_wide(shrunk[r]);
    for (; tile < tiles; ++tile) {
      expand_paired_tiles<Format, 1, 1>(
          e, kUsualRank, row, tile, [&](int /*m*/, int32_t r) __attribute__((always_inline)) { return factors[r]; });
    }
    return;
  }
  const auto factor_of = [&](int m, int32_t r) __attribute__((always_inline)) {
    return r < e.rank ? broadcast_wide(shrunk[m * e.shrunk_stride + r]) : FW{};  // else they are another part's
  };
  constexpr int kTiles = kWide == 16 && M > 1 ? 2 : 1;
  for (; tile + kTiles <= tiles; tile += kTiles)
    expand_paired_tiles<Format, M, kTiles>(e, e.rank, row, tile, factor_of);
  for (; tile < tiles; ++tile) expand_paired_tiles<Format, M, 1>(e, e.rank, row, tile, factor_of);
}

template <typename Format, int M>
QUIRE_INLINE void expand_rows(const LowRankExpand& e, int64_t row) {
  if constexpr (Format::kVectors == 2) {
    expand_paired_tiles_of_rows<Format, M>(e, row);
  } else {
    expand_tiles_of_rows<Format, M>(e, row);
  }
}

template <typename Format>
void expand_all(const LowRankExpand& e) {
  constexpr int kRows = kWide == 8 ? 2 : 4;
  int64_t row = 0;
  for (; row + kRows <= e.num_rows; row += kRows) expand_rows<Format, kRows>(e, row);
  for (; row < e.num_rows; ++row) expand_rows<Format, 1>(e, row);
}

}  // namespace

void low_rank_shrink(const LowRankShrink& work) {
  if (work.dtype == DType::kF16) return shrink_all<Halves>(work);
  if (work.dtype == DType::kBF16) return shrink_all<BFloat16s>(work);
  shrink_all<Floats>(work);
}

void low_rank_expand(const LowRankExpand& work) {
  if (work.dtype == DType::kF16) return expand_all<Halves>(work);
  if (work.dtype == DType::kBF16) return expand_all<BFloat16s>(work);
  expand_all<Floats>(work);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
