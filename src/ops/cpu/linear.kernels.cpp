// Linear for every weight format. One order of accumulation for all shapes: an output starts at zero and adds x[k] *
// w[k] by fused multiply-add for k = 0, 1, 2, ...; the bias comes last. Few rows dequantise in registers on the way;
// many rows dequantise a piece of a panel once into a scratch that stays in the first cache. Both see the same weights,
// exactly.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// Rows of the register tile: 6 x 16 outputs are 12 of 16 vector registers.
constexpr int kTileRows = 6;
constexpr int64_t kChunk = kLinearScratchFloats / kTileColumns;

// A format says how 16 columns of step k become floats. Formats of blocks first read what a block of 32 steps shares.
struct NoScales {};

struct F32Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns * 4;
  using Scales = NoScales;
  QUIRE_INLINE Scales scales(const uint8_t*) { return {}; }
  QUIRE_INLINE void weights(Scales, const uint8_t* block, int, F8& w0, F8& w1) {
    w0 = load(reinterpret_cast<const float*>(block));
    w1 = load(reinterpret_cast<const float*>(block) + kLanes);
  }
};

struct F16Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns * 2;
  using Scales = NoScales;
  QUIRE_INLINE Scales scales(const uint8_t*) { return {}; }
  QUIRE_INLINE void weights(Scales, const uint8_t* block, int, F8& w0, F8& w1) {
    w0 = load_half(block);
    w1 = load_half(block + 16);
  }
};

struct BF16Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns * 2;
  using Scales = NoScales;
  QUIRE_INLINE Scales scales(const uint8_t*) { return {}; }
  QUIRE_INLINE void weights(Scales, const uint8_t* block, int, F8& w0, F8& w1) {
    w0 = load_bfloat16(block);
    w1 = load_bfloat16(block + 16);
  }
};

struct AffineScales {
  F8 d0, d1, m0, m1;
};

// The high halves are left where they are, 16 times their value: d1 is a sixteenth of the scale, which changes no bit.
QUIRE_INLINE void nibble_weights(const AffineScales& s, const uint8_t* quants, int k, F8& w0, F8& w1) {
  const I8 bytes = load_unsigned_bytes(quants + k * 8);
  w0 = fma(to_float(bytes & 0x0f), s.d0, s.m0);
  w1 = fma(to_float(bytes & 0xf0), s.d1, s.m1);
}

struct Q4_0Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = 32 + 32 * 8;
  using Scales = AffineScales;
  // d * (q - 8) = d * q - 8 d: both sides fit a float exactly.
  QUIRE_INLINE Scales scales(const uint8_t* block) {
    const F8 d0 = load_half(block);
    const F8 d1 = load_half(block + 16);
    return {d0, d1 * 0.0625f, d0 * -8.0f, d1 * -8.0f};
  }
  QUIRE_INLINE void weights(const Scales& s, const uint8_t* block, int k, F8& w0, F8& w1) {
    nibble_weights(s, block + 32, k, w0, w1);
  }
};

struct Q4_1Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = 64 + 32 * 8;
  using Scales = AffineScales;
  QUIRE_INLINE Scales scales(const uint8_t* block) {
    return {load_half(block), load_half(block + 16) * 0.0625f, load_half(block + 32), load_half(block + 48)};
  }
  QUIRE_INLINE void weights(const Scales& s, const uint8_t* block, int k, F8& w0, F8& w1) {
    nibble_weights(s, block + 64, k, w0, w1);
  }
};

struct Q8_0Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = 32 + 32 * 16;
  struct Scales {
    F8 d0, d1;
  };
  QUIRE_INLINE Scales scales(const uint8_t* block) { return {load_half(block), load_half(block + 16)}; }
  QUIRE_INLINE void weights(const Scales& s, const uint8_t* block, int k, F8& w0, F8& w1) {
    w0 = to_float(load_signed_bytes(block + 32 + k * 16)) * s.d0;
    w1 = to_float(load_signed_bytes(block + 32 + k * 16 + 8)) * s.d1;
  }
};

// Weights come from memory far ahead of their use; the processor's own prefetch stops at pages.
constexpr int64_t kPrefetchBytes = 2048;

// acc[r] += x[r][0..k) * w[0..k) for R rows and T tiles. kTiles: how many tiles' blocks alternate in memory, 2 in a
// panel.
template <class Format, int R, int T, int kTiles>
QUIRE_INLINE void accumulate(const uint8_t* block, const float* x, int64_t x_stride, int64_t k, F8 (&acc)[R][2 * T]) {
  constexpr int kStep = kTiles * Format::kBlockBytes;
  for (int64_t begin = 0; begin < k; begin += Format::kBlock) {
    if constexpr (kTiles > 1) {
      for (int line = 0; line < kStep; line += 64) __builtin_prefetch(block + kPrefetchBytes + line);
    }
    typename Format::Scales scales[T];
    for (int t = 0; t < T; ++t) scales[t] = Format::scales(block + t * Format::kBlockBytes);
#pragma GCC unroll 4
    for (int i = 0; i < Format::kBlock; ++i) {
      F8 w[2 * T];
      for (int t = 0; t < T; ++t) {
        Format::weights(scales[t], block + t * Format::kBlockBytes, i, w[2 * t], w[2 * t + 1]);
      }
      for (int r = 0; r < R; ++r) {
        const F8 xr = broadcast(x[r * x_stride + begin + i]);
        for (int j = 0; j < 2 * T; ++j) acc[r][j] = fma(xr, w[j], acc[r][j]);
      }
    }
    block += kStep;
  }
}

// 16 floats of which `columns` exist.
QUIRE_INLINE void load_columns(const float* p, int64_t columns, F8& v0, F8& v1) {
  if (columns >= kTileColumns) {
    v0 = load(p);
    v1 = load(p + kLanes);
    return;
  }
  alignas(32) float padded[kTileColumns] = {};
  for (int64_t i = 0; i < columns; ++i) padded[i] = p[i];
  v0 = load(padded);
  v1 = load(padded + kLanes);
}

QUIRE_INLINE void store_columns(float* p, int64_t columns, F8 v0, F8 v1) {
  if (columns >= kTileColumns) {
    store(p, v0);
    store(p + kLanes, v1);
    return;
  }
  alignas(32) float padded[kTileColumns];
  store(padded, v0);
  store(padded + kLanes, v1);
  for (int64_t i = 0; i < columns; ++i) p[i] = padded[i];
}

// Whole sums of R rows for T tiles of a panel, weights dequantised in registers.
template <class Format, int R, int T>
void whole_rows(const LinearTile& t, int64_t panel, int tile) {
  F8 acc[R][2 * T] = {};
  accumulate<Format, R, T, 2>(t.panels + panel * t.panel_bytes + tile * Format::kBlockBytes, t.x, t.x_stride, t.k, acc);
  for (int i = 0; i < T; ++i) {
    const int64_t column = panel * kPanelColumns + (tile + i) * kTileColumns;
    F8 b0 = zero();
    F8 b1 = zero();
    if (t.bias != nullptr) load_columns(t.bias + column, t.columns - column, b0, b1);
    for (int r = 0; r < R; ++r) {
      F8 v0 = acc[r][2 * i];
      F8 v1 = acc[r][2 * i + 1];
      if (t.bias != nullptr) {
        v0 += b0;
        v1 += b1;
      }
      store_columns(t.out + r * t.out_stride + column, t.columns - column, v0, v1);
    }
  }
}

template <class Format, int R>
void few_rows(const LinearTile& t) {
  for (int64_t panel = 0; panel < t.num_panels; ++panel) {
    // Both tiles at once for one or two rows: enough sums in flight to hide the latency of the multiply-add.
    if constexpr (R <= 2) {
      whole_rows<Format, R, 2>(t, panel, 0);
    } else {
      whole_rows<Format, R, 1>(t, panel, 0);
      whole_rows<Format, R, 1>(t, panel, 1);
    }
  }
}

// Steps [k0, k0 + k) of R rows of one panel whose weights are floats; the sums so far are in out.
template <int R>
void float_tile(const LinearTile& t, int64_t row, const float* weights, int64_t k0, int64_t k, int64_t column) {
  F8 acc[R][2];
  float* out = t.out + row * t.out_stride + column;
  const int64_t columns = t.columns - column;
  for (int r = 0; r < R; ++r) {
    acc[r][0] = acc[r][1] = zero();
    if (k0 > 0) load_columns(out + r * t.out_stride, columns, acc[r][0], acc[r][1]);
  }
  accumulate<F32Format, R, 1, 1>(reinterpret_cast<const uint8_t*>(weights), t.x + row * t.x_stride + k0, t.x_stride, k,
                                 acc);
  const bool add_bias = t.bias != nullptr && k0 + k == t.k;
  F8 b0 = zero();
  F8 b1 = zero();
  if (add_bias) load_columns(t.bias + column, columns, b0, b1);
  for (int r = 0; r < R; ++r) {
    if (add_bias) {
      acc[r][0] += b0;
      acc[r][1] += b1;
    }
    store_columns(out + r * t.out_stride, columns, acc[r][0], acc[r][1]);
  }
}

void float_rows(const LinearTile& t, const float* weights, int64_t k0, int64_t k, int64_t column) {
  int64_t row = 0;
  // Blocks as even as can be: a last block of one row would not fill the multiply-add units.
  for (int64_t blocks = (t.num_rows + kTileRows - 1) / kTileRows; blocks > 0; --blocks) {
    const int64_t rows = (t.num_rows - row + blocks - 1) / blocks;
    switch (rows) {
      case 1:
        float_tile<1>(t, row, weights, k0, k, column);
        break;
      case 2:
        float_tile<2>(t, row, weights, k0, k, column);
        break;
      case 3:
        float_tile<3>(t, row, weights, k0, k, column);
        break;
      case 4:
        float_tile<4>(t, row, weights, k0, k, column);
        break;
      case 5:
        float_tile<5>(t, row, weights, k0, k, column);
        break;
      default:
        float_tile<6>(t, row, weights, k0, k, column);
        break;
    }
    row += rows;
  }
}

// k steps of a tile as floats [k, 16].
template <class Format>
void dequantise_tile(const uint8_t* block, int64_t k, float* out) {
  for (int64_t begin = 0; begin < k; begin += Format::kBlock) {
    const typename Format::Scales scales = Format::scales(block);
#pragma GCC unroll 4
    for (int i = 0; i < Format::kBlock; ++i) {
      F8 w0, w1;
      Format::weights(scales, block, i, w0, w1);
      store(out, w0);
      store(out + kLanes, w1);
      out += kTileColumns;
    }
    block += 2 * Format::kBlockBytes;
  }
}

template <class Format>
void many_rows(const LinearTile& t) {
  // Equal chunks, whole blocks each.
  const int64_t chunks = (t.k + kChunk - 1) / kChunk;
  const int64_t chunk = ((t.k + chunks - 1) / chunks + 31) / 32 * 32;
  for (int64_t column = 0; column < t.columns; column += kTileColumns) {
    const uint8_t* weights =
        t.panels + column / kPanelColumns * t.panel_bytes + column % kPanelColumns / kTileColumns * Format::kBlockBytes;
    for (int64_t k0 = 0; k0 < t.k; k0 += chunk) {
      const int64_t k = t.k - k0 < chunk ? t.k - k0 : chunk;
      dequantise_tile<Format>(weights + k0 / Format::kBlock * 2 * Format::kBlockBytes, k, t.scratch);
      float_rows(t, t.scratch, k0, k, column);
    }
  }
}

template <class Format>
void linear(const LinearTile& t) {
  switch (t.num_rows) {
    case 1:
      return few_rows<Format, 1>(t);
    case 2:
      return few_rows<Format, 2>(t);
    case 3:
      return few_rows<Format, 3>(t);
    case 4:
      return few_rows<Format, 4>(t);
    case 5:
      return few_rows<Format, 5>(t);
    case 6:
      return few_rows<Format, 6>(t);
    default:
      return many_rows<Format>(t);
  }
}

}  // namespace

void linear_f32(const LinearTile& tile) {
  linear<F32Format>(tile);
}
void linear_f16(const LinearTile& tile) {
  linear<F16Format>(tile);
}
void linear_bf16(const LinearTile& tile) {
  linear<BF16Format>(tile);
}
void linear_q4_0(const LinearTile& tile) {
  linear<Q4_0Format>(tile);
}
void linear_q4_1(const LinearTile& tile) {
  linear<Q4_1Format>(tile);
}
void linear_q8_0(const LinearTile& tile) {
  linear<Q8_0Format>(tile);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
