// Attention of few rows to many positions with tensor cores where values are keys: latent attention, whose keys of up
// to 576 numbers are read once. As in attention_few.cu, which takes 8-bit caches of it, a block has 16 rows and goes
// through positions in tiles, and positions are cut into splits of kFewSplit, each summed from nothing and folded into
// a row's total in order.
//
// A tile is 32 positions, two of which lie in shared memory: one is used, one arrives; two blocks have a processor
// between them, one of which copies while the other multiplies. A quarter of a block's eight warps each multiplies a
// quarter of the queries' numbers, which stay in its registers, by half of a tile's positions; what they come to is
// added up by the threads of the softmax, two positions each. Then each warp sums an eighth of the values' numbers. A
// tile is three barriers.
#include <cuda_pipeline_primitives.h>

#include "base/check.h"
#include "ops/cuda/attention_rows.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kRows = kFewRowsOfBlock;
constexpr int kLatentWarps = 8;
constexpr int kLatentThreads = kLatentWarps * kWarp;
constexpr int kLatentBlocks = 2;                             // of a processor
constexpr int kLatentTile = 32;                              // positions
constexpr int kLatentStages = 2;                             // tiles in shared memory
constexpr int kLatentQuarters = 4;                           // of the queries' numbers
constexpr int kLatentScores = kLatentTile + 8;               // floats between rows of scores
constexpr int kLatentWeights = kLatentTile + 8;              // numbers between rows of weights
constexpr int kLatentLanes = kLatentThreads / kRows;         // of a row's softmax
constexpr int kThreadsOfKey = kLatentThreads / kLatentTile;  // that copy it
static_assert(kLatentLanes * 2 == kLatentTile);

// What a block multiplies, and how its shared memory is laid out, in bytes from its beginning.
template <DType kFormat, int kKeyDim_, int kValueDim_>
struct LatentKind {
  using T = std::conditional_t<kFormat == DType::kBF16, __nv_bfloat16, __half>;
  static constexpr int kKeyDim = kKeyDim_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kSteps = kKeyDim / kLatentQuarters / 16;  // of 16 numbers of a warp's queries
  static constexpr int kColumns = kValueDim / kLatentWarps;      // of a warp's sums
  static constexpr int kStride = kKeyDim + 8;                    // numbers between rows: they lie in different banks
  static constexpr int kTileBytes = kLatentTile * kStride * 2;
  static_assert(kKeyDim % (kLatentQuarters * 16) == 0 && kColumns % 16 == 0 && kStride % 16 == 8);

  static constexpr int kScores = kLatentStages * kTileBytes;  // float [kLatentQuarters, kRows, kLatentScores]
  static constexpr int kWeights = kScores + kLatentQuarters * kRows * kLatentScores * 4;  // T [kRows, kLatentWeights]
  static constexpr int kFactors = kWeights + kRows * kLatentWeights * 2;                  // float [kRows]
  static constexpr int kEnds = kFactors + kRows * 4;                                      // LatentEnd [kRows]
  static constexpr int kBytes = kEnds + kRows * 24;
};

// What becomes of a row's sums at the end of a split: to = (to * before + sum * part) * factor.
struct LatentEnd {
  float* to;  // nullptr: nowhere
  float before, part, factor;
};
static_assert(sizeof(LatentEnd) == 24);

// Where a sequence's keys lie, and which of them any of the block's rows sees.
struct LatentKeys {
  const BlockId* table;
  int32_t first;
  int32_t last;

  // The block of the position of a tile that a thread copies; it is looked up a tile ahead of its copy. Beyond what is
  // seen the table may end.
  __device__ __forceinline__ BlockId block_of(const Attention& args, int32_t begin) const {
    const int32_t position = begin + static_cast<int>(threadIdx.x) / kThreadsOfKey;
    return position >= first && position <= last ? table[position / args.block_size] : 0;
  }
};

// Begins to copy positions [begin, begin + kLatentTile) as far as they are seen; zeros in place of the others, whose
// memory may hold NaN.
template <typename K>
__device__ __forceinline__ void begin_tile(const Attention& args, const LatentKeys& keys, BlockId block, int32_t begin,
                                           uint8_t* stage) {
  constexpr int kNumbers = 8;  // of 16 bytes
  const int t = static_cast<int>(threadIdx.x) / kThreadsOfKey;
  const int own = static_cast<int>(threadIdx.x) % kThreadsOfKey * kNumbers;
  uint8_t* to = stage + t * (K::kStride * 2);
  const int32_t position = begin + t;
  const bool there = position >= keys.first && position <= keys.last;
  const uint8_t* from = args.keys + block * args.block_stride + blockIdx.y * args.head_bytes +
                        int64_t{position % args.block_size} * args.head_dim * 2;
#pragma unroll
  for (int i = 0; i < K::kKeyDim; i += kThreadsOfKey * kNumbers) {
    const int d = own + i;
    if (d >= K::kKeyDim) break;
    if (there && d < args.head_dim) {
      __pipeline_memcpy_async(to + d * 2, from + d * 2, 16);
    } else {
      *reinterpret_cast<uint4*>(to + d * 2) = make_uint4(0, 0, 0, 0);
    }
  }
}

// A warp's quarter of the rows' queries, as tensor cores have them on the left.
template <typename K>
__device__ __forceinline__ void load_latent_queries(const Attention& args, const SharedRows& sharing, int quarter,
                                                    int lane, unsigned (&queries)[K::kSteps][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t r = sharing.block.first + lane / 4 + 8 * half;
    const BlockRow row = row_of(args, sharing, r);
    const float* from = args.queries + int64_t{row.token} * args.query_stride +
                        int64_t{blockIdx.y * args.group + r % args.group} * args.head_dim;
    const int size = row.query >= 0 ? args.head_dim : 0;
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = (quarter * K::kSteps + step) * 16 + 8 * i + 2 * (lane % 4);
        const float2 pair = d < size ? *reinterpret_cast<const float2*>(from + d) : make_float2(0, 0);
        queries[step][2 * i + half] = pair_of<typename K::T>(pair.x * args.query_factor, pair.y * args.query_factor);
      }
    }
  }
}

// A quarter of the queries' numbers by 16 positions of a tile -> scores, [kRows, kLatentScores], from `at` on.
template <typename K>
__device__ __forceinline__ void score_quarter(const uint8_t* tile, const unsigned (&queries)[K::kSteps][4], int quarter,
                                              int at, int lane, float* scores) {
  using T = typename K::T;
  float sums[2][2][4] = {};  // of every other step: two products that do not wait for each other
  const uint8_t* keys =
      tile + (at + lane / 16 * 8 + lane % 8) * (K::kStride * 2) + (quarter * K::kSteps * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int step = 0; step < K::kSteps; ++step) {
    unsigned matrices[4];  // of 8 positions each, first and second half of a step's numbers
    load_matrices<false>(matrices, keys + step * 32);
    multiply_16_8_16<T>(sums[step % 2][0], queries[step], matrices[0], matrices[1]);
    multiply_16_8_16<T>(sums[step % 2][1], queries[step], matrices[2], matrices[3]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile8 = 0; tile8 < 2; ++tile8) {
      *reinterpret_cast<float2*>(scores + (lane / 4 + 8 * half) * kLatentScores + at + 8 * tile8 + 2 * (lane % 4)) =
          make_float2(sums[0][tile8][2 * half] + sums[1][tile8][2 * half],
                      sums[0][tile8][2 * half + 1] + sums[1][tile8][2 * half + 1]);
    }
  }
}

// The row of a thread's softmax.
struct LatentRow {
  int32_t first;  // position that it sees; last < first: there is no such row
  int32_t last;
  Softmax part;  // `maximum` is what exponents are relative to; each thread has a sum of its own
};

// Quarters of scores -> weights; what rows' sums are to be multiplied by before them -> factors.
template <typename T>
__device__ __forceinline__ void weigh_tile(const Attention& args, LatentRow& row, int32_t begin, const float* scores,
                                           T* weights, float* factors) {
  const int index = static_cast<int>(threadIdx.x) / kLatentLanes;
  const int t = static_cast<int>(threadIdx.x) % kLatentLanes * 2;
  const float* own = scores + index * kLatentScores + t;
  float sums[2] = {};
#pragma unroll
  for (int quarter = 0; quarter < kLatentQuarters; ++quarter) {
    const float2 pair = *reinterpret_cast<const float2*>(own + quarter * (kRows * kLatentScores));
    sums[0] += pair.x;
    sums[1] += pair.y;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (args.soft_cap > 0) sums[i] = args.soft_cap * kLog2E * tanhf(sums[i] / args.soft_cap);
    if (begin + t + i < row.first || begin + t + i > row.last) sums[i] = -INFINITY;
  }
  float maximum = fmaxf(sums[0], sums[1]);
  for (int offset = kLatentLanes / 2; offset > 0; offset /= 2)
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, offset));
  const float factor = follow(row.part, maximum);
  if (t == 0) factors[index] = factor;
  // Where nothing was seen yet all scores are -inf, and their weights 0.
  const float relative_to = row.part.maximum > -INFINITY ? row.part.maximum : 0.0f;
  const T pair[2] = {rounded<T>(fast_exp2(sums[0] - relative_to)), rounded<T>(fast_exp2(sums[1] - relative_to))};
  row.part.sum += number(pair[0]) + number(pair[1]);
  unsigned bits;
  memcpy(&bits, pair, sizeof(bits));
  *reinterpret_cast<unsigned*>(weights + index * kLatentWeights + t) = bits;
}

// Adds a tile's values by their weights to a warp's sums, which are brought to the same exponents before.
template <typename K>
__device__ __forceinline__ void add_tile(const uint8_t* tile, const typename K::T* weights, const float* factors,
                                         int warp, int lane, float (&sums)[K::kColumns / 8][4]) {
  using T = typename K::T;
  const float factor[2] = {factors[lane / 4], factors[lane / 4 + 8]};
  if (__any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (auto& column : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) column[i] *= factor[i / 2];
    }
  }
#pragma unroll
  for (int t = 0; t < kLatentTile; t += 16) {
    unsigned left[4];
    load_matrices<false>(left, weights + lane % 16 * kLatentWeights + t + lane / 16 * 8);
    const uint8_t* values = tile + (t + lane % 16) * (K::kStride * 2) + (warp * K::kColumns + lane / 16 * 8) * 2;
#pragma unroll
    for (int c = 0; c < K::kColumns / 8; c += 2) {
      unsigned matrices[4];  // the first and second 8 positions of 8 numbers, then of the next
      load_matrices<true>(matrices, values + c * 16);
      multiply_16_8_16<T>(sums[c], left, matrices[0], matrices[1]);
      multiply_16_8_16<T>(sums[c + 1], left, matrices[2], matrices[3]);
    }
  }
}

// Where a thread's row goes when a split ends -> end, by the first thread of a row. total: of its splits before.
__device__ __forceinline__ void end_latent_row(const Attention& args, const SharedRows& sharing, const LatentRow& row,
                                               int32_t split, Softmax& total, LatentEnd* ends) {
  const int index = static_cast<int>(threadIdx.x) / kLatentLanes;
  Softmax part = row.part;
  for (int offset = kLatentLanes / 2; offset > 0; offset /= 2) part.sum += __shfl_xor_sync(kAllLanes, part.sum, offset);
  const int32_t rows_first = row.first / kFewSplit;
  const int32_t rows_last = row.last / kFewSplit;
  LatentEnd end = {nullptr, 0, 1, 1};
  if (row.last >= row.first && split >= rows_first && split <= rows_last) {
    const int32_t r = sharing.block.first + index;
    const BlockRow own = row_of(args, sharing, r);
    const int32_t head = static_cast<int32_t>(blockIdx.y) * args.group + r % args.group;
    if (args.num_splits > 0 && rows_first != rows_last) {
      const int64_t partial = partial_index(args, own.sequence, own.query, head, split);
      end.to = args.partial_sums + partial * args.head_dim;
      if (threadIdx.x % kLatentLanes == 0) args.partial_states[partial] = make_float2(part.maximum, part.sum);
    } else {
      end.to = args.out + (int64_t{own.token} * args.num_heads + head) * args.head_dim;
      if (split == rows_first) {
        total = part;
      } else {
        const Fold weights = fold(total, part);
        end.before = weights.before;
        end.part = weights.part;
      }
      if (split == rows_last) end.factor = final_factor(args, total, head);
    }
  }
  if (threadIdx.x % kLatentLanes == 0) ends[index] = end;
}

// The end of a split: a warp's part of each row goes to `out` or, where other blocks hold more of the row, to scratch.
template <typename K>
__device__ __forceinline__ void end_latent_split(const Attention& args, const LatentEnd* ends, int warp, int lane,
                                                 const float (&sums)[K::kColumns / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const LatentEnd end = ends[lane / 4 + 8 * half];
    if (end.to == nullptr) continue;
#pragma unroll
    for (int c = 0; c < K::kColumns / 8; ++c) {
      const int d = warp * K::kColumns + 8 * c + 2 * (lane % 4);
      if (d >= args.value_dim) break;  // numbers of a head are whole vectors: so are pairs of them
      auto* to = reinterpret_cast<float2*>(end.to + d);
      float2 x = make_float2(sums[c][2 * half], sums[c][2 * half + 1]);
      if (end.before != 0) {
        const float2 before = *to;
        x.x = fmaf(before.x, end.before, __fmul_rn(x.x, end.part));
        x.y = fmaf(before.y, end.before, __fmul_rn(x.y, end.part));
      }
      *to = make_float2(__fmul_rn(x.x, end.factor), __fmul_rn(x.y, end.factor));
    }
  }
}

// Grid as of attend_few_kernel.
template <typename K>
__global__ void __launch_bounds__(kLatentThreads, kLatentBlocks) attend_latent_kernel(const Attention args) {
  begin_kernel();
  SharedRows sharing;
  if (!find_block(args, sharing)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int quarter = warp / 2;
  auto* shared = dynamic_shared<uint8_t>();
  auto* scores = reinterpret_cast<float*>(shared + K::kScores);
  auto* weights = reinterpret_cast<typename K::T*>(shared + K::kWeights);
  auto* factors = reinterpret_cast<float*>(shared + K::kFactors);
  auto* ends = reinterpret_cast<LatentEnd*>(shared + K::kEnds);
  const auto stage = [&](int tile) { return shared + tile % kLatentStages * K::kTileBytes; };

  const LatentKeys keys = {args.block_tables + sharing.block.sequence * args.block_table_stride, sharing.first,
                           sharing.last};
  // Tiles of this block are numbered from its first position on; a split is a whole number of them.
  const int32_t begin_all = max(keys.first / kLatentTile * kLatentTile, sharing.first_split * kFewSplit);
  const int32_t end_all = min(keys.last, sharing.last_split * kFewSplit + kFewSplit - 1);
  const int num_tiles = (end_all - begin_all) / kLatentTile + 1;
  begin_tile<K>(args, keys, keys.block_of(args, begin_all), begin_all, stage(0));
  __pipeline_commit();
  BlockId block = keys.block_of(args, begin_all + kLatentTile);  // of the next tile

  unsigned queries[K::kSteps][4];
  load_latent_queries<K>(args, sharing, quarter, lane, queries);
  const int32_t position = row_of(args, sharing, sharing.block.first + thread / kLatentLanes).position;
  LatentRow row{first_seen(args, position), position, {-INFINITY, 0}};  // position: -1 where there is no row
  Softmax total = {-INFINITY, 0};                                       // of the row's splits before
  float sums[K::kColumns / 8][4] = {};

  for (int tile = 0; tile < num_tiles; ++tile) {
    const int32_t begin = begin_all + tile * kLatentTile;
    __pipeline_wait_prior(0);
    __syncthreads();  // the tile is there for all, and the one before it has been used
    if (tile + 1 < num_tiles) begin_tile<K>(args, keys, block, begin + kLatentTile, stage(tile + 1));
    __pipeline_commit();
    block = keys.block_of(args, begin + 2 * kLatentTile);
    score_quarter<K>(stage(tile), queries, quarter, warp % 2 * 16, lane, scores + quarter * (kRows * kLatentScores));
    __syncthreads();
    weigh_tile(args, row, begin, scores, weights, factors);
    __syncthreads();
    add_tile<K>(stage(tile), weights, factors, warp, lane, sums);
    if ((begin + kLatentTile) % kFewSplit != 0 && tile + 1 < num_tiles) continue;
    end_latent_row(args, sharing, row, begin / kFewSplit, total, ends);
    __syncthreads();
    end_latent_split<K>(args, ends, warp, lane, sums);
    row.part = {-INFINITY, 0};
#pragma unroll
    for (auto& column : sums) {
#pragma unroll
      for (float& sum : column) sum = 0;
    }
  }
}

// Calls body(kind) for the kind of a cache and head size; false: there is none.
template <typename Body>
bool with_latent_kind(const Attention& work, const Body& body) {
  if (!work.values_are_keys || !work.vectors_of_keys || !has_pairs_of_queries(work)) return false;
  const auto of = [&](auto format) {
    constexpr DType kFormat = decltype(format)::value;
    if (work.head_dim <= 320 && work.value_dim <= 256) return body(LatentKind<kFormat, 320, 256>());
    return work.head_dim <= 576 && work.value_dim <= 512 && body(LatentKind<kFormat, 576, 512>());
  };
  if (work.dtype == DType::kF16) return of(std::integral_constant<DType, DType::kF16>());
  return work.dtype == DType::kBF16 && of(std::integral_constant<DType, DType::kBF16>());
}

}  // namespace

bool has_latent_kernel(const Attention& work) {
  return with_latent_kind(work, [](auto kind) { return has_shared(decltype(kind)::kBytes); });
}

void attend_latent(const Attention& work, dim3 grid, cudaStream_t stream) {
  const bool known = with_latent_kind(work, [&](auto kind) {
    using K = decltype(kind);
    start_attention(attend_latent_kernel<K>, K::kBytes, work, grid, kLatentThreads, stream);
    return true;
  });
  QUIRE_CHECK(known);
}

}  // namespace quire::ops::cuda
