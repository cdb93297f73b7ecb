// What the kernels of decoding's attention with warps of their own share (attention_decode.cu, attention_codes.cu): how
// a warp copies pieces of the cache to shared memory, and lies them there.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "ops/cuda/attention.cuh"

namespace quire::ops::cuda {

constexpr int kVectorBytes = 16;
constexpr int32_t kAllPositions = 0x7fffffff;

// A part of a piece: the keys of kPositions, or their values, a row a position, whose vectors of 16 bytes are exchanged
// so that rows and columns of 8 are both read without conflicts.
template <DType kFormat_, int kHeadDim_>
struct PieceLayout {
  static constexpr DType kFormat = kFormat_;
  static constexpr int kHeadDim = kHeadDim_;
  using Code = typename KvFormat<kFormat>::Code;
  static constexpr bool kConverts = sizeof(Code) == 1;
  static constexpr int kPositions = kConverts ? 32 : 16;
  static constexpr int kVectors = kHeadDim * static_cast<int>(sizeof(Code)) / kVectorBytes;  // of a row
  static constexpr int kRowBytes = kVectors * kVectorBytes;
  static constexpr int kPartBytes = kPositions * kRowBytes;
  static constexpr int kSteps = kHeadDim / 16;  // of 16 numbers of a head
  static constexpr int kPiecesOfSplit = kFewSplit / kPositions;
  static_assert(kPiecesOfSplit % kWarps == 0);

  // With what the number of a vector in its row is exchanged: neighbouring rows lie in different halves, which reading
  // four vectors of each wants.
  static constexpr __host__ __device__ int flip(int position) {
    if (kVectors < 8) return position / 2 & (kVectors - 1);
    return kConverts ? (position & 1) << 2 | (position >> 1 & 3) : position & 7;
  }
  // Bytes from the beginning of a part to a vector.
  static __device__ int at(int position, int vector) {
    return position * kRowBytes + (vector ^ flip(position)) * kVectorBytes;
  }
  static constexpr int kAtOnce = kWarp / kVectors;  // positions that a warp copies by one instruction
  static constexpr bool flips_by_parts() {
    for (int position = 0; position < kPositions; ++position) {
      if (flip(position) != (flip(position / kAtOnce * kAtOnce) ^ flip(position % kAtOnce))) return false;
    }
    return true;
  }
};

// 1 / x by one instruction, to within a unit in the last place.
__device__ inline float fast_reciprocal(float x) {
#ifdef __CUDACC__
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
#else
  return 1 / x;
#endif
}

// Scores, not yet times log2(e), with the soft cap and times it. tanh(x) is 1 - 2 / (exp(2 x) + 1).
template <int kTiles>
__device__ __forceinline__ void cap(const Attention& args, float (&scores)[kTiles][4]) {
#pragma unroll
  for (auto& tile : scores) {
#pragma unroll
    for (float& score : tile) {
      const float tanh = 1 - 2 * fast_reciprocal(fast_exp2(2 * kLog2E / args.soft_cap * score) + 1);
      score = args.soft_cap * kLog2E * tanh;
    }
  }
}

// Begins to copy a vector to shared memory.
__device__ inline void copy_vector(uint8_t* to, const uint8_t* from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  __pipeline_memcpy_async(to, from, kVectorBytes);
#endif
}
// The same, or zeros.
__device__ inline void copy_vector(uint8_t* to, const uint8_t* from, bool there) {
#ifdef __CUDACC__
  asm volatile("{\n.reg .pred zero;\nsetp.eq.u32 zero, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, zero;\n}"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(static_cast<unsigned>(there))
               : "memory");
#else
  __pipeline_memcpy_async(to, from, kVectorBytes, there ? 0 : kVectorBytes);
#endif
}

// Where a sequence's codes lie.
struct Cached {
  const uint8_t* keys;  // of the kv head
  const uint8_t* values;
  const BlockId* table;
  int64_t row_bytes;
  int32_t block_size;
  int shift = -1;  // block_size as a power of two; -1: it is none, or below 16

  __device__ Cached(const Attention& args, const BlockId* block_table, int64_t code_bytes)
      : keys(args.keys + blockIdx.y * args.head_bytes),
        values(args.values + blockIdx.y * args.head_bytes),
        table(block_table),
        row_bytes(args.head_dim * code_bytes),
        block_size(args.block_size) {
    if (has_sixteens(block_size)) shift = __ffs(block_size) - 1;
  }
  // Whether blocks hold whole sixteens of positions, a power of two of them.
  static __host__ __device__ bool has_sixteens(int32_t size) { return size >= 16 && (size & (size - 1)) == 0; }
  // Bytes to a position's codes.
  __device__ int64_t at(const Attention& args, int32_t position) const {
    return table[position / block_size] * args.block_stride + position % block_size * row_bytes;
  }
  // The same where the block is known, `shift` is none below 0 and heads are as long as the layout's.
  template <typename K>
  __device__ int64_t in_block(const Attention& args, BlockId block, int32_t position) const {
    return block * args.block_stride + (position & (block_size - 1)) * K::kRowBytes;
  }
};

// The blocks of a piece's sixteens of positions: known before the piece is copied, as to look into the table takes as
// long as to multiply a piece.
template <typename K>
struct PieceBlocks {
  BlockId of[K::kPositions / 16];

  // Beyond what is seen, [first, last], the table may end, or name what is another's by now: there it is the nearest
  // block that is seen.
  __device__ __forceinline__ void look_up(const Cached& cached, int32_t begin, int32_t first, int32_t last) {
#pragma unroll
    for (int i = 0; i < K::kPositions / 16; ++i)
      of[i] = cached.table[min(max(begin + 16 * i, first), last) >> cached.shift];
  }
};

// Begins to copy a part of a piece (memory: cached.keys, or values): the codes of positions [begin, begin + kPositions)
// that lie in [first, last], by the lanes of a warp; zeros in place of the others, whose memory may hold NaN.
// REQUIRES: blocks hold whole sixteens of positions, and heads are as long as the layout's. What differs between a
// lane's vectors are numbers that the compiler knows: a copy is one instruction where all positions are seen.
template <typename K>
__device__ __forceinline__ void begin_part(const Attention& args, const Cached& cached, const uint8_t* memory,
                                           const PieceBlocks<K>& blocks, int32_t begin, int32_t first, int32_t last,
                                           uint8_t* part) {
  static_assert(K::flips_by_parts());
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own = K::at(lane / K::kVectors, lane % K::kVectors);
  const auto seen = static_cast<unsigned>(last - first);
  const int32_t after_first = begin + lane / K::kVectors - first;
  const bool whole = begin >= first && begin + K::kPositions - 1 <= last;
#pragma unroll
  for (int sixteen = 0; sixteen < K::kPositions; sixteen += 16) {
    const uint8_t* from =
        memory + cached.in_block<K>(args, blocks.of[sixteen / 16], begin + sixteen) + lane * kVectorBytes;
    const auto to = [&](int i) {
      return part + ((own ^ K::flip(sixteen + i) * kVectorBytes) + (sixteen + i) * K::kRowBytes);
    };
    if (whole) {
#pragma unroll
      for (int i = 0; i < 16; i += K::kAtOnce) copy_vector(to(i), from + i * K::kRowBytes);
    } else {
#pragma unroll 1
      for (int i = 0; i < 16; i += K::kAtOnce)
        copy_vector(to(i), from + i * K::kRowBytes, static_cast<unsigned>(after_first + sixteen + i) <= seen);
    }
  }
}

// Two pairs of neighbouring codes of 8 bits as halves: of the lower 16 bits, and of the upper.
template <DType kFormat>
__device__ inline void halves_of(unsigned codes, unsigned& lower, unsigned& upper) {
  if constexpr (kFormat == DType::kF8E4M3) {
    halves_of_float8(codes, lower, upper);
  } else {  // E5M2: the upper bytes of halves
    lower = __byte_perm(codes, 0, 0x1404);
    upper = __byte_perm(codes, 0, 0x3424);
  }
}

// What adds up weights on a tensor core: a pair of ones.
template <typename T>
constexpr unsigned kPairOfOnes = std::is_same_v<T, __half> ? 0x3c003c00u : 0x3f803f80u;

}  // namespace quire::ops::cuda
