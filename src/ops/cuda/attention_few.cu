// Attention of few rows to many positions with tensor cores: decoding with heads of more than 128 numbers
// (attention_decode.cu has the others), and latent attention of caches of 8 bits (attention_latent.cu has those of 16).
// What counts here is that keys and values arrive at the speed of memory: a block takes 16 rows (heads of queries of
// one kv head; tensor cores have no fewer, and with fewer they are still not what is waited for) and goes through
// positions in tiles of 64, the next of which is copied to shared memory while one is used. The rows are of one
// sequence or, in a split that several share (ops::SpanPlace), of as many of those as there is room for: one row's
// results do not depend on what the others are. Caches of 16 bits are multiplied as they lie; those of 8-bit floats
// become F16 in shared memory.
//
// A warp scores a quarter of a tile's positions, then sums a quarter of the values' numbers. The softmax is that of
// attention_tiles.cu. Positions are cut into splits of kFewSplit; each is summed from nothing and folded into the row's
// total in order, by the block that goes on (`whole`) or by fold_splits(), so that the two give the same bits.
#include <cuda_pipeline_primitives.h>
#include <mma.h>

#include "base/check.h"
#include "ops/cuda/attention_rows.cuh"

namespace quire::ops::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kRows = kFewRowsOfBlock;
constexpr int kTile = 64;  // positions
constexpr int kFragment = 16;
constexpr int kStages = 2;  // tiles in shared memory: one is used, one arrives
constexpr int kScoreStride = kTile + 4;
constexpr int kWeightStride = kTile + 8;
constexpr int kMovedStride = kFragment + 4;
constexpr int kLanesOfRow = kThreads / kRows;  // of the softmax: a row has 8 neighbouring lanes
constexpr int kEach = kTile / kLanesOfRow;     // positions of a lane

// What a block multiplies, and how its tiles lie in the cache. kShared: values are keys.
template <DType kFormat_, int kHeadDim_, bool kShared_>
struct Kind {
  using Code = typename KvFormat<kFormat_>::Code;
  using T = std::conditional_t<kFormat_ == DType::kBF16, __nv_bfloat16, __half>;
  using Format = std::integral_constant<DType, kFormat_>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kShared = kShared_;
  static constexpr bool kConverts = sizeof(Code) == 1;
  static constexpr int kParts = kShared ? 1 : 2;                             // tiles of a stage: keys, values
  static constexpr int kStride = kHeadDim + 8;                               // of rows of T
  static constexpr int kCopiedStride = kConverts ? kHeadDim + 16 : kStride;  // of rows of codes, as they are copied
  static constexpr int kFragments = kHeadDim / kFragment / kWarps;           // of a warp's sums

  // Shared memory, in bytes from its beginning.
  static constexpr int kQueries = 0;
  static constexpr int kCopied = kQueries + kRows * kStride * 2;
  static constexpr int kCopiedBytes = kTile * kCopiedStride * static_cast<int>(sizeof(Code));
  static constexpr int kConverted = kCopied + kStages * kParts * kCopiedBytes;
  static constexpr int kScores = kConverted + (kConverts ? kParts * kTile * kStride * 2 : 0);
  static constexpr int kWeights = kScores + kRows * kScoreStride * 4;
  static constexpr int kMoved = kWeights + kRows * kWeightStride * 2;
  static constexpr int kFactors = kMoved + kWarps * kFragment * kMovedStride * 4;
  static constexpr int kBlockRows = kFactors + kRows * 4;
  static constexpr int kBytes = kBlockRows + kRows * static_cast<int>(sizeof(BlockRow));
  static_assert(kHeadDim % (kFragment * kWarps) == 0);
};

// Begins to copy the codes of positions [begin, begin + kTile) that lie in [first, last]; zeros in place of the others,
// whose memory may hold NaN.
template <typename K>
__device__ void begin_copy(const Attention& args, const BlockId* table, int32_t begin, int32_t first, int32_t last,
                           uint8_t* stage) {
  using Code = typename K::Code;
  constexpr int kCodes = 16 / static_cast<int>(sizeof(Code));
  constexpr int kThreadsOfToken = kThreads / kTile;
  const int t = static_cast<int>(threadIdx.x) / kThreadsOfToken;
  const int from = static_cast<int>(threadIdx.x) % kThreadsOfToken * kCodes;
  const bool there = begin + t >= first && begin + t <= last;
  for (int part = 0; part < K::kParts; ++part) {
    auto* to = reinterpret_cast<Code*>(stage + part * K::kCopiedBytes) + t * K::kCopiedStride;
    if (!there) {
      for (int d = from; d < args.head_dim; d += kThreadsOfToken * kCodes)
        *reinterpret_cast<uint4*>(to + d) = make_uint4(0, 0, 0, 0);
      continue;
    }
    const Slot slot = slot_of(args, part == 0 ? args.keys : args.values, table, begin + t);
    const auto* codes = reinterpret_cast<const Code*>(slot.head) + slot.token * args.head_dim;
    for (int d = from; d < args.head_dim; d += kThreadsOfToken * kCodes) __pipeline_memcpy_async(to + d, codes + d, 16);
  }
  __pipeline_commit();
}

// Codes of 8 bits -> T.
template <typename K>
__device__ void convert(const uint8_t* stage, typename K::T* tiles) {
  constexpr int kVectors = K::kHeadDim / 16;
  for (int i = static_cast<int>(threadIdx.x); i < K::kParts * kTile * kVectors; i += kThreads) {
    const int row = i / kVectors;  // of all tiles
    const int d = i % kVectors * 16;
    const uint4 codes = *reinterpret_cast<const uint4*>(stage + row * K::kCopiedStride + d);
    static_assert(K::kStride * 2 % 16 == 0);
    auto* to = reinterpret_cast<uint4*>(tiles + row * K::kStride + d);
    if constexpr (K::Format::value == DType::kF8E4M3) {
      to[0] = make_uint4(halves_of_float8(codes.x & 0xffffu), halves_of_float8(codes.x >> 16),
                         halves_of_float8(codes.y & 0xffffu), halves_of_float8(codes.y >> 16));
      to[1] = make_uint4(halves_of_float8(codes.z & 0xffffu), halves_of_float8(codes.z >> 16),
                         halves_of_float8(codes.w & 0xffffu), halves_of_float8(codes.w >> 16));
    } else {  // the upper bytes of halves
      static_assert(K::Format::value == DType::kF8E5M2);
      to[0] = make_uint4(__byte_perm(codes.x, 0, 0x1404), __byte_perm(codes.x, 0, 0x3424),
                         __byte_perm(codes.y, 0, 0x1404), __byte_perm(codes.y, 0, 0x3424));
      to[1] = make_uint4(__byte_perm(codes.z, 0, 0x1404), __byte_perm(codes.z, 0, 0x3424),
                         __byte_perm(codes.w, 0, 0x1404), __byte_perm(codes.w, 0, 0x3424));
    }
  }
}

// Sums of kRows rows by a quarter of the values' numbers.
template <typename K>
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>[K::kFragments];

// The row of a lane's softmax.
struct LaneRow {
  int32_t first;  // position that it sees; last < first: there is no such row
  int32_t last;
  Softmax total;  // `maximum` is what exponents are relative to; each lane has a sum of its own
};

// Scores of a tile -> weights; what rows' sums are to be multiplied by before them -> factors.
template <typename T>
__device__ void weigh(const Attention& args, LaneRow& row, int32_t begin, float* scores, T* weights, float* factors) {
  const int index = static_cast<int>(threadIdx.x) / kLanesOfRow;
  const int part = static_cast<int>(threadIdx.x) % kLanesOfRow;
  float mine[kEach];
  float maximum = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = part + i * kLanesOfRow;
    float score = scores[index * kScoreStride + t];
    if (args.soft_cap > 0) score = args.soft_cap * kLog2E * tanhf(score / args.soft_cap);
    mine[i] = begin + t >= row.first && begin + t <= row.last ? score : -INFINITY;
    maximum = fmaxf(maximum, mine[i]);
  }
  for (int offset = kLanesOfRow / 2; offset > 0; offset /= 2)
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, offset));
  const float factor = follow(row.total, maximum);
  if (part == 0) factors[index] = factor;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const T weight = rounded<T>(mine[i] > -INFINITY ? exp2f(mine[i] - row.total.maximum) : 0.0f);
    weights[index * kWeightStride + part + i * kLanesOfRow] = weight;
    row.total.sum += number(weight);
  }
}

// Calls body(i, j, sum) for every sum of a fragment: row i, number j of the fragment's; the sum may be changed.
template <typename Fragment, typename Body>
__device__ void for_sums(Fragment& sums, float* moved, int lane, const Body& body) {
  __syncwarp();
  wmma::store_matrix_sync(moved, sums, kMovedStride, wmma::mem_row_major);
  __syncwarp();
  for (int i = lane; i < kFragment * kFragment; i += kWarp)
    body(i / kFragment, i % kFragment, moved[i / kFragment * kMovedStride + i % kFragment]);
  __syncwarp();
}

// Where things lie in a block's shared memory. moved: the warp's own.
template <typename K>
struct Places {
  using T = typename K::T;
  uint8_t* shared = dynamic_shared<uint8_t>();
  T* queries = reinterpret_cast<T*>(shared + K::kQueries);
  float* scores = reinterpret_cast<float*>(shared + K::kScores);
  T* weights = reinterpret_cast<T*>(shared + K::kWeights);
  float* moved =
      reinterpret_cast<float*>(shared + K::kMoved) + static_cast<int>(threadIdx.x) / kWarp * kFragment * kMovedStride;
  float* factors = reinterpret_cast<float*>(shared + K::kFactors);
  BlockRow* rows = reinterpret_cast<BlockRow*>(shared + K::kBlockRows);

  __device__ __forceinline__ uint8_t* stage(int tile) const {
    return shared + K::kCopied + tile % kStages * K::kParts * K::kCopiedBytes;
  }
};

// The rows' queries, scaled and rounded. REQUIRES: at.rows is filled.
template <typename K>
__device__ __forceinline__ void load_queries(const Attention& args, const SharedRows& sharing, const Places<K>& at) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * K::kHeadDim; i += kThreads) {
    const int d = i % K::kHeadDim;
    const int32_t r = sharing.block.first + i / K::kHeadDim;
    const BlockRow& source = at.rows[i / K::kHeadDim];
    float x = 0;
    if (source.query >= 0 && d < args.head_dim) {
      x = args.queries[int64_t{source.token} * args.query_stride +
                       int64_t{blockIdx.y * args.group + r % args.group} * args.head_dim + d];
    }
    at.queries[i / K::kHeadDim * K::kStride + d] = rounded<typename K::T>(x * args.query_factor);
  }
}

// Scores of all rows and a warp's quarter of a tile's positions.
template <typename K>
__device__ __forceinline__ void score(const Places<K>& at, const typename K::T* keys, int warp) {
  using T = typename K::T;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> score;
  wmma::fill_fragment(score, 0.0f);
#pragma unroll
  for (int d = 0; d < K::kHeadDim; d += kFragment) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b;
    wmma::load_matrix_sync(a, at.queries + d, K::kStride);
    wmma::load_matrix_sync(b, keys + warp * kFragment * K::kStride + d, K::kStride);
    wmma::mma_sync(score, a, b, score);
  }
  wmma::store_matrix_sync(at.scores + warp * kFragment, score, kScoreStride, wmma::mem_row_major);
}

// Adds a tile's values by their weights to the sums, which are brought to the same exponents before.
template <typename K>
__device__ __forceinline__ void add_values(const Places<K>& at, const typename K::T* values, int warp, int lane,
                                           Sums<K>& sums) {
  using T = typename K::T;
  if (__any_sync(kAllLanes, at.factors[lane % kRows] != 1)) {
#pragma unroll
    for (auto& sum : sums) {
      for_sums(sum, at.moved, lane, [&](int i, int, float& x) { x *= at.factors[i]; });
      wmma::load_matrix_sync(sum, at.moved, kMovedStride, wmma::mem_row_major);
    }
  }
#pragma unroll
  for (int t = 0; t < kTile; t += kFragment) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
    wmma::load_matrix_sync(a, at.weights + t, kWeightStride);
#pragma unroll
    for (int f = 0; f < K::kFragments; ++f) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> b;
      wmma::load_matrix_sync(b, values + t * K::kStride + (warp * K::kFragments + f) * kFragment, K::kStride);
      wmma::mma_sync(sums[f], a, b, sums[f]);
    }
  }
}

// What becomes of a row's sums at the end of a split: to = (to * before + sum * part) * factor.
struct RowEnd {
  float* to;  // nullptr: nowhere
  float before, part, factor;
};

// That of the lane's row -> ends. total: of its splits before.
template <typename K>
__device__ __forceinline__ void end_row(const Attention& args, const SharedRows& sharing, const Places<K>& at,
                                        const LaneRow& row, int32_t split, Softmax& total, RowEnd* ends) {
  const int thread = static_cast<int>(threadIdx.x);
  Softmax part = row.total;
  for (int offset = kLanesOfRow / 2; offset > 0; offset /= 2) part.sum += __shfl_xor_sync(kAllLanes, part.sum, offset);
  const int32_t rows_first = row.first / kFewSplit;
  const int32_t rows_last = row.last / kFewSplit;
  const bool takes_part = row.last >= row.first && split >= rows_first && split <= rows_last;
  const bool to_scratch = args.num_splits > 0 && rows_first != rows_last;
  const BlockRow own = at.rows[thread / kLanesOfRow];
  const auto head =
      static_cast<int32_t>(blockIdx.y) * args.group + (sharing.block.first + thread / kLanesOfRow) % args.group;
  const int64_t partial =
      takes_part && to_scratch ? partial_index(args, own.sequence, own.query, head, split) : int64_t{0};
  Fold fold_weights = {0, 1};
  float factor = 1;
  if (takes_part && !to_scratch) {
    if (split == rows_first) {
      total = part;
    } else {
      fold_weights = fold(total, part);
    }
    if (split == rows_last) factor = final_factor(args, total, head);
  }
  if (takes_part && to_scratch && thread % kLanesOfRow == 0)
    args.partial_states[partial] = make_float2(part.maximum, part.sum);
  if (thread % kLanesOfRow == 0) {
    float* out = args.out + (int64_t{own.token} * args.num_heads + head) * args.head_dim;
    if (takes_part && to_scratch) out = args.partial_sums + partial * args.head_dim;
    ends[thread / kLanesOfRow] = {takes_part ? out : nullptr, fold_weights.before, fold_weights.part, factor};
  }
}

// The end of a split: its part of each row goes to `out` or, where other blocks hold more of the row, to scratch.
template <typename K>
__device__ __forceinline__ void end_split(const Attention& args, const SharedRows& sharing, const Places<K>& at,
                                          const LaneRow& row, int32_t split, int warp, int lane, Softmax& total,
                                          Sums<K>& sums) {
  // Lanes that hold sums learn of their rows through shared memory.
  auto* ends = reinterpret_cast<RowEnd*>(at.scores);
  end_row(args, sharing, at, row, split, total, ends);
  __syncthreads();
#pragma unroll
  for (int f = 0; f < K::kFragments; ++f) {
    for_sums(sums[f], at.moved, lane, [&](int i, int j, float& sum) {
      const RowEnd end = ends[i];
      const int d = (warp * K::kFragments + f) * kFragment + j;
      if (end.to == nullptr || d >= args.head_dim) return;
      float x = sum;
      if (end.before != 0) x = fmaf(end.to[d], end.before, __fmul_rn(x, end.part));
      end.to[d] = __fmul_rn(x, end.factor);
    });
  }
}

// Grid of `whole`: (num_tokens * group / kRows + num_sequences, kv heads); of `split`: (sequences * tiles, kv heads,
// splits).
template <typename K>
__global__ void __launch_bounds__(kThreads) attend_few_kernel(const Attention args) {
  begin_kernel();
  using T = typename K::T;
  SharedRows sharing;
  if (!find_block(args, sharing)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int32_t first = sharing.first;
  const int32_t last = sharing.last;
  const Places<K> at;
  const BlockId* table = args.block_tables + sharing.block.sequence * args.block_table_stride;

  // Tiles of this block are numbered from its first position on; a split is a whole number of them.
  const int32_t begin_all = max(first / kTile * kTile, sharing.first_split * kFewSplit);
  const int32_t end_all = min(last, sharing.last_split * kFewSplit + kFewSplit - 1);
  const int num_tiles = (end_all - begin_all) / kTile + 1;

  // What a head has less than kHeadDim numbers stays zero.
  for (int i = thread; i < (K::kScores - K::kCopied) / 16; i += kThreads)
    reinterpret_cast<uint4*>(at.shared + K::kCopied)[i] = make_uint4(0, 0, 0, 0);
  if (thread < kRows) at.rows[thread] = row_of(args, sharing, sharing.block.first + thread);
  __syncthreads();
  begin_copy<K>(args, table, begin_all, first, last, at.stage(0));
  load_queries(args, sharing, at);

  const int32_t position = at.rows[thread / kLanesOfRow].position;  // -1 where there is no row
  LaneRow row{first_seen(args, position), position, {-INFINITY, 0}};
  Softmax total = {-INFINITY, 0};  // of the row's splits before
  Sums<K> sums;

  for (int tile = 0; tile < num_tiles; ++tile) {
    const int32_t begin = begin_all + tile * kTile;
    if (begin % kFewSplit == 0 || tile == 0) {
      row.total = {-INFINITY, 0};
#pragma unroll
      for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);
    }
    __syncthreads();  // the tile before has been used, and with it the stage that the next is copied to
    if (tile + 1 < num_tiles) {
      begin_copy<K>(args, table, begin + kTile, first, last, at.stage(tile + 1));
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();
    const T* keys = reinterpret_cast<const T*>(at.stage(tile));
    if constexpr (K::kConverts) {
      auto* converted = reinterpret_cast<T*>(at.shared + K::kConverted);
      convert<K>(at.stage(tile), converted);
      keys = converted;
      __syncthreads();
    }
    const T* values = keys + (K::kShared ? 0 : kTile * K::kStride);
    score(at, keys, warp);
    __syncthreads();
    weigh(args, row, begin, at.scores, at.weights, at.factors);
    __syncthreads();
    add_values(at, values, warp, lane, sums);
    if ((begin + kTile) % kFewSplit != 0 && tile + 1 < num_tiles) continue;
    end_split(args, sharing, at, row, begin / kFewSplit, warp, lane, total, sums);
  }
}

// Calls body(kind) for the kind of a cache and head size; false: there is none.
template <DType kFormat, typename Body>
bool with_kind_of(const Attention& work, const Body& body) {
  if (!work.values_are_keys) return work.head_dim <= 256 && body(Kind<kFormat, 256, false>());
  if constexpr (kFormat == DType::kF8E4M3 || kFormat == DType::kF8E5M2) {
    if (work.head_dim <= 320) return body(Kind<kFormat, 320, true>());
    return work.head_dim <= 576 && body(Kind<kFormat, 576, true>());
  }
  return false;
}
template <typename Body>
bool with_kind(const Attention& work, const Body& body) {
  if (!work.vectors_of_keys || (!work.values_are_keys && !work.vectors_of_values)) return false;
  if (work.dtype == DType::kF16) return with_kind_of<DType::kF16>(work, body);
  if (work.dtype == DType::kBF16) return with_kind_of<DType::kBF16>(work, body);
  if (work.dtype == DType::kF8E4M3) return with_kind_of<DType::kF8E4M3>(work, body);
  return work.dtype == DType::kF8E5M2 && with_kind_of<DType::kF8E5M2>(work, body);
}

}  // namespace

bool has_few_kernel(const Attention& work) {
  if (has_decode_heads(work)) return has_decode_kernel(work);
  if (has_latent_kernel(work)) return true;
  return with_kind(work, [](auto kind) { return has_shared(decltype(kind)::kBytes); });
}

void attend_few(const Attention& work, dim3 grid, cudaStream_t stream) {
  if (has_decode_heads(work)) return attend_decode(work, grid, stream);
  if (has_latent_kernel(work)) return attend_latent(work, grid, stream);
  const bool known = with_kind(work, [&](auto kind) {
    using K = decltype(kind);
    start_attention(attend_few_kernel<K>, K::kBytes, work, grid, kThreads, stream);
    return true;
  });
  QUIRE_CHECK(known);
}

}  // namespace quire::ops::cuda
