// Matrix products of rows of floats or bfloat16 with packed panels (packed_panels.h). Numbers that an instruction
// widens are widened in registers, whatever the rows: it hides behind the multiply-adds. Codes are so for one or two
// rows, which memory bounds; for more a stretch of a tile is first made floats in scratch. Both keep one chain of
// multiply-adds an output, over k = 0, 1, 2, ..., so an output has the same bits in both.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/kv_formats.h"
#include "ops/cpu/linear_tile.h"
#include "ops/quantise.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// Rows of the register tile of 16 columns: enough sums in flight for the units, as many as there are registers for.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
// With tiles of two vectors more is lost on the way from the second cache than won on the way there.
constexpr Fetched kFloatsComeTo = kTileVectors > 1 ? kIntoFirst : kIntoSecond;
constexpr int64_t kChunk = kLinearScratchFloats / kTileColumns;

struct F32Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns * 4;
  QUIRE_INLINE FW values(const uint8_t* block, int v) {
    return load_wide(reinterpret_cast<const float*>(block) + v * kWide);
  }
};

struct F16Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns * 2;
  QUIRE_INLINE FW values(const uint8_t* block, int v) { return load_halves(block + v * 2 * kWide); }
};

struct BF16Format {
  static constexpr int kBlock = 2;
  static constexpr int kBlockBytes = kTileColumns * 4;
  QUIRE_INLINE IW pairs(const uint8_t* block, int v) { return load_ints(block + v * 4 * kWide); }
};

// Codes of a byte as halves whose exponent is 8 too small: kF8E4M3PanelFactor. Codes of NaN do not occur.
struct F8E4M3Format {
  static constexpr int kBlock = 1;
  static constexpr int kBlockBytes = kTileColumns;
  static constexpr int64_t kPanelScaleSteps = 0;  // that share a scale; 0: all of a column
  QUIRE_INLINE FW values(const uint8_t* block, int v) { return load_f8e4m3s(block + v * kWide); }
};

template <DType kType>
struct F8E4M3BlocksFormat : F8E4M3Format {
  static constexpr int64_t kPanelScaleSteps = columns_of_scale(kType);
};

template <class Format>
concept HasPanelScales = Format::kPanelScaleSteps >= 0;

// Calls step(i, w) for each step i of a block with the weights w[V] of vectors [0, V) as floats. T tiles' blocks lie
// behind each other.
template <class Format, int T, typename Step>
QUIRE_INLINE void for_each_step(const uint8_t* block, const Step& step) {
  constexpr int V = T * kTileVectors;
  const auto tile = [&](int v) { return block + v / kTileVectors * Format::kBlockBytes; };
  if constexpr (Format::kBlock == 1) {
    FW w[V];
    for (int v = 0; v < V; ++v) w[v] = Format::values(tile(v), v % kTileVectors);
    step(0, w);
  } else if constexpr (Format::kBlock == 2) {
    FW w[V];
    for (int v = 0; v < V; ++v) w[v] = lower_bfloat16s(Format::pairs(tile(v), v % kTileVectors));
    step(0, w);
    for (int v = 0; v < V; ++v) w[v] = upper_bfloat16s(Format::pairs(tile(v), v % kTileVectors));
    step(1, w);
  } else {
    for (int group = 0; group < Format::kBlock / 32; ++group) {
      Scales scales[V];
      for (int v = 0; v < V; ++v) scales[v] = Format::scales(tile(v), group, v % kTileVectors);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        IW quads[V];
        for (int v = 0; v < V; ++v) quads[v] = Format::quad(tile(v), group, v % kTileVectors, j);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          FW w[V];
          for (int v = 0; v < V; ++v) w[v] = quad_values<Format>(quads[v], i, scales[v].d[j / 4], scales[v].m[j / 4]);
          step(group * 32 + j * 4 + i, w);
        }
      }
    }
  }
}

// sums[r] += x[r][0..k) * w[0..k) for R rows and T tiles. kTiles: how many tiles' blocks alternate in memory, 2 in a
// panel.
template <class Format, int R, int T, int kTiles>
QUIRE_INLINE void accumulate(const uint8_t* block, const float* x, int64_t x_stride, int64_t k,
                             FW (&sums)[R][T * kTileVectors]) {
  constexpr int kStep = kTiles * Format::kBlockBytes;
  const auto add = [&](int64_t at, const FW(&w)[T * kTileVectors]) {
    for (int r = 0; r < R; ++r) {
      const FW xr = broadcast_wide(x[r * x_stride + at]);
      for (int v = 0; v < T * kTileVectors; ++v) sums[r][v] = settled(fma(xr, w[v], sums[r][v]));
    }
  };
  for (int64_t begin = 0; begin + Format::kBlock <= k; begin += Format::kBlock) {
    if constexpr (kTiles > 1) prefetch_ahead<T == kTiles && Format::kBlock <= 32, kFloatsComeTo>(block, kStep);
    for_each_step<Format, T>(block, [&](int i, const FW(&w)[T * kTileVectors]) { add(begin + i, w); });
    block += kStep;
  }
  if constexpr (Format::kBlock == 2) {
    if (k % 2 == 0) return;
    for_each_step<Format, T>(block, [&](int i, const FW(&w)[T * kTileVectors]) {
      if (i == 0) add(k - 1, w);
    });
  }
}

QUIRE_INLINE const float* row_of(const LinearTile& t, int64_t row) {
  return reinterpret_cast<const float*>(t.rows + row * t.row_bytes);
}

// Whole sums of R rows for T tiles of a panel, weights dequantised in registers.
template <class Format, int R, int T>
QUIRE_INLINE void whole_rows(const LinearTile& t, int64_t row, int64_t panel, int tile) {
  constexpr int V = T * kTileVectors;
  const uint8_t* block = t.panels + panel * t.panel_bytes + tile * Format::kBlockBytes;
  const float* x = row_of(t, row);
  const int64_t x_stride = t.row_bytes / static_cast<int64_t>(sizeof(float));
  FW sums[R][V] = {};
  if constexpr (HasPanelScales<Format>) {
    const auto* scales =
        reinterpret_cast<const float*>(t.panels + panel * t.panel_bytes + t.k * kPanelColumns) + tile * kTileColumns;
    const int64_t steps = Format::kPanelScaleSteps > 0 ? Format::kPanelScaleSteps : t.k;
    for (int64_t begin = 0; begin < t.k; begin += steps) {
      FW products[R][V] = {};
      accumulate<Format, R, T, 2>(block, x + begin, x_stride, t.k - begin < steps ? t.k - begin : steps, products);
      for (int v = 0; v < V; ++v) {
        const FW scale = load_wide(scales + v * kWide);
        for (int r = 0; r < R; ++r) sums[r][v] = fma(products[r][v], scale, sums[r][v]);
      }
      block += steps * 2 * Format::kBlockBytes;
      scales += kPanelColumns;
    }
  } else {
    accumulate<Format, R, T, 2>(block, x, x_stride, t.k, sums);
  }
  store_sums(t, row, panel * kPanelColumns + tile * kTileColumns, sums);
}

// Both tiles at once for few rows: enough sums in flight to hide the latency of the multiply-add, and memory is read
// straight ahead.
constexpr int kStreamedRows = kTileVectors > 1 ? 2 : 4;

template <class Format>
struct WholeRows {
  template <int R>
  struct Rows {
    static void run(int64_t row, const LinearTile& t, int64_t panel) {
      if constexpr (R <= kStreamedRows) {
        whole_rows<Format, R, 2>(t, row, panel, 0);
      } else {
        whole_rows<Format, R, 1>(t, row, panel, 0);
        whole_rows<Format, R, 1>(t, row, panel, 1);
      }
    }
  };
};

// Steps [k0, k0 + k) of a tile whose weights are floats; the sums so far are in out.
struct FloatTile {
  const float* weights;
  int64_t k0;
  int64_t k;
  int64_t column;
};

template <int R>
struct FloatRows {
  static void run(int64_t row, const LinearTile& t, const FloatTile& tile) {
    FW sums[R][kTileVectors] = {};
    if (tile.k0 > 0) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < kTileVectors; ++v) {
          const int64_t at = tile.column + v * kWide;
          sums[r][v] = load_columns(t.out + (row + r) * t.out_stride + at, t.columns - at);
        }
      }
    }
    accumulate<F32Format, R, 1, 1>(reinterpret_cast<const uint8_t*>(tile.weights), row_of(t, row) + tile.k0,
                                   t.row_bytes / static_cast<int64_t>(sizeof(float)), tile.k, sums);
    LinearTile last = t;
    if (tile.k0 + tile.k < t.k) last.bias = nullptr;
    store_sums(last, row, tile.column, sums);
  }
};

template <class Format>
void many_rows(const LinearTile& t) {
  // Equal chunks, whole blocks each.
  constexpr int64_t kUnit = Format::kBlock > 32 ? Format::kBlock : 32;
  const int64_t chunks = (t.k + kChunk - 1) / kChunk;
  const int64_t chunk = ((t.k + chunks - 1) / chunks + kUnit - 1) / kUnit * kUnit;
  for (int64_t column = 0; column < t.columns; column += kTileColumns) {
    const uint8_t* block =
        t.panels + column / kPanelColumns * t.panel_bytes + column % kPanelColumns / kTileColumns * Format::kBlockBytes;
    for (int64_t k0 = 0; k0 < t.k; k0 += chunk) {
      const int64_t k = t.k - k0 < chunk ? t.k - k0 : chunk;
      float* out = t.scratch;
      for (int64_t begin = 0; begin < k; begin += Format::kBlock) {
        for_each_step<Format, 1>(block, [&](int, const FW(&w)[kTileVectors]) {
          for (int v = 0; v < kTileVectors; ++v) store_wide(out + v * kWide, w[v]);
          out += kTileColumns;
        });
        block += 2 * Format::kBlockBytes;
      }
      in_even_groups<FloatRows, kTileRows>(t.num_rows, t, FloatTile{t.scratch, k0, k, column});
    }
  }
}

template <class Format>
void linear(const LinearTile& t) {
  constexpr bool kCodes = Format::kBlock > 2;
  constexpr int kMostRows = kCodes ? 2 : kTileRows;
  if constexpr (kCodes) {
    if (t.num_rows > kMostRows) return many_rows<Format>(t);
  }
  for (int64_t panel = 0; panel < t.num_panels; ++panel)
    in_even_groups<WholeRows<Format>::template Rows, kMostRows>(t.num_rows, t, panel);
}

// Sums of R rows of bfloat16 for T tiles of a panel.
template <bool kNative, int R, int T>
QUIRE_INLINE void sum_pairs(const LinearTile& t, int64_t row, int64_t panel, int tile) {
  constexpr int V = T * kTileVectors;
  const uint8_t* block = t.panels + panel * t.panel_bytes + tile * BF16Format::kBlockBytes;
  const uint8_t* rows = t.rows + row * t.row_bytes;
  FW sums[R][V] = {};
  for (int64_t at = 0; at < 2 * t.k; at += 4) {
    prefetch_ahead<T == 2, kFloatsComeTo>(block, 2 * BF16Format::kBlockBytes);
    IW w[V];
    for (int v = 0; v < V; ++v)
      w[v] = BF16Format::pairs(block + v / kTileVectors * BF16Format::kBlockBytes, v % kTileVectors);
    for (int r = 0; r < R; ++r) {
      const IW x = broadcast_ints(rows + r * t.row_bytes + at);
      for (int v = 0; v < V; ++v) sums[r][v] = add_bfloat16_products<kNative>(sums[r][v], w[v], x);
    }
    block += 2 * BF16Format::kBlockBytes;
  }
  store_sums(t, row, panel * kPanelColumns + tile * kTileColumns, sums);
}

template <bool kNative>
struct PairRows {
  template <int R>
  struct Rows {
    static void run(int64_t row, const LinearTile& t, int64_t panel) {
      if constexpr (R <= kStreamedRows) {
        sum_pairs<kNative, R, 2>(t, row, panel, 0);
      } else {
        sum_pairs<kNative, R, 1>(t, row, panel, 0);
        sum_pairs<kNative, R, 1>(t, row, panel, 1);
      }
    }
  };
};

template <bool kNative>
void sum_all_pairs(const LinearTile& t) {
  for (int64_t panel = 0; panel < t.num_panels; ++panel)
    in_even_groups<PairRows<kNative>::template Rows, kTileRows>(t.num_rows, t, panel);
}

}  // namespace

void linear_pairs(const LinearTile& tile) {
  sum_all_pairs<false>(tile);
}
void linear_native_pairs(const LinearTile& tile) {
  sum_all_pairs<true>(tile);
}
void code_pairs(const float* x, int64_t k, uint8_t* row) {
  auto* const out = reinterpret_cast<uint16_t*>(row);
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store_bfloat16(load(x + i), out + i);
  if (i == k) return;
  float last[kLanes] = {};
  uint16_t rounded[kLanes];
  for (int64_t j = i; j < k; ++j) last[j - i] = x[j];
  store_bfloat16(load(last), rounded);
  std::memcpy(out + i, rounded, static_cast<size_t>((k - i + 1) / 2 * 4));
}

LinearKernel float_linear(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return linear<F32Format>;
    case DType::kF16:
      return linear<F16Format>;
    case DType::kBF16:
      return linear<BF16Format>;
    case DType::kF8E4M3:
      return linear<F8E4M3Format>;
    case DType::kF8E4M3_128:
      return linear<F8E4M3BlocksFormat<DType::kF8E4M3_128>>;
    case DType::kF8E4M3_32:
      return linear<F8E4M3BlocksFormat<DType::kF8E4M3_32>>;
    case DType::kNF4:
      return linear<NF4Format>;
    case DType::kFP4:
      return linear<FP4Format>;
    default:
      return by_code_format<LinearKernel>(dtype, []<class Format>() -> LinearKernel { return linear<Format>; });
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
