// Norms: a row is a warp's or a block's, as its size alone says, so that its sums have one order.
#include "base/check.h"
#include "ops/cuda/float8_rows.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kWarpRows = 8;  // of a block whose warps have a row each
constexpr int kSmallBlock = 256;
constexpr int kMiddleBlock = 512;
constexpr int kLargeBlock = 1024;
constexpr int64_t kMaxGrid = 1 << 20;

// The sum over the threads of a row; every thread gets it.
template <int kThreads>
__device__ float row_sum(float value) {
  value = warp_sum(value);
  if constexpr (kThreads == kWarp) {
    return value;
  } else {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ float sums[kWarps];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    __syncthreads();  // the sums of before have been read
    if (lane == 0) sums[threadIdx.x / kWarp] = value;
    __syncthreads();
    return warp_sum(lane < kWarps ? sums[lane] : 0.0f);
  }
}

// body(row, thread of the row) of rows [0, num_rows), with all threads of a block in step.
template <int kThreads, typename Body>
__device__ void for_rows(int64_t num_rows, const Body& body) {
  constexpr int kRows = kThreads == kWarp ? kWarpRows : 1;
  const int64_t first = int64_t{blockIdx.x} * kRows + threadIdx.x / kThreads;
  for (int64_t row = first; row < num_rows; row += int64_t{gridDim.x} * kRows)
    body(row, static_cast<int64_t>(threadIdx.x) % kThreads);
}

template <int kThreads>
__global__ void rms_norm_kernel(RmsNormArgs args, int64_t stride) {
  begin_kernel();
  for_rows<kThreads>(args.num_tokens * args.num_groups, [&](int64_t row, int64_t thread) {
    const int64_t at = row / args.num_groups * stride + row % args.num_groups * args.size;
    float* hidden = args.hidden + at;
    float squares = 0;
    if (args.delta == nullptr) {
#pragma unroll 4
      for (int64_t i = thread; i < args.size; i += kThreads) squares = fmaf(hidden[i], hidden[i], squares);
    } else {
      const float* delta = args.delta + row * args.size;
#pragma unroll 4
      for (int64_t i = thread; i < args.size; i += kThreads) {
        const float value = fmaf(delta[i], args.delta_scale, hidden[i]);
        hidden[i] = value;
        squares = fmaf(value, value, squares);
      }
    }
    const float mean = row_sum<kThreads>(squares) / static_cast<float>(args.size);
    const float scale = 1.0f / sqrtf(mean + args.eps);
    for (int64_t i = thread; i < args.size; i += kThreads)
      store_number(args.out, at + i, hidden[i] * scale * args.weight[i]);
  });
}

// The same of rows of whole quads, each thread's of which stay in its registers, up to kKept of them: memory is waited
// for once. kCodes: they become rows of F8_E4M3 (ops/rows.h).
template <int kThreads, int kKept, bool kCodes = false>
__global__ void __launch_bounds__(kThreads == kWarp ? kWarp * kWarpRows : kThreads)
    rms_norm_quads_kernel(RmsNormArgs args, int64_t stride) {
  const auto num_quads = static_cast<int>(args.size / 4);
  const int of_row = static_cast<int>(threadIdx.x) % kThreads;
  float4 weights[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int quad = of_row + k * kThreads;
    if (quad < num_quads) weights[k] = reinterpret_cast<const float4*>(args.weight)[quad];
  }
  begin_kernel();
  for_rows<kThreads>(args.num_tokens * args.num_groups, [&](int64_t row, int64_t) {
    const int64_t at = row / args.num_groups * stride + row % args.num_groups * args.size;
    auto* hidden = reinterpret_cast<float4*>(args.hidden + at);
    const auto* delta = reinterpret_cast<const float4*>(args.delta + row * args.size);
    float4 values[kKept];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int quad = of_row + k * kThreads;
      if (quad < num_quads) values[k] = hidden[quad];
    }
    if (args.delta != nullptr) {
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        const int quad = of_row + k * kThreads;
        if (quad >= num_quads) continue;
        const float4 more = delta[quad];
        float4& value = values[k];
        value = make_float4(fmaf(more.x, args.delta_scale, value.x), fmaf(more.y, args.delta_scale, value.y),
                            fmaf(more.z, args.delta_scale, value.z), fmaf(more.w, args.delta_scale, value.w));
        hidden[quad] = value;
      }
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (of_row + k * kThreads >= num_quads) continue;
      const float4& value = values[k];
      squares = fmaf(value.x, value.x, fmaf(value.y, value.y, fmaf(value.z, value.z, fmaf(value.w, value.w, squares))));
    }
    const float mean = row_sum<kThreads>(squares) / static_cast<float>(args.size);
    const float scale = 1.0f / sqrtf(mean + args.eps);
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int quad = of_row + k * kThreads;
      if (quad >= num_quads) continue;
      const float4& value = values[k];
      const float4& weight = weights[k];
      const float4 normed = make_float4(value.x * scale * weight.x, value.y * scale * weight.y,
                                        value.z * scale * weight.z, value.w * scale * weight.w);
      if constexpr (kCodes) {
        values[k] = normed;
        most = larger_magnitude(most, normed);
      } else {
        store_quad(args.out, at + 4 * quad, normed);
      }
    }
    if constexpr (kCodes) {
      most = kThreads == kWarp ? warp_largest_magnitude(__uint_as_float(most))
                               : block_largest_magnitude<kThreads / kWarp>(most);
      const float of_codes = f8_scale(most);
      const float inverse = f8_inverse(of_codes);
      auto* codes = static_cast<uint8_t*>(args.out.data);
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        const int quad = of_row + k * kThreads;
        if (quad < num_quads) *reinterpret_cast<uint32_t*>(codes + at + 4 * quad) = f8_codes(values[k], inverse);
      }
      if (of_row == 0) scales_behind(codes, args.num_tokens, args.size)[row] = of_codes;
    }
  });
}

template <int kThreads>
__global__ void layer_norm_kernel(LayerNormArgs args) {
  begin_kernel();
  for_rows<kThreads>(args.num_tokens, [&](int64_t row, int64_t thread) {
    float* hidden = args.hidden + row * args.size;
    const auto size = static_cast<float>(args.size);
    float sum = 0;
    for (int64_t i = thread; i < args.size; i += kThreads) {
      float value = hidden[i];
      if (args.delta != nullptr) hidden[i] = value += args.delta[row * args.size + i];
      sum += value;
    }
    // Rounded, and so off by a share of values that may be far from 0: what is off is the mean of what is left.
    const float near_mean = row_sum<kThreads>(sum) / size;
    float squares = 0;
    sum = 0;
    for (int64_t i = thread; i < args.size; i += kThreads) {
      const float off = hidden[i] - near_mean;
      squares = fmaf(off, off, squares);
      sum += off;
    }
    const float rest = row_sum<kThreads>(sum) / size;
    const float variance = fmaxf(row_sum<kThreads>(squares) / size - rest * rest, 0.0f);
    const float scale = 1.0f / sqrtf(variance + args.eps);
    for (int64_t i = thread; i < args.size; i += kThreads) {
      const float weight = args.weight == nullptr ? 1.0f : args.weight[i];
      const float bias = args.bias == nullptr ? 0.0f : args.bias[i];
      args.out[row * args.size + i] = fmaf((hidden[i] - near_mean - rest) * scale, weight, bias);
    }
  });
}

unsigned grid_of(int64_t rows) {
  return static_cast<unsigned>(rows < kMaxGrid ? rows : kMaxGrid);
}

// The kernel of rows of a size.
template <typename Kernel, typename... Arguments>
void launch_by_size(Kernel* of_warps, Kernel* of_small_blocks, Kernel* of_large_blocks, int64_t num_rows, int64_t size,
                    cudaStream_t stream, const Arguments&... arguments) {
  if (num_rows == 0 || size == 0) return;
  if (size <= 8 * kWarp) {
    launch(of_warps, grid_of(ceil_div(num_rows, kWarpRows)), kWarp * kWarpRows, 0, stream, arguments...);
  } else if (size <= 8 * kSmallBlock) {
    launch(of_small_blocks, grid_of(num_rows), kSmallBlock, 0, stream, arguments...);
  } else {
    launch(of_large_blocks, grid_of(num_rows), kLargeBlock, 0, stream, arguments...);
  }
}

}  // namespace

template <bool kCodes>
bool rms_norm_of_quads(const RmsNormArgs& args, int64_t stride, cudaStream_t stream) {
  if (args.size > 16 * kLargeBlock) return false;
  // 8 or 16 numbers a thread: with fewer threads a row, a processor has more rows under way.
  const int64_t rows = args.num_tokens * args.num_groups;
  const auto start = [&](auto* kernel, int64_t blocks, int threads) {
    if (rows > 0 && args.size > 0) launch(kernel, grid_of(blocks), threads, 0, stream, args, stride);
    return true;
  };
  if (args.size <= 8 * kWarp)
    return start(rms_norm_quads_kernel<kWarp, 2, kCodes>, ceil_div(rows, kWarpRows), kWarp * kWarpRows);
  if (args.size <= 8 * kSmallBlock) return start(rms_norm_quads_kernel<kSmallBlock, 2, kCodes>, rows, kSmallBlock);
  if (args.size <= 16 * kSmallBlock) return start(rms_norm_quads_kernel<kSmallBlock, 4, kCodes>, rows, kSmallBlock);
  if (args.size <= 16 * kMiddleBlock) return start(rms_norm_quads_kernel<kMiddleBlock, 4, kCodes>, rows, kMiddleBlock);
  return start(rms_norm_quads_kernel<kLargeBlock, 4, kCodes>, rows, kLargeBlock);
}

void rms_norm(const RmsNormArgs& args, cudaStream_t stream) {
  const int64_t stride = args.token_stride == 0 ? args.num_groups * args.size : args.token_stride;
  const bool codes = args.out.dtype == DType::kF8E4M3;
  const bool quads = args.size % 4 == 0 && are_quads(args.hidden, DType::kF32, stride) &&
                     are_quads(args.delta, DType::kF32, 0) && are_quads(args.weight, DType::kF32, 0) &&
                     (codes || are_quads(args.out.data, args.out.dtype, stride));
  if (codes) {
    QUIRE_CHECK_MSG(quads && rms_norm_of_quads<true>(args, stride, stream), "rows that cannot be coded");
    return;
  }
  if (quads && rms_norm_of_quads<false>(args, stride, stream)) return;
  launch_by_size(rms_norm_kernel<kWarp>, rms_norm_kernel<kSmallBlock>, rms_norm_kernel<kLargeBlock>,
                 args.num_tokens * args.num_groups, args.size, stream, args, stride);
}

void layer_norm(const LayerNormArgs& args, cudaStream_t stream) {
  launch_by_size(layer_norm_kernel<kWarp>, layer_norm_kernel<kSmallBlock>, layer_norm_kernel<kLargeBlock>,
                 args.num_tokens, args.size, stream, args);
}

}  // namespace quire::ops::cuda
