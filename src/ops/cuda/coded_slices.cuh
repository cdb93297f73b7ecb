// Slices (weight_slices.cuh) of the formats of coded weights and of NVFP4: 32 values of a block of up to 128, whose
// head, or scales, all of its slices read.
#pragma once

#include "ops/cuda/weight_slices.cuh"

namespace quire::ops::cuda {

// What each slice of a block of coded weights has: d, z of formats that have one, and its codes.
template <DType kType>
struct CodedSlice {
  static constexpr CodedBlock kLayout = coded_block(kType);
  static constexpr bool kIsTable = kType == DType::kNF4 || kType == DType::kFP4;
  static constexpr int kQuads = 8;
  static constexpr int kGroups = 1;
  static constexpr int kWeights = kLayout.bits == 4 ? 4 : 2;
  // Codes of 4 bits as fractions, but where z has as many digits as a float.
  static constexpr bool kIsFraction = kLayout.bits == 4 && !kIsTable && !(kLayout.fractions && kLayout.zero_bytes == 4);
  static constexpr float kOffset = kIsFraction ? 1 : 0;
  static constexpr float kUnit = kIsFraction ? 16 : 1;
  static constexpr bool kHasMinimum = false;
  static constexpr int kSlices = info(kType).block_values / 32;  // of a block
  static constexpr int kBytes = info(kType).block_bytes;
  static constexpr int kHead = kLayout.head_bytes + kLayout.zero_bytes;
  static constexpr int kCodeBytes = 4 * kLayout.bits;
  // Heads and codes begin at multiples of it: blocks do, and codes behind the head.
  static constexpr int kAlignment = (kBytes | kHead) % 4 == 0 ? 4 : (kBytes | kHead) % 2 == 0 ? 2 : 1;
  static_assert(kHead <= 8);

  struct Raw {
    Pieces<kHead, kAlignment, 8> head;
    Pieces<kCodeBytes, kAlignment, kCodeBytes == 32 ? 16 : 8> codes;
  };
  static __device__ QuadPlace place_of(int quad) { return {quad / 8, quad % 8}; }
  static __host__ __device__ int num_slices(int columns) { return columns / 32; }
  static __device__ int head_at(int slice) { return slice / kSlices * kBytes; }
  static __device__ int codes_at(int slice) { return head_at(slice) + kHead + slice % kSlices * kCodeBytes; }
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    if (slice < num_slices(columns)) {
      raw.head.load(row, head_at(slice));
      raw.codes.load(row, codes_at(slice));
    } else {
      raw.head.clear();
      raw.codes.clear();
    }
  }

  struct Codes {
    uint32_t words[kCodeBytes / 4];
    float d;
    float z;  // that of a code of 8 bits less 128 where z is of the code
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) {
      uint32_t first = 0;
      raw.codes.words(codes_at(slice), 0, words, first);
      uint32_t head[kHead > 4 ? 2 : 1];
      raw.head.words(head_at(slice), 0, head, first);
      d = kLayout.head_bytes == 2 ? half_value(head[0] & 0xffff) : __uint_as_float(head[0]);
      const uint32_t zero = kLayout.head_bytes == 2 ? head[0] >> 16 : head[kHead > 4 ? 1 : 0];
      if constexpr (kLayout.fractions) {
        z = kLayout.zero_bytes == 2 ? half_value(zero & 0xffff) : __uint_as_float(zero);
        if (kLayout.bits == 8) z -= 128;
      } else if constexpr (kLayout.zero_bytes == 2) {
        z = static_cast<float>(static_cast<int16_t>(zero));
      } else {
        z = kLayout.zero_bytes == 0 ? 0 : static_cast<float>(zero & 0xff);
      }
    }
    __device__ void decode(int j, float (&v)[4]) const {
      if constexpr (kLayout.bits == 8) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) v[i] = byte_less_128(words[j] ^ 0x80808080u, i);
      } else if constexpr (kIsTable) {
        const uint32_t codes = j < 4 ? words[j % 4] : words[j % 4] >> 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) v[i] = float_level<kType>(codes >> (8 * i) & 0x0f);
      } else if constexpr (!kIsFraction) {
        const uint32_t codes = (j < 4 ? words[j % 4] : words[j % 4] >> 4) & 0x0f0f0f0fu;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) v[i] = byte_less_128(codes | 0x80808080u, i);
      } else {
        quad_of_fractions<16>(shifted_nibbles(words, j), v);
      }
    }
    __device__ float scale(int) const {
      return d;
    }
    __device__ float zero(int) const requires(kLayout.zero_bytes > 0) {
      return z / kUnit;
    }
  };
};

#define QUIRE_CODED_SLICE(name) \
  template <>                   \
  struct Slice<DType::name> : CodedSlice<DType::name> {};
QUIRE_CODED_FORMATS(QUIRE_CODED_SLICE)
#undef QUIRE_CODED_SLICE

// Half a block: two groups of 16 with a scale each. Quads 4 g and 4 g + 1 are the lower halves of a group's bytes, the
// next two the upper ones.
template <>
struct Slice<DType::kNVFP4> {
  using Levels4 = Slice<DType::kMXFP4>;
  static constexpr int kQuads = 8;
  static constexpr int kGroups = 2;
  static constexpr int kWeights = 4;
  static constexpr float kOffset = Levels4::kOffset;
  static constexpr float kUnit = Levels4::kUnit / 2;
  static constexpr bool kHasMinimum = false;
  static constexpr int kBytes = info(DType::kNVFP4).block_bytes;
  struct Raw {
    uint32_t scales;
    Pieces<16, 4, 8> codes;
  };
  static __device__ QuadPlace place_of(int quad) { return {quad / 8, quad % 8}; }
  static __host__ __device__ int num_slices(int columns) { return columns / 32; }
  static __device__ int codes_at(int slice) { return slice / 2 * kBytes + 4 + slice % 2 * 16; }
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    raw.scales = 0;
    if (slice < num_slices(columns)) {
      raw.scales = load_weight<uint32_t>(row + slice / 2 * kBytes);
      raw.codes.load(row, codes_at(slice));
    } else {
      raw.codes.clear();
    }
  }
  struct Codes {
    uint32_t words[4];
    uint32_t scales;  // of the two groups, in the lower bytes
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) : scales(slice % 2 == 0 ? raw.scales : raw.scales >> 16) {
      uint32_t first = 0;
      raw.codes.words(codes_at(slice), 0, words, first);
    }
    __device__ void decode(int j, float (&v)[4]) const {
      constexpr Levels kLevels = Levels4::Codes::fractions();
      const uint32_t word = words[j / 4 * 2 + j % 2];
      const uint32_t bytes = four_levels(kLevels.words, (j % 4 < 2 ? word : word >> 4) & 0x0f0f0f0fu);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) v[i] = one_and_fraction(bytes, i);
    }
    __device__ float scale(int g) const {
      return unsigned_float8(scales >> (8 * g) & 0xff);
    }
  };
};

}  // namespace quire::ops::cuda
