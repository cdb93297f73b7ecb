// Attention of few rows to many positions with tensor cores, of heads of up to 128 numbers: what decoding does. As in
// attention_few.cu, which takes wider heads, a block has 16 rows and cuts positions into splits of kFewSplit, each
// summed from nothing and folded into a row's total in order. Here the warps of a block wait for each other only where
// a split ends: each goes through positions of its own, every fourth 16 (of 8-bit caches 32) of them, which it copies
// to shared memory by itself, one or two such pieces ahead. Scores stay in the registers in which they become the
// weights of the values.
//
// Codes of 8-bit floats become F16 in registers. Their numbers are multiplied in another order than they lie in, which
// a product does not show as long as queries have the same; and so columns of the sums are put back in theirs.
#include "base/check.h"
#include "ops/cuda/attention_pieces.cuh"
#include "ops/cuda/attention_rows.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kRows = kFewRowsOfBlock;

// What a block multiplies. A piece lies in shared memory as its keys and then its values.
template <DType kFormat_, int kHeadDim_>
struct DecodeKind : PieceLayout<kFormat_, kHeadDim_> {
  using Layout = PieceLayout<kFormat_, kHeadDim_>;
  using Layout::kHeadDim;
  using Layout::kPartBytes;
  using Layout::kPositions;
  using T = std::conditional_t<kFormat_ == DType::kBF16, __nv_bfloat16, __half>;
  static constexpr int kStageBytes = 2 * kPartBytes;
  // Pieces of a warp in shared memory, and blocks of a processor: what is on the way at once is a piece or two of each
  // of 12 or 16 warps, some 100 KB, and what is waited for besides (a product's 33 cycles, exchanges between lanes) is
  // hidden by three or four warps of a scheduler.
  static constexpr int kStages = kHeadDim <= 64 ? 3 : 2;
  static constexpr int kBlocksOfProcessor = kHeadDim <= 64 ? 4 : 3;
  static constexpr int kTiles = kPositions / 8;  // of 8 positions
  static constexpr int kColumns = kHeadDim / 8;  // of 8 numbers of the sums
  // A warp's sums of a split have the room of a piece.
  static_assert(kRows * kHeadDim * 4 == kStageBytes);

  static constexpr int kStates = kWarps * kStages * kStageBytes;
  static constexpr int kEnds = kStates + kWarps * kRows * static_cast<int>(sizeof(Softmax));
  struct RowEnd {
    float* to;                   // nullptr: to the block's totals, or nowhere
    bool sees;                   // anything of the split
    float before, part, factor;  // weights of what came before and of this split; in the end
    float warps[kWarps];         // weights of the warps' sums
  };
  static constexpr int kTotals = kEnds + kRows * static_cast<int>(sizeof(RowEnd));  // float [kRows, kHeadDim]
  static constexpr int kBytes = kTotals + kRows * kHeadDim * 4;
};

// What a lane has of the rows' softmax: rows lane / 4 and lane / 4 + 8.
struct LaneRows {
  int32_t first[2];  // positions that they see; all of them where there is no such row
  int32_t last[2];
  int32_t all_first;  // what all rows of the block see
  int32_t all_last;
  Softmax part[2];   // `maximum` is what exponents are relative to; `sum` is not used
  float weights[4];  // tensor cores add up weights too: of the first row twice, of the second twice
};

// As begin_part(), of keys and values, of any heads and blocks.
template <typename K>
__device__ void begin_any_piece(const Attention& args, const Cached& cached, int32_t begin, int32_t first, int32_t last,
                                uint8_t* stage) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int vector = lane % K::kVectors;
  const bool in_head = (vector + 1) * kVectorBytes <= cached.row_bytes;
#pragma unroll 1
  for (int t = lane / K::kVectors; t < K::kPositions; t += K::kAtOnce) {
    const int32_t position = begin + t;
    uint8_t* to = stage + K::at(t, vector);
    if (in_head && position >= first && position <= last) {
      const int64_t from = cached.at(args, position) + vector * kVectorBytes;
      __pipeline_memcpy_async(to, cached.keys + from, kVectorBytes);
      __pipeline_memcpy_async(to + K::kPartBytes, cached.values + from, kVectorBytes);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(to + K::kPartBytes) = make_uint4(0, 0, 0, 0);
    }
  }
}

// What a warp goes through: pieces are numbered from the block's first split on; those that no row sees are gone over.
template <typename K>
struct Pieces {
  const Attention& args;
  const Cached& cached;
  uint8_t* shared;
  int warp;
  int32_t first;  // positions that are seen
  int32_t last;
  int32_t begin_all;
  int count;
  bool whole_heads;
  PieceBlocks<K> blocks;  // of the piece that is copied next

  __device__ __forceinline__ Pieces(const Attention& attention, const Cached& codes, const SharedRows& sharing,
                                    uint8_t* memory, int own)
      : args(attention),
        cached(codes),
        shared(memory),
        warp(own),
        first(sharing.first),
        last(sharing.last),
        begin_all(sharing.first_split * kFewSplit + own * K::kPositions),
        count((sharing.last_split - sharing.first_split + 1) * (K::kPiecesOfSplit / kWarps)),
        whole_heads(codes.shift >= 0 && attention.head_dim == K::kHeadDim) {}

  __device__ __forceinline__ int32_t begin_of(int piece) const { return begin_all + piece * (kWarps * K::kPositions); }
  __device__ __forceinline__ bool is_seen(int32_t begin) const {
    return begin <= last && begin + K::kPositions > first;
  }
  __device__ __forceinline__ uint8_t* stage(int of_warp, int piece) const {
    return shared + (of_warp * K::kStages + piece % K::kStages) * K::kStageBytes;
  }
  __device__ __forceinline__ void look_up(int piece) {
    if (whole_heads) blocks.look_up(cached, begin_of(piece), first, last);
  }
  __device__ __forceinline__ void begin_copy(int piece) const {
    const int32_t begin = begin_of(piece);
    if (piece < count && is_seen(begin)) {
      if (whole_heads) {
        uint8_t* to = stage(warp, piece);
        begin_part<K>(args, cached, cached.keys, blocks, begin, first, last, to);
        begin_part<K>(args, cached, cached.values, blocks, begin, first, last, to + K::kPartBytes);
      } else {
        begin_any_piece<K>(args, cached, begin, first, last, stage(warp, piece));
      }
    }
    __pipeline_commit();
  }
};

// Queries of a lane's rows in the order in which tensor cores multiply them by keys.
template <typename K>
__device__ void load_queries(const Attention& args, const SharedRows& sharing, const BlockRow (&rows)[2], int lane,
                             unsigned (&queries)[K::kSteps][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = sharing.block.first + lane / 4 + 8 * half;
    const float* from = args.queries + int64_t{rows[half].token} * args.query_stride +
                        int64_t{blockIdx.y * args.group + r % args.group} * args.head_dim;
    const int size = rows[half].query >= 0 ? args.head_dim : 0;
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Of 8-bit codes a lane reads vector lane % 4 of each four, and multiplies four codes of it a step.
        const int d =
            K::kConverts ? 16 * (lane % 4 + step / 4 * 4) + 4 * (step % 4) + 2 * i : 16 * step + 8 * i + 2 * (lane % 4);
        const float2 pair = d < size ? *reinterpret_cast<const float2*>(from + d) : make_float2(0, 0);
        queries[step][2 * i + half] = pair_of<typename K::T>(pair.x * args.query_factor, pair.y * args.query_factor);
      }
    }
  }
}

template <typename K>
__device__ void score(const uint8_t* keys, const unsigned (&queries)[K::kSteps][4], int lane,
                      float (&scores)[K::kTiles][4]) {
  if constexpr (K::kConverts) {
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile) {
#pragma unroll
      for (int v = 0; v < K::kVectors; v += 4) {
        const uint4 codes = *reinterpret_cast<const uint4*>(keys + K::at(8 * tile + lane / 4, v + lane % 4));
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned first;
          unsigned second;
          halves_of<K::kFormat>(words[i], first, second);
          multiply_16_8_16<typename K::T>(scores[tile], queries[v + i], first, second);
        }
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
      unsigned matrices[4];  // of 8 positions each, first and second half of a step's numbers
      load_matrices<false>(matrices, keys + K::at(lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
      multiply_16_8_16<typename K::T>(scores[0], queries[step], matrices[0], matrices[1]);
      multiply_16_8_16<typename K::T>(scores[1], queries[step], matrices[2], matrices[3]);
    }
  }
}

// Scores -> weights, in pairs as tensor cores have them on the left; sums of what came before are brought to the same
// exponents.
template <typename K>
__device__ void weigh(const Attention& args, LaneRows& rows, int32_t begin, bool any_upper, int lane,
                      float (&scores)[K::kTiles][4], unsigned (&weights)[K::kTiles / 2][4],
                      float (&sums)[K::kColumns][4]) {
  using T = typename K::T;
  if (args.soft_cap > 0) cap(args, scores);
  if (begin < rows.all_first || begin + K::kPositions - 1 > rows.all_last) {
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t position = begin + 8 * tile + 2 * (lane % 4) + i % 2;
        if (position < rows.first[i / 2] || position > rows.last[i / 2]) scores[tile][i] = -INFINITY;
      }
    }
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && !any_upper) {
      factors[1] = 1;
#pragma unroll
      for (auto& four : weights) four[1] = four[3] = 0;
      break;
    }
    float maximum = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile)
      maximum = fmaxf(maximum, fmaxf(scores[tile][2 * half], scores[tile][2 * half + 1]));
    for (int offset = 2; offset > 0; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, offset));
    factors[half] = follow(rows.part[half], maximum);
    // Where nothing was seen yet all scores are -inf, and their weights 0.
    const float relative_to = rows.part[half].maximum > -INFINITY ? rows.part[half].maximum : 0.0f;
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile) {
      weights[tile / 2][tile % 2 * 2 + half] = pair_of<T>(fast_exp2(scores[tile][2 * half] - relative_to),
                                                          fast_exp2(scores[tile][2 * half + 1] - relative_to));
    }
  }
  if (__any_sync(kAllLanes, factors[0] != 1 || factors[1] != 1)) {
#pragma unroll
    for (auto& column : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) column[i] *= factors[i / 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.weights[i] *= factors[i / 2];
  }
#pragma unroll
  for (const auto& step : weights) multiply_16_8_16<T>(rows.weights, step, kPairOfOnes<T>, kPairOfOnes<T>);
}

template <typename K>
__device__ void add_values(const uint8_t* values, const unsigned (&weights)[K::kTiles / 2][4], int lane,
                           float (&sums)[K::kColumns][4]) {
  using T = typename K::T;
#pragma unroll
  for (int v = 0; v < K::kVectors; ++v) {
    unsigned matrices[4];
    if constexpr (K::kConverts) {
      // Of 8 positions each; a pair of codes, of neighbouring numbers of a head, moves as one of 16 bits.
      load_matrices<true>(matrices, values + K::at(lane, v));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        unsigned codes[2][2];  // of even and odd numbers; of the step's first and second 8 positions
#pragma unroll
        for (int i = 0; i < 2; ++i)
          halves_of<K::kFormat>(__byte_perm(matrices[2 * k + i], 0, 0x3120), codes[0][i], codes[1][i]);
        multiply_16_8_16<T>(sums[2 * v], weights[k], codes[0][0], codes[0][1]);
        multiply_16_8_16<T>(sums[2 * v + 1], weights[k], codes[1][0], codes[1][1]);
      }
    } else if (v % 2 == 0) {
      // The first and second 8 positions of one vector, then of the next.
      load_matrices<true>(matrices, values + K::at(lane % 16, v + lane / 16));
      multiply_16_8_16<T>(sums[v], weights[0], matrices[0], matrices[1]);
      multiply_16_8_16<T>(sums[v + 1], weights[0], matrices[2], matrices[3]);
    }
  }
}

// The sums of a warp's split -> memory, [kRows, kHeadDim].
template <typename K>
__device__ void store_sums(const float (&sums)[K::kColumns][4], bool any_upper, int lane, float* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && !any_upper) break;
    float* row = to + (lane / 4 + 8 * half) * K::kHeadDim;
#pragma unroll
    for (int c = 0; c < K::kColumns; ++c) {
      if constexpr (K::kConverts) {
        if (c % 2 == 1) continue;
        *reinterpret_cast<float4*>(row + 8 * c + 4 * (lane % 4)) =
            make_float4(sums[c][2 * half], sums[c + 1][2 * half], sums[c][2 * half + 1], sums[c + 1][2 * half + 1]);
      } else {
        *reinterpret_cast<float2*>(row + 8 * c + 2 * (lane % 4)) =
            make_float2(sums[c][2 * half], sums[c][2 * half + 1]);
      }
    }
  }
}

// Where a row's part of a split goes, by the row's own thread, and by which weights.
template <typename K>
__device__ typename K::RowEnd end_of_row(const Attention& args, const BlockRow& row, int32_t r, int32_t split,
                                         const Softmax* states, Softmax& total) {
  typename K::RowEnd end = {nullptr, false, 0, 1, 1, {}};
  const int32_t first = first_seen(args, row.position);
  if (row.query < 0 || row.position < first) return end;
  const int32_t first_split = first / kFewSplit;
  const int32_t last_split = row.position / kFewSplit;
  if (split < first_split || split > last_split) return end;
  end.sees = true;

  Softmax part = {-INFINITY, 0};
  for (int w = 0; w < kWarps; ++w) part.maximum = fmaxf(part.maximum, states[w * kRows].maximum);
  for (int w = 0; w < kWarps; ++w) {
    const Softmax state = states[w * kRows];
    end.warps[w] = state.maximum > -INFINITY ? exp2f(state.maximum - part.maximum) : 0.0f;
    part.sum = fmaf(state.sum, end.warps[w], part.sum);
  }
  const int32_t head = static_cast<int32_t>(blockIdx.y) * args.group + r % args.group;
  if (args.num_splits > 0 && first_split != last_split) {
    const int64_t partial = partial_index(args, row.sequence, row.query, head, split);
    args.partial_states[partial] = make_float2(part.maximum, part.sum);
    end.to = args.partial_sums + partial * args.head_dim;
    return end;
  }
  if (split == first_split) {
    total = part;
  } else {
    const Fold weights = fold(total, part);
    end.before = weights.before;
    end.part = weights.part;
  }
  if (split < last_split) return end;
  end.factor = final_factor(args, total, head);
  end.to = args.out + (int64_t{row.token} * args.num_heads + head) * args.head_dim;
  return end;
}

// The warps' sums together, to where each row's go. totals: of the splits before, [kRows, kHeadDim].
template <typename K>
__device__ void end_split(const Attention& args, const typename K::RowEnd* ends, const uint8_t* sums_of_warp[kWarps],
                          float* totals) {
  constexpr int kQuads = K::kHeadDim / 4;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kQuads; i += kThreads) {
    const typename K::RowEnd& end = ends[i / kQuads];
    const int d = i % kQuads * 4;
    if (!end.sees || d >= args.head_dim) continue;
    float x[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 one = reinterpret_cast<const float4*>(sums_of_warp[w])[i];
      const float weight = end.warps[w];
      x[0] = fmaf(one.x, weight, x[0]);
      x[1] = fmaf(one.y, weight, x[1]);
      x[2] = fmaf(one.z, weight, x[2]);
      x[3] = fmaf(one.w, weight, x[3]);
    }
    float4& total = reinterpret_cast<float4*>(totals)[i];
    if (end.before != 0) {
      const float4 before = total;
      x[0] = fmaf(before.x, end.before, __fmul_rn(x[0], end.part));
      x[1] = fmaf(before.y, end.before, __fmul_rn(x[1], end.part));
      x[2] = fmaf(before.z, end.before, __fmul_rn(x[2], end.part));
      x[3] = fmaf(before.w, end.before, __fmul_rn(x[3], end.part));
    }
    if (end.to == nullptr) {
      total = make_float4(x[0], x[1], x[2], x[3]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (d + j < args.head_dim) end.to[d + j] = __fmul_rn(x[j], end.factor);
    }
  }
}

// The lane's two rows, of which nothing has been summed.
__device__ __forceinline__ LaneRows begin_rows(const Attention& args, const BlockRow (&rows)[2]) {
  LaneRows own;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t position = rows[half].position;
    own.last[half] = position < 0 ? kAllPositions : position;
    own.first[half] = position < 0 ? 0 : first_seen(args, position);
    own.part[half] = {-INFINITY, 0};
  }
  for (float& weight : own.weights) weight = 0;
  own.all_first = max(own.first[0], own.first[1]);
  own.all_last = min(own.last[0], own.last[1]);
  for (int offset = 4; offset < kWarp; offset *= 2) {
    own.all_first = max(own.all_first, __shfl_xor_sync(kAllLanes, own.all_first, offset));
    own.all_last = min(own.all_last, __shfl_xor_sync(kAllLanes, own.all_last, offset));
  }
  return own;
}

// A warp's part of a split -> memory: its sums to `to`, its rows' states to `states`. The next split begins.
template <typename K>
__device__ __forceinline__ void end_part(LaneRows& own, bool any_upper, int lane, float (&sums)[K::kColumns][4],
                                         float* to, Softmax* states) {
  store_sums<K>(sums, any_upper, lane, to);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (lane % 4 == 0) states[lane / 4 + 8 * half] = {own.part[half].maximum, own.weights[2 * half]};
    own.part[half] = {-INFINITY, 0};
    own.weights[2 * half] = own.weights[2 * half + 1] = 0;
  }
#pragma unroll
  for (auto& column : sums) {
#pragma unroll
    for (float& sum : column) sum = 0;
  }
}

// Grid as of attend_few_kernel.
template <typename K>
__global__ void __launch_bounds__(kThreads, K::kBlocksOfProcessor) attend_decode_kernel(const Attention args) {
  begin_kernel();
  SharedRows sharing;
  if (!find_block(args, sharing)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  auto* shared = dynamic_shared<uint8_t>();
  auto* states = reinterpret_cast<Softmax*>(shared + K::kStates);
  auto* ends = reinterpret_cast<typename K::RowEnd*>(shared + K::kEnds);
  auto* totals = reinterpret_cast<float*>(shared + K::kTotals);
  const Cached cached(args, args.block_tables + sharing.block.sequence * args.block_table_stride,
                      sizeof(typename K::Code));

  Pieces<K> pieces(args, cached, sharing, shared, warp);
  pieces.look_up(0);
  for (int piece = 0; piece < K::kStages - 1; ++piece) {
    pieces.begin_copy(piece);
    pieces.look_up(piece + 1);
  }

  const bool any_upper = sharing.block.num_rows - sharing.block.first > kRows / 2;  // rows of the second half
  const BlockRow rows[2] = {row_of(args, sharing, sharing.block.first + lane / 4),
                            row_of(args, sharing, sharing.block.first + lane / 4 + kRows / 2)};
  unsigned queries[K::kSteps][4];
  load_queries<K>(args, sharing, rows, lane, queries);
  LaneRows own = begin_rows(args, rows);
  Softmax total = {-INFINITY, 0};  // of row `thread`, of the splits before
  float sums[K::kColumns][4] = {};

  for (int piece = 0; piece < pieces.count; ++piece) {
    const int32_t begin = pieces.begin_of(piece);
    // The stage of the piece before is free: all lanes of the warp have used it.
    __syncwarp();
    pieces.begin_copy(piece + K::kStages - 1);
    pieces.look_up(piece + K::kStages);
    __pipeline_wait_prior(K::kStages - 1);
    __syncwarp();
    if (pieces.is_seen(begin)) {
      const uint8_t* keys = pieces.stage(warp, piece);
      float scores[K::kTiles][4] = {};
      unsigned weights[K::kTiles / 2][4];
      score<K>(keys, queries, lane, scores);
      weigh<K>(args, own, begin, any_upper, lane, scores, weights, sums);
      add_values<K>(keys + K::kPartBytes, weights, lane, sums);
    }
    if ((piece + 1) % (K::kPiecesOfSplit / kWarps) != 0) continue;

    __syncwarp();  // the piece has been used: its stage takes the sums
    end_part<K>(own, any_upper, lane, sums, reinterpret_cast<float*>(pieces.stage(warp, piece)), states + warp * kRows);
    __syncthreads();
    const int32_t split = sharing.first_split + piece / (K::kPiecesOfSplit / kWarps);
    if (thread < kRows) {
      ends[thread] = end_of_row<K>(args, row_of(args, sharing, sharing.block.first + thread),
                                   sharing.block.first + thread, split, states + thread, total);
    }
    __syncthreads();
    const uint8_t* sums_of_warp[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sums_of_warp[w] = pieces.stage(w, piece);
    end_split<K>(args, ends, sums_of_warp, totals);
    __syncthreads();  // before the stages are copied to
  }
}

// Calls body(kind) for the kind of a cache and head size; false: there is none.
template <typename Body>
bool with_kind(const Attention& work, const Body& body) {
  if (!has_decode_heads(work) || !work.vectors_of_keys || !work.vectors_of_values || !has_pairs_of_queries(work))
    return false;
  const auto of = [&](auto format) {
    if (work.head_dim <= 64) return body(DecodeKind<decltype(format)::value, 64>());
    return body(DecodeKind<decltype(format)::value, 128>());
  };
  if (work.dtype == DType::kF16) return of(std::integral_constant<DType, DType::kF16>());
  if (work.dtype == DType::kBF16) return of(std::integral_constant<DType, DType::kBF16>());
  if (work.dtype == DType::kF8E4M3) return of(std::integral_constant<DType, DType::kF8E4M3>());
  return work.dtype == DType::kF8E5M2 && of(std::integral_constant<DType, DType::kF8E5M2>());
}

}  // namespace

bool has_decode_kernel(const Attention& work) {
  return with_kind(work, [](auto kind) { return has_shared(decltype(kind)::kBytes); });
}

void attend_decode(const Attention& work, dim3 grid, cudaStream_t stream) {
  if (has_codes_kernel(work)) return attend_codes(work, grid, stream);
  const bool known = with_kind(work, [&](auto kind) {
    using K = decltype(kind);
    start_attention(attend_decode_kernel<K>, K::kBytes, work, grid, kThreads, stream);
    return true;
  });
  QUIRE_CHECK(known);
}

}  // namespace quire::ops::cuda
