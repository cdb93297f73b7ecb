#include <cmath>

#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_math.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

QUIRE_INLINE FW load_lanes(const float* p, int64_t count) {
  return count == kWide ? load_wide(p) : load_some(p, count);
}
QUIRE_INLINE void store_lanes(float* p, FW v, int64_t count) {
  if (count == kWide) {
    store_wide(p, v);
  } else {
    store_some(p, v, count);
  }
}

// `count` channels from `first` on, at most kWide.
void convolve_lanes(const ConvRun& run, int64_t first, int64_t count) {
  const int32_t kept = run.kernel - 1;
  FW weights[kMostConvKernel];
  FW inputs[kMostConvKernel];  // of the last tokens, the oldest first
  for (int32_t j = 0; j < run.kernel; ++j) weights[j] = load_lanes(run.weight + j * run.weight_stride + first, count);
  for (int32_t j = 0; j < kept; ++j) inputs[j] = load_lanes(run.before + j * run.num_channels + first, count);
  const FW bias = run.bias == nullptr ? FW{} : load_lanes(run.bias + first, count);
  for (int64_t t = 0; t < run.num_tokens; ++t) {
    inputs[kept] = load_lanes(run.in + t * run.in_stride + first, count);
    FW sum = bias;
    for (int32_t j = 0; j < run.kernel; ++j) sum = fma(weights[j], inputs[j], sum);
    for (int32_t j = 0; j < kept; ++j) inputs[j] = inputs[j + 1];
    if (run.silu) sum = sum / (exp(-sum) + 1.0f);
    store_lanes(run.out + t * run.out_stride + first, sum, count);
  }
}

// x, at length one if it is normalised, times `scale`.
void take_vector(const RecurrenceRun& run, const float* x, float scale, float* out) {
  const int32_t size = run.key_dim;
  if (!run.normalises) {
    for (int32_t i = 0; i < size; ++i) out[i] = x[i] * scale;
    return;
  }
  FW squares = {};
  int32_t i = 0;
  for (; i + kWide <= size; i += kWide) squares = fma(load_wide(x + i), load_wide(x + i), squares);
  if (i < size) squares = fma(load_some(x + i, size - i), load_some(x + i, size - i), squares);
  const float factor = scale / std::sqrt(sum(squares) + run.norm_eps);
  for (i = 0; i < size; ++i) out[i] = x[i] * factor;
}

// The tokens of a piece, their keys and queries as the rule takes them.
struct RecurrenceVectors {
  alignas(64) float keys[kRecurrenceTokens][kMostRecurrenceKey];
  alignas(64) float queries[kRecurrenceTokens][kMostRecurrenceKey];
};

// kVectors * kWide columns of the state from `first` on, or `count` of them, over all tokens: they stay in the first
// cache.
template <int kVectors>
void take_columns(const RecurrenceRun& run, const RecurrenceVectors& vectors, int64_t first, int64_t count) {
  const int64_t lanes = kVectors == 1 ? count : kWide;
  for (int64_t t = 0; t < run.num_tokens; ++t) {
    const float* key = vectors.keys[t];
    const float* query = vectors.queries[t];
    FW remembered[kVectors] = {};
    const float* row = run.state + first;
    for (int32_t i = 0; i < run.key_dim && run.corrects; ++i, row += run.value_dim) {
      const FW k = broadcast_wide(key[i]);
      for (int v = 0; v < kVectors; ++v) remembered[v] = fma(load_lanes(row + v * kWide, lanes), k, remembered[v]);
    }
    const float* value = run.values + t * run.token_stride + first;
    FW correction[kVectors];
    FW out[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const FW values = load_lanes(value + v * kWide, lanes);
      correction[v] = (values - remembered[v] * run.fades[t]) * run.gains[t];
      out[v] = values * run.skip;
    }
    float* number = run.state + first;
    const FW fade = broadcast_wide(run.fades[t]);
    for (int32_t i = 0; i < run.key_dim; ++i, number += run.value_dim) {
      const FW k = broadcast_wide(key[i]);
      const FW q = broadcast_wide(query[i]);
      for (int v = 0; v < kVectors; ++v) {
        const FW s = fma(k, correction[v], load_lanes(number + v * kWide, lanes) * fade);
        store_lanes(number + v * kWide, s, lanes);
        out[v] = fma(s, q, out[v]);
      }
    }
    for (int v = 0; v < kVectors && run.out != nullptr; ++v) {
      store_lanes(run.out + t * run.out_stride + first + v * kWide, out[v], lanes);
    }
  }
}

}  // namespace

void convolve(const ConvRun& run) {
  for (int64_t first = 0; first < run.num_channels; first += kWide) {
    convolve_lanes(run, first, run.num_channels - first < kWide ? run.num_channels - first : kWide);
  }
}

void recurrence(const RecurrenceRun& run) {
  RecurrenceVectors vectors;
  for (int64_t t = 0; t < run.num_tokens; ++t) {
    take_vector(run, run.keys + t * run.token_stride, 1, vectors.keys[t]);
    take_vector(run, run.queries + t * run.token_stride, run.scale, vectors.queries[t]);
  }
  constexpr int kVectors = 4;
  int64_t column = 0;
  for (; column + kVectors * kWide <= run.value_dim; column += kVectors * kWide) {
    take_columns<kVectors>(run, vectors, column, kWide);
  }
  for (; column < run.value_dim; column += kWide) {
    take_columns<1>(run, vectors, column, run.value_dim - column < kWide ? run.value_dim - column : kWide);
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
