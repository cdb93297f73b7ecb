// Products with the factors of low-rank adapters: few outputs of long rows (shrink), many of short ones (expand). What
// a sum is made of and in which order follows from the sizes of its factor alone, so that any tile of rows, ranks or
// columns gives the same bits.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int64_t kTile = 16;  // ops::kLowRankColumns
constexpr int kTileVectors = kTile / kWide;

struct Floats {
  static constexpr int64_t kBytes = 4;
  static FW load(const uint8_t* p) { return load_wide(reinterpret_cast<const float*>(p)); }
};
struct Halves {
  static constexpr int64_t kBytes = 2;
  static FW load(const uint8_t* p) { return load_halves(p); }
};
struct BFloat16s {
  static constexpr int64_t kBytes = 2;
  static FW load(const uint8_t* p) {
#if QUIRE_WIDE_LANES == 8
    return load_bfloat16(p);
#elif defined(__AVX512F__)
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return (FW)((IW)_mm512_maskz_cvtepu16_epi32(0xffff, codes) << 16);
#else
    return joined(load_bfloat16(p), load_bfloat16(p + 2 * kLanes));
#endif
  }
};

// Fewer than a vector of them, zeros behind.
template <typename Format>
QUIRE_INLINE FW load_tail(const uint8_t* p, int64_t count) {
  uint8_t padded[kWide * Format::kBytes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count * Format::kBytes));
  return Format::load(padded);
}

// A single row reads a factor once, from memory: what the next tile reads is asked for in the order in which it lies
// there, which the several short streams of this tile hide from the processor's own guesses. `bytes` from p on, of this
// step of the tile.
template <int M>
QUIRE_INLINE void ask_ahead(const uint8_t* p, int64_t bytes) {
  if constexpr (M == 1) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at);
  }
}

// out[m][r] for M rows and R ranks.
template <typename Format, int M, int R>
QUIRE_INLINE void shrink_tile(const LowRankShrink& s, int64_t row, int32_t rank) {
  const float* x = s.x + row * s.x_stride;
  const int64_t down_bytes = s.k * Format::kBytes;
  const uint8_t* down = s.down + rank * down_bytes;
  FW sums[M][R] = {};
  int64_t k = 0;
  for (; k + kWide <= s.k; k += kWide) {
    if constexpr (R > 1) {
      constexpr int64_t kStepBytes = int64_t{R} * kWide * Format::kBytes;
      ask_ahead<M>(down + R * down_bytes + k / kWide * kStepBytes, kStepBytes);
    }
    FW weights[R];
    for (int r = 0; r < R; ++r) weights[r] = Format::load(down + r * down_bytes + k * Format::kBytes);
    for (int m = 0; m < M; ++m) {
      const FW v = load_wide(x + m * s.x_stride + k);
      for (int r = 0; r < R; ++r) sums[m][r] = fma(v, weights[r], sums[m][r]);
    }
  }
  if (k < s.k) {
    for (int r = 0; r < R; ++r) {
      const FW weights = load_tail<Format>(down + r * down_bytes + k * Format::kBytes, s.k - k);
      for (int m = 0; m < M; ++m) sums[m][r] = fma(load_some(x + m * s.x_stride + k, s.k - k), weights, sums[m][r]);
    }
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

// M rows and T tiles of columns, of which all but the last are whole.
template <typename Format, int M, int T>
QUIRE_INLINE void expand_tiles(const LowRankExpand& e, int64_t row, int64_t tile) {
  constexpr int V = T * kTileVectors;
  const int64_t rank_bytes = kTile * Format::kBytes;
  const int64_t tile_bytes = rank_bytes * e.rank;
  const uint8_t* up = e.up + tile * tile_bytes;
  const float* shrunk = e.shrunk + row * e.shrunk_stride;
  FW sums[M][V] = {};
  for (int32_t r = 0; r < e.rank; ++r) {
    if constexpr (T > 1) ask_ahead<M>(up + T * tile_bytes + r * T * rank_bytes, T * rank_bytes);
    FW weights[V];
    for (int v = 0; v < V; ++v) {
      weights[v] =
          Format::load(up + v / kTileVectors * tile_bytes + r * rank_bytes + v % kTileVectors * kWide * Format::kBytes);
    }
    for (int m = 0; m < M; ++m) {
      const FW factor = broadcast_wide(shrunk[m * e.shrunk_stride + r]);
      for (int v = 0; v < V; ++v) sums[m][v] = fma(factor, weights[v], sums[m][v]);
    }
  }
  const FW scale = broadcast_wide(e.scale);
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < V; ++v) {
      const int64_t column = tile * kTile + v * kWide;
      float* out = e.out + (row + m) * e.out_stride + column;
      const int64_t left = e.columns - column;
      if (left >= kWide) {
        FW sum = fma(sums[m][v], scale, load_wide(out));
        if (e.gain != nullptr) sum = fma(sum, load_wide(e.gain + column), load_wide(e.shift + column));
        store_wide(out, sum);
      } else if (left > 0) {
        FW sum = fma(sums[m][v], scale, load_some(out, left));
        if (e.gain != nullptr) sum = fma(sum, load_some(e.gain + column, left), load_some(e.shift + column, left));
        store_some(out, sum, left);
      }
    }
  }
}

template <typename Format, int M>
QUIRE_INLINE void expand_rows(const LowRankExpand& e, int64_t row) {
  constexpr int kTiles = kWide == 8 ? (M == 1 ? 4 : 2) : (M == 1 ? 8 : 4);
  const int64_t tiles = (e.columns + kTile - 1) / kTile;
  int64_t tile = 0;
  for (; tile + kTiles <= tiles; tile += kTiles) expand_tiles<Format, M, kTiles>(e, row, tile);
  for (; tile < tiles; ++tile) expand_tiles<Format, M, 1>(e, row, tile);
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
