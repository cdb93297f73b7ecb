// Ops that make each number of few others: a thread a number at a time, the tokens of a batch along the grid's y.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/float8_rows.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostOfBlock = 1024;  // threads
constexpr int kEach = 4;            // numbers of a thread: their loads are under way together
constexpr int kVector = 8;          // numbers of 16 bits
constexpr int64_t kMaxGridY = 65535;

dim3 grid_of(int64_t rows, int64_t size) {
  return {ceil_div(size, kThreads * kEach), static_cast<unsigned>(std::min(rows, kMaxGridY))};
}

// body(row, i) of every number of [rows, size].
template <typename Body>
__device__ void for_numbers(int64_t rows, int64_t size, const Body& body) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t i = first + j * kThreads;
      if (i < size) body(row, i);
    }
  }
}

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <Activation kFunction>
__global__ void activate_kernel(ActivationArgs args) {
  begin_kernel();
  const int64_t in_size = args.gated ? 2 * args.size : args.size;
  if (are_quads(args.in.data, args.in.dtype, args.size) && are_quads(args.out.data, args.out.dtype, args.size)) {
    const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
    for (int64_t t = blockIdx.y; i < args.size && t < args.num_tokens; t += gridDim.y) {
      const float4 in = load_quad(args.in, t * in_size + i);
      const float4 up = args.gated ? load_quad(args.in, t * in_size + args.size + i) : make_float4(1, 1, 1, 1);
      store_quad(args.out, t * args.size + i,
                 make_float4(activated<kFunction>(in.x) * up.x, activated<kFunction>(in.y) * up.y,
                             activated<kFunction>(in.z) * up.z, activated<kFunction>(in.w) * up.w));
    }
    return;
  }
  for_numbers(args.num_tokens, args.size, [&](int64_t t, int64_t i) {
    const int64_t in = t * in_size + i;
    const float value = activated<kFunction>(load_number(args.in, in));
    store_number(args.out, t * args.size + i, args.gated ? value * load_number(args.in, in + args.size) : value);
  });
}

// The same of numbers of 16 bits, eight a thread.
template <Activation kFunction>
__global__ void activate_vectors_kernel(ActivationArgs args) {
  begin_kernel();
  const int64_t in_size = args.gated ? 2 * args.size : args.size;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  for (int64_t t = blockIdx.y; i < args.size && t < args.num_tokens; t += gridDim.y) {
    Eight in = load_eight(args.in, t * in_size + i);
    const Eight up = args.gated ? load_eight(args.in, t * in_size + args.size + i) : Eight{};
#pragma unroll
    for (int k = 0; k < kVector; ++k)
      in.of[k] = args.gated ? activated<kFunction>(in.of[k]) * up.of[k] : activated<kFunction>(in.of[k]);
    store_eight(args.out, t * args.size + i, in);
  }
}

// The same of rows that become F8_E4M3 (ops/rows.h), a block each, of whose threads each has eight numbers. Rows so
// long that a thread would have more are rounded sooner by a kernel of their own: of 14,336 numbers this one took 292
// us for 6,240 rows on an H200 where the two take 204.
template <Activation kFunction>
__global__ void __launch_bounds__(kMostOfBlock) activate_to_codes_kernel(ActivationArgs args) {
  begin_kernel();
  const int64_t in_size = args.gated ? 2 * args.size : args.size;
  const int64_t t = blockIdx.x;
  const int64_t i = int64_t{threadIdx.x} * kVector;
  auto* codes = static_cast<uint8_t*>(args.out.data);
  Eight values = {};
  uint32_t most = 0;
  if (i < args.size) {
    values = load_any_eight(args.in, t * in_size + i);
    const Eight up = args.gated ? load_any_eight(args.in, t * in_size + args.size + i) : Eight{};
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      float& value = values.of[k];
      value = args.gated ? activated<kFunction>(value) * up.of[k] : activated<kFunction>(value);
      most = larger_magnitude(most, value);
    }
  }
  const float scale = f8_scale(block_largest_magnitude<kMostOfBlock / kWarp>(most));
  const float inverse = f8_inverse(scale);
  if (i < args.size) {
    const float* of = values.of;
    *reinterpret_cast<uint2*>(codes + t * args.size + i) =
        make_uint2(f8_codes(make_float4(of[0], of[1], of[2], of[3]), inverse),
                   f8_codes(make_float4(of[4], of[5], of[6], of[7]), inverse));
  }
  if (threadIdx.x == 0) scales_behind(codes, args.num_tokens, args.size)[t] = scale;
}

__global__ void add_kernel(AddArgs args) {
  begin_kernel();
  for_numbers(1, args.num_tokens * args.size,
              [&](int64_t, int64_t i) { args.hidden[i] = fmaf(args.delta[i], args.delta_scale, args.hidden[i]); });
}

__global__ void scale_kernel(ScaleArgs args) {
  begin_kernel();
  for_numbers(1, args.num_rows * args.size, [&](int64_t, int64_t i) {
    float value = args.scale * args.values[i];
    if (args.soft_cap > 0) value = args.soft_cap * tanhf(value / args.soft_cap);
    // NaN stays NaN in the comparison.
    args.values[i] = args.limit > 0 && fabsf(value) > args.limit ? copysignf(args.limit, value) : value;
  });
}

__global__ void xielu_kernel(XieluArgs args) {
  begin_kernel();
  for_numbers(1, args.num_tokens * args.size, [&](int64_t, int64_t i) {
    const float x = args.values[i];
    const float above = args.positive * x * x;
    const float below = args.negative * (expm1f(x < args.eps ? x : args.eps) - x);
    args.values[i] = fmaf(args.beta, x, x > 0 ? above : below);
  });
}

// NaN stays NaN in the comparisons.
__global__ void clamped_swiglu_kernel(ClampedSwigluArgs args) {
  begin_kernel();
  for_numbers(args.num_tokens, args.size, [&](int64_t t, int64_t i) {
    const float* in = args.in + t * 2 * args.size;
    const float gate = in[i] > args.limit ? args.limit : in[i];
    const float up_in = in[args.size + i];
    const float up = up_in > args.limit ? args.limit : (up_in < -args.limit ? -args.limit : up_in);
    args.out[t * args.size + i] = (up + 1.0f) * (gate / (1.0f + expf(-args.alpha * gate)));
  });
}

__global__ void gate_kernel(GateArgs args) {
  begin_kernel();
  for_numbers(args.num_tokens, args.size, [&](int64_t t, int64_t i) {
    args.values[t * args.value_stride + i] *= activated(args.function, args.gates[t * args.gate_stride + i]);
  });
}

__global__ void copy_heads_kernel(CopyHeadsArgs args) {
  begin_kernel();
  for_numbers(args.num_tokens, args.num_heads * args.size, [&](int64_t t, int64_t at) {
    const int64_t head = at / args.size;
    const int64_t i = at % args.size;
    args.out[t * args.out_token_stride + head * args.out_head_stride + i] =
        args.in[t * args.in_token_stride + head * args.in_head_stride + i];
  });
}

__global__ void gather_rows_kernel(const float* in, int64_t size, const int32_t* rows, int64_t num_rows, float* out) {
  begin_kernel();
  if (are_quads(in, DType::kF32, size) && are_quads(out, DType::kF32, size)) {
    const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
    for (int64_t row = blockIdx.y; i < size && row < num_rows; row += gridDim.y) {
      *reinterpret_cast<float4*>(out + row * size + i) =
          *reinterpret_cast<const float4*>(in + int64_t{rows[row]} * size + i);
    }
    return;
  }
  for_numbers(num_rows, size, [&](int64_t row, int64_t i) { out[row * size + i] = in[int64_t{rows[row]} * size + i]; });
}

__global__ void place_tokens_kernel(PlaceTokensArgs args) {
  begin_kernel();
  for_numbers(1, args.num_tokens, [&](int64_t, int64_t t) {
    const int32_t source = args.sources.device[t];
    if (source >= 0) args.ids[t] = max(args.tokens[source], 0);
  });
}

__global__ void rope_kernel(RopeArgs args) {
  begin_kernel();
  const int32_t half = args.rotary_dim / 2;
  for_numbers(args.num_tokens, int64_t{args.num_heads} * half, [&](int64_t t, int64_t at) {
    const int64_t i = at % half;
    const float* cosines = args.table + int64_t{args.positions.device[t]} * args.rotary_dim;
    float* head = args.heads + t * args.token_stride + at / half * args.head_dim;
    float& a = args.interleaved ? head[2 * i] : head[i];
    float& b = args.interleaved ? head[2 * i + 1] : head[i + half];
    const float x = a;
    const float y = b;
    const float cosine = cosines[i];
    const float sine = cosines[half + i];
    a = fmaf(x, cosine, -(y * sine));
    b = fmaf(x, sine, y * cosine);
  });
}

__device__ inline void add_weighed(float4& sum, float weight, const float* numbers) {
  const float4 quad = *reinterpret_cast<const float4*>(numbers);
  sum = make_float4(fmaf(weight, quad.x, sum.x), fmaf(weight, quad.y, sum.y), fmaf(weight, quad.z, sum.z),
                    fmaf(weight, quad.w, sum.w));
}

__global__ void combine_experts_kernel(MoeCombineArgs args) {
  begin_kernel();
  if (are_quads(args.experts, DType::kF32, args.size) && are_quads(args.out, DType::kF32, args.size) &&
      are_quads(args.shared, DType::kF32, args.size)) {
    const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
    for (int64_t t = blockIdx.y; i < args.size && t < args.num_tokens; t += gridDim.y) {
      const int64_t pairs = t * args.experts_per_token;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int32_t r = 0; r < args.experts_per_token; ++r)
        add_weighed(sum, args.weights[pairs + r], args.experts + int64_t{args.rows[pairs + r]} * args.size + i);
      if (args.shared != nullptr) {
        const float gate = args.shared_gate == nullptr ? 1.0f : sigmoid(args.shared_gate[t]);
        add_weighed(sum, gate, args.shared + t * args.size + i);
      }
      *reinterpret_cast<float4*>(args.out + t * args.size + i) = sum;
    }
    return;
  }
  for_numbers(args.num_tokens, args.size, [&](int64_t t, int64_t i) {
    const int64_t pairs = t * args.experts_per_token;
    float sum = 0;
    for (int32_t r = 0; r < args.experts_per_token; ++r)
      sum = fmaf(args.weights[pairs + r], args.experts[int64_t{args.rows[pairs + r]} * args.size + i], sum);
    if (args.shared != nullptr) {
      const float gate = args.shared_gate == nullptr ? 1.0f : sigmoid(args.shared_gate[t]);
      sum = fmaf(gate, args.shared[t * args.size + i], sum);
    }
    args.out[t * args.size + i] = sum;
  });
}

__global__ void round_rows_kernel(const float* x, RowPlaces places, int64_t num_rows, int64_t columns, OutRows out) {
  begin_kernel();
  for_numbers(num_rows, columns,
              [&](int64_t row, int64_t i) { store_number(out, row * columns + i, x[places.at(row) + i]); });
}
// The same of rows that are quads.
__global__ void round_quads_kernel(const float* x, RowPlaces places, int64_t num_rows, int64_t columns, OutRows out) {
  begin_kernel();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  for (int64_t row = blockIdx.y; i < columns && row < num_rows; row += gridDim.y)
    store_quad(out, row * columns + i, *reinterpret_cast<const float4*>(x + places.at(row) + i));
}

__global__ void convert_rows_kernel(Rows in, int64_t in_stride, int64_t num_rows, int64_t columns, OutRows out,
                                    int64_t out_stride) {
  begin_kernel();
  for_numbers(num_rows, columns, [&](int64_t row, int64_t i) {
    store_number(out, row * out_stride + i, load_number(in, row * in_stride + i));
  });
}

__global__ void form_rows_kernel(const float* in, int64_t in_stride, int64_t num_rows, int64_t columns,
                                 const int32_t* order, float factor, float* out) {
  begin_kernel();
  for_numbers(num_rows, columns, [&](int64_t row, int64_t i) {
    out[row * columns + i] = in[row * in_stride + (order == nullptr ? i : order[i])] * factor;
  });
}

// grid: columns, groups
__global__ void multiply_groups_kernel(GroupedRowsWork work, const float* factors, const float* bias) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t group = blockIdx.y;
  if (i >= work.shape.rows) return;
  const int64_t each = work.num_rows / work.num_groups;
  const int64_t first = work.offsets != nullptr ? work.offsets[group] : group * each;
  const int64_t end = work.offsets != nullptr ? work.offsets[group + 1] : first + each;
  const float added = bias == nullptr ? 0 : bias[group * work.bias_stride + i];
  float* out = work.out + (work.out_group_stride == 0 ? first * work.out_stride : group * work.out_group_stride) + i;
  for (int64_t row = first; row < end; ++row, out += work.out_stride) *out = fmaf(*out, factors[group], added);
}

}  // namespace

void activate(const ActivationArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.size == 0) return;
  const bool vectors =
      are_vectors(args.in.data, args.in.dtype, args.size) && are_vectors(args.out.data, args.out.dtype, args.size);
  const bool codes = args.out.dtype == DType::kF8E4M3;
  if (codes) QUIRE_CHECK(reinterpret_cast<uintptr_t>(args.in.data) % 16 == 0);
  const auto of = [&](auto function) {
    constexpr Activation kFunction = decltype(function)::value;
    if (codes) {
      static_assert(!may_be_coded(kMostOfBlock * kVector + 16));
      return launch(activate_to_codes_kernel<kFunction>, dim3(static_cast<unsigned>(args.num_tokens)),
                    static_cast<int>(ceil_div(args.size, kVector * kWarp)) * kWarp, 0, stream, args);
    }
    const int64_t threads = vectors ? ceil_div(args.size, kVector) * int64_t{kEach} : args.size;
    launch(vectors ? activate_vectors_kernel<kFunction> : activate_kernel<kFunction>, grid_of(args.num_tokens, threads),
           kThreads, 0, stream, args);
  };
  switch (args.function) {
    case Activation::kGelu:
      return of(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kGeluTanh:
      return of(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kQuickGelu:
      return of(std::integral_constant<Activation, Activation::kQuickGelu>());
    case Activation::kRelu:
      return of(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kRelu2:
      return of(std::integral_constant<Activation, Activation::kRelu2>());
    case Activation::kSigmoid:
      return of(std::integral_constant<Activation, Activation::kSigmoid>());
    case Activation::kIdentity:
      return of(std::integral_constant<Activation, Activation::kIdentity>());
    default:
      return of(std::integral_constant<Activation, Activation::kSilu>());
  }
}

void add(const AddArgs& args, cudaStream_t stream) {
  const int64_t count = args.num_tokens * args.size;
  if (count > 0) launch(add_kernel, grid_of(1, count), kThreads, 0, stream, args);
}

void clamped_swiglu(const ClampedSwigluArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.size == 0) return;
  launch(clamped_swiglu_kernel, grid_of(args.num_tokens, args.size), kThreads, 0, stream, args);
}

void xielu(const XieluArgs& args, cudaStream_t stream) {
  const int64_t count = args.num_tokens * args.size;
  if (count > 0) launch(xielu_kernel, grid_of(1, count), kThreads, 0, stream, args);
}

void copy_heads(const CopyHeadsArgs& args, cudaStream_t stream) {
  const int64_t size = args.num_heads * args.size;
  if (args.num_tokens == 0 || size == 0) return;
  launch(copy_heads_kernel, grid_of(args.num_tokens, size), kThreads, 0, stream, args);
}

void gate(const GateArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.size == 0) return;
  launch(gate_kernel, grid_of(args.num_tokens, args.size), kThreads, 0, stream, args);
}

void gather_rows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.size == 0) return;
  launch(gather_rows_kernel, grid_of(args.num_rows, args.size), kThreads, 0, stream, args.in, args.size,
         args.rows.device, args.num_rows, args.out);
}

void place_tokens(const PlaceTokensArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  launch(place_tokens_kernel, grid_of(1, args.num_tokens), kThreads, 0, stream, args);
}

void rope(const RopeArgs& args, cudaStream_t stream) {
  const int64_t pairs = int64_t{args.num_heads} * (args.rotary_dim / 2);
  if (args.num_tokens == 0 || pairs == 0) return;
  launch(rope_kernel, grid_of(args.num_tokens, pairs), kThreads, 0, stream, args);
}

void scale(const ScaleArgs& args, cudaStream_t stream) {
  const int64_t count = args.num_rows * args.size;
  if (count > 0) launch(scale_kernel, grid_of(1, count), kThreads, 0, stream, args);
}

void combine_experts(const MoeCombineArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.size == 0) return;
  launch(combine_experts_kernel, grid_of(args.num_tokens, args.size), kThreads, 0, stream, args);
}

void round_rows(const float* x, const RowPlaces& places, int64_t num_rows, int64_t columns, DType to, void* out,
                cudaStream_t stream) {
  if (num_rows == 0 || columns == 0) return;
  const bool quads = columns % 4 == 0 && are_quads(x, DType::kF32, places.stride) && places.group_stride % 4 == 0 &&
                     are_quads(out, to, columns);
  launch(quads ? round_quads_kernel : round_rows_kernel, grid_of(num_rows, columns), kThreads, 0, stream, x, places,
         num_rows, columns, OutRows(out, to));
}

void convert_rows(const Rows& in, int64_t in_stride, int64_t num_rows, int64_t columns, const OutRows& out,
                  int64_t out_stride, cudaStream_t stream) {
  if (num_rows == 0 || columns == 0) return;
  launch(convert_rows_kernel, grid_of(num_rows, columns), kThreads, 0, stream, in, in_stride, num_rows, columns, out,
         out_stride);
}

void form_rows(const float* in, int64_t in_stride, int64_t num_rows, int64_t columns, const int32_t* order,
               float factor, float* out, cudaStream_t stream) {
  if (num_rows == 0 || columns == 0) return;
  launch(form_rows_kernel, grid_of(num_rows, columns), kThreads, 0, stream, in, in_stride, num_rows, columns, order,
         factor, out);
}

void multiply_groups(const GroupedRowsWork& work, const float* factors, const float* bias, cudaStream_t stream) {
  if (work.num_rows == 0 || work.num_groups == 0 || work.shape.rows == 0) return;
  const dim3 grid(ceil_div(work.shape.rows, kThreads), static_cast<unsigned>(work.num_groups));
  launch(multiply_groups_kernel, grid, kThreads, 0, stream, work, factors, bias);
}

}  // namespace quire::ops::cuda
