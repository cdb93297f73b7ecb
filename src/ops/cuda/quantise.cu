// Rows of floats to the formats that weights are rounded to while they are loaded (ops/quantise.h), in the layouts of
// tensor/dtype.h, and inputs of products to what their weights are multiplied in. A warp a group of 32 values, a value
// a lane. The search for the scales of 4 bits is the one of ops/cpu/quantise.kernels.cpp; sums are made in another
// order.
#include "ops/quantise.h"

#include "base/check.h"
#include "ops/cuda/float8_rows.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * kWarp;
constexpr int kGroup = kWarp;
using Half = KvFormat<DType::kF16>;

struct Work {
  const float* values;  // [num_rows, columns]
  int64_t columns;
  uint8_t* out;
  int64_t row_bytes;
};

__device__ inline float inverse_or_zero(float d) {
  return d > 0 ? 1.0f / d : 0.0f;
}
// To the nearest whole number in [low, high]; low where x is NaN.
__device__ inline float whole(float x, float low, float high) {
  return rintf(fminf(fmaxf(x, low), high));
}
__device__ inline float rounded_to_half(float x) {
  return Half::number(Half::code(x));
}
__device__ inline void put_half(uint8_t* to, uint16_t half) {
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}
__device__ inline float warp_min(float value) {
  return -warp_max(-value);
}

// Blocks: (groups of a row over kWarps, rows).
__global__ void quantise_q8_0(Work work) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (group >= work.columns / kGroup) return;
  const int64_t row = blockIdx.y;
  const float x = work.values[row * work.columns + group * kGroup + lane];
  const float most = __uint_as_float(warp_largest_magnitude(x));
  // The nearest half, or the next above where that would cut off more than half a step of the largest value.
  uint16_t half = Half::code(most / 127.0f);
  if (Half::number(half) * 127.5f < most && half < 0x7bff) ++half;
  uint8_t* block = work.out + row * work.row_bytes + group * (2 + kGroup);
  if (lane == 0) put_half(block, half);
  const float q = whole(x * inverse_or_zero(Half::number(half)), -127.0f, 127.0f);
  block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(q));
}

// value = d * q + m
struct Line {
  float d;
  float m;
};

// The scale and minimum of 4-bit codes for a warp's values: see the source named above.
template <bool kNoneAbove>
__device__ Line best_line(float x) {
  const float poison = warp_sum(x * 0.0f);
  const float high = warp_max(x);
  float low = warp_min(x);
  if (kNoneAbove) low = fminf(low, 0.0f);
  const float middle = low * 0.5f + high * 0.5f;
  const float moved = x - middle;
  const float sum_x = warp_sum(moved);
  const float sum_xx = warp_sum(moved * moved);
  const float step = (high - low) / 15.0f;
  Line best{0, sum_x / kGroup + middle};
  if (kNoneAbove) best.m = fminf(best.m, 0.0f);
  float least = 3.0e38f;
  for (int cuts = 0; cuts < 9; ++cuts) {
    const float below = -0.15f + 0.6f * static_cast<float>(cuts / 3);
    const float above = -0.15f + 0.6f * static_cast<float>(cuts % 3);
    const float inverse = inverse_or_zero(step * ((15.0f - below - above) / 15.0f));
    const float q = whole(fmaf(moved, inverse, (middle - low - step * below) * inverse), 0.0f, 15.0f);
    const float sum_q = warp_sum(q);
    const float sum_qq = warp_sum(q * q);
    const float sum_qx = warp_sum(q * moved);
    const float spread = sum_qq * kGroup - sum_q * sum_q;
    float d = spread > 0 ? (sum_qx * kGroup - sum_q * sum_x) / spread : 0.0f;
    float m = (sum_x - d * sum_q) / kGroup;
    float error = sum_xx - d * sum_qx - m * sum_x;
    if (kNoneAbove && m + middle > 0) {
      // Through 0 where the best line begins above it.
      const float whole_qx = sum_qx + middle * sum_q;
      d = sum_qq > 0 ? whole_qx / sum_qq : 0.0f;
      m = -middle;
      error = sum_xx + middle * (sum_x * 2.0f + middle * kGroup) - d * whole_qx;
    }
    if (error < least) {
      least = error;
      best = {d, m + middle};
    }
  }
  return {best.d + poison, best.m + poison};
}

__device__ inline float code_of(float x, float d, float m) {
  return whole((x - m) * inverse_or_zero(d), 0.0f, 15.0f);
}

__global__ void quantise_q4_1(Work work) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (group >= work.columns / kGroup) return;
  const int64_t row = blockIdx.y;
  const float x = work.values[row * work.columns + group * kGroup + lane];
  const Line line = best_line<false>(x);
  const float d = rounded_to_half(line.d);
  // The scale is a half now: the best minimum is another.
  const float m = (warp_sum(x) - d * warp_sum(code_of(x, d, line.m))) / kGroup;
  const float q = code_of(x, d, rounded_to_half(m));
  const float upper = __shfl_sync(kAllLanes, q, lane % 16 + 16);
  uint8_t* block = work.out + row * work.row_bytes + group * 20;
  if (lane == 0) {
    put_half(block, Half::code(line.d));
    put_half(block + 2, Half::code(m));
  }
  if (lane < 16) block[4 + lane] = static_cast<uint8_t>(static_cast<int>(q) | static_cast<int>(upper) << 4);
}

// The half that 63 of make the largest of the warps' numbers; NaN where one of them is.
__device__ inline float shared_scale(const float* of_warps) {
  float most = of_warps[0];
  float poison = 0;
  for (int i = 0; i < kWarps; ++i) {
    most = fmaxf(most, of_warps[i]);
    poison += of_warps[i] * 0.0f;
  }
  return most / 63.0f + poison;
}

// A block for 256 values, a warp for each of its groups.
__global__ void quantise_q4_k(Work work) {
  begin_kernel();
  static_assert(kWarps == 8, "a block of Q4_K has 8 groups");
  __shared__ float scales[kWarps];
  __shared__ float minima[kWarps];
  __shared__ uint8_t small_scales[kWarps];
  __shared__ uint8_t small_minima[kWarps];
  __shared__ uint8_t codes[kWarps][kGroup];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = blockIdx.y;
  const float x = work.values[row * work.columns + int64_t{blockIdx.x} * 256 + threadIdx.x];
  const Line line = best_line<true>(x);
  if (lane == 0) {
    scales[warp] = line.d;
    minima[warp] = -line.m;
  }
  __syncthreads();
  const float d_exact = shared_scale(scales);
  const float e_exact = shared_scale(minima);
  const float d = rounded_to_half(d_exact);
  const float e = rounded_to_half(e_exact);
  const float inverse = inverse_or_zero(e);
  const float s = whole(line.d * inverse_or_zero(d), 0.0f, 63.0f);
  // As the scales are rounded now, other minima are the best.
  const float sum_q = warp_sum(code_of(x, d * s, -e * whole(-line.m * inverse, 0.0f, 63.0f)));
  const float m = whole((d * s * sum_q - warp_sum(x)) / kGroup * inverse, 0.0f, 63.0f);
  codes[warp][lane] = static_cast<uint8_t>(code_of(x, d * s, -e * m));
  if (lane == 0) {
    small_scales[warp] = static_cast<uint8_t>(s);
    small_minima[warp] = static_cast<uint8_t>(m);
  }
  __syncthreads();
  uint8_t* block = work.out + row * work.row_bytes + int64_t{blockIdx.x} * 144;
  if (threadIdx.x == 0) {
    put_half(block, Half::code(d_exact));
    put_half(block + 2, Half::code(e_exact));
  }
  if (threadIdx.x < 4) {
    const int g = static_cast<int>(threadIdx.x);
    block[4 + g] = static_cast<uint8_t>(small_scales[g] | (small_scales[g + 4] >> 4) << 6);
    block[8 + g] = static_cast<uint8_t>(small_minima[g] | (small_minima[g + 4] >> 4) << 6);
    block[12 + g] = static_cast<uint8_t>((small_scales[g + 4] & 0x0f) | (small_minima[g + 4] & 0x0f) << 4);
  }
  if (threadIdx.x < 128) {
    const int pair = warp;
    block[16 + threadIdx.x] = static_cast<uint8_t>(codes[2 * pair][lane] | codes[2 * pair + 1][lane] << 4);
  }
}

// The largest magnitude of a row, by its bits, by all threads of a block.
template <typename Load>
__device__ uint32_t row_largest_magnitude(int64_t columns, const Load& load) {
  uint32_t most = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) most = larger_magnitude(most, load(i));
  return block_largest_magnitude<kWarps>(most);
}

// A number's code with a scale.
__device__ inline uint8_t f8_code(float x, float scale) {
  return KvFormat<DType::kF8E4M3>::code(__fdiv_rn(x, scale > 0 ? scale : 1.0f));
}

// A row of numbers to codes, by all threads of a block; returns the scale.
template <typename Load>
__device__ float round_row_to_f8(int64_t columns, const Load& load, uint8_t* codes) {
  const float scale = f8_scale(row_largest_magnitude(columns, load));
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) codes[i] = f8_code(load(i), scale);
  return scale;
}

// A block a row: codes, then the float that they are multiplied by.
__global__ void quantise_f8_e4m3(Work work) {
  begin_kernel();
  const int64_t row = blockIdx.y;
  const float* x = work.values + row * work.columns;
  uint8_t* to = work.out + row * work.row_bytes;
  const float scale = round_row_to_f8(
      work.columns, [x](int64_t i) { return x[i]; }, to);
  if (threadIdx.x == 0) store_scale(to + work.columns, scale);
}

// A block a row.
__global__ void round_rows_to_f8_kernel(Rows x, int64_t x_stride, int64_t columns, uint8_t* codes, int64_t codes_stride,
                                        float* scales) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  uint8_t* to = codes + row * codes_stride;
  const float scale = round_row_to_f8(
      columns, [&](int64_t i) { return load_number(x, row * x_stride + i); }, to);
  for (int64_t i = columns + threadIdx.x; i < codes_stride; i += kThreads) to[i] = 0;
  if (threadIdx.x == 0) scales[row] = scale;
}

// Of dense rows of whole quads, up to kKept a thread: they stay in its registers, so that memory is read once.
template <int kBlock, int kKept>
__global__ void __launch_bounds__(kBlock)
    round_quads_to_f8_kernel(Rows x, int64_t x_stride, int64_t columns, uint8_t* codes, float* scales) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t num_quads = columns / 4;
  float4 values[kKept];
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t quad = threadIdx.x + int64_t{k} * kBlock;
    values[k] = quad < num_quads ? load_quad(x, row * x_stride + 4 * quad) : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    most = larger_magnitude(most, values[k]);
  }
  const float scale = f8_scale(block_largest_magnitude<kBlock / kWarp>(most));
  const float inverse = f8_inverse(scale);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t quad = threadIdx.x + int64_t{k} * kBlock;
    if (quad >= num_quads) continue;
    *reinterpret_cast<uint32_t*>(codes + row * columns + 4 * quad) = f8_codes(values[k], inverse);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

// The same of dense rows of BF16 of whole vectors of 8 numbers, up to kKept a thread, which stay as they came: with so
// few registers a processor has several rows under way.
template <int kKept>
__global__ void __launch_bounds__(kThreads)
    round_vectors_to_f8_kernel(const uint4* x, int64_t x_stride, int64_t num_vectors, uint2* codes, float* scales) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  uint4 vectors[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t at = threadIdx.x + int64_t{k} * kThreads;
    vectors[k] = at < num_vectors ? x[row * x_stride + at] : make_uint4(0, 0, 0, 0);
  }
  uint32_t most = 0;
#pragma unroll
  for (const uint4& vector : vectors) {
    for (const uint32_t pair : {vector.x, vector.y, vector.z, vector.w})
      most = max(most, max(pair << 16 & 0x7fffffffu, pair & 0x7fff0000u));
  }
  const float scale = f8_scale(block_largest_magnitude<kWarps>(most));
  const float inverse = f8_inverse(scale);
  const auto two = [inverse](uint32_t pair) {
    return float8_codes(__uint_as_float(pair << 16) * inverse, __uint_as_float(pair & 0xffff0000u) * inverse);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t at = threadIdx.x + int64_t{k} * kThreads;
    const uint4& vector = vectors[k];
    if (at < num_vectors)
      codes[row * num_vectors + at] =
          make_uint2(two(vector.x) | two(vector.y) << 16, two(vector.z) | two(vector.w) << 16);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

// A warp for every kScaleColumns of a row. Blocks: (rows, those of a row over kWarps).
__global__ void round_blocks_to_f8_kernel(Rows x, int64_t x_stride, int64_t num_rows, int64_t columns, uint8_t* codes,
                                          float* scales) {
  begin_kernel();
  constexpr int kEach = sizeof(uint32_t);  // neighbours, of which a lane makes a word of codes
  static_assert(kScaleColumns == kWarp * kEach);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t group = int64_t{blockIdx.y} * kWarps + threadIdx.x / kWarp;
  if (group >= columns / kScaleColumns) return;
  const int64_t row = blockIdx.x;
  const int64_t column = group * kScaleColumns + lane * kEach;
  float values[kEach];
  uint32_t most = 0;
  for (int j = 0; j < kEach; ++j) {
    values[j] = row < num_rows ? load_number(x, row * x_stride + column + j) : 0.0f;
    const uint32_t bits = __float_as_uint(values[j]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  const float scale = f8_scale(warp_largest_magnitude(__uint_as_float(most)));
  uint32_t word = 0;
  for (int j = 0; j < kEach; ++j) word |= uint32_t{f8_code(values[j], scale)} << (8 * j);
  *reinterpret_cast<uint32_t*>(codes + row * columns + column) = word;
  if (lane == 0) scales[group * gridDim.x + row] = scale;
}

// A block a row.
__global__ void round_rows_in_range_kernel(const float* x, int64_t x_stride, int64_t columns, uint16_t* out,
                                           float* factors) {
  begin_kernel();
  const float* row = x + blockIdx.x * x_stride;
  const uint32_t most = row_largest_magnitude(columns, [row](int64_t i) { return row[i]; });
  // 2^15 and above is divided down to below it; what is infinite or NaN stays so.
  constexpr uint32_t kRoom = 127 + 14;
  const uint32_t exponent = most >> 23;
  const uint32_t above = exponent > kRoom && exponent < 255 ? exponent - kRoom : 0;
  const float divided = __uint_as_float((127 - above) << 23);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads)
    out[blockIdx.x * columns + i] = __half_as_ushort(__float2half_rn(row[i] * divided));
  if (threadIdx.x == 0) factors[blockIdx.x] = __uint_as_float((127 + above) << 23);
}

// quads: in, out, columns and bias lie so that four neighbours can be read at once.
__global__ void finish_rows_kernel(const Finish finish, int64_t columns, Rows in, int64_t in_stride, OutRows out,
                                   int64_t out_stride, bool quads) {
  begin_kernel();
  const float factor = finish.rows == nullptr ? 1.0f : finish.rows[blockIdx.x];
  if (factor == 1 && finish.columns == nullptr && finish.bias == nullptr && in.data == out.data) return;
  const int64_t from = blockIdx.x * in_stride;
  const int64_t to = blockIdx.x * out_stride;
  if (quads) {
    const auto* scales = reinterpret_cast<const float4*>(finish.columns);
    const auto* bias = reinterpret_cast<const float4*>(finish.bias);
    for (int64_t i = threadIdx.x; i < columns / 4; i += kThreads) {
      const float4 x = load_quad(in, from + 4 * i);
      const float4 by = scales == nullptr ? make_float4(1, 1, 1, 1) : scales[i];
      const float4 more = bias == nullptr ? make_float4(0, 0, 0, 0) : bias[i];
      store_quad(out, to + 4 * i,
                 make_float4(fmaf(x.x * by.x, factor, more.x), fmaf(x.y * by.y, factor, more.y),
                             fmaf(x.z * by.z, factor, more.z), fmaf(x.w * by.w, factor, more.w)));
    }
    return;
  }
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const float x = load_number(in, from + i) * (finish.columns == nullptr ? 1.0f : finish.columns[i]);
    store_number(out, to + i, fmaf(x, factor, finish.bias == nullptr ? 0.0f : finish.bias[i]));
  }
}

// Coded rows (ops/rows.h) as floats.
__global__ void widen_coded_rows_kernel(const uint8_t* codes, const float* scales, int64_t columns, float* out) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads)
    out[row * columns + i] = KvFormat<DType::kF8E4M3>::number(codes[row * columns + i]) * scales[row];
}

__global__ void gather_row_scales_kernel(StoredMatrix weight, float* scales) {
  begin_kernel();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < weight.rows) scales[row] = load_scale(weight.data + row * weight.row_bytes + weight.columns);
}

}  // namespace

void quantise_rows(DType dtype, const float* values, int64_t num_rows, int64_t columns, uint8_t* out, int64_t row_bytes,
                   cudaStream_t stream) {
  constexpr int64_t kMaxRows = 65535;
  for (int64_t first = 0; first < num_rows; first += kMaxRows) {
    const Work work{values + first * columns, columns, out + first * row_bytes, row_bytes};
    const auto rows = static_cast<unsigned>(num_rows - first < kMaxRows ? num_rows - first : kMaxRows);
    const dim3 groups(ceil_div(columns / kGroup, kWarps), rows);
    switch (dtype) {
      case DType::kQ8_0:
        launch(quantise_q8_0, groups, kThreads, 0, stream, work);
        break;
      case DType::kQ4_1:
        launch(quantise_q4_1, groups, kThreads, 0, stream, work);
        break;
      case DType::kQ4_K:
        launch(quantise_q4_k, groups, kThreads, 0, stream, work);
        break;
      case DType::kF8E4M3:
        launch(quantise_f8_e4m3, dim3(1, rows), kThreads, 0, stream, work);
        break;
      default:
        QUIRE_CHECK_MSG(false, name(dtype));
    }
  }
}

void round_rows_to_f8(const Rows& x, int64_t x_stride, int64_t num_rows, int64_t columns, uint8_t* codes,
                      int64_t codes_stride, float* scales, cudaStream_t stream) {
  if (num_rows == 0) return;
  const auto grid = static_cast<unsigned>(num_rows);
  constexpr int kVector = 8;  // numbers of 16 bytes
  if (x.dtype == DType::kBF16 && are_vectors(x.data, x.dtype, x_stride) && columns % kVector == 0 &&
      codes_stride == columns && columns <= int64_t{8} * kThreads * kVector) {
    auto* kernel = columns <= kThreads * kVector       ? round_vectors_to_f8_kernel<1>
                   : columns <= 2 * kThreads * kVector ? round_vectors_to_f8_kernel<2>
                   : columns <= 4 * kThreads * kVector ? round_vectors_to_f8_kernel<4>
                                                       : round_vectors_to_f8_kernel<8>;
    return launch(kernel, grid, kThreads, 0, stream, static_cast<const uint4*>(x.data), x_stride / kVector,
                  columns / kVector, reinterpret_cast<uint2*>(codes), scales);
  }
  constexpr int kLarge = 1024;
  constexpr int64_t kMost = int64_t{4} * kLarge * 4;
  if (are_quads(x.data, x.dtype, x_stride) && columns % 4 == 0 && codes_stride == columns && columns <= kMost) {
    const auto start = [&](auto* kernel, int threads) {
      launch(kernel, grid, threads, 0, stream, x, x_stride, columns, codes, scales);
    };
    if (columns <= 4 * kThreads) return start(round_quads_to_f8_kernel<kThreads, 1>, kThreads);
    if (columns <= 8 * kThreads) return start(round_quads_to_f8_kernel<kThreads, 2>, kThreads);
    if (columns <= 16 * kThreads) return start(round_quads_to_f8_kernel<kThreads, 4>, kThreads);
    if (columns <= kMost / 2) return start(round_quads_to_f8_kernel<kLarge, 2>, kLarge);
    return start(round_quads_to_f8_kernel<kLarge, 4>, kLarge);
  }
  launch(round_rows_to_f8_kernel, grid, kThreads, 0, stream, x, x_stride, columns, codes, codes_stride, scales);
}

void round_blocks_to_f8(const Rows& x, int64_t x_stride, int64_t num_rows, int64_t padded_rows, int64_t columns,
                        uint8_t* codes, float* scales, cudaStream_t stream) {
  QUIRE_CHECK(columns % kScaleColumns == 0 && num_rows <= padded_rows);
  if (padded_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(padded_rows), ceil_div(columns / kScaleColumns, kWarps));
  launch(round_blocks_to_f8_kernel, grid, kThreads, 0, stream, x, x_stride, num_rows, columns, codes, scales);
}

void round_rows_in_range(const float* x, int64_t x_stride, int64_t num_rows, int64_t columns, void* out, float* factors,
                         cudaStream_t stream) {
  if (num_rows == 0) return;
  launch(round_rows_in_range_kernel, static_cast<unsigned>(num_rows), kThreads, 0, stream, x, x_stride, columns,
         static_cast<uint16_t*>(out), factors);
}

void finish_rows(const Finish& finish, int64_t num_rows, int64_t columns, const Rows& in, int64_t in_stride,
                 const OutRows& out, int64_t out_stride, cudaStream_t stream) {
  const bool nothing =
      finish.rows == nullptr && finish.columns == nullptr && finish.bias == nullptr && in.data == out.data;
  if (num_rows == 0 || nothing) return;
  const bool quads = columns % 4 == 0 && are_quads(in.data, in.dtype, in_stride) &&
                     are_quads(out.data, out.dtype, out_stride) && are_quads(finish.columns, DType::kF32, 0) &&
                     are_quads(finish.bias, DType::kF32, 0);
  launch(finish_rows_kernel, static_cast<unsigned>(num_rows), kThreads, 0, stream, finish, columns, in, in_stride, out,
         out_stride, quads);
}

void widen_coded_rows(const uint8_t* codes, const float* scales, int64_t num_rows, int64_t columns, float* out,
                      cudaStream_t stream) {
  if (num_rows == 0) return;
  launch(widen_coded_rows_kernel, static_cast<unsigned>(num_rows), kThreads, 0, stream, codes, scales, columns, out);
}

void gather_row_scales(const StoredMatrix& weight, float* scales, cudaStream_t stream) {
  QUIRE_CHECK(weight.dtype == DType::kF8E4M3);
  if (weight.rows > 0)
    launch(gather_row_scales_kernel, ceil_div(weight.rows, kThreads), kThreads, 0, stream, weight, scales);
}

}  // namespace quire::ops::cuda
