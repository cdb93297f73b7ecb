// Matrix products of rows of activations that are rounded to points of a lattice, with packed panels of codes
// (packed_panels.h): about 12 bits a value (11 with AVX2) for the price of 8 and a half.
//
// Two values that meet codes c1 and c2 are rounded to dx * (S * q1 + l) and dx * (S * q2 + T * l), where q1, q2 and l
// are numbers of 8 bits: each value has a byte of its own, and both share the third. Then
//   c1 * x1 + c2 * x2 = dx * (S * (c1 * q1 + c2 * q2) + (c1 + T * c2) * l),
// so that half a product a value more is all that the finer step costs, as long as c1 + T * c2 fits a byte. Points
// l * (1, T) modulo S are a rank-1 lattice: S of them in a square of S by S.
//
//   S    T    cell     where
//   256  16   16 x 16  codes of up to 4 bits. c1 + 16 * c2 is how memory holds two codes of 4 bits: nothing is to be
//                      unpacked. The lower half of l is what x2 has beyond whole steps, the upper half what x1 has.
//   256  7    7 x 36   codes of 5 and 6 bits, of which l meets the upper 5. A reduced basis is (1, 7) and (36, -4)
//   64   7    7 x 9    with AVX2, codes of up to 4 bits: its sums have 16, and 4 * 2 * (15 + 7 * 15) * 32 is less than
//                      2^15. The other vector is (9, -1)
//
// Codes of 8 bits have no room: T * l is too large for a part of a code to stand for it. But where a code of 4 bits is
// looked up (bitsandbytes' levels, LevelBytes below), so can be what meets l: the eighths of level 1 and of T times
// level 2, each rounded by itself. For comparison: 8 bits alone are a cell of S x S.
//
// A row is groups of 32 steps, each: their scale dx, a float for every scale of the weight's (twice_sums()), 32 bytes
// q, 16 bytes l. Values that share a byte are half a span apart, a span being the steps that share a scale of the
// weight.
#include "ops/cpu/across_lanes.h"
#include "ops/cpu/code_products.h"
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/opened_tiles.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// Levels that are floats, as bytes: round(kMost * level) + 128. kMost is chosen so that the sum of the squares of what
// is lost is least: a level of nf4 is off by 0.0017 on the average (of the largest, 1; bfloat16, which the library
// computes in, is off by 0.0005), a twentieth of what nf4's own rounding costs. Words (linear_codes.kernels.cpp) lose a
// fiftieth of it and take a third longer.
template <class Format>
struct LevelBytes : Format {
  static constexpr int kFactor = 7;
  static constexpr int kDropped = 3;
  static constexpr int kOffset = 128;
  static constexpr int kCodeBits = 8;
  static constexpr bool kSigned = false;

  static constexpr int nearest(float x) { return static_cast<int>(x < 0 ? x - 0.5f : x + 0.5f); }
  static constexpr float best_factor() {
    float best = 0;
    float least = 1e9f;
    for (float most = 96.0f; most < 127.5f; most += 0.125f) {
      float lost = 0;
      for (const float level : Format::kFloatLevels) {
        const float error = static_cast<float>(nearest(most * level)) / most - level;
        lost += error * error;
      }
      if (lost < least) best = most;
      if (lost < least) least = lost;
    }
    return best;
  }
  static constexpr float kMost = best_factor();
  static constexpr LevelTable table(float factor, int above) {
    LevelTable out{};
    for (int i = 0; i < 16; ++i)
      out.codes[i] = static_cast<int8_t>(static_cast<uint8_t>(nearest(factor * Format::kFloatLevels[i]) + above));
    return out;
  }
  static constexpr LevelTable kBytes = table(kMost, kOffset);
  // What meets l is the sum of the two, which is kOffset above an eighth of the bytes without theirs.
  static constexpr LevelTable kFirst = table(kMost / (1 << kDropped), kOffset / (1 << kDropped));
  static constexpr LevelTable kSecond = table(kFactor * kMost / (1 << kDropped), kFactor* kOffset / (1 << kDropped));

  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    return same_scales(Format::factors(block, v) * (1.0f / kMost), FW{});
  }
  QUIRE_INLINE IW quad(const uint8_t* block, int group, int v, int j) {
    return look_up(kBytes.codes, Format::quad(block, group, v, j));
  }
  QUIRE_INLINE IW shared(const uint8_t* block, int group, int v, int j) {
    return add_bytes(look_up(kFirst.codes, Format::quad(block, group, v, j)),
                     look_up(kSecond.codes, Format::quad(block, group, v, j + 4)));
  }
};
template <class Format>
constexpr bool kHasLevelBytes = requires {
  Format::kBytes;
};

// With AVX2 sums of 16 bits have no room for more.
template <class Format>
constexpr bool kMeetsLattice = Format::kCodeBits <= (kPairSums ? 4 : 6) || (kHasLevelBytes<Format> && !kPairSums);

// choose() of the formats whose products with points of a lattice are there.
template <class Kernel, class Choose>
Kernel by_lattice_format(DType dtype, const Choose& choose) {
  if (dtype == DType::kNF4) return choose.template operator()<LevelBytes<NF4Format>>();
  if (dtype == DType::kFP4) return choose.template operator()<LevelBytes<FP4Format>>();
  return by_code_format<Kernel>(dtype, choose);
}

template <class Format>
struct Lattice {
  static constexpr int kStep = kPairSums ? 64 : 256;                           // S
  static constexpr int kFactor = kPairSums || Format::kCodeBits > 4 ? 7 : 16;  // T
  // The largest |x| over dx * S: what is carried from T * l to q stays in a byte.
  static constexpr int kMostWhole = kFactor == 16 ? 119 : 123;
  static constexpr int kDropped =
      Format::kCodeBits > 5 ? Format::kCodeBits - 5 : 0;                  // bits of a code that l does not meet
  static constexpr int kAbove = Format::kSigned ? 128 : Format::kOffset;  // what codes are above their values
  // Twice the mean of what is dropped of a code; what is looked up is rounded, and its offset is that of the codes.
  static constexpr int kTwiceMean = kHasLevelBytes<Format> ? 0 : (1 << kDropped) - 1;

  static constexpr int kSpan = Format::kScaleSteps;
  static constexpr int kSpans = 32 / kSpan;
  static constexpr int kSums = 32 / Format::kScaleSteps;

  // Where the parts of a group lie.
  static constexpr int kSumsAt = 4;
  static constexpr int kBytesAt = kSumsAt + kSums * 4;
  static constexpr int kSharedAt = kBytesAt + 32;
  static constexpr int kGroupBytes = kSharedAt + 16;
  static_assert(kGroupBytes <= kLatticeGroupBytes);
};

// 7 * c of codes of 4 bits.
constexpr LevelTable kSevens = {{0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 77, 84, 91, 98, 105}};

// c1 + T * c2 of two quads.
template <class Format>
QUIRE_INLINE IW shared_codes(IW first, IW second) {
  using L = Lattice<Format>;
  if constexpr (L::kDropped > 0) {
    first = (first >> L::kDropped) & repeated(0x1f);
    second = (second >> L::kDropped) & repeated(0x1f);
  }
  if constexpr (L::kFactor == 16) {
    return first | second << 4;
  } else if constexpr (Format::kCodeBits <= 4) {
    return add_bytes(first, look_up(kSevens.codes, second));
  } else {
    return subtract_bytes(add_bytes(first, second << 3), second);
  }
}

// That of quads j and j + kSpan / 8.
template <class Format>
QUIRE_INLINE IW shared_quad(const uint8_t* block, int group, int v, int j) {
  using L = Lattice<Format>;
  if constexpr (kHasLevelBytes<Format>) {
    static_assert(L::kFactor == Format::kFactor && L::kDropped == Format::kDropped && L::kSpan == 32);
    return Format::shared(block, group, v, j);
  } else if constexpr (L::kFactor == 16 && L::kSpan == 32 && requires { Format::two_quads(block, group, v, j); }) {
    return Format::two_quads(block, group, v, j);
  } else {
    return shared_codes<Format>(Format::quad(block, group, v, j), Format::quad(block, group, v, j + L::kSpan / 8));
  }
}

// Rows whose sums of whole bytes and of shared ones fit the registers together.
constexpr int kRowsInTurn = kPairSums ? 3 : 8;

template <class Format, int R, int V>
struct LatticeGroup {
  using L = Lattice<Format>;
  static constexpr int kQuads = L::kSpan / 4;

  // Adds the products of a quad with the numbers at `at` of the rows.
  QUIRE_INLINE void add_quad(const IW (&quads)[V], const uint8_t* const (&rows)[R], int64_t at, Sums (&sums)[R][V]) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] = add_products_at(sums[r][v], quads[v], rows[r] + at);
    }
  }

  // The products of quad `j` of a group's codes with the bytes of their values.
  QUIRE_INLINE void add_whole(const uint8_t* block, int group, int j, const uint8_t* const (&rows)[R], int64_t at,
                              Sums (&sums)[R][V]) {
    IW quads[V];
    for (int v = 0; v < V; ++v) {
      if constexpr (IsOpened<Format>) {
        quads[v] = Format::plane(block, v, j);
      } else {
        quads[v] = Format::quad(block, group, v, j);
      }
    }
    add_quad(quads, rows, at + L::kBytesAt + j * 4, sums);
  }
  // Those of the pairs of codes of which the first are quad `j` of a span, with the bytes that they share.
  QUIRE_INLINE void add_shared(const uint8_t* block, int group, int span, int j, const uint8_t* const (&rows)[R],
                               int64_t at, Sums (&sums)[R][V]) {
    IW quads[V];
    for (int v = 0; v < V; ++v) {
      if constexpr (IsOpened<Format>) {
        quads[v] = Format::plane(block, v, 8 + span * kQuads / 2 + j);
      } else {
        quads[v] = shared_quad<Format>(block, group, v, span * kQuads + j);
      }
    }
    add_quad(quads, rows, at + L::kSharedAt + (span * kQuads / 2 + j) * 4, sums);
  }

  // S times the products of whole bytes, and those of shared ones.
  QUIRE_INLINE void sum_span(const uint8_t* block, int group, int span, const uint8_t* const (&rows)[R], int64_t at,
                             IW (&totals)[R][V]) {
    constexpr int kFactor = L::kStep >> L::kDropped;
    Sums whole[R][V] = {};
    Sums shared[R][V] = {};
    if constexpr (R > kRowsInTurn) {
      // One after the other: both together do not fit the registers.
#pragma GCC unroll kUnrolledQuads
      for (int j = 0; j < kQuads / 2; ++j) add_shared(block, group, span, j, rows, at, shared);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] = settled(total(shared[r][v]));
      }
#pragma GCC unroll kUnrolledQuads
      for (int j = 0; j < kQuads; ++j) add_whole(block, group, span * kQuads + j, rows, at, whole);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] += scaled_total<kFactor>(whole[r][v]);
      }
    } else {
      // In turn: the sums of 8 rows alone would wait for each other, and closing some hides behind others' products.
#pragma GCC unroll kUnrolledQuads
      for (int j = 0; j < kQuads / 2; ++j) {
        add_whole(block, group, span * kQuads + j, rows, at, whole);
        add_whole(block, group, span * kQuads + kQuads / 2 + j, rows, at, whole);
        add_shared(block, group, span, j, rows, at, shared);
      }
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] = scaled_total<kFactor>(whole[r][v]) + total(shared[r][v]);
      }
    }
  }

  QUIRE_INLINE void add(const uint8_t* block, int group, const Scales (&scales)[V], const uint8_t* const (&rows)[R],
                        int64_t, int64_t step, FW (&sums)[R][V]) {
    const int64_t at = step / 32 * L::kGroupBytes;
    for (int span = 0; span < L::kSpans; ++span) {
      IW totals[R][V];
      sum_span(block, group, span, rows, at, totals);
      for (int r = 0; r < R; ++r) {
        const FW dx = broadcast_wide(float_at(rows[r] + at));
        for (int v = 0; v < V; ++v) {
          const FW d = scales[v].d[span * L::kSpan / 16];
          sums[r][v] = fma(ints_to_floats(totals[r][v]), d * dx, sums[r][v]);
        }
      }
    }
    for (int i = 0; i < L::kSums; ++i) {
      for (int r = 0; r < R; ++r) {
        const FW sum = broadcast_wide(float_at(rows[r] + at + L::kSumsAt + i * 4));
        for (int v = 0; v < V; ++v)
          sums[r][v] = fma(Format::kMinSteps > 0 ? scales[v].m[i] : scales[v].d[i], sum, sums[r][v]);
      }
    }
  }
};

// The eight quads of a group, then what meets the bytes that values share.
template <class Format>
struct LatticePlanes {
  static constexpr int kPlanes = 12;
  static constexpr int kRows = 4;
  template <class Put>
  QUIRE_INLINE void open(const uint8_t* block, int group, int v, const Put& put) {
    constexpr int kQuads = Lattice<Format>::kSpan / 4;
#pragma GCC unroll kUnrolledQuads
    for (int i = 0; i < 4; ++i) {
      const int j = i / (kQuads / 2) * kQuads + i % (kQuads / 2);
      const IW first = Format::quad(block, group, v, j);
      const IW second = Format::quad(block, group, v, j + kQuads / 2);
      put(j, first);
      put(j + kQuads / 2, second);
      put(8 + i, shared_codes<Format>(first, second));
    }
  }
};

// To the nearest whole number, ties to even; |x| < 2^22.
QUIRE_INLINE UW rounded(FW x) {
#if defined(__AVX512F__)
  return (UW)_mm512_maskz_cvtps_epi32(0xffff, x);
#elif defined(__AVX2__)
  return (UW)_mm256_cvtps_epi32(x);
#else
  const FW shifter = broadcast_wide(12582912.0f);  // 1.5 * 2^23
  return (UW)(x + shifter) - (UW)shifter;
#endif
}

// A point: x1 = S * q1 + l, x2 = S * q2 + T * l; of the three numbers the lowest bytes count. And x1 + x2. Of NaN
// they are anything: unsigned, for sums and products may wrap.
struct Point {
  UW q1;
  UW q2;
  UW l;
  UW both;
};

QUIRE_INLINE UW shifted(UW x, int bits) {
  return (UW)((IW)x >> bits);
}

// The point next to (S * x1, S * x2).
template <class L>
QUIRE_INLINE Point nearest_point(FW x1, FW x2) {
  if constexpr (L::kFactor == 16) {
    // x2 in steps of 16 fixes the lower half of l, x1 then the upper one, which is carried into q1 and out of q2.
    const UW second = rounded(x2 * 16.0f);
    const UW lower = second & 15;
    const UW first = rounded(fma(ints_to_floats((IW)lower), broadcast_wide(-0.0625f), x1 * 16.0f));
    const UW l = (first << 4) + lower;
    const UW q1 = shifted(first + 8, 4);
    return {q1, shifted(second, 4) - first + (q1 << 4), l, l + (second << 4)};
  } else {
    // The nearest multiples of (1, 7) and of (9 * kUnit, -kUnit).
    constexpr int kUnit = L::kStep / 64;
    constexpr int kHalfStep = L::kStep / 2;
    constexpr int kBits = L::kStep == 64 ? 6 : L::kStep == 128 ? 7 : 8;
    const UW a = rounded((x2 * 9.0f + x1) * static_cast<float>(kUnit));
    const UW b = rounded(x1 * 7.0f - x2);
    const UW first = a + b * (9 * kUnit);
    const UW second = a * 7 - b * kUnit;
    const UW l = ((first + kHalfStep) & (L::kStep - 1)) - kHalfStep;
    return {shifted(first - l, kBits), shifted(second - l * 7, kBits), l, first + second};
  }
}

QUIRE_INLINE int sum_of_lanes(I8 v) {
  v = wrapping_sum(v, swap_fours(v));
  v = wrapping_sum(v, swap_twos(v));
  return wrapping_sum(v, swap_ones(v))[0];
}
QUIRE_INLINE float largest_of_lanes(I8 bits) {
  bits = larger(bits, swap_fours(bits));
  bits = larger(bits, swap_twos(bits));
  return ((F8)larger(bits, swap_ones(bits)))[0];
}

// A vector's lanes by eights.
struct Eights {
  I8 v[kWide / 8];
  const I8* begin() const { return v; }
  const I8* end() const { return v + kWide / 8; }
  const I8& operator[](int i) const { return v[i]; }
};
QUIRE_INLINE Eights eights(IW v) {
#if QUIRE_WIDE_LANES == 16
  return {{(I8)lower_half((FW)v), (I8)upper_half((FW)v)}};
#else
  return {{v}};
#endif
}

constexpr int kParts = 16 / kWide;  // vectors of values whose partners are in as many others

// The values of a group that are first in their pairs, and the second ones.
template <class Format>
QUIRE_INLINE void load_pairs(const float* x, FW (&first)[kParts], FW (&second)[kParts]) {
  constexpr bool kWholeGroup = Lattice<Format>::kSpan == 32;
#if QUIRE_WIDE_LANES == 16
  first[0] = kWholeGroup ? load_wide(x) : joined(load(x), load(x + 16));
  second[0] = kWholeGroup ? load_wide(x + 16) : joined(load(x + 8), load(x + 24));
#else
  for (int part = 0; part < kParts; ++part) {
    first[part] = load(x + part * (kWholeGroup ? 8 : 16));
    second[part] = load(x + part * (kWholeGroup ? 8 : 16) + (kWholeGroup ? 16 : 8));
  }
#endif
}

// The lowest bytes of the first eight lanes, and of the others, where there are more, kNext bytes further.
template <int kNext>
QUIRE_INLINE void store_bytes(UW v, uint8_t* p) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v);
  if constexpr (kNext == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p + kNext), _mm_unpackhi_epi64(bytes, bytes));
  }
#else
  const Eights lanes = eights((IW)v);
  for (int i = 0; i < kWide / 8; ++i) store_narrowed(lanes[i], reinterpret_cast<int8_t*>(p + i * kNext));
#endif
}

template <class L>
QUIRE_INLINE void store_points(const Point (&points)[kParts], uint8_t* group) {
  constexpr int kNext = L::kSpan == 32 ? 8 : 16;  // from 8 first values to the next 8
  for (int part = 0; part < kParts; ++part) {
    uint8_t* const q = group + L::kBytesAt + part * kNext;
    store_bytes<kNext>(points[part].q1, q);
    store_bytes<kNext>(points[part].q2, q + L::kSpan / 2);
    store_bytes<8>(points[part].l, group + L::kSharedAt + part * 8);
  }
}

// Twice what a weight's m, or its d where it has none, is to be multiplied by beside dx: of pairs x1, x2 as rounded
//   m * (x1 + x2), or d * (the mean of what is dropped of a code * (l + T * l) - kAbove * (x1 + x2)).
template <class Format>
QUIRE_INLINE UW twice_sums(const Point& point) {
  using L = Lattice<Format>;
  if constexpr (Format::kMinSteps > 0) {
    static_assert(L::kDropped == 0);
    return point.both * 2;
  } else {
    const UW above = point.both * static_cast<uint32_t>(-2 * L::kAbove);
    return L::kTwiceMean == 0 ? above : above + point.l * static_cast<uint32_t>((1 + L::kFactor) * L::kTwiceMean);
  }
}

// A group, whatever its spans.
template <class Format>
QUIRE_INLINE void code_group(const float* x, uint8_t* group) {
  using L = Lattice<Format>;
  FW first[kParts];
  FW second[kParts];
  load_pairs<Format>(x, first, second);
  // Compared by their bits: infinite or NaN where one of them is.
  I8 bits{};
  for (int part = 0; part < kParts; ++part) {
    for (const FW& values : {first[part], second[part]}) {
      for (const I8& lanes : eights((IW)values)) bits = larger(bits, lanes & 0x7fffffff);
    }
  }
  const float dx = largest_of_lanes(bits) / (L::kMostWhole * L::kStep);
  const float inverse = dx > kLeastScale ? 1.0f / (dx * L::kStep) : 0.0f;
  Point points[kParts];
  I8 twice[2];  // of the first eight first values, of the others
  for (int part = 0; part < kParts; ++part) {
    points[part] = nearest_point<L>(first[part] * inverse, second[part] * inverse);
    const Eights of_part = eights((IW)twice_sums<Format>(points[part]));
    for (int i = 0; i < 2 / kParts; ++i) twice[part + i] = of_part[i];
  }
  put(group, dx * (1 << L::kDropped));
  const float half = 0.5f * dx;
  if constexpr (L::kSums == 2) {
    for (int i = 0; i < 2; ++i) put(group + L::kSumsAt + i * 4, half * static_cast<float>(sum_of_lanes(twice[i])));
  } else {
    put(group + L::kSumsAt, half * static_cast<float>(sum_of_lanes(wrapping_sum(twice[0], twice[1]))));
  }
  store_points<L>(points, group);
}

#if QUIRE_WIDE_LANES == 16
// Up to sixteen groups of one span each: their largest numbers and their sums are found together, a lane each.
template <class Format, int kGroups>
QUIRE_INLINE void code_groups(const float* x, uint8_t* groups) {
  using L = Lattice<Format>;
  static_assert(L::kSpan == 32 && L::kSums == 1 && kGroups <= 16);
  IW bits[16] = {};
  for (int g = 0; g < kGroups; ++g)
    bits[g] = larger((IW)load_wide(x + g * 32) & 0x7fffffff, (IW)load_wide(x + g * 32 + 16) & 0x7fffffff);
  const FW dx = (FW)across_lanes(bits, kLarger) / static_cast<float>(L::kMostWhole * L::kStep);
  const FW inverse = dx > kLeastScale ? 1.0f / (dx * static_cast<float>(L::kStep)) : FW{};
  alignas(64) float numbers[3][16];
  store_wide(numbers[0], inverse);
  store_wide(numbers[1], dx * static_cast<float>(1 << L::kDropped));
  IW twice[16] = {};
  for (int g = 0; g < kGroups; ++g) {
    const FW factor = broadcast_wide(numbers[0][g]);
    const Point points[1] = {nearest_point<L>(load_wide(x + g * 32) * factor, load_wide(x + g * 32 + 16) * factor)};
    twice[g] = (IW)twice_sums<Format>(points[0]);
    store_points<L>(points, groups + g * L::kGroupBytes);
  }
  store_wide(numbers[2], dx * 0.5f * ints_to_floats(across_lanes(twice, kPlus)));
  for (int g = 0; g < kGroups; ++g) {
    put(groups + g * L::kGroupBytes, numbers[1][g]);
    put(groups + g * L::kGroupBytes + L::kSumsAt, numbers[2][g]);
  }
}
#else
// store_points() of a group of one span whose values are finite: their numbers fit bytes, so that narrowing may
// saturate.
QUIRE_INLINE void store_two_parts(const Point& a, const Point& b, uint8_t* bytes, uint8_t* shared) {
  const auto halved = [](UW v, UW w) { return _mm256_packs_epi32((__m256i)v, (__m256i)w); };
  const __m256i turn = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // the order that packing by halves left
  const __m256i q = _mm256_packs_epi16(halved(a.q1, b.q1), halved(a.q2, b.q2));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), _mm256_permutevar8x32_epi32(q, turn));
  const __m256i l = _mm256_packs_epi16(halved(a.l, b.l), _mm256_setzero_si256());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(shared), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(l, turn)));
}

// Up to four groups of one span each: their largest numbers and their sums are found together, a lane each.
template <class Format, int kGroups>
QUIRE_INLINE void code_groups(const float* x, uint8_t* groups) {
  using L = Lattice<Format>;
  static_assert(L::kSpan == 32 && L::kSums == 1 && kParts == 2 && kGroups <= 4);
  const auto across_all = [](const I8(&v)[4], auto combine) {
    const Quarters q = quarters(v);
    return across(combine(q.first[0], q.second[0]), combine(q.first[1], q.second[1]), combine);
  };
  I8 bits[4] = {};
  for (int g = 0; g < kGroups; ++g) {
    const auto magnitudes = [&](int part) { return (I8)load(x + g * 32 + part * 8) & 0x7fffffff; };
    bits[g] = larger(larger(magnitudes(0), magnitudes(1)), larger(magnitudes(2), magnitudes(3)));
  }
  const F8 dx = (F8)across_all(bits, kLarger) / static_cast<float>(L::kMostWhole * L::kStep);
  const F8 inverse = dx > kLeastScale ? 1.0f / (dx * static_cast<float>(L::kStep)) : F8{};
  I8 twice[4] = {};
  for (int g = 0; g < kGroups; ++g) {
    const F8 factor = broadcast(inverse[g]);
    Point points[kParts];
    for (int part = 0; part < kParts; ++part) {
      const float* const first = x + g * 32 + part * 8;
      points[part] = nearest_point<L>(load(first) * factor, load(first + 16) * factor);
    }
    twice[g] = (IW)(twice_sums<Format>(points[0]) + twice_sums<Format>(points[1]));
    uint8_t* const group = groups + g * L::kGroupBytes;
    store_two_parts(points[0], points[1], group + L::kBytesAt, group + L::kSharedAt);
  }
  const F8 sums = dx * 0.5f * to_float(across_all(twice, kPlus));
  const F8 factors = dx * static_cast<float>(1 << L::kDropped);
  for (int g = 0; g < kGroups; ++g) {
    put(groups + g * L::kGroupBytes, factors[g]);
    put(groups + g * L::kGroupBytes + L::kSumsAt, sums[g]);
  }
}
#endif

template <class Format>
void code_lattice(const float* x, int64_t k, uint8_t* row) {
  using L = Lattice<Format>;
  int64_t group = 0;
  if constexpr (L::kSpan == 32) {
    const auto many = [&]<int kGroups>() {
      for (; group + kGroups <= k / 32; group += kGroups)
        code_groups<Format, kGroups>(x + group * 32, row + group * L::kGroupBytes);
    };
    if constexpr (kWide == 16) many.template operator()<16>();
    many.template operator()<4>();
    if constexpr (kWide == 8) many.template operator()<2>();
  }
  for (; group < k / 32; ++group) code_group<Format>(x + group * 32, row + group * L::kGroupBytes);
}

}  // namespace

LinearKernel lattice_linear(DType dtype) {
  return by_lattice_format<LinearKernel>(dtype, [&]<class Format>() -> LinearKernel {
    if constexpr (kMeetsLattice<Format>) return linear_opening<Format, LatticeGroup, LatticePlanes>;
    return nullptr;
  });
}

bool lattice_is_coarse() {
  return kPairSums;
}

CodeRowKernel lattice_code_row(DType dtype) {
  return by_lattice_format<CodeRowKernel>(dtype, [&]<class Format>() -> CodeRowKernel {
    if constexpr (kMeetsLattice<Format>) return code_lattice<Format>;
    return nullptr;
  });
}

}  // namespace quire::ops::cpu::QUIRE_ISA
