// Attention of many queries over the paged cache with tensor cores: prompts. A block takes 64 rows, each one head of
// one query, all of one sequence and one kv head; a warp 16 of them. It goes through the positions that any row sees in
// tiles, which are read from the cache once, as the halves that the tensor cores multiply: F16, but BF16 of a cache of
// BF16. Queries and weights are rounded to the same. (A cache of F32 is for paged_attention.cu, which rounds nothing.)
//
// Scores, weights and sums stay in registers: the sums of queries by keys lie over a warp's lanes as the left matrix of
// the next product wants its weights. Tiles come to shared memory while the one before is used, numbers of 16 bits by
// asynchronous copies, those of 8 through registers, in which they become halves; a barrier a tile. Rows of a tile are
// 16 bytes longer than a head, so that the eight rows that a load takes lie in different banks.
//
// The softmax is online, but that the number which exponents are relative to follows the largest score only when that
// has risen by more than 8 powers of two: sums are then multiplied almost never (the idea is that of FlashAttention-4's
// rescaling), and no weight is above 256.
#include <cuda_pipeline_primitives.h>

#include "ops/cuda/attention.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kRows = 64;      // of a block
constexpr int kWarpRows = 16;  // of a warp
constexpr int64_t kNowhere = -1;

// What a block multiplies, and where it lies in shared memory, in bytes from its beginning.
template <DType kFormat_, int kHeadDim_>
struct Kind {
  using Code = typename KvFormat<kFormat_>::Code;
  using T = std::conditional_t<kFormat_ == DType::kBF16, __nv_bfloat16, __half>;
  static constexpr DType kFormat = kFormat_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kTile = kHeadDim > 128 ? 32 : 64;  // positions
  static constexpr int kStride = kHeadDim + 8;            // of rows of T
  static constexpr bool kConverts = sizeof(Code) == 1;
  static constexpr int kBlocks = kHeadDim <= (kConverts ? 64 : 128) ? 3 : 2;  // that a multiprocessor takes at once
  static constexpr bool kKeepsQueries = kHeadDim <= 128;                      // in registers
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Code));         // codes in 16 bytes
  static constexpr int kRowVectors = kHeadDim / kVector;
  static constexpr int kVectors = kTile * kRowVectors / kThreads;  // of a thread, of keys or values

  static constexpr int kPartBytes = kTile * kStride * 2;  // keys, then values
  static constexpr int kStageBytes = 2 * kPartBytes;
  static constexpr int kQueries = 2 * kStageBytes;
  static constexpr int kQueryBytes = kRows * kStride * 2;
  // Queries that registers keep pass through the second stage.
  static constexpr int kBytes = kQueries + (kKeepsQueries ? 0 : kQueryBytes);
  static_assert(!kKeepsQueries || kQueryBytes <= kStageBytes);
  static_assert(kTile * kRowVectors % kThreads == 0);
};

// What a block goes through.
struct Positions {
  const BlockId* table;
  int32_t first;  // that any row sees
  int32_t last;
};

// Where a position of a stage's tile lies, in bytes from keys and values: behind its key, where rows are longer than a
// head. kNowhere: no row sees it, and what the cache holds there may be NaN.
template <typename K>
__device__ int64_t& offset_of(uint8_t* stage, int t) {
  return *reinterpret_cast<int64_t*>(stage + (t * K::kStride + K::kHeadDim) * 2);
}

// Those of the positions from `begin` on.
template <typename K>
__device__ void find_offsets(const Attention& args, const Positions& positions, int32_t begin, uint8_t* stage) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= K::kTile) return;
  const int32_t position = begin + t;
  int64_t offset = kNowhere;
  if (position >= positions.first && position <= positions.last) {
    const int64_t block = positions.table[position / args.block_size];
    offset = block * args.block_stride + blockIdx.y * args.head_bytes +
             int64_t{position % args.block_size} * args.head_dim * static_cast<int>(sizeof(typename K::Code));
  }
  offset_of<K>(stage, t) = offset;
}

// Vector `i` of a thread: of which position of a tile, and from which number of the head on.
template <typename K>
struct Place {
  int t;
  int d;
  __device__ Place(int i) {
    const int vector = static_cast<int>(threadIdx.x) + i * kThreads;
    t = vector / K::kRowVectors;
    d = vector % K::kRowVectors * K::kVector;
  }
};

// Codes of a vector one by one, where vectors do not lie at addresses of 16; zeros behind the head's end.
template <typename K>
__device__ void gather_codes(const uint8_t* from, int count, typename K::Code (&codes)[K::kVector]) {
  const auto* all = reinterpret_cast<const typename K::Code*>(from);
#pragma unroll
  for (int i = 0; i < K::kVector; ++i) codes[i] = i < count ? all[i] : typename K::Code(0);
}

// Begins to copy a tile of numbers of 16 bits.
template <typename K>
__device__ void begin_copy(const Attention& args, uint8_t* stage) {
#pragma unroll
  for (int i = 0; i < K::kVectors; ++i) {
    const Place<K> at(i);
    const int64_t offset = offset_of<K>(stage, at.t);
    uint8_t* to = stage + (at.t * K::kStride + at.d) * 2;
    const bool there = offset != kNowhere && at.d < args.head_dim;
#pragma unroll
    for (int part = 0; part < 2; ++part, to += K::kPartBytes) {
      const uint8_t* from = (part == 0 ? args.keys : args.values) + offset + int64_t{at.d} * 2;
      if (!there) {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      } else if (part == 0 ? args.vectors_of_keys : args.vectors_of_values) {
        __pipeline_memcpy_async(to, from, 16);
      } else {
        typename K::Code codes[K::kVector];
        gather_codes<K>(from, args.head_dim - at.d, codes);
        memcpy(to, codes, sizeof(codes));
      }
    }
  }
  __pipeline_commit();
}

// A tile of codes of 8 bits on its way.
template <typename K>
struct Codes {
  uint4 vectors[2][K::kVectors];
  float scales[2][K::kFormat == DType::kI8 ? K::kVectors : 1];

  __device__ void load(const Attention& args, const Positions& positions, int32_t begin, uint8_t* stage) {
#pragma unroll
    for (int i = 0; i < K::kVectors; ++i) {
      const Place<K> at(i);
      const int64_t offset = offset_of<K>(stage, at.t);
      const bool there = offset != kNowhere && at.d < args.head_dim;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint8_t* memory = part == 0 ? args.keys : args.values;
        vectors[part][i] = make_uint4(0, 0, 0, 0);
        if (there && (part == 0 ? args.vectors_of_keys : args.vectors_of_values)) {
          vectors[part][i] = *reinterpret_cast<const uint4*>(memory + offset + at.d);
        } else if (there) {
          typename K::Code codes[K::kVector];
          gather_codes<K>(memory + offset + at.d, args.head_dim - at.d, codes);
          memcpy(&vectors[part][i], codes, sizeof(codes));
        }
        if constexpr (K::kFormat == DType::kI8)
          scales[part][i] = there ? scale_at(args, memory, positions.table, begin + at.t) : 0.0f;
      }
    }
  }
  __device__ void store(uint8_t* stage) const {
#pragma unroll
    for (int i = 0; i < K::kVectors; ++i) {
      const Place<K> at(i);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        unsigned words[K::kVector / 2];
#pragma unroll
        for (int j = 0; j < K::kVector; j += 2) words[j / 2] = pair(part, i, j);
        auto* to = reinterpret_cast<uint4*>(stage + part * K::kPartBytes + (at.t * K::kStride + at.d) * 2);
        to[0] = make_uint4(words[0], words[1], words[2], words[3]);
        to[1] = make_uint4(words[4], words[5], words[6], words[7]);
      }
    }
  }

 private:
  __device__ unsigned pair(int part, int i, int j) const {
    const uint4& vector = vectors[part][i];
    if constexpr (K::kFormat == DType::kI8) {
      const float scale = scales[part][i];
      return pair_of<typename K::T>(number_of<K::kFormat>(vector, j) * scale,
                                    number_of<K::kFormat>(vector, j + 1) * scale);
    } else {
      const int word = j / 4;
      const unsigned all = word == 0 ? vector.x : word == 1 ? vector.y : word == 2 ? vector.z : vector.w;
      const unsigned two = j % 4 == 0 ? all & 0xffffu : all >> 16;
      if constexpr (K::kFormat == DType::kF8E4M3) return halves_of_float8(two);
      return (two & 0xffu) << 8 | (two & 0xff00u) << 16;  // E5M2: the upper bytes of halves
    }
  }
};

// A row of a lane's softmax: four neighbouring lanes have one, a quarter of the tile's positions each.
struct LaneRow {
  int32_t first;  // position that it sees; last < first: there is no such row
  int32_t last;
  Softmax total;  // `maximum` is what exponents are relative to; the sum comes from the tensor cores in the end
};

// Queries of a block, rounded, [kRows, kStride]; zeros behind a head's end and behind the last row.
template <typename K>
__device__ void store_queries(const Attention& args, const Rows& block, uint8_t* to) {
  using T = typename K::T;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * K::kHeadDim / 2; i += kThreads) {
    const int32_t row = block.first + i / (K::kHeadDim / 2);
    const int d = i % (K::kHeadDim / 2) * 2;
    float x[2] = {0, 0};
    if (row < block.num_rows) {
      const float* from = args.queries + (int64_t{block.first_token} + row / args.group) * args.query_stride +
                          int64_t{blockIdx.y * args.group + row % args.group} * args.head_dim;
      if (d < args.head_dim) x[0] = from[d];
      if (d + 1 < args.head_dim) x[1] = from[d + 1];
    }
    reinterpret_cast<unsigned*>(to)[(i / (K::kHeadDim / 2) * K::kStride + d) / 2] =
        pair_of<T>(x[0] * args.query_factor, x[1] * args.query_factor);
  }
}

// The 16 rows and 16 columns of a matrix of rows K::kStride apart, as a left matrix: quarters by columns.
template <typename K>
__device__ void load_left(const uint8_t* matrix, int lane, unsigned (&registers)[4]) {
  load_matrices<false>(registers, matrix + ((lane % 16) * K::kStride + lane / 16 * 8) * 2);
}

template <typename K>
using Scores = float[K::kTile / 8][4];
template <typename K>
using Sums = float[K::kHeadDim / 8][4];

// Queries by the keys of a tile. `kept`: the queries where registers keep them, else they are read at `queries`.
template <typename K>
__device__ void score(const unsigned (&kept)[K::kKeepsQueries ? K::kHeadDim / 16 : 1][4], const uint8_t* queries,
                      const uint8_t* keys, int lane, Scores<K>& scores) {
#pragma unroll
  for (auto& each : scores) {
#pragma unroll
    for (float& x : each) x = 0;
  }
  // Two matrices of positions 0 to 7, beside each other, then of 8 to 15.
  const uint8_t* own = keys + ((lane / 16 * 8 + lane % 8) * K::kStride + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int k = 0; k < K::kHeadDim / 16; ++k) {
    unsigned left[4];
    if constexpr (K::kKeepsQueries) {
#pragma unroll
      for (int i = 0; i < 4; ++i) left[i] = kept[k][i];
    } else {
      load_left<K>(queries + k * 32, lane, left);
    }
#pragma unroll
    for (int n = 0; n < K::kTile / 16; ++n) {
      unsigned right[4];
      load_matrices<false>(right, own + (n * 16 * K::kStride + k * 16) * 2);
      multiply_16_8_16<typename K::T>(scores[2 * n], left, right[0], right[1]);
      multiply_16_8_16<typename K::T>(scores[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// Adds the values of a tile, each by its weight, and the weights: their product with ones.
template <typename K>
__device__ void add_values(const unsigned (&weights)[K::kTile / 16][4], const uint8_t* values, int lane, Sums<K>& sums,
                           float (&row_sums)[4]) {
  using T = typename K::T;
  const unsigned ones = pair_of<T>(1.0f, 1.0f);
  // Two matrices of positions 0 to 15 above each other, then the next eight numbers of the head.
  const uint8_t* own = values + ((lane % 16) * K::kStride + lane / 16 * 8) * 2;
#pragma unroll
  for (int k = 0; k < K::kTile / 16; ++k) {
    multiply_16_8_16<T>(row_sums, weights[k], ones, ones);
#pragma unroll
    for (int d = 0; d < K::kHeadDim / 16; ++d) {
      unsigned right[4];
      load_matrices<true>(right, own + (k * 16 * K::kStride + d * 16) * 2);
      multiply_16_8_16<T>(sums[2 * d], weights[k], right[0], right[1]);
      multiply_16_8_16<T>(sums[2 * d + 1], weights[k], right[2], right[3]);
    }
  }
}

// The weights of a tile's scores, in the order of a left matrix. Multiplies the sums where a row's scale has moved.
template <typename K>
__device__ void weigh(const Attention& args, int32_t begin, int lane, Scores<K>& scores, LaneRow (&rows)[2],
                      Sums<K>& sums, float (&row_sums)[4], unsigned (&weights)[K::kTile / 16][4]) {
  const bool all_see =
      begin >= max(rows[0].first, rows[1].first) && begin + K::kTile - 1 <= min(rows[0].last, rows[1].last);
  if (args.soft_cap > 0) {
#pragma unroll
    for (auto& each : scores) {
#pragma unroll
      for (float& x : each) x = args.soft_cap * kLog2E * tanhf(x / args.soft_cap);
    }
  }
  if (!all_see) {
#pragma unroll
    for (int n = 0; n < K::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = begin + n * 8 + lane % 4 * 2 + i % 2;
        if (at < rows[i / 2].first || at > rows[i / 2].last) scores[n][i] = -INFINITY;
      }
    }
  }
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float maximum = -INFINITY;
#pragma unroll
    for (const auto& each : scores) maximum = fmaxf(maximum, fmaxf(each[2 * r], each[2 * r + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
    factors[r] = follow(rows[r].total, maximum);
  }
  if (__any_sync(kAllLanes, factors[0] != 1 || factors[1] != 1)) {
#pragma unroll
    for (auto& sum : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] *= factors[i / 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) row_sums[i] *= factors[i / 2];
  }
#pragma unroll
  for (int n = 0; n < K::kTile / 8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // A row that has seen nothing yet is relative to nothing.
      const float relative_to = rows[r].total.maximum > -INFINITY ? rows[r].total.maximum : 0.0f;
      weights[n / 2][n % 2 * 2 + r] = pair_of<typename K::T>(fast_exp2(scores[n][2 * r] - relative_to),
                                                             fast_exp2(scores[n][2 * r + 1] - relative_to));
    }
  }
}

template <typename K>
__device__ void write_out(const Attention& args, const Rows& block, int32_t row, int lane, int r, const Softmax& total,
                          const Sums<K>& sums) {
  if (row >= block.num_rows) return;
  const auto head = static_cast<int32_t>(blockIdx.y) * args.group + row % args.group;
  const float factor = final_factor(args, total, head);
  float* out = args.out + ((int64_t{block.first_token} + row / args.group) * args.num_heads + head) * args.head_dim;
#pragma unroll
  for (int d = 0; d < K::kHeadDim / 8; ++d) {
    const int column = d * 8 + lane % 4 * 2;
    const float first = sums[d][2 * r] * factor;
    const float second = sums[d][2 * r + 1] * factor;
    if (args.head_dim % 2 == 0) {
      if (column < args.head_dim) *reinterpret_cast<float2*>(out + column) = make_float2(first, second);
    } else {
      if (column < args.head_dim) out[column] = first;
      if (column + 1 < args.head_dim) out[column + 1] = second;
    }
  }
}

// Grid: (num_tokens * group / kRows + num_sequences, kv heads).
template <typename K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) attend_tiles_kernel(const Attention args) {
  begin_kernel();
  Rows block;
  if (!find_rows(args, kRows, block)) return;
  auto* shared = dynamic_shared<uint8_t>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Positions positions;
  positions.table = args.block_tables + block.sequence * args.block_table_stride;
  positions.last = block.first_position + (min(block.first + kRows, block.num_rows) - 1) / args.group;
  positions.first = first_seen(args, block.first_position + block.first / args.group);
  const int32_t begin_first = positions.first / K::kTile * K::kTile;

  uint8_t* queries = shared + (K::kKeepsQueries ? K::kStageBytes : K::kQueries);
  store_queries<K>(args, block, queries);
  queries += warp * kWarpRows * K::kStride * 2;
  find_offsets<K>(args, positions, begin_first, shared);
  __syncthreads();
  unsigned kept[K::kKeepsQueries ? K::kHeadDim / 16 : 1][4];
  if constexpr (K::kKeepsQueries) {
#pragma unroll
    for (int k = 0; k < K::kHeadDim / 16; ++k) load_left<K>(queries + k * 32, lane, kept[k]);
  }
  Codes<K> codes;
  if constexpr (K::kConverts) {
    codes.load(args, positions, begin_first, shared);
    codes.store(shared);
  } else {
    begin_copy<K>(args, shared);
  }
  find_offsets<K>(args, positions, begin_first + K::kTile, shared + K::kStageBytes);

  LaneRow rows[2];
  const int32_t own = block.first + warp * kWarpRows + lane / 4;  // and 8 further
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t row = own + 8 * r;
    const int32_t position = block.first_position + row / args.group;
    rows[r] = {
        row < block.num_rows ? first_seen(args, position) : 0, row < block.num_rows ? position : -1, {-INFINITY, 0}};
  }
  Sums<K> sums = {};
  float row_sums[4] = {};  // of each row twice

  int turn = 0;
  for (int32_t begin = begin_first; begin <= positions.last; begin += K::kTile, turn = 1 - turn) {
    __pipeline_wait_prior(0);
    __syncthreads();  // the tile and where the next one lies are there for all, and the tile before has been used
    uint8_t* keys = shared + turn * K::kStageBytes;
    uint8_t* next = shared + (1 - turn) * K::kStageBytes;
    const bool goes_on = begin + K::kTile <= positions.last;
    if (goes_on) {
      if constexpr (K::kConverts) {
        codes.load(args, positions, begin + K::kTile, next);
      } else {
        begin_copy<K>(args, next);
      }
      find_offsets<K>(args, positions, begin + 2 * K::kTile, keys);
    }
    Scores<K> scores;
    score<K>(kept, queries, keys, lane, scores);
    unsigned weights[K::kTile / 16][4];
    weigh<K>(args, begin, lane, scores, rows, sums, row_sums, weights);
    add_values<K>(weights, keys + K::kPartBytes, lane, sums, row_sums);
    if constexpr (K::kConverts) {
      if (goes_on) codes.store(next);
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows[r].total.sum = row_sums[2 * r];
    write_out<K>(args, block, own + 8 * r, lane, r, rows[r].total, sums);
  }
}

template <DType kFormat, int kHeadDim>
bool launch_tiles(const Attention& work, dim3 grid, cudaStream_t stream) {
  using K = Kind<kFormat, kHeadDim>;
  if (!has_shared(K::kBytes)) return false;
  start_attention(attend_tiles_kernel<K>, K::kBytes, work, grid, kThreads, stream);
  return true;
}

template <DType kFormat>
bool launch_head_dim(const Attention& work, dim3 grid, cudaStream_t stream) {
  if (work.head_dim <= 64) return launch_tiles<kFormat, 64>(work, grid, stream);
  if (work.head_dim <= 128) return launch_tiles<kFormat, 128>(work, grid, stream);
  if (work.head_dim <= 256) return launch_tiles<kFormat, 256>(work, grid, stream);
  return false;
}

}  // namespace

bool attend_tiles(const Attention& work, int64_t total_rows, cudaStream_t stream) {
  if (work.values_are_keys) return false;
  const dim3 grid(static_cast<unsigned>(total_rows / kRows + work.num_sequences),
                  static_cast<unsigned>(work.num_kv_heads));
  switch (work.dtype) {
    case DType::kBF16:
      return launch_head_dim<DType::kBF16>(work, grid, stream);
    case DType::kF16:
      return launch_head_dim<DType::kF16>(work, grid, stream);
    case DType::kF8E4M3:
      return launch_head_dim<DType::kF8E4M3>(work, grid, stream);
    case DType::kF8E5M2:
      return launch_head_dim<DType::kF8E5M2>(work, grid, stream);
    case DType::kI8:
      return launch_head_dim<DType::kI8>(work, grid, stream);
    default:
      return false;
  }
}

}  // namespace quire::ops::cuda
