// Attention of many queries over the paged cache with tensor cores: prompts. A block takes 64 rows, each one head of
// one query, all of one sequence and one kv head; a warp 16 of them. It goes through the positions that any row sees in
// tiles of 64, which are read from the cache once, into the halves that the tensor cores multiply: F16, but BF16 of a
// cache of BF16. Queries and weights are rounded to the same. (A cache of F32 is for paged_attention.cu, which rounds
// nothing.)
//
// The softmax is online, but that the number which exponents are relative to follows the largest score only when that
// has risen by more than 8 powers of two: sums then stay in the tensor cores' registers nearly always (the idea is that
// of FlashAttention-4's rescaling), and no weight is above 256.
#include <mma.h>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kRows = 64;      // of a block
constexpr int kWarpRows = 16;  // of a warp
constexpr int kTile = 64;      // positions
constexpr int kFragment = 16;
constexpr int kScoreStride = kTile + 4;
constexpr int kWeightStride = kTile + 8;
constexpr int kMovedStride = kFragment + 4;

// Calls body(format) for the format of a cache whose numbers become T.
template <typename T, typename Body>
__device__ void with_format_of(DType dtype, Body body) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    body(std::integral_constant<DType, DType::kBF16>{});
  } else {
    if (dtype == DType::kF16) return body(std::integral_constant<DType, DType::kF16>{});
    if (dtype == DType::kF8E4M3) return body(std::integral_constant<DType, DType::kF8E4M3>{});
    if (dtype == DType::kF8E5M2) return body(std::integral_constant<DType, DType::kF8E5M2>{});
    body(std::integral_constant<DType, DType::kI8>{});
  }
}

// A block's shared memory, in bytes from its beginning. Every part begins at a multiple of 32.
template <int kHeadDim>
struct Layout {
  static constexpr int kQueryStride = kHeadDim + 8;
  static constexpr int kVectorStride = kHeadDim + 8;  // tiles of keys and of values are [kTile, kVectorStride]
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + kRows * kQueryStride * 2;
  static constexpr int kValues = kKeys + kTile * kVectorStride * 2;
  static constexpr int kWeights = kValues + kTile * kVectorStride * 2;
  static constexpr int kScores = kWeights + kRows * kWeightStride * 2;
  static constexpr int kMoved = kScores + kRows * kScoreStride * 4;
  static constexpr int kScales = kMoved + kWarps * kFragment * kMovedStride * 4;
  static constexpr int kBytes = kScales + 2 * kTile * 4;
};

// A tile of keys or values. Zeros where a position lies outside [first, last]: what the cache holds there may be no
// number.
template <DType kFormat, typename T, int kHeadDim>
__device__ void load_tile(const Attention& args, const uint8_t* memory, bool vectors, const BlockId* table,
                          int32_t begin, int32_t first, int32_t last, const float* scales, T* tile) {
  using Code = typename KvFormat<kFormat>::Code;
  constexpr int kThreadsOfToken = kThreads / kTile;
  const int t = static_cast<int>(threadIdx.x) / kThreadsOfToken;
  const int part = static_cast<int>(threadIdx.x) % kThreadsOfToken;
  const bool there = begin + t >= first && begin + t <= last;
  T* to = tile + t * Layout<kHeadDim>::kVectorStride;
  const auto store = [&](int d, float value) {
    if (kFormat == DType::kI8) value *= scales[t];
    to[d] = rounded<T>(there ? value : 0.0f);
  };
  const Slot slot = there ? slot_of(args, memory, table, begin + t) : Slot{nullptr, 0};
  const auto* codes = reinterpret_cast<const Code*>(slot.head) + slot.token * args.head_dim;
  if (vectors) {
    constexpr int kNumbers = kNumbersOfVector<kFormat>;
    for (int d = part * kNumbers; d < args.head_dim; d += kThreadsOfToken * kNumbers) {
      const uint4 vector = there ? *reinterpret_cast<const uint4*>(codes + d) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) store(d + i, number_of<kFormat>(vector, i));
    }
    return;
  }
  for (int d = part; d < args.head_dim; d += kThreadsOfToken)
    store(d, there ? KvFormat<kFormat>::number(codes[d]) : 0.0f);
}

// The row of a lane's softmax: two lanes have one, half of the tile's positions each.
struct LaneRow {
  int32_t first;  // position that it sees; last < first: there is no such row
  int32_t last;
  Softmax total;  // `maximum` is what exponents are relative to; each lane has a sum of its own
};

// Grid: (num_tokens * group / kRows + num_sequences, kv heads).
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) attend_tiles_kernel(const Attention args) {
  begin_kernel();
  using At = Layout<kHeadDim>;
  Rows block;
  if (!find_rows(args, kRows, block)) return;
  auto* shared = dynamic_shared<uint8_t>();
  auto* queries = reinterpret_cast<T*>(shared + At::kQueries);
  auto* keys = reinterpret_cast<T*>(shared + At::kKeys);
  auto* values = reinterpret_cast<T*>(shared + At::kValues);
  auto* key_scales = reinterpret_cast<float*>(shared + At::kScales);
  float* value_scales = key_scales + kTile;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  T* weights = reinterpret_cast<T*>(shared + At::kWeights) + warp * kWarpRows * kWeightStride;
  float* scores = reinterpret_cast<float*>(shared + At::kScores) + warp * kWarpRows * kScoreStride;
  float* moved = reinterpret_cast<float*>(shared + At::kMoved) + warp * kFragment * kMovedStride;
  const BlockId* table = args.block_tables + block.sequence * args.block_table_stride;

  const int32_t last_row = min(block.first + kRows, block.num_rows) - 1;
  const int32_t last = block.first_position + last_row / args.group;
  const int32_t first = first_seen(args, block.first_position + block.first / args.group);

  for (int i = thread; i < kRows * kHeadDim; i += kThreads) {
    const int32_t row = block.first + i / kHeadDim;
    const int d = i % kHeadDim;
    float x = 0;
    if (row < block.num_rows && d < args.head_dim) {
      x = args.queries[(int64_t{block.first_token} + row / args.group) * args.query_stride +
                       int64_t{blockIdx.y * args.group + row % args.group} * args.head_dim + d];
    }
    queries[i / kHeadDim * At::kQueryStride + d] = rounded<T>(x * args.query_factor);
  }
  // What a head has less than kHeadDim numbers stays zero.
  for (int i = thread; i < kTile * At::kVectorStride; i += kThreads) keys[i] = values[i] = rounded<T>(0.0f);

  const int32_t own = block.first + warp * kWarpRows + lane / 2;
  const int32_t position = block.first_position + own / args.group;
  LaneRow row{
      own < block.num_rows ? first_seen(args, position) : 0, own < block.num_rows ? position : -1, {-INFINITY, 0}};
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kHeadDim / kFragment];
#pragma unroll
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);

  for (int32_t begin = first / kTile * kTile; begin <= last; begin += kTile) {
    __syncthreads();  // the tile before has been used
    if (args.dtype == DType::kI8) {
      const int t = thread % kTile;
      const bool there = begin + t >= first && begin + t <= last;
      const uint8_t* memory = thread < kTile ? args.keys : args.values;
      key_scales[thread] = there ? scale_at(args, memory, table, begin + t) : 0.0f;
      __syncthreads();
    }
    with_format_of<T>(args.dtype, [&](auto format) {
      constexpr DType kFormat = decltype(format)::value;
      load_tile<kFormat, T, kHeadDim>(args, args.keys, args.vectors_of_keys, table, begin, first, last, key_scales,
                                      keys);
      load_tile<kFormat, T, kHeadDim>(args, args.values, args.vectors_of_values, table, begin, first, last,
                                      value_scales, values);
    });
    __syncthreads();

#pragma unroll
    for (int n = 0; n < kTile; n += kFragment) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> score;
      wmma::fill_fragment(score, 0.0f);
#pragma unroll
      for (int d = 0; d < kHeadDim; d += kFragment) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b;
        wmma::load_matrix_sync(a, queries + warp * kWarpRows * At::kQueryStride + d, At::kQueryStride);
        wmma::load_matrix_sync(b, keys + n * At::kVectorStride + d, At::kVectorStride);
        wmma::mma_sync(score, a, b, score);
      }
      wmma::store_matrix_sync(scores + n, score, kScoreStride, wmma::mem_row_major);
    }
    __syncwarp();

    float* of_row = scores + lane / 2 * kScoreStride + lane % 2 * (kTile / 2);
    float maximum = -INFINITY;
    for (int t = 0; t < kTile / 2; ++t) {
      const int32_t at = begin + lane % 2 * (kTile / 2) + t;
      float score = of_row[t];
      if (args.soft_cap > 0) score = args.soft_cap * kLog2E * tanhf(score / args.soft_cap);
      score = at >= row.first && at <= row.last ? score : -INFINITY;
      of_row[t] = score;
      maximum = fmaxf(maximum, score);
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    const float factor = follow(row.total, maximum);
    if (__any_sync(kAllLanes, factor != 1)) {
#pragma unroll
      for (auto& sum : sums) {
        wmma::store_matrix_sync(moved, sum, kMovedStride, wmma::mem_row_major);
        __syncwarp();
        for (int i = 0; i < kFragment / 2; ++i)
          moved[lane / 2 * kMovedStride + lane % 2 * (kFragment / 2) + i] *= factor;
        __syncwarp();
        wmma::load_matrix_sync(sum, moved, kMovedStride, wmma::mem_row_major);
        __syncwarp();
      }
    }
    T* weights_of_row = weights + lane / 2 * kWeightStride + lane % 2 * (kTile / 2);
    for (int t = 0; t < kTile / 2; ++t) {
      const float score = of_row[t];
      const T weight = rounded<T>(score > -INFINITY ? exp2f(score - row.total.maximum) : 0.0f);
      weights_of_row[t] = weight;
      row.total.sum += number(weight);
    }
    __syncwarp();

#pragma unroll
    for (int t = 0; t < kTile; t += kFragment) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
      wmma::load_matrix_sync(a, weights + t, kWeightStride);
#pragma unroll
      for (int d = 0; d < kHeadDim / kFragment; ++d) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> b;
        wmma::load_matrix_sync(b, values + t * At::kVectorStride + d * kFragment, At::kVectorStride);
        wmma::mma_sync(sums[d], a, b, sums[d]);
      }
    }
  }

  row.total.sum += __shfl_xor_sync(kAllLanes, row.total.sum, 1);
  const int32_t query = own / args.group;
  const auto head = static_cast<int32_t>(blockIdx.y) * args.group + own % args.group;
  const float factor = own < block.num_rows ? final_factor(args, row.total, head) : 0.0f;
  float* out = args.out + ((int64_t{block.first_token} + query) * args.num_heads + head) * args.head_dim;
#pragma unroll
  for (int d = 0; d < kHeadDim / kFragment; ++d) {
    __syncwarp();
    wmma::store_matrix_sync(moved, sums[d], kMovedStride, wmma::mem_row_major);
    __syncwarp();
    for (int i = 0; i < kFragment / 2; ++i) {
      const int column = lane % 2 * (kFragment / 2) + i;
      if (own < block.num_rows && d * kFragment + column < args.head_dim)
        out[d * kFragment + column] = moved[lane / 2 * kMovedStride + column] * factor;
    }
  }
}

template <typename T, int kHeadDim>
bool launch_tiles(const Attention& work, dim3 grid, cudaStream_t stream) {
  constexpr int kBytes = Layout<kHeadDim>::kBytes;
  if (!has_shared(kBytes)) return false;
  check_cuda(
      cudaFuncSetAttribute(attend_tiles_kernel<T, kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "shared memory of attention");
  launch(attend_tiles_kernel<T, kHeadDim>, grid, kThreads, kBytes, stream, work);
  return true;
}

template <typename T>
bool launch_head_dim(const Attention& work, dim3 grid, cudaStream_t stream) {
  if (work.head_dim <= 64) return launch_tiles<T, 64>(work, grid, stream);
  if (work.head_dim <= 128) return launch_tiles<T, 128>(work, grid, stream);
  if (work.head_dim <= 256) return launch_tiles<T, 256>(work, grid, stream);
  return false;
}

}  // namespace

bool attend_tiles(const Attention& work, int64_t total_rows, cudaStream_t stream) {
  if (work.dtype == DType::kF32 || work.values_are_keys) return false;
  const dim3 grid(static_cast<unsigned>(total_rows / kRows + work.num_sequences),
                  static_cast<unsigned>(work.num_kv_heads));
  if (work.dtype == DType::kBF16) return launch_head_dim<__nv_bfloat16>(work, grid, stream);
  return launch_head_dim<__half>(work, grid, stream);
}

}  // namespace quire::ops::cuda
