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
//   128  7    7 x 18   with AVX2, whose sums have 16 bits: (15 + 7 * 15) * 64 * 2 * 2 is less than 2^15; (18, -2)
//   64   7    7 x 9    with AVX2, codes of 5 bits; (9, -1)
//
// Codes of 8 bits have no room: T * l is too large for a part of a code to stand for it. With AVX2 those of 6 have none.
// For comparison: 8 bits alone are a cell of S x S.
//
// A row is groups of 32 steps, each: a scale dx for every 32 of them (with AVX2, whose cells are coarser, 16), a float
// for every scale of the weight's (put_sums()), 32 bytes q, 16 bytes l. Values that share a byte have one dx and one
// scale of the weight: they are half a span apart, a span being the steps that have both in common.
#include "ops/cpu/code_products.h"
#include "ops/cpu/isa_kernels.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int kRowSteps = kPairSums ? 16 : 32;  // that share a dx

// With AVX2 whole bytes of codes of 6 bits would run over sums of 16 bits.
template <class Format>
constexpr bool kMeetsLattice = Format::kCodeBits <= (kPairSums ? 5 : 6);

template <class Format>
struct Lattice {
  static constexpr int kStep = !kPairSums ? 256 : Format::kCodeBits > 4 ? 64 : 128;  // S
  static constexpr int kFactor = kPairSums || Format::kCodeBits > 4 ? 7 : 16;        // T
  // The largest |x| over dx * S: what is carried from T * l to q stays in a byte.
  static constexpr int kMostWhole = kFactor == 16 ? 119 : 123;
  static constexpr int kDropped = Format::kCodeBits > 5 ? Format::kCodeBits - 5 : 0;  // bits of a code that l does not meet
  static constexpr int kAbove = Format::kSigned ? 128 : Format::kOffset;              // what codes are above their values

  static constexpr int kSpan = kRowSteps < Format::kScaleSteps ? kRowSteps : Format::kScaleSteps;
  static constexpr int kSpans = 32 / kSpan;
  static constexpr int kSums = 32 / Format::kScaleSteps;

  // Where the parts of a group lie.
  static constexpr int kSumsAt = 32 / kRowSteps * 4;
  static constexpr int kBytesAt = kSumsAt + kSums * 4;
  static constexpr int kSharedAt = kBytesAt + 32;
  static constexpr int kGroupBytes = kSharedAt + 16;
  static_assert(kGroupBytes <= kLatticeGroupBytes);
};

// c1 + T * c2 of quads j and j + kSpan / 8, of codes without the bits that are dropped.
template <class Format>
QUIRE_INLINE IW shared_quad(const uint8_t* block, int group, int v, int j) {
  using L = Lattice<Format>;
  if constexpr (L::kFactor == 16 && L::kSpan == 32 && requires { Format::two_quads(block, group, v, j); }) {
    return Format::two_quads(block, group, v, j);
  } else {
    IW first = Format::quad(block, group, v, j);
    IW second = Format::quad(block, group, v, j + L::kSpan / 8);
    if constexpr (L::kDropped > 0) {
      first = (first >> L::kDropped) & repeated(0x1f);
      second = (second >> L::kDropped) & repeated(0x1f);
    }
    return L::kFactor == 16 ? first | second << 4 : first + (second << 3) - second;
  }
}

template <class Format, int R, int V>
struct LatticeGroup {
  using L = Lattice<Format>;
  static constexpr int kQuads = L::kSpan / 4;

  // The products of a span's codes with the bytes of their values; of pairs of codes with the bytes that these share.
  template <bool kShared>
  QUIRE_INLINE void add_span(const uint8_t* block, int group, int span, const uint8_t* const (&rows)[R], int64_t at,
                             Sums (&sums)[R][V]) {
    constexpr int kCount = kShared ? kQuads / 2 : kQuads;
    const int64_t numbers = at + (kShared ? L::kSharedAt : L::kBytesAt) + span * kCount * 4;
#pragma GCC unroll kUnrolledQuads
    for (int j = 0; j < kCount; ++j) {
      IW quads[V];
      for (int v = 0; v < V; ++v) {
        quads[v] = kShared ? shared_quad<Format>(block, group, v, span * kQuads + j)
                           : Format::quad(block, group, v, span * kQuads + j);
      }
      for (int r = 0; r < R; ++r) {
        const IW q = broadcast_ints(rows[r] + numbers + j * 4);
        for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], quads[v], q);
      }
    }
  }

  // S times the products of whole bytes, and those of shared ones.
  QUIRE_INLINE void sum_span(const uint8_t* block, int group, int span, const uint8_t* const (&rows)[R], int64_t at,
                             IW (&totals)[R][V]) {
    Sums sums[R][V] = {};
    if constexpr (kPairSums) {
      add_span<true>(block, group, span, rows, at, sums);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] = total(sums[r][v]);
      }
      Sums whole[R][V] = {};
      add_span<false>(block, group, span, rows, at, whole);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] += scaled_total<(L::kStep >> L::kDropped)>(whole[r][v]);
      }
    } else {
      add_span<false>(block, group, span, rows, at, sums);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] *= L::kStep >> L::kDropped;
      }
      add_span<true>(block, group, span, rows, at, sums);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) totals[r][v] = total(sums[r][v]);
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
        const FW dx = broadcast_wide(float_at(rows[r] + at + span * L::kSpan / kRowSteps * 4));
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

// To the nearest whole number, ties to even; |x| < 2^22.
QUIRE_INLINE IW rounded(FW x) {
  const FW shifter = broadcast_wide(12582912.0f);  // 1.5 * 2^23
  return (IW)(x + shifter) - (IW)shifter;
}

// A point: x1 = S * q1 + l, x2 = S * q2 + T * l.
struct Point {
  IW q1;
  IW q2;
  IW l;
};

// The point next to (S * x1, S * x2).
template <class L>
QUIRE_INLINE Point nearest_point(FW x1, FW x2) {
  if constexpr (L::kFactor == 16) {
    // x2 in steps of 16 fixes the lower half of l, x1 then the upper one.
    const IW second = rounded(x2 * 16.0f);
    const IW lower = second & 15;
    const IW first = rounded(fma(ints_to_floats(lower), broadcast_wide(-0.0625f), x1 * 16.0f));
    const IW upper = ((first + 8) & 15) - 8;
    const IW l = upper * 16 + lower;
    return {(first - upper) >> 4, (second - l) >> 4, l};
  } else {
    // The nearest multiples of (1, 7) and of (9 * kUnit, -kUnit).
    constexpr int kUnit = L::kStep / 64;
    constexpr int kHalfStep = L::kStep / 2;
    constexpr int kBits = L::kStep == 64 ? 6 : L::kStep == 128 ? 7 : 8;
    const IW a = rounded((x2 * 9.0f + x1) * static_cast<float>(kUnit));
    const IW b = rounded(x1 * 7.0f - x2);
    const IW first = a + b * (9 * kUnit);
    const IW l = ((first + kHalfStep) & (L::kStep - 1)) - kHalfStep;
    return {(first - l) >> kBits, (a * 7 - b * kUnit - l * 7) >> kBits, l};
  }
}

QUIRE_INLINE int sum_of_lanes(I8 v) {
  v += swap_fours(v);
  v += swap_twos(v);
  return (v + swap_ones(v))[0];
}
QUIRE_INLINE float largest_of_lanes(I8 bits) {
  bits = larger(bits, swap_fours(bits));
  bits = larger(bits, swap_twos(bits));
  return ((F8)larger(bits, swap_ones(bits)))[0];
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
  static_assert(!kWholeGroup);
  for (int part = 0; part < kParts; ++part) {
    first[part] = load(x + part * 16);
    second[part] = load(x + part * 16 + 8);
  }
#endif
}

// The lowest bytes of the first eight lanes, and of the others where there are more.
QUIRE_INLINE void store_bytes(IW v, uint8_t* low, [[maybe_unused]] uint8_t* high) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low), bytes);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_unpackhi_epi64(bytes, bytes));
#elif QUIRE_WIDE_LANES == 16
  store_narrowed((I8)lower_half((FW)v), reinterpret_cast<int8_t*>(low));
  store_narrowed((I8)upper_half((FW)v), reinterpret_cast<int8_t*>(high));
#else
  store_narrowed(v, reinterpret_cast<int8_t*>(low));
#endif
}

template <class L>
QUIRE_INLINE void store_points(const Point (&points)[kParts], uint8_t* group) {
  constexpr int kNext = L::kSpan == 32 ? 8 : 16;     // from 8 first values to the next 8
  constexpr int kPartner = L::kSpan / 2;             // from a value to the one that it shares with
  for (int part = 0; part < kParts; ++part) {
    uint8_t* const q = group + L::kBytesAt + part * kNext;
    store_bytes(points[part].q1, q, q + kNext);
    store_bytes(points[part].q2, q + kPartner, q + kPartner + kNext);
    uint8_t* const l = group + L::kSharedAt + part * 8;
    store_bytes(points[part].l, l, l + 8);
  }
}

// Twice what a weight's m, or its d where it has none, is to be multiplied by beside dx: of pairs x1, x2 as rounded
//   m * (x1 + x2), or d * (the mean of what is dropped of a code * (l + T * l) - kAbove * (x1 + x2)).
template <class Format>
QUIRE_INLINE IW twice_sums(const Point& point) {
  using L = Lattice<Format>;
  constexpr int kTwiceMean = (1 << L::kDropped) - 1;
  const IW of_shared = point.l * (1 + L::kFactor);
  const IW all = (point.q1 + point.q2) * L::kStep + of_shared;
  if constexpr (Format::kMinSteps > 0) {
    static_assert(L::kDropped == 0);
    return all * 2;
  }
  return of_shared * kTwiceMean - all * (2 * L::kAbove);
}

template <class Format>
void code_lattice(const float* x, int64_t k, uint8_t* row) {
  using L = Lattice<Format>;
  for (int64_t i = 0; i < k; i += 32, row += L::kGroupBytes) {
    FW first[kParts];
    FW second[kParts];
    load_pairs<Format>(x + i, first, second);
    Point points[kParts];
    float sums[2] = {};  // of both halves of lanes; where there is one sum, in the first
    for (int part = 0; part < kParts; ++part) {
      // Compared by their bits: infinite or not a number where one of them is.
      const IW bits = larger((IW)first[part] & 0x7fffffff, (IW)second[part] & 0x7fffffff);
#if QUIRE_WIDE_LANES == 16
      const float most = largest_of_lanes(larger((I8)lower_half((FW)bits), (I8)upper_half((FW)bits)));
#else
      const float most = largest_of_lanes(bits);
#endif
      const float dx = most / (L::kMostWhole * L::kStep);
      const float inverse = dx > kLeastScale ? 1.0f / (dx * L::kStep) : 0.0f;
      points[part] = nearest_point<L>(first[part] * inverse, second[part] * inverse);
      put(row + part * 4, dx * (1 << L::kDropped));
      const IW twice = twice_sums<Format>(points[part]);
#if QUIRE_WIDE_LANES == 16
      const I8 low = (I8)lower_half((FW)twice);
      const I8 high = (I8)upper_half((FW)twice);
      if constexpr (L::kSums == 2) {
        sums[0] = 0.5f * dx * static_cast<float>(sum_of_lanes(low));
        sums[1] = 0.5f * dx * static_cast<float>(sum_of_lanes(high));
      } else {
        sums[0] = 0.5f * dx * static_cast<float>(sum_of_lanes(low + high));
      }
#else
      sums[L::kSums == 2 ? part : 0] += 0.5f * dx * static_cast<float>(sum_of_lanes(twice));
#endif
    }
    for (int sum = 0; sum < L::kSums; ++sum) put(row + L::kSumsAt + sum * 4, sums[sum]);
    store_points<L>(points, row);
  }
}

}  // namespace

LinearKernel lattice_linear(DType dtype) {
  return by_code_format<LinearKernel>(dtype, [&]<class Format>() -> LinearKernel {
    if constexpr (kMeetsLattice<Format>) return linear<Format, LatticeGroup>;
    return nullptr;
  });
}

CodeRowKernel lattice_code_row(DType dtype) {
  return by_code_format<CodeRowKernel>(dtype, [&]<class Format>() -> CodeRowKernel {
    if constexpr (kMeetsLattice<Format>) return code_lattice<Format>;
    return nullptr;
  });
}

}  // namespace quire::ops::cpu::QUIRE_ISA
