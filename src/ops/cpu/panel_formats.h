// How the codes of packed_panels.h are read out of a tile of 16 columns, kWide columns at a time. Included by
// *.kernels.cpp alone, as simd.h is.
//
// A format of codes says
//   kBlock, kBlockBytes  steps of k and bytes of a block of a tile
//   kOffset, kSigned     value = d * (code - kOffset) + m; codes are bytes, signed or not
//   kCodeBits            bits of a code; 8 where it has a sign
//   kScaleSteps          steps that share a d: 16 or 32
//   kMinSteps            steps that share an m: 16, 32; 0: there is none
//   scales(block, group, v)  d and m of both halves (16 steps each) of group `group` of 32 steps, of columns
//                        [v * kWide, (v + 1) * kWide)
//   quad(block, group, v, j)  four codes a column in the bytes of its 32-bit lane: steps 4j .. 4j + 3 of the group
//   two_quads(block, group, v, j)  quads j and j + 4 in the lower and upper halves of the bytes, where memory has them
//   so
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/levels.h"
#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {

constexpr int kTileVectors = kTileColumns / kWide;
constexpr int kQuadBytes = 4 * kTileColumns;  // of one quad of a tile, a byte a code

struct Scales {
  FW d[2];
  FW m[2];
};

QUIRE_INLINE IW repeated(int byte) {
  return IW{} + static_cast<int32_t>(static_cast<uint32_t>(byte) * 0x01010101u);
}

// Lanes of four bytes, none of whose sums leaves its byte: the uppermost may leave what a signed number holds.
typedef uint32_t BytesW __attribute__((vector_size(sizeof(IW))));
QUIRE_INLINE IW add_bytes(IW a, IW b) {
  return (IW)((BytesW)a + (BytesW)b);
}
QUIRE_INLINE IW subtract_bytes(IW a, IW b) {
  return (IW)((BytesW)a - (BytesW)b);
}

// 4-bit codes: quads j and j + 4 in the halves of the same bytes.
QUIRE_INLINE IW nibble_pairs(const uint8_t* plane, int v, int j) {
  return load_ints(plane + (j & 3) * kQuadBytes + v * 4 * kWide);
}
QUIRE_INLINE IW nibble_quad(const uint8_t* plane, int v, int j) {
  const IW bytes = nibble_pairs(plane, v, j);
  return (j < 4 ? bytes : bytes >> 4) & repeated(0x0f);
}
// 2-bit codes: quads 4p .. 4p + 3 in the quarters of the bytes of plane p; moved to bit `at`.
template <int kAt>
QUIRE_INLINE IW pair_quad(const uint8_t* planes, int v, int j) {
  const IW bytes = load_ints(planes + (j >> 2) * kQuadBytes + v * 4 * kWide);
  const int shift = 2 * (j & 3) - kAt;
  return (shift < 0 ? bytes << -shift : bytes >> shift) & repeated(3 << kAt);
}
// 1-bit codes: quad j in bit j.
template <int kAt>
QUIRE_INLINE IW bit_quad(const uint8_t* plane, int v, int j) {
  const IW bytes = load_ints(plane + v * 4 * kWide);
  const int shift = j - kAt;
  return (shift < 0 ? bytes << -shift : bytes >> shift) & repeated(1 << kAt);
}

// Codes that stand for levels, with their offset.
struct LevelTable {
  alignas(16) int8_t codes[16];
};
template <class Levels>
constexpr LevelTable level_table() {
  LevelTable table{};
  for (int i = 0; i < 16; ++i) table.codes[i] = static_cast<int8_t>(Levels::kLevels[i] + Levels::kOffset);
  return table;
}
template <class Levels>
QUIRE_INLINE IW level_quad(const uint8_t* plane, int v, int j) {
  static constexpr LevelTable kTable = level_table<Levels>();
  return look_up(kTable.codes, nibble_quad(plane, v, j));
}

QUIRE_INLINE FW column_halves(const uint8_t* halves, int v) {
  return load_halves(halves + v * 2 * kWide);
}
QUIRE_INLINE Scales same_scales(FW d, FW m) {
  return {{d, d}, {m, m}};
}

constexpr int kHalves = 2 * kTileColumns;  // bytes of one f16 a column

struct Q4_0Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = kHalves + 4 * kQuadBytes;
  static constexpr int kOffset = 8;
  static constexpr int kCodeBits = 4;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) { return same_scales(column_halves(block, v), FW{}); }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) { return nibble_quad(block + kHalves, v, j); }
  QUIRE_INLINE IW two_quads(const uint8_t* block, int, int v, int j) { return nibble_pairs(block + kHalves, v, j); }
};

struct Q4_1Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = 2 * kHalves + 4 * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 4;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 32;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    return same_scales(column_halves(block, v), column_halves(block + kHalves, v));
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) { return nibble_quad(block + 2 * kHalves, v, j); }
  QUIRE_INLINE IW two_quads(const uint8_t* block, int, int v, int j) { return nibble_pairs(block + 2 * kHalves, v, j); }
};

struct Q5_0Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = kHalves + 5 * kQuadBytes;
  static constexpr int kOffset = 16;
  static constexpr int kCodeBits = 5;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) { return same_scales(column_halves(block, v), FW{}); }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) {
    return nibble_quad(block + kHalves, v, j) | bit_quad<4>(block + kHalves + 4 * kQuadBytes, v, j);
  }
};

struct Q5_1Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = 2 * kHalves + 5 * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 5;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 32;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    return same_scales(column_halves(block, v), column_halves(block + kHalves, v));
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) {
    return nibble_quad(block + 2 * kHalves, v, j) | bit_quad<4>(block + 2 * kHalves + 4 * kQuadBytes, v, j);
  }
};

struct Q8_0Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = kHalves + 8 * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 8;
  static constexpr bool kSigned = true;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) { return same_scales(column_halves(block, v), FW{}); }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) {
    return load_ints(block + kHalves + j * kQuadBytes + v * 4 * kWide);
  }
};

struct IQ4_NLFormat {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = kHalves + 4 * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 8;
  static constexpr bool kSigned = true;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) { return same_scales(column_halves(block, v), FW{}); }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) { return level_quad<Iq4Levels>(block + kHalves, v, j); }
};

struct MXFP4Format {
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = kTileColumns + 4 * kQuadBytes;
  static constexpr int kOffset = Mxfp4Levels::kOffset;
  static constexpr int kCodeBits = 5;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  // 2^(e - 128) by its bits; the two smallest are denormal.
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    const IW e = load_unsigned_byte_lanes(block + v * kWide);
    const IW bits = e < 2 ? (e + 1) << 21 : (e - 1) << 23;
    return same_scales((FW)bits, FW{});
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int, int v, int j) {
    return level_quad<Mxfp4Levels>(block + kTileColumns, v, j);
  }
};

struct NVFP4Format {
  static constexpr int kBlock = 64;
  static constexpr int kGroupBytes = 2 * kTileColumns + 4 * kQuadBytes;
  static constexpr int kBlockBytes = 2 * kGroupBytes;
  static constexpr int kOffset = Mxfp4Levels::kOffset;
  static constexpr int kCodeBits = 5;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 16;
  static constexpr int kMinSteps = 0;
  // The byte's exponent and fraction in a float's place are its value times 2^-120; half of it is wanted.
  QUIRE_INLINE Scales scales(const uint8_t* block, int group, int v) {
    Scales result{};
    for (int half = 0; half < 2; ++half) {
      const uint8_t* bytes = block + group * kGroupBytes + half * kTileColumns + v * kWide;
      result.d[half] = (FW)(load_unsigned_byte_lanes(bytes) << 20) * 0x1p119f;
    }
    return result;
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return level_quad<Mxfp4Levels>(block + group * kGroupBytes + 2 * kTileColumns, v, j);
  }
};

// Blocks of 256: d (and the scale of m) of the columns, then eight groups of 32 steps, each small scales and codes.
template <int kHeads, int kScaleBytes, int kPlaneQuads>
struct SuperBlock {
  static constexpr int kBlock = 256;
  static constexpr int kGroupBytes = kScaleBytes + kPlaneQuads * kQuadBytes;
  static constexpr int kBlockBytes = kHeads * kHalves + 8 * kGroupBytes;
  QUIRE_INLINE const uint8_t* small_scales(const uint8_t* block, int group) {
    return block + kHeads * kHalves + group * kGroupBytes;
  }
  QUIRE_INLINE const uint8_t* codes(const uint8_t* block, int group) {
    return small_scales(block, group) + kScaleBytes;
  }
};

struct Q2_KFormat : SuperBlock<2, 2 * kTileColumns, 2> {
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 2;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 16;
  static constexpr int kMinSteps = 16;
  QUIRE_INLINE Scales scales(const uint8_t* block, int group, int v) {
    const FW d = column_halves(block, v);
    const FW e = column_halves(block + kHalves, v);
    Scales result;
    for (int half = 0; half < 2; ++half) {
      const IW both = load_unsigned_byte_lanes(small_scales(block, group) + half * kTileColumns + v * kWide);
      result.d[half] = d * ints_to_floats(both & 0x0f);
      result.m[half] = -(e * ints_to_floats(both >> 4));
    }
    return result;
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return pair_quad<0>(codes(block, group), v, j);
  }
};

// A signed scale for each half of a group.
template <int kPlaneQuads>
struct SignedScalesSuperBlock : SuperBlock<1, 2 * kTileColumns, kPlaneQuads> {
  using Base = SuperBlock<1, 2 * kTileColumns, kPlaneQuads>;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 16;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int group, int v) {
    const FW d = column_halves(block, v);
    Scales result{};
    for (int half = 0; half < 2; ++half) {
      const uint8_t* small = Base::small_scales(block, group) + half * kTileColumns + v * kWide;
      result.d[half] = d * ints_to_floats(load_signed_byte_lanes(small));
    }
    return result;
  }
};

struct Q3_KFormat : SignedScalesSuperBlock<3> {
  static constexpr int kCodeBits = 3;
  static constexpr int kOffset = 4;
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return pair_quad<0>(codes(block, group), v, j) | bit_quad<2>(codes(block, group) + 2 * kQuadBytes, v, j);
  }
};

struct Q6_KFormat : SignedScalesSuperBlock<6> {
  static constexpr int kCodeBits = 6;
  static constexpr int kOffset = 32;
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return nibble_quad(codes(block, group), v, j) | pair_quad<4>(codes(block, group) + 4 * kQuadBytes, v, j);
  }
};

template <int kPlaneQuads>
struct FourOrFiveBitSuperBlock : SuperBlock<2, 2 * kTileColumns, kPlaneQuads> {
  using Base = SuperBlock<2, 2 * kTileColumns, kPlaneQuads>;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 32;
  QUIRE_INLINE Scales scales(const uint8_t* block, int group, int v) {
    const uint8_t* small = Base::small_scales(block, group) + v * kWide;
    const FW d = column_halves(block, v) * ints_to_floats(load_unsigned_byte_lanes(small));
    const FW e = column_halves(block + kHalves, v) * ints_to_floats(load_unsigned_byte_lanes(small + kTileColumns));
    return same_scales(d, -e);
  }
};

struct Q4_KFormat : FourOrFiveBitSuperBlock<4> {
  static constexpr int kCodeBits = 4;
  QUIRE_INLINE IW two_quads(const uint8_t* block, int group, int v, int j) {
    return nibble_pairs(codes(block, group), v, j);
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) { return nibble_quad(codes(block, group), v, j); }
};

struct Q5_KFormat : FourOrFiveBitSuperBlock<5> {
  static constexpr int kCodeBits = 5;
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return nibble_quad(codes(block, group), v, j) | bit_quad<4>(codes(block, group) + 4 * kQuadBytes, v, j);
  }
};

// Codes of 4 bits that stand for levels, and a signed scale for each half of a group or for all of it.
template <class Levels, int kSmallScales>
struct LevelsSuperBlock : SuperBlock<1, kSmallScales * kTileColumns, 4> {
  using Base = SuperBlock<1, kSmallScales * kTileColumns, 4>;
  static constexpr int kOffset = Levels::kOffset;
  static constexpr bool kSigned = kOffset == 0;
  static constexpr int kCodeBits = kSigned ? 8 : kOffset == 32 ? 6 : 5;  // levels are below their offset
  static constexpr int kScaleSteps = kSmallScales == 2 ? 16 : 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int group, int v) {
    const uint8_t* small = Base::small_scales(block, group) + v * kWide;
    const FW d = column_halves(block, v) * Levels::kFactor;
    const FW first = d * ints_to_floats(load_signed_byte_lanes(small));
    if constexpr (kSmallScales == 1) {
      return same_scales(first, FW{});
    } else {
      return {{first, d * ints_to_floats(load_signed_byte_lanes(small + kTileColumns))}, {}};
    }
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return level_quad<Levels>(Base::codes(block, group), v, j);
  }
};

using IQ4_XSFormat = LevelsSuperBlock<Iq4Levels, 1>;
using IQ2_XXSFormat = LevelsSuperBlock<Iq2Levels, 1>;
using IQ2_SFormat = LevelsSuperBlock<Iq2Levels, 2>;  // IQ2_XS, too
using IQ3_XXSFormat = LevelsSuperBlock<Iq3XxsLevels, 1>;
using IQ3_SFormat = LevelsSuperBlock<Iq3SLevels, 1>;
using IQ1_SFormat = LevelsSuperBlock<Iq1Levels, 1>;
using IQ1_MFormat = LevelsSuperBlock<Iq1Levels, 2>;

// TQ1_0, too.
struct TQ2_0Format : SuperBlock<1, 0, 2> {
  static constexpr int kOffset = TernaryLevels::kOffset;
  static constexpr int kCodeBits = 2;
  static constexpr bool kSigned = false;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) { return same_scales(column_halves(block, v), FW{}); }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return pair_quad<0>(codes(block, group), v, j);
  }
};

struct Q8_KFormat {
  static constexpr int kHeadBytes = 4 * kTileColumns;
  static constexpr int kBlock = 256;
  static constexpr int kBlockBytes = kHeadBytes + 8 * 8 * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = 8;
  static constexpr bool kSigned = true;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = 0;
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    return same_scales((FW)load_ints(block + v * 4 * kWide), FW{});
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return load_ints(block + kHeadBytes + (group * 8 + j) * kQuadBytes + v * 4 * kWide);
  }
};

// Weights of AWQ, GPTQ, compressed-tensors and HQQ: d a float of kHeadBytes, then z, which is taken off the codes: a
// whole number, or kFractions, a float of kZeroBytes, which is taken off codes from 0 on.
template <int kSteps, int kHeadBytes, int kZeroBytes, int kBits, bool kFractions = false>
struct CodedFormat {
  static constexpr int kBlock = kSteps;
  static constexpr int kZerosAt = kHeadBytes * kTileColumns;
  static constexpr int kCodesAt = kZerosAt + kZeroBytes * kTileColumns;
  static constexpr int kBlockBytes = kCodesAt + kSteps / 32 * kBits * kQuadBytes;
  static constexpr int kOffset = 0;
  static constexpr int kCodeBits = kBits;
  static constexpr bool kSigned = kBits == 8;
  static constexpr int kScaleSteps = 32;
  static constexpr int kMinSteps = kZeroBytes > 0 ? 32 : 0;
  QUIRE_INLINE FW factors(const uint8_t* block, int v) {
    if constexpr (kHeadBytes == 2) return column_halves(block, v);
    return (FW)load_ints(block + v * 4 * kWide);
  }
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    const FW d = factors(block, v);
    if constexpr (kZeroBytes == 0) {
      return same_scales(d, FW{});
    } else if constexpr (kFractions) {
      FW z;
      if constexpr (kZeroBytes == 2) {
        z = column_halves(block + kZerosAt, v);
      } else {
        z = (FW)load_ints(block + kZerosAt + v * 4 * kWide);
      }
      return same_scales(d, d * ((kBits == 8 ? 128.0f : 0.0f) - z));
    } else if constexpr (kZeroBytes == 1) {
      return same_scales(d, -(d * ints_to_floats(load_unsigned_byte_lanes(block + kZerosAt + v * kWide))));
    } else {
      return same_scales(d, -(d * ints_to_floats(load_signed_word_lanes(block + kZerosAt + v * 2 * kWide))));
    }
  }
  QUIRE_INLINE const uint8_t* codes(const uint8_t* block, int group) {
    return block + kCodesAt + group * kBits * kQuadBytes;
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    if constexpr (kBits == 8) return load_ints(codes(block, group) + j * kQuadBytes + v * 4 * kWide);
    return nibble_quad(codes(block, group), v, j);
  }
  QUIRE_INLINE IW two_quads(const uint8_t* block, int group, int v, int j) requires(kBits == 4) {
    return nibble_pairs(codes(block, group), v, j);
  }
};

using U4_32Format = CodedFormat<32, 2, 1, 4>;
using U4_64Format = CodedFormat<64, 2, 1, 4>;
using U4_128Format = CodedFormat<128, 2, 1, 4>;
using U4_32_F32Format = CodedFormat<32, 4, 1, 4>;
using I8_32Format = CodedFormat<32, 4, 0, 8>;
using I8_128Format = CodedFormat<128, 4, 0, 8>;
using I8_32_ZFormat = CodedFormat<32, 4, 2, 8>;
using U4_64_HZFormat = CodedFormat<64, 2, 2, 4, true>;
using U4_32_FZFormat = CodedFormat<32, 4, 4, 4, true>;
using I8_64_HZFormat = CodedFormat<64, 2, 2, 8, true>;

// Codes that stand for floats.
template <const float (&kFloats)[16]>
struct FloatLevelsFormat : CodedFormat<64, 4, 0, 4> {
  static constexpr const float (&kFloatLevels)[16] = kFloats;
};

using NF4Format = FloatLevelsFormat<kNf4Levels>;
using FP4Format = FloatLevelsFormat<kFp4Levels>;

// The values of step i of a quad as floats.
template <class Format>
QUIRE_INLINE FW quad_values(IW quad, int i, FW d, FW m) {
  if constexpr (requires { Format::kFloatLevels; }) {
    return look_up_floats(Format::kFloatLevels, (quad >> (8 * i)) & 0x0f) * d;
  }
  const IW code = Format::kSigned ? (quad << (24 - 8 * i)) >> 24 : (quad >> (8 * i)) & 0xff;
  if constexpr (Format::kMinSteps > 0) return fma(ints_to_floats(code), d, m);
  // d * kOffset is exact, kOffset being a power of two.
  if constexpr (Format::kOffset > 0) return fma(ints_to_floats(code), d, d * static_cast<float>(-Format::kOffset));
  return ints_to_floats(code) * d;
}

// choose.operator()<Format>() with the format of codes of dtype's panels, which some types share; otherwise nullptr.
template <class Kernel, class Choose>
Kernel by_code_format(DType dtype, const Choose& choose) {
  switch (dtype) {
    case DType::kQ4_0:
      return choose.template operator()<Q4_0Format>();
    case DType::kQ4_1:
      return choose.template operator()<Q4_1Format>();
    case DType::kQ5_0:
      return choose.template operator()<Q5_0Format>();
    case DType::kQ5_1:
      return choose.template operator()<Q5_1Format>();
    case DType::kQ8_0:
      return choose.template operator()<Q8_0Format>();
    case DType::kQ2_K:
      return choose.template operator()<Q2_KFormat>();
    case DType::kQ3_K:
      return choose.template operator()<Q3_KFormat>();
    case DType::kQ4_K:
      return choose.template operator()<Q4_KFormat>();
    case DType::kQ5_K:
      return choose.template operator()<Q5_KFormat>();
    case DType::kQ6_K:
      return choose.template operator()<Q6_KFormat>();
    case DType::kQ8_K:
      return choose.template operator()<Q8_KFormat>();
    case DType::kIQ4_NL:
      return choose.template operator()<IQ4_NLFormat>();
    case DType::kIQ4_XS:
      return choose.template operator()<IQ4_XSFormat>();
    case DType::kMXFP4:
      return choose.template operator()<MXFP4Format>();
    case DType::kNVFP4:
      return choose.template operator()<NVFP4Format>();
    case DType::kIQ2_XXS:
      return choose.template operator()<IQ2_XXSFormat>();
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return choose.template operator()<IQ2_SFormat>();
    case DType::kIQ3_XXS:
      return choose.template operator()<IQ3_XXSFormat>();
    case DType::kIQ3_S:
      return choose.template operator()<IQ3_SFormat>();
    case DType::kIQ1_S:
      return choose.template operator()<IQ1_SFormat>();
    case DType::kIQ1_M:
      return choose.template operator()<IQ1_MFormat>();
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return choose.template operator()<TQ2_0Format>();
    case DType::kU4_32:
      return choose.template operator()<U4_32Format>();
    case DType::kU4_64:
      return choose.template operator()<U4_64Format>();
    case DType::kU4_128:
      return choose.template operator()<U4_128Format>();
    case DType::kU4_32_F32:
      return choose.template operator()<U4_32_F32Format>();
    case DType::kI8_32:
      return choose.template operator()<I8_32Format>();
    case DType::kI8_128:
      return choose.template operator()<I8_128Format>();
    case DType::kI8_32_Z:
      return choose.template operator()<I8_32_ZFormat>();
    case DType::kU4_64_HZ:
      return choose.template operator()<U4_64_HZFormat>();
    case DType::kU4_32_FZ:
      return choose.template operator()<U4_32_FZFormat>();
    case DType::kI8_64_HZ:
      return choose.template operator()<I8_64_HZFormat>();
    default:
      return nullptr;
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
