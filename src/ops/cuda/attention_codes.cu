// Attention of up to eight rows to the positions of a cache of 8-bit floats with tensor cores: what decoding does where
// a kv head has no more heads than that. As in attention_decode.cu, splits of kFewSplit positions are summed from
// nothing and folded into a row's total in order, and a block's warps go through positions of their own, every fourth
// 32 of them. But codes stand on the left of the products, 16 positions or 16 numbers of a head, and the rows' queries
// and weights on the right, as 8 columns: of 16 rows on the left half would be empty. That halves the products and the
// registers of sums and queries, and so a processor has room for four blocks instead of three.
//
// A warp has room for three parts of 32 positions, of keys or values. While keys are multiplied, their values and the
// next keys are on the way; once they are, the next values take their place.
#include "base/check.h"
#include "ops/cuda/attention_pieces.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kRows = 8;

template <DType kFormat_, int kHeadDim_>
struct CodesKind : PieceLayout<kFormat_, kHeadDim_> {
  using Layout = PieceLayout<kFormat_, kHeadDim_>;
  using Layout::kHeadDim;
  using Layout::kPartBytes;
  using Layout::kPositions;
  using Layout::kVectors;
  using T = __half;                 // what codes become
  static constexpr int kParts = 3;  // of a warp
  static constexpr int kBlocksOfProcessor = 4;
  static constexpr int kTiles = kPositions / 16;
  static constexpr int kPiecesOfWarp = Layout::kPiecesOfSplit / kWarps;  // in a split
  static constexpr int kQuads = kHeadDim / 4;                            // of a row
  static constexpr int kRowsOfThread = kRows * kQuads / kThreads;        // whose totals a thread keeps, a quad of each
  static constexpr int kStates = kWarps * kParts * kPartBytes;
  // Behind the states of the warps, and of the splits before: those of every second split lie in other places.
  static constexpr int kTotals =
      kStates + (kWarps + 2) * kRows * static_cast<int>(sizeof(Softmax));  // a quad of a thread's row
  static constexpr int kBytes = kTotals + kRows * kHeadDim * 4;
  static_assert(kPositions == 32 && kRows * kQuads % kThreads == 0);
  // A warp's sums of a split have the room of a part.
  static_assert(kRows * kHeadDim * 4 == kPartBytes);
};

// The number itself, opaque to the compiler: what is made of it is made where it is needed, and takes no
// registers before.
__device__ __forceinline__ int opaque(int number) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// What a lane has of the rows' softmax: rows 2 (lane % 4) and the next.
struct LaneRows {
  int32_t all_first;  // positions that all rows of the block see
  int32_t all_last;
  float maximum[2];  // that exponents are relative to
  float weights[4];  // tensor cores add up weights too: of the two rows, twice
};

// What is not summed yet.
__device__ __forceinline__ void begin_split(LaneRows& own) {
  own.maximum[0] = own.maximum[1] = -INFINITY;
  for (float& weight : own.weights) weight = 0;
}

// Positions that a row sees; all of them where there is no such row.
struct Seen {
  int32_t first;
  int32_t last;
};
__device__ __forceinline__ Seen seen_by(const Attention& args, const Rows& block, int32_t row) {
  if (row >= block.num_rows) return {0, kAllPositions};
  const int32_t position = block.first_position + (row < args.group ? 0 : row / args.group);
  return {first_seen(args, position), position};
}

__device__ __forceinline__ LaneRows begin_rows(const Attention& args, const Rows& block) {
  LaneRows own;
  own.all_first = seen_by(args, block, block.num_rows - 1).first;
  own.all_last = block.first_position;
  return own;
}

// Queries of row lane / 4, in the order in which codes become numbers: of each four vectors a lane reads vector
// lane % 4, and multiplies four codes of it a step.
template <typename K>
__device__ __forceinline__ void load_queries(const Attention& args, const Rows& block, int lane,
                                             unsigned (&queries)[K::kSteps][2]) {
  const int32_t r = lane / 4;
  const float* from = args.queries + (int64_t{block.first_token} + r / args.group) * args.query_stride +
                      int64_t{blockIdx.y * args.group + r % args.group} * args.head_dim;
#pragma unroll
  for (int step = 0; step < K::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = 16 * (lane % 4 + step / 4 * 4) + 4 * (step % 4) + 2 * i;
      const float2 pair = r < block.num_rows ? *reinterpret_cast<const float2*>(from + d) : make_float2(0, 0);
      queries[step][i] = pair_of<typename K::T>(pair.x * args.query_factor, pair.y * args.query_factor);
    }
  }
}

// Of positions lane / 4 and lane / 4 + 8 of a tile, those of the lane's two rows.
template <typename K>
__device__ __forceinline__ void score(const uint8_t* keys, const unsigned (&queries)[K::kSteps][2], int lane,
                                      float (&scores)[K::kTiles][4]) {
  // Rows 8 apart have their vectors in the same places.
  static_assert(K::flip(8) == 0 && K::flip(9) == K::flip(1) && K::flip(15) == K::flip(7));
  const int own = opaque(K::at(lane / 4, lane % 4));
#pragma unroll
  for (int tile = 0; tile < K::kTiles; ++tile) {
#pragma unroll
    for (int v = 0; v < K::kVectors; v += 4) {
      uint4 codes[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        codes[i] =
            *reinterpret_cast<const uint4*>(keys + (own ^ v * kVectorBytes) + (16 * tile + 8 * i) * K::kRowBytes);
      const unsigned words[4][2] = {
          {codes[0].x, codes[1].x}, {codes[0].y, codes[1].y}, {codes[0].z, codes[1].z}, {codes[0].w, codes[1].w}};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        unsigned left[4];
        halves_of<K::kFormat>(words[step][0], left[0], left[2]);
        halves_of<K::kFormat>(words[step][1], left[1], left[3]);
        multiply_16_8_16<typename K::T>(scores[tile], left, queries[v + step][0], queries[v + step][1]);
      }
    }
  }
}

// Scores -> weights, as tensor cores have them on the right; sums of what came before are brought to the same
// exponents.
template <typename K>
__device__ __forceinline__ void weigh(const Attention& args, const Rows& block, LaneRows& rows, int32_t begin, int lane,
                                      float (&scores)[K::kTiles][4], unsigned (&weights)[K::kTiles][2],
                                      float (&sums)[K::kVectors][4]) {
  using T = typename K::T;
  if (args.soft_cap > 0) cap(args, scores);
  if (begin < rows.all_first || begin + K::kPositions - 1 > rows.all_last) {
    const Seen seen[2] = {seen_by(args, block, lane % 4 * 2), seen_by(args, block, lane % 4 * 2 + 1)};
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t position = begin + 16 * tile + lane / 4 + i / 2 * 8;
        if (position < seen[i % 2].first || position > seen[i % 2].last) scores[tile][i] = -INFINITY;
      }
    }
  }
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (const auto& tile : scores) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest[i % 2] = fmaxf(largest[i % 2], tile[i]);
  }
  // As long as no lane's score is far above what exponents are relative to, nobody asks which is the largest.
  if (__any_sync(kAllLanes, largest[0] > rows.maximum[0] + kMostAbove || largest[1] > rows.maximum[1] + kMostAbove)) {
    float factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int offset = 4; offset < kWarp; offset *= 2)
        largest[i] = fmaxf(largest[i], __shfl_xor_sync(kAllLanes, largest[i], offset));
      Softmax total = {rows.maximum[i], 0};
      factors[i] = follow(total, largest[i]);
      rows.maximum[i] = total.maximum;
    }
#pragma unroll
    for (auto& column : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) column[i] *= factors[i % 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.weights[i] *= factors[i % 2];
  }
  // Where nothing was seen yet all scores are -inf, and their weights 0.
  float relative_to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) relative_to[i] = rows.maximum[i] > -INFINITY ? rows.maximum[i] : 0.0f;
#pragma unroll
  for (int tile = 0; tile < K::kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights[tile][i] = transposed(pair_of<T>(fast_exp2(scores[tile][2 * i] - relative_to[0]),
                                               fast_exp2(scores[tile][2 * i + 1] - relative_to[1])));
    }
  }
  constexpr unsigned kOnes[4] = {kPairOfOnes<T>, kPairOfOnes<T>, kPairOfOnes<T>, kPairOfOnes<T>};
#pragma unroll
  for (const auto& tile : weights) multiply_16_8_16<T>(rows.weights, kOnes, tile[0], tile[1]);
}

// Of each 16 numbers of a head, those of even place stand in the first 8 rows of the left, the others in the second: a
// lane has numbers 2 (lane / 4) and the next of its two rows.
template <typename K>
__device__ __forceinline__ void add_values(const uint8_t* values, const unsigned (&weights)[K::kTiles][2], int lane,
                                           float (&sums)[K::kVectors][4]) {
  const int own = opaque(K::at(lane, 0));
#pragma unroll
  for (int v = 0; v < K::kVectors; ++v) {
    // Of 8 positions each; a pair of codes, of neighbouring numbers of a head, moves as one of 16 bits.
    unsigned matrices[4];
    load_matrices<true>(matrices, values + (own ^ v * kVectorBytes));
#pragma unroll
    for (int tile = 0; tile < K::kTiles; ++tile) {
      unsigned left[4];
      halves_of<K::kFormat>(__byte_perm(matrices[2 * tile], 0, 0x3120), left[0], left[1]);
      halves_of<K::kFormat>(__byte_perm(matrices[2 * tile + 1], 0, 0x3120), left[2], left[3]);
      multiply_16_8_16<typename K::T>(sums[v], left, weights[tile][0], weights[tile][1]);
    }
  }
}

// A warp's sums lie as [kRows, kHeadDim], in whose columns these bits are exchanged so that lanes store to different
// banks.
__device__ __forceinline__ int exchanged(int row) {
  return row / 2 << 3;
}

// A warp's part of a split -> memory: its sums to `to`, its rows' states to `states`.
template <typename K>
__device__ __forceinline__ void end_part(const LaneRows& own, int lane, const float (&sums)[K::kVectors][4], float* to,
                                         Softmax* states) {
  // Columns 16 v and those behind differ from the first 32 by what the compiler knows.
  const int row = lane % 4 * 2;
  float* even = to + row * K::kHeadDim + ((lane / 4 * 2) ^ exchanged(row));
  float* odd = to + row * K::kHeadDim + ((16 + lane / 4 * 2) ^ exchanged(row));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int v = 0; v < K::kVectors; ++v) {
      *reinterpret_cast<float2*>((v % 2 == 0 ? even : odd) + i * K::kHeadDim + v / 2 * 32) =
          make_float2(sums[v][i], sums[v][2 + i]);
    }
    if (lane < 4) states[row + i] = {own.maximum[i], own.weights[i]};
  }
}

__device__ __forceinline__ float4 weighted(const float4& x, float factor) {
  return make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
}
__device__ __forceinline__ float4 add_weighted(const float4& x, float factor, const float4& to) {
  return make_float4(fmaf(x.x, factor, to.x), fmaf(x.y, factor, to.y), fmaf(x.z, factor, to.z),
                     fmaf(x.w, factor, to.w));
}

// The warps' parts of a split together, into a row's total or, behind its last split, to where it goes: the thread's
// four numbers from d on, whose sum of the splits before is `before`. sums, states: of the first warp; those of the
// next are stride floats and kRows states away, those of totals behind them all.
template <typename K>
__device__ __forceinline__ void end_split(const Attention& args, const Rows& block, int32_t row, int d, int32_t split,
                                          const float* sums, int stride, Softmax* states, float4& before) {
  if (row >= block.num_rows) return;
  const int32_t query = row < args.group ? 0 : row / args.group;  // most often there is one
  const int32_t head = static_cast<int32_t>(blockIdx.y) * args.group + row - query * args.group;
  const int32_t first_split = first_seen(args, block.first_position + query) / kFewSplit;
  const int32_t last_split = (block.first_position + query) / kFewSplit;
  if (split < first_split || split > last_split) return;
  Softmax part = {-INFINITY, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) part.maximum = fmaxf(part.maximum, states[w * kRows + row].maximum);
  float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const Softmax state = states[w * kRows + row];
    const float weight = state.maximum > -INFINITY ? fast_exp2(state.maximum - part.maximum) : 0.0f;
    part.sum = fmaf(state.sum, weight, part.sum);
    x = add_weighted(*reinterpret_cast<const float4*>(sums + w * stride + row * K::kHeadDim + (d ^ exchanged(row))),
                     weight, x);
  }
  if (args.num_splits > 0 && first_split != last_split) {
    const int64_t partial = partial_index(args, block.sequence, query, head, split);
    if (d == 0) args.partial_states[partial] = make_float2(part.maximum, part.sum);
    auto* to = reinterpret_cast<float2*>(args.partial_sums + partial * K::kHeadDim + d);
    to[0] = make_float2(x.x, x.y);
    to[1] = make_float2(x.z, x.w);
    return;
  }
  Softmax total = part;
  if (split > first_split) {
    total = states[(kWarps + split % 2) * kRows + row];
    const Fold weights = fold(total, part);
    x = add_weighted(before, weights.before, weighted(x, weights.part));
  }
  if (split < last_split) {
    before = x;
    if (d == 0) states[(kWarps + 1 - split % 2) * kRows + row] = total;
    return;
  }
  float* out = args.out + ((int64_t{block.first_token} + query) * args.num_heads + head) * K::kHeadDim + d;
  *reinterpret_cast<float4*>(out) = weighted(x, final_factor(args, total, head));
}

// What a warp goes through. Piece i is counted from a split's beginning on, over its end too.
template <typename K>
struct Pieces {
  const Attention& args;
  const Cached& cached;
  uint8_t* shared;
  int32_t first;  // positions of the block
  int32_t last;
  int warp;
  int lane;
  // Where the parts lie in the block's shared memory: a piece's keys, its values, and the next keys.
  int keys;
  int values;
  int next_keys;

  __device__ __forceinline__ int32_t begin_of(int32_t split, int i) const {
    return split * kFewSplit + (i * kWarps + warp) * K::kPositions;
  }
  __device__ __forceinline__ bool is_seen(int32_t begin) const {
    return begin <= last && begin + K::kPositions > first;
  }
  // The blocks of 32 sixteens of positions from a split on, one a lane: known a split before they are needed, as to
  // look into the table takes as long as to multiply a piece. Beyond what is seen the table may end, or name what is
  // another's by now: there it is the nearest block that is seen.
  __device__ __forceinline__ BlockId look_up(int32_t split) const {
    return cached.table[min(max(split * kFewSplit + 16 * lane, first), last) >> cached.shift];
  }
  // memory: cached.keys, or values. REQUIRES: i is below 4.
  __device__ __forceinline__ void begin_copy(const uint8_t* memory, int32_t split, int i, BlockId blocks,
                                             int to) const {
    static_assert(K::kPiecesOfWarp == 2 && 2 * K::kPiecesOfWarp * kWarps * K::kPositions == 16 * kWarp);
    const int32_t begin = begin_of(split, i);
    if (is_seen(begin)) {
      PieceBlocks<K> own;
#pragma unroll
      for (int j = 0; j < K::kPositions / 16; ++j)
        own.of[j] = __shfl_sync(kAllLanes, blocks, (i * kWarps + warp) * (K::kPositions / 16) + j);
      begin_part<K>(args, cached, memory, own, begin, first, last, shared + to);
    }
    __pipeline_commit();
  }
  // Behind the values of piece i: the keys after the next are copied to their place, and the next piece's turn has
  // come.
  __device__ __forceinline__ void begin_next(int32_t split, int i, BlockId blocks) {
    begin_copy(cached.keys, split, i + 2, blocks, values);
    const int free = values;
    values = keys;
    keys = next_keys;
    next_keys = free;
  }
};

// Grid as of attend_few_kernel.
template <typename K>
__global__ void __launch_bounds__(kThreads, K::kBlocksOfProcessor) attend_codes_kernel(const Attention args) {
  begin_kernel();
  Rows block;
  if (!find_rows(args, kFewRowsOfBlock, block)) return;
  // Positions that any row sees, and of these the block's own.
  int32_t first = first_seen(args, block.first_position);
  int32_t last = block.first_position + (block.num_rows - 1) / args.group;
  int32_t first_split = 0;
  int32_t last_split = 0;
  if (!find_splits(args, kFewSplit, first, last, first_split, last_split)) return;
  first = max(first, first_split * kFewSplit);
  last = min(last, last_split * kFewSplit + kFewSplit - 1);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kWarpBytes = K::kParts * K::kPartBytes;
  auto* shared = dynamic_shared<uint8_t>();
  auto* states = reinterpret_cast<Softmax*>(shared + K::kStates);
  const Cached cached(args, args.block_tables + block.sequence * args.block_table_stride, 1);
  Pieces<K> pieces = {args,
                      cached,
                      shared,
                      first,
                      last,
                      warp,
                      lane,
                      warp * kWarpBytes,
                      warp * kWarpBytes + K::kPartBytes,
                      warp * kWarpBytes + 2 * K::kPartBytes};
  BlockId blocks = pieces.look_up(first_split);
  BlockId next_blocks = pieces.look_up(first_split + 1);
  pieces.begin_copy(cached.keys, first_split, 0, blocks, pieces.keys);
  pieces.begin_copy(cached.values, first_split, 0, blocks, pieces.values);
  pieces.begin_copy(cached.keys, first_split, 1, blocks, pieces.next_keys);

  unsigned queries[K::kSteps][2];
  load_queries<K>(args, block, lane, queries);
  LaneRows own = begin_rows(args, block);

#pragma unroll 1
  for (int32_t split = first_split; split <= last_split; ++split) {
    float sums[K::kVectors][4] = {};
    begin_split(own);
    int i = 0;
#pragma unroll 1
    while (true) {
      const int32_t begin = pieces.begin_of(split, i);
      const bool seen = pieces.is_seen(begin);
      float scores[K::kTiles][4] = {};
      unsigned weights[K::kTiles][2];
      __pipeline_wait_prior(2);
      __syncwarp();
      if (seen) score<K>(shared + pieces.keys, queries, lane, scores);
      __syncwarp();
      pieces.begin_copy(cached.values, split, i + 1, blocks, pieces.keys);
      if (seen) weigh<K>(args, block, own, begin, lane, scores, weights, sums);
      __pipeline_wait_prior(2);
      __syncwarp();
      if (seen) add_values<K>(shared + pieces.values, weights, lane, sums);
      __syncwarp();
      if (i + 1 == K::kPiecesOfWarp) break;
      pieces.begin_next(split, i++, blocks);
    }
    // The values have been used: their place takes the sums.
    end_part<K>(own, opaque(lane), sums, reinterpret_cast<float*>(shared + pieces.values), states + warp * kRows);
    __syncthreads();
    const int thread = opaque(warp * kWarp + lane);
    const auto* of_first_warp = reinterpret_cast<const float*>(shared + (pieces.values - warp * kWarpBytes));
#pragma unroll
    for (int k = 0; k < K::kRowsOfThread; ++k) {
      end_split<K>(args, block, thread / K::kQuads + k * (kThreads / K::kQuads), thread % K::kQuads * 4, split,
                   of_first_warp, kWarpBytes / static_cast<int>(sizeof(float)), states,
                   reinterpret_cast<float4*>(shared + K::kTotals)[thread + k * kThreads]);
    }
    __syncthreads();  // before the sums are copied over
    pieces.begin_next(split, i, blocks);
    blocks = next_blocks;
    next_blocks = pieces.look_up(split + 2);
  }
}

// Calls body(kind) for the kind of a cache and head size; false: there is none.
template <typename Body>
bool with_kind(const Attention& work, const Body& body) {
  const auto of = [&](auto format) {
    if (work.head_dim == 64) return body(CodesKind<decltype(format)::value, 64>());
    return work.head_dim == 128 && body(CodesKind<decltype(format)::value, 128>());
  };
  if (work.dtype == DType::kF8E4M3) return of(std::integral_constant<DType, DType::kF8E4M3>());
  return work.dtype == DType::kF8E5M2 && of(std::integral_constant<DType, DType::kF8E5M2>());
}

}  // namespace

bool has_codes_kernel(const Attention& work) {
  return work.most_rows > 0 && work.most_rows <= kRows && work.num_shared_spans == 0 && !work.values_are_keys &&
         work.vectors_of_keys && work.vectors_of_values && has_pairs_of_queries(work) &&
         reinterpret_cast<uintptr_t>(work.out) % sizeof(float4) == 0 && Cached::has_sixteens(work.block_size) &&
         with_kind(work, [](auto kind) { return has_shared(decltype(kind)::kBytes); });
}

void attend_codes(const Attention& work, dim3 grid, cudaStream_t stream) {
  const bool known = with_kind(work, [&](auto kind) {
    using K = decltype(kind);
    start_attention(attend_codes_kernel<K>, K::kBytes, work, grid, kThreads, stream);
    return true;
  });
  QUIRE_CHECK(known);
}

}  // namespace quire::ops::cuda
