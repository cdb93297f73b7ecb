// How the lanes of a warp share a row of a stored weight: each takes a slice of it, in 16-byte pieces, and the warp 32
// slices a step. What a format's Slice says:
//   kQuads       quads of values in a slice: four neighbours of the row
//   kGroups      groups of quads with a scale of their own; 0: values are whole as they are decoded
//   kWeights     rows that a warp takes together, as registers allow
//   load()       the pieces of a slice: loads alone, so that many are under way together
//   Codes        out of the pieces, what decoding takes
//   decode()     four values v of quad j
//   place_of()   slice and j of quad k / 4 of the row
// The weight of a code is scale * (v - kOffset) * kUnit + minimum; where Codes has a zero(), scale * (v - kOffset -
// zero) * kUnit. Codes of few bits become floats without an addition: a byte of 128 + c below the exponent of 1 is the
// float 1 + c / 128. What is too much, and a minimum, are taken off a group's sum at once, by the sum of its x
// (few_rows.cuh).
#pragma once

#include <cstdint>

#include "ops/cuda/float8.cuh"
#include "ops/cuda/stored_formats.cuh"

namespace quire::ops::cuda {

struct QuadPlace {
  int slice;
  int quad;
};

// The bits of lo, hi from `shift`, at most 32, on.
__device__ inline uint32_t bits_from(uint32_t lo, uint32_t hi, uint32_t shift) {
  return __funnelshift_rc(lo, hi, shift);
}

// What a kernel reads of a weight: nobody writes it meanwhile.
template <typename T>
__device__ T load_weight(const uint8_t* at) {
  return __ldg(reinterpret_cast<const T*>(at));
}

// kBytes bytes of a row at offsets that are multiples of kAlignment, out of the aligned pieces of kPiece bytes, 8 or
// 16, that hold them. No byte beyond the last such piece is read; where at least kBehind more of the row follow, the
// next may be.
template <int kBytes, int kAlignment, int kPiece, int kBehind = 0>
struct Pieces {
  static constexpr int kCount = (kBytes + kPiece - kAlignment + kPiece - 1) / kPiece;
  static constexpr int kPieceWords = kPiece / 4;
  static constexpr int kTotal = kPieceWords * kCount;
  uint32_t all[kTotal];

  __device__ void load(const uint8_t* row, int offset) {
    const uint8_t* from = row + (offset & ~(kPiece - 1));
    const int last = ((offset + kBytes - 1) & ~(kPiece - 1)) - (offset & ~(kPiece - 1));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      constexpr bool kAlwaysAll = kBytes + kBehind > (kCount - 1) * kPiece;
      const int at = kAlwaysAll || kPiece * i < last ? kPiece * i : last;
      if constexpr (kPiece == 16) {
        const auto piece = load_weight<uint4>(from + at);
        all[4 * i] = piece.x;
        all[4 * i + 1] = piece.y;
        all[4 * i + 2] = piece.z;
        all[4 * i + 3] = piece.w;
      } else {
        const auto piece = load_weight<uint2>(from + at);
        all[2 * i] = piece.x;
        all[2 * i + 1] = piece.y;
      }
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kTotal; ++i) all[i] = 0;
  }
  // The words that begin `skip` bytes behind the offset, (offset % 4) + skip at most 4; `first` gets the one at the
  // offset, its upper bytes undefined where the offset is no multiple of 4.
  template <int kWords>
  __device__ void words(int offset, int skip, uint32_t (&out)[kWords], uint32_t& first) const {
    uint32_t moved[kTotal + 1];
#pragma unroll
    for (int i = 0; i < kTotal; ++i) moved[i] = all[i];
    moved[kTotal] = 0;
    if constexpr (kAlignment <= 8 && kPiece == 16) {
#pragma unroll
      for (int i = 0; i + 2 <= kTotal; ++i) moved[i] = (offset & 8) != 0 ? moved[i + 2] : moved[i];
    }
    if constexpr (kAlignment <= 4) {
#pragma unroll
      for (int i = 0; i + 1 <= kTotal; ++i) moved[i] = (offset & 4) != 0 ? moved[i + 1] : moved[i];
    }
    const int in_word = kAlignment <= 2 ? offset & 3 : 0;
    first = moved[0] >> (8 * in_word);
    const auto shift = static_cast<uint32_t>(8 * (in_word + skip));
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = bits_from(moved[i], moved[i + 1], shift);
  }
};

// Byte `i` of `bytes`, all of which are 128 or more, as 1 + (byte - 128) / 128.
__device__ inline float one_and_fraction(uint32_t bytes, uint32_t i) {
  return __uint_as_float(__byte_perm(bytes, 0x3f000000u, 0x7044u | i << 8));
}
// Byte `i` of `bytes` less 128: with the exponent of 2^23 its unit is a float's last bit.
__device__ inline float byte_less_128(uint32_t bytes, uint32_t i) {
  return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u | i)) - 8388736.0f;
}
template <int kUnits>  // codes of 128 / kUnits values
__device__ void quad_of_fractions(uint32_t codes, float (&v)[4]) {
  const uint32_t bytes = codes | 0x80808080u;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) v[i] = one_and_fraction(bytes, i);
}

// The four low (j < 4) or high nibbles of words[j % 4], each three bits up: 16 steps from 1 to 2.
__device__ inline uint32_t shifted_nibbles(const uint32_t (&words)[4], int j) {
  return (j < 4 ? words[j % 4] << 3 : words[j % 4] >> 1) & 0x78787878u;
}

// Bits [4 j, 4 j + 4) of `bits` as bit kTo of four bytes.
template <int kTo>
__device__ uint32_t spread_four_bits(uint32_t bits, int j) {
  const uint32_t four = (bits >> (4 * j)) & 0x0f;
  return (four * 0x00204081u & 0x01010101u) << kTo;
}

// Four bytes of a table of 16, by the low nibbles of four bytes: eight are within reach of a selection, twice.
__device__ inline uint32_t four_levels(const uint32_t (&table)[4], uint32_t nibbles) {
  const uint32_t packed = nibbles | nibbles >> 4;  // 0: bytes 0 and 1, 2: bytes 2 and 3
  const uint32_t selector = (packed & 0xff) | ((packed >> 8) & 0xff00);
  const uint32_t low = __byte_perm(table[0], table[1], selector & 0x7777);
  const uint32_t high = __byte_perm(table[2], table[3], selector & 0x7777);
  return __byte_perm(low, high, 0x3210 | ((selector & 0x8888) >> 1));
}

// --- whole values: pieces of 16 bytes, the first of all lanes, then the second of all lanes

template <DType kType>
struct PlainSlice {
  static constexpr int kBytes = info(kType).block_bytes;
  static constexpr int kPieceQuads = 4 / kBytes;  // 16 bytes of values of kBytes
  static constexpr int kQuads = 2 * kPieceQuads;
  static constexpr int kGroups = 0;
  static constexpr int kWeights = 4;
  struct Raw {
    uint4 pieces[2];
  };

  static __device__ int byte_of(int slice, int piece) {
    return (slice / kWarp * 2 + piece) * kWarp * 16 + slice % kWarp * 16;
  }
  static __device__ int column_of(int slice, int j) {
    return byte_of(slice, j / kPieceQuads) / kBytes + j % kPieceQuads * 4;
  }
  static __device__ QuadPlace place_of(int quad) {
    const int piece = quad / kPieceQuads;
    const int of_step = piece / kWarp;
    return {of_step / 2 * kWarp + piece % kWarp, of_step % 2 * kPieceQuads + quad % kPieceQuads};
  }
  static __host__ __device__ int num_slices(int columns) {
    return (columns + kWarp * kQuads * 4 - 1) / (kWarp * kQuads * 4) * kWarp;
  }
  // A piece may end behind the row, in what it is padded with.
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = byte_of(slice, i);
      raw.pieces[i] = at < columns * kBytes ? load_weight<uint4>(row + at) : make_uint4(0, 0, 0, 0);
    }
  }

  struct Codes {
    uint32_t words[8];
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int columns)
        : words{raw.pieces[0].x, raw.pieces[0].y, raw.pieces[0].z, raw.pieces[0].w,
                raw.pieces[1].x, raw.pieces[1].y, raw.pieces[1].z, raw.pieces[1].w} {
      if ((slice / kWarp + 1) * kWarp * kQuads * 4 <= columns) return;
        // What lies behind the row's end may be NaN.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int bytes = columns * kBytes - byte_of(slice, i / 4) - i % 4 * 4;  // of the word that are the row's
        if (bytes < 4) words[i] &= bytes <= 0 ? 0u : (1u << (8 * bytes)) - 1;
      }
    }
    __device__ void decode(int j, float (&v)[4]) const {
      if constexpr (kType == DType::kF32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(words[4 * j + i]);
      } else if constexpr (kType == DType::kF8E4M3) {
        quad_of_float8(words[j], v);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = words[2 * j + i];
          v[2 * i] = kType == DType::kF16 ? half_value(word & 0xffff) : __uint_as_float(word << 16);
          v[2 * i + 1] = kType == DType::kF16 ? half_value(word >> 16) : __uint_as_float(word & 0xffff0000u);
        }
      }
    }
  };

  static __device__ void quad_of_float8(uint32_t codes, float (&v)[4]) {
    const unsigned first = halves_of_float8(codes & 0xffffu);
    const unsigned second = halves_of_float8(codes >> 16);
    v[0] = lower_half(first);
    v[1] = upper_half(first);
    v[2] = lower_half(second);
    v[3] = upper_half(second);
  }
};

// --- blocks of 32 values, of which a slice is one

template <DType kType, int kAlignment, int kPiece>
struct SmallBlock {
  static constexpr int kQuads = 8;
  static constexpr int kGroups = 1;
  static constexpr int kWeights = 4;
  static constexpr float kOffset = 0;
  static constexpr float kUnit = 1;
  static constexpr bool kHasMinimum = false;
  static constexpr int kBytes = info(kType).block_bytes;
  struct Raw {
    Pieces<kBytes, kAlignment, kPiece> block;
  };
  static __device__ QuadPlace place_of(int quad) { return {quad / 8, quad % 8}; }
  static __host__ __device__ int num_slices(int columns) { return columns / 32; }
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    if (slice < num_slices(columns)) {
      raw.block.load(row, slice * kBytes);
    } else {
      raw.block.clear();
    }
  }
};

template <DType kType>
struct Slice;

template <>
struct Slice<DType::kF32> : PlainSlice<DType::kF32> {};
template <>
struct Slice<DType::kF16> : PlainSlice<DType::kF16> {};
template <>
struct Slice<DType::kBF16> : PlainSlice<DType::kBF16> {};
template <>
struct Slice<DType::kF8E4M3> : PlainSlice<DType::kF8E4M3> {};

// Each piece has the scale of its columns, from behind the row's codes.
template <DType kType>
struct ScaledPieces : PlainSlice<DType::kF8E4M3> {
  using Plain = PlainSlice<DType::kF8E4M3>;
  static constexpr int kGroups = 2;
  static constexpr int kWeights = 2;
  static constexpr float kOffset = 0;
  static constexpr float kUnit = 1;
  static constexpr bool kHasMinimum = false;
  static_assert(columns_of_scale(kType) % 16 == 0, "a piece has one scale");
  struct Raw : Plain::Raw {
    float scales[2];
  };

  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    Plain::load(row, slice, columns, raw);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = byte_of(slice, i);
      raw.scales[i] = 0;
      if (column >= columns) continue;
      const uint8_t* at = row + columns + scale_of_column(kType, column) * sizeof(float);
      raw.scales[i] = columns % 4 == 0 ? load_weight<float>(at) : load_float(at);
    }
  }

  struct Codes : Plain::Codes {
    float scales[2];
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int columns)
        : Plain::Codes(raw, slice, columns), scales{raw.scales[0], raw.scales[1]} {}
    __device__ void decode(int j, float (&v)[4]) const { quad_of_float8(words[j], v); }
    __device__ float scale(int group) const { return scales[group]; }
  };
};
template <>
struct Slice<DType::kF8E4M3_128> : ScaledPieces<DType::kF8E4M3_128> {};
template <>
struct Slice<DType::kF8E4M3_32> : ScaledPieces<DType::kF8E4M3_32> {};

// Codes of 4 bits behind kHead bytes: a half d and, of four, a half m.
template <typename Raw, int kBytes, int kHead>
struct FourBitCodes {
  uint32_t words[4];
  uint32_t first;
  FourBitCodes() = default;
  __device__ FourBitCodes(const Raw& raw, int slice, int) { raw.block.words(slice * kBytes, kHead, words, first); }
  __device__ void decode(int j, float (&v)[4]) const { quad_of_fractions<16>(shifted_nibbles(words, j), v); }
  __device__ float scale(int) const { return half_value(first & 0xffff); }
  __device__ float minimum(int) const { return half_value(first >> 16); }  // REQUIRES: kHead == 4
};

// The same with a word of fifth bits before the codes.
template <typename Raw, int kBytes, int kHead>
struct FiveBitCodes {
  uint32_t words[4];
  uint32_t fifth;
  uint32_t first;
  FiveBitCodes() = default;
  __device__ FiveBitCodes(const Raw& raw, int slice, int) {
    uint32_t all[5];
    raw.block.words(slice * kBytes, kHead, all, first);
    fifth = all[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = all[i + 1];
  }
  __device__ void decode(int j, float (&v)[4]) const {
    quad_of_fractions<32>(shifted_nibbles(words, j) >> 1 | spread_four_bits<6>(fifth, j), v);
  }
  __device__ float scale(int) const {
    return half_value(first & 0xffff);
  }
  __device__ float minimum(int) const {
    return half_value(first >> 16);
  }  // REQUIRES: kHead == 4
};

template <>
struct Slice<DType::kQ4_0> : SmallBlock<DType::kQ4_0, 2, 8> {
  static constexpr float kOffset = 1.5f;
  static constexpr float kUnit = 16.0f;
  using Codes = FourBitCodes<Raw, kBytes, 2>;
};

template <>
struct Slice<DType::kQ4_1> : SmallBlock<DType::kQ4_1, 4, 8> {
  static constexpr float kOffset = 1.0f;
  static constexpr float kUnit = 16.0f;
  static constexpr bool kHasMinimum = true;
  using Codes = FourBitCodes<Raw, kBytes, 4>;
};

template <>
struct Slice<DType::kQ5_0> : SmallBlock<DType::kQ5_0, 2, 8> {
  static constexpr int kWeights = 2;
  static constexpr float kOffset = 1.5f;
  static constexpr float kUnit = 32.0f;
  using Codes = FiveBitCodes<Raw, kBytes, 2>;
};

template <>
struct Slice<DType::kQ5_1> : SmallBlock<DType::kQ5_1, 8, 8> {
  static constexpr float kOffset = 1.0f;
  static constexpr float kUnit = 32.0f;
  static constexpr bool kHasMinimum = true;
  using Codes = FiveBitCodes<Raw, kBytes, 4>;
};

// Codes of 8 bits leave a fraction too few: they are made floats of their own value.
template <>
struct Slice<DType::kQ8_0> : SmallBlock<DType::kQ8_0, 2, 16> {
  static constexpr int kWeights = 2;
  struct Codes {
    uint32_t words[8];
    uint32_t first;
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) { raw.block.words(slice * kBytes, 2, words, first); }
    __device__ void decode(int j, float (&v)[4]) const {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) v[i] = byte_less_128(words[j] ^ 0x80808080u, i);
    }
    __device__ float scale(int) const {
      return half_value(first & 0xffff);
    }
  };
};

template <>
struct Slice<DType::kIQ4_NL> : SmallBlock<DType::kIQ4_NL, 2, 8> {
  struct Codes {
    uint32_t words[4];
    uint32_t first;
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) { raw.block.words(slice * kBytes, 2, words, first); }
    __device__ void decode(int j, float (&v)[4]) const {
      constexpr Levels kLevels = levels_of(kIq4Levels, 128);
      const uint32_t bytes = four_levels(kLevels.words, (j < 4 ? words[j % 4] : words[j % 4] >> 4) & 0x0f0f0f0fu);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) v[i] = byte_less_128(bytes, i);
    }
    __device__ float scale(int) const {
      return half_value(first & 0xffff);
    }
  };
};

// Levels from -12 to 12 are 24 of 32 steps from 1 to 2.
template <>
struct Slice<DType::kMXFP4> : SmallBlock<DType::kMXFP4, 1, 8> {
  static constexpr float kOffset = 1.375f;
  static constexpr float kUnit = 32.0f;
  struct Codes {
    uint32_t words[4];
    uint32_t first;
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) { raw.block.words(slice * kBytes, 1, words, first); }
    static constexpr Levels fractions() {
      Levels levels = {};
      for (int i = 0; i < 16; ++i) {
        const auto byte = static_cast<uint32_t>(128 + 4 * (kMxfp4Levels[i] + 12));
        levels.words[i / 4] |= byte << (i % 4 * 8);
      }
      return levels;
    }
    __device__ void decode(int j, float (&v)[4]) const {
      constexpr Levels kLevels = fractions();
      const uint32_t bytes = four_levels(kLevels.words, (j < 4 ? words[j % 4] : words[j % 4] >> 4) & 0x0f0f0f0fu);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) v[i] = one_and_fraction(bytes, i);
    }
    __device__ float scale(int) const {
      return power_of_two(first & 0xff);
    }
  };
};

// --- blocks of 256 values, of which a slice is an eighth

// Slice 2 r + h of Q4_K and Q5_K has 16 bytes of run r, from 16 h: values 64 r + 16 h .. + 15, and 32 behind them.
template <DType kType>
struct RunSlice {
  static constexpr int kQuads = 8;
  static constexpr int kGroups = 2;
  static constexpr float kOffset = 1.0f;
  static constexpr float kUnit = kType == DType::kQ4_K ? 16.0f : 32.0f;
  static constexpr bool kHasMinimum = true;
  static constexpr bool kFifth = kType == DType::kQ5_K;
  static constexpr int kWeights = kFifth ? 2 : 4;
  static constexpr int kBytes = info(kType).block_bytes;
  struct Raw {
    uint4 header;
    uint4 fifth;  // of Q5_K
    uint4 codes;
  };
  static __device__ QuadPlace place_of(int quad) {
    const int in_block = quad % 64;
    const int in_run = in_block % 16;
    return {quad / 64 * 8 + in_block / 16 * 2 + in_run % 8 / 4, in_run / 8 * 4 + in_run % 4};
  }
  static __host__ __device__ int num_slices(int columns) { return columns / 32; }
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    raw.header = raw.codes = raw.fifth = make_uint4(0, 0, 0, 0);
    if (slice >= num_slices(columns)) return;
    const uint8_t* block = row + slice / 8 * kBytes;
    raw.header = load_weight<uint4>(block);
    if constexpr (kFifth) raw.fifth = load_weight<uint4>(block + 16 + slice % 2 * 16);
    raw.codes = load_weight<uint4>(block + (kFifth ? 48 : 16) + slice % 8 * 16);
  }
  struct Codes {
    uint32_t header[4];
    uint32_t words[4];
    uint32_t fifth[4];
    int run;
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int)
        : header{raw.header.x, raw.header.y, raw.header.z, raw.header.w},
          words{raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w},
          fifth{raw.fifth.x, raw.fifth.y, raw.fifth.z, raw.fifth.w},
          run(slice % 8 / 2) {}
    __device__ void decode(int j, float (&v)[4]) const {
      if constexpr (kFifth) {
        const uint32_t bits = (fifth[j % 4] >> (2 * run + j / 4)) & 0x01010101u;
        quad_of_fractions<32>(shifted_nibbles(words, j) >> 1 | bits << 6, v);
      } else {
        quad_of_fractions<16>(shifted_nibbles(words, j), v);
      }
    }
    __device__ float scale(int g) const { return scale_and_minimum(header, 2 * run + g).scale; }
    __device__ float minimum(int g) const { return -scale_and_minimum(header, 2 * run + g).minimum; }
  };
};
template <>
struct Slice<DType::kQ4_K> : RunSlice<DType::kQ4_K> {};
template <>
struct Slice<DType::kQ5_K> : RunSlice<DType::kQ5_K> {};

// Slice 4 n + t has 16 bytes of lower bits of run n, from 16 t: values 128 n + 16 t .. + 15, and 64 behind them, whose
// upper bits are planes t / 2 and 2 + t / 2 of 16 bytes.
template <>
struct Slice<DType::kQ6_K> {
  static constexpr int kQuads = 8;
  static constexpr int kGroups = 2;
  static constexpr int kWeights = 2;
  static constexpr float kOffset = 1.5f;
  static constexpr float kUnit = 64.0f;
  static constexpr bool kHasMinimum = false;
  static constexpr int kBytes = info(DType::kQ6_K).block_bytes;
  struct Raw {
    Pieces<16, 2, 8, 18> low;
    Pieces<16, 2, 8, 18> high;
    uint32_t scales[2];
    uint32_t d;
  };
  static __device__ QuadPlace place_of(int quad) {
    const int in_run = quad % 32;
    return {quad / 32 * 4 + in_run % 16 / 4, in_run / 16 * 4 + in_run % 4};
  }
  static __host__ __device__ int num_slices(int columns) { return columns / 32; }
  static __device__ int low_at(int slice) { return slice / 8 * kBytes + slice % 8 * 16; }
  static __device__ int high_at(int slice) { return slice / 8 * kBytes + 128 + slice % 8 / 4 * 32 + slice % 2 * 16; }
  static __device__ void load(const uint8_t* row, int slice, int columns, Raw& raw) {
    if (slice >= num_slices(columns)) {
      raw.low.clear();
      raw.high.clear();
      raw.scales[0] = raw.scales[1] = raw.d = 0;
      return;
    }
    raw.low.load(row, low_at(slice));
    raw.high.load(row, high_at(slice));
    const uint8_t* block = row + slice / 8 * kBytes;
    const uint8_t* scales = block + 192 + slice % 8 / 4 * 8 + slice % 4;
    raw.scales[0] = load_weight<uint8_t>(scales);
    raw.scales[1] = load_weight<uint8_t>(scales + 4);
    raw.d = load_weight<uint16_t>(block + 208);
  }
  struct Codes {
    uint32_t low[4];
    uint32_t high[4];  // from the bit of plane t / 2
    uint32_t scales[2];
    float d;
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int) : scales{raw.scales[0], raw.scales[1]}, d(half_value(raw.d)) {
      uint32_t unused;
      raw.low.words(low_at(slice), 0, low, unused);
      raw.high.words(high_at(slice), 0, high, unused);
      const auto shift = static_cast<uint32_t>(slice % 4 / 2 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) high[i] >>= shift;
    }
    // Lower bits come to bits 1 to 4 of a byte, the upper to 5 and 6.
    __device__ void decode(int j, float (&v)[4]) const {
      const uint32_t lower = j < 4 ? low[j % 4] << 1 : low[j % 4] >> 3;
      const uint32_t upper = j < 4 ? high[j % 4] << 5 : high[j % 4] << 1;
      quad_of_fractions<64>((lower & 0x1e1e1e1eu) | (upper & 0x60606060u), v);
    }
    __device__ float scale(int g) const {
      return d * static_cast<float>(static_cast<int8_t>(scales[g]));
    }
  };
};

// --- formats that have nothing of their own here: eight neighbours a slice, decoded whole

template <DType kType>
struct Slice {
  static constexpr int kQuads = 2;
  static constexpr int kGroups = 0;
  static constexpr int kWeights = 2;
  struct Raw {
    const uint8_t* row;
  };
  static __device__ QuadPlace place_of(int quad) { return {quad / 2, quad % 2}; }
  static __host__ __device__ int num_slices(int columns) { return columns / 8; }
  static __device__ void load(const uint8_t* row, int, int, Raw& raw) { raw.row = row; }
  struct Codes {
    float values[8];
    Codes() = default;
    __device__ Codes(const Raw& raw, int slice, int columns) {
      if (slice < num_slices(columns)) {
        ops::cuda::decode<kType>(raw.row, columns, 8 * slice, values);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = 0;
      }
    }
    __device__ void decode(int j, float (&v)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = values[4 * j + i];
    }
  };
};

}  // namespace quire::ops::cuda
