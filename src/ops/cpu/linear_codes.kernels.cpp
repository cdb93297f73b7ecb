// Matrix products of rows of whole numbers with packed panels of codes (packed_panels.h): a row of activations is
// rounded to 8 or 16 bits with a scale for every 16 or 32 of them, products of whole numbers are summed exactly over
// those, and only then become floats: out += d * dx * sum(code * q) + m * (dx * sum(q)), one chain of multiply-adds an
// output, in the order of k. So an output depends on its row and its column alone.
//
// With AVX2 the products of 8-bit rows and 16 steps are summed in pairs of 16 bits, which leaves room for codes of 6
// bits: 8 * 31 * 127 is less than 2^15. Where codes have an offset, sums begin at -offset * sum(q), so that what counts
// is 8 * 32 * 127: it fits again, and what runs over on the way comes back. Elsewhere sums have 32 bits, and codes of 8
// bits and a sign are multiplied as if they were 128 more.
#include "ops/cpu/across_lanes.h"
#include "ops/cpu/code_products.h"
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/opened_tiles.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int kHalf = 16;  // steps that share a scale of an 8-bit row

// What codes are above their values where they meet 8-bit rows.
template <class Format>
constexpr int kByteOffset = Format::kSigned ? 128 : Format::kOffset;

// A coded row of k steps is: for each 16 of them the scale dx; for each 16 a sum (a float, or what whole-number sums
// begin with); then the numbers.
// Where the parts of a coded row of k steps begin.
QUIRE_INLINE int64_t sums_offset(int64_t k) {
  return k / kHalf * 4;
}
QUIRE_INLINE int64_t numbers_offset(int64_t k) {
  return k / kHalf * 8;
}

// m * (dx * sum(q)) of the rows over the steps that share an m.
template <int R, int V>
QUIRE_INLINE void add_mins(const Scales (&scales)[V], int half, const uint8_t* const (&rows)[R], int64_t k,
                           int64_t step, FW (&sums)[R][V]) {
  for (int r = 0; r < R; ++r) {
    const FW sum = broadcast_wide(float_at(rows[r] + sums_offset(k) + step / kHalf * 4));
    for (int v = 0; v < V; ++v) sums[r][v] = fma(scales[v].m[half], sum, sums[r][v]);
  }
}

// The whole-number sums over half a group.
template <class Format, int R, int V>
QUIRE_INLINE void sum_half(const uint8_t* block, int group, int half, const uint8_t* const (&rows)[R], int64_t k,
                           int64_t step, Sums (&products)[R][V]) {
  for (int r = 0; r < R; ++r) {
    const Sums start = kByteOffset<Format> > 0 ? broadcast_ints(rows[r] + sums_offset(k) + step / kHalf * 4) : Sums{};
    for (int v = 0; v < V; ++v) products[r][v] = start;
  }
#pragma GCC unroll kUnrolledQuads
  for (int j = 0; j < 4; ++j) {
    IW quads[V];
    for (int v = 0; v < V; ++v) {
      quads[v] = Format::quad(block, group, v, half * 4 + j);
      if constexpr (Format::kSigned) quads[v] ^= repeated(kByteOffset<Format>);
    }
    for (int r = 0; r < R; ++r) {
      const IW q = broadcast_ints(rows[r] + numbers_offset(k) + step + j * 4);
      for (int v = 0; v < V; ++v) products[r][v] = add_products(products[r][v], quads[v], q);
    }
  }
}

template <class Format, int R, int V>
QUIRE_INLINE void add_half(const uint8_t* block, int group, int half, const Scales (&scales)[V],
                           const uint8_t* const (&rows)[R], int64_t k, int64_t step, FW (&sums)[R][V]) {
  Sums products[R][V];
  sum_half<Format, R, V>(block, group, half, rows, k, step, products);
  for (int r = 0; r < R; ++r) {
    const FW dx = broadcast_wide(float_at(rows[r] + step / kHalf * 4));
    for (int v = 0; v < V; ++v)
      sums[r][v] = fma(ints_to_floats(total(products[r][v])), scales[v].d[half] * dx, sums[r][v]);
  }
}

// Both halves, which have the same d: it is applied to their sum, a multiplication less a row.
template <class Format, int R, int V>
QUIRE_INLINE void add_halves(const uint8_t* block, int group, const Scales (&scales)[V],
                             const uint8_t* const (&rows)[R], int64_t k, int64_t step, FW (&sums)[R][V]) {
  Sums products[R][V];
  FW first[R][V];
  sum_half<Format, R, V>(block, group, 0, rows, k, step, products);
  for (int r = 0; r < R; ++r) {
    const FW dx = broadcast_wide(float_at(rows[r] + step / kHalf * 4));
    for (int v = 0; v < V; ++v) first[r][v] = ints_to_floats(total(products[r][v])) * dx;
  }
  sum_half<Format, R, V>(block, group, 1, rows, k, step + kHalf, products);
  for (int r = 0; r < R; ++r) {
    const FW dx = broadcast_wide(float_at(rows[r] + step / kHalf * 4 + 4));
    for (int v = 0; v < V; ++v) {
      const FW both = fma(ints_to_floats(total(products[r][v])), dx, first[r][v]);
      sums[r][v] = fma(scales[v].d[0], both, sums[r][v]);
    }
  }
}

template <class Format, int R, int V>
struct ByteGroup {
  QUIRE_INLINE void add(const uint8_t* block, int group, const Scales (&scales)[V], const uint8_t* const (&rows)[R],
                        int64_t k, int64_t step, FW (&sums)[R][V]) {
    // With AVX2 the multiplications by d * dx hide behind other instructions, and what saves one is 5 % slower.
    if constexpr (Format::kScaleSteps == 32 && !kPairSums) {
      add_halves<Format, R, V>(block, group, scales, rows, k, step, sums);
    } else {
      add_half<Format, R, V>(block, group, 0, scales, rows, k, step, sums);
      add_half<Format, R, V>(block, group, 1, scales, rows, k, step + kHalf, sums);
    }
    if constexpr (Format::kMinSteps == kHalf) {
      add_mins<R, V>(scales, 0, rows, k, step, sums);
      add_mins<R, V>(scales, 1, rows, k, step + kHalf, sums);
    } else if constexpr (Format::kMinSteps == 32) {
      add_mins<R, V>(scales, 0, rows, k, step, sums);
    }
  }
};

typedef int16_t SW __attribute__((vector_size(sizeof(IW))));

// Levels that are floats, as 8191ths: 32 products with 8191ths of a row's largest number fill the sums' 32 bits, and a
// level is off by less than an f16 of it would be.
template <class Format>
struct LevelWords : Format {
  static constexpr float kMostWord = 8191.0f;
  static constexpr LevelTable byte_of_levels(int shift) {
    LevelTable table{};
    for (int i = 0; i < 16; ++i) {
      const float scaled = Format::kFloatLevels[i] * kMostWord;
      const auto level = static_cast<int>(scaled < 0 ? scaled - 0.5f : scaled + 0.5f);
      table.codes[i] = static_cast<int8_t>(level >> shift);
    }
    return table;
  }
  static constexpr LevelTable kLowBytes = byte_of_levels(0);
  static constexpr LevelTable kHighBytes = byte_of_levels(8);
  QUIRE_INLINE Scales scales(const uint8_t* block, int, int v) {
    return same_scales(Format::factors(block, v) * (1.0f / kMostWord), FW{});
  }
};
template <class Format>
constexpr bool kHasWordLevels = requires {
  Format::kLowBytes;
};
// What a row's largest number becomes.
template <class Format>
constexpr float kLargestWord = kHasWordLevels<Format> ? 8191.0f : 32767.0f;

// choose() of the formats whose products with words are there.
template <class Kernel, class Choose>
Kernel by_word_format(DType dtype, const Choose& choose) {
  if (dtype == DType::kNF4) return choose.template operator()<LevelWords<NF4Format>>();
  if (dtype == DType::kFP4) return choose.template operator()<LevelWords<FP4Format>>();
  return by_code_format<Kernel>(dtype, choose);
}

// The codes of a quad as numbers of 16 bits: steps 0 and 2, steps 1 and 3.
template <class Format>
QUIRE_INLINE void widen_quad(IW quad, IW& even, IW& odd) {
  if constexpr (kHasWordLevels<Format>) {
    const IW low = look_up(Format::kLowBytes.codes, quad);
    const IW high = look_up(Format::kHighBytes.codes, quad);
    even = (low & 0x00ff00ff) | (high & 0x00ff00ff) << 8;
    odd = ((low >> 8) & 0x00ff00ff) | (high & static_cast<int32_t>(0xff00ff00u));
  } else if constexpr (Format::kSigned) {
    even = (IW)((SW)quad << 8 >> 8);
    odd = (IW)((SW)quad >> 8);
  } else {
    even = quad & 0x00ff00ff;
    odd = (quad >> 8) & 0x00ff00ff;
    if constexpr (Format::kOffset > 0) {
      even = (IW)((SW)even - static_cast<int16_t>(Format::kOffset));
      odd = (IW)((SW)odd - static_cast<int16_t>(Format::kOffset));
    }
  }
}

// Sums of 16-bit rows over a group (32 steps, one dx). Where a format's scales change within the group the sums are
// closed in its middle.
template <class Format, int R, int V>
struct WordGroup {
  static constexpr int kSpan = Format::kScaleSteps == 16 ? 4 : 8;  // quads between two closings

  QUIRE_INLINE void add(const uint8_t* block, int group, const Scales (&scales)[V], const uint8_t* const (&rows)[R],
                        int64_t k, int64_t step, FW (&sums)[R][V]) {
    for (int begin = 0; begin < 8; begin += kSpan) {
      IW products[R][V] = {};
#pragma GCC unroll kUnrolledQuads
      for (int j = begin; j < begin + kSpan; ++j) {
        IW even[V];
        IW odd[V];
        for (int v = 0; v < V; ++v) {
          if constexpr (IsOpened<Format>) {
            even[v] = Format::plane(block, v, 2 * j);
            odd[v] = Format::plane(block, v, 2 * j + 1);
          } else {
            widen_quad<Format>(Format::quad(block, group, v, j), even[v], odd[v]);
          }
        }
        for (int r = 0; r < R; ++r) {
          const uint8_t* numbers = rows[r] + numbers_offset(k) + 2 * (step + j * 4);
          const IW q0 = broadcast_ints(numbers);
          for (int v = 0; v < V; ++v) products[r][v] = add_pair_products(products[r][v], even[v], q0);
          const IW q1 = broadcast_ints(numbers + 4);
          for (int v = 0; v < V; ++v) products[r][v] = add_pair_products(products[r][v], odd[v], q1);
        }
      }
      for (int r = 0; r < R; ++r) {
        const FW dx = broadcast_wide(float_at(rows[r] + step / kHalf * 4));
        for (int v = 0; v < V; ++v)
          sums[r][v] = fma(ints_to_floats(products[r][v]), scales[v].d[begin / 4] * dx, sums[r][v]);
      }
      if constexpr (Format::kMinSteps == kHalf) add_mins<R, V>(scales, begin / 4, rows, k, step + begin * 4, sums);
    }
    if constexpr (Format::kMinSteps == 32) add_mins<R, V>(scales, 0, rows, k, step, sums);
  }
};

// A group's quads as numbers of 16 bits.
template <class Format>
struct WordPlanes {
  static constexpr int kPlanes = 16;
  static constexpr int kRows = 4;
  template <class Put>
  QUIRE_INLINE void open(const uint8_t* block, int group, int v, const Put& put) {
#pragma GCC unroll kUnrolledQuads
    for (int j = 0; j < 8; ++j) {
      IW even;
      IW odd;
      widen_quad<Format>(Format::quad(block, group, v, j), even, odd);
      put(2 * j, even);
      put(2 * j + 1, odd);
    }
  }
};

// The largest magnitude of 16 numbers over `most`, in every lane; infinite or NaN where one of them is:
// magnitudes are compared by their bits.
QUIRE_INLINE F8 scale_of(F8 a, F8 b, float most) {
  I8 bits = larger((I8)a & 0x7fffffff, (I8)b & 0x7fffffff);
  bits = larger(bits, swap_fours(bits));
  bits = larger(bits, swap_twos(bits));
  return (F8)larger(bits, swap_ones(bits)) / most;
}

// To the nearest whole number, ties to even; |x| < 2^22.
QUIRE_INLINE I8 rounded(F8 x) {
  const F8 shifter = broadcast(12582912.0f);  // 1.5 * 2^23
  return (I8)(x + shifter) - (I8)shifter;
}

QUIRE_INLINE F8 inverse_of(F8 dx) {
  return dx > kLeastScale ? 1.0f / dx : zero();
}

// Rounds `kGroups` (at most four) groups of 16 numbers, each with a scale of its own; maxima, scales and sums of all
// groups are found at once, a lane each.
template <class Format, int kGroups>
QUIRE_INLINE void code_groups(const float* x, uint8_t* scales, uint8_t* sums, int8_t* numbers) {
  I8 magnitudes[4] = {};
  for (int g = 0; g < kGroups; ++g) {
    const I8 a = (I8)load(x + g * kHalf) & 0x7fffffff;
    const I8 b = (I8)load(x + g * kHalf + kLanes) & 0x7fffffff;
    magnitudes[g] = larger(a, b);
  }
  // Compared by their bits: infinite or NaN where one of the group is.
  const Quarters largest = quarters(magnitudes);
  const F8 dx =
      (F8)across(larger(largest.first[0], largest.second[0]), larger(largest.first[1], largest.second[1]), kLarger) /
      127.0f;
  const F8 inverse = inverse_of(dx);
  I8 by_lane[4] = {};
  for (int g = 0; g < kGroups; ++g) {
    const F8 factor = broadcast(inverse[g]);
    const I8 q0 = rounded(load(x + g * kHalf) * factor);
    const I8 q1 = rounded(load(x + g * kHalf + kLanes) * factor);
    store_narrowed(q0, numbers + g * kHalf);
    store_narrowed(q1, numbers + g * kHalf + kLanes);
    by_lane[g] = wrapping_sum(q0, q1);
  }
  const Quarters of_lanes = quarters(by_lane);
  const I8 first = across(of_lanes.first[0], of_lanes.first[1], kPlus);     // steps 0 and 1 of all quads
  const I8 second = across(of_lanes.second[0], of_lanes.second[1], kPlus);  // steps 2 and 3
  I8 sum;
  if constexpr (kByteOffset < Format >> 0) {
    static_assert(Format::kMinSteps == 0);
    // What the whole-number sums begin with: -offset * q, summed as add_products() sums.
    const I8 low = wrapping_product(first, -kByteOffset<Format>);
    const I8 high = wrapping_product(second, -kByteOffset<Format>);
    sum = kPairSums ? (low & 0xffff) | high << 16 : wrapping_sum(low, high);
  } else {
    F8 all = dx * to_float(wrapping_sum(first, second));
    if constexpr (Format::kMinSteps == 32) {
      // The m of both halves is the same: the first has the sum of both.
      const F8 other = swap_ones(all);
      all = __builtin_shufflevector(all + other, all, 0, 9, 2, 11, 4, 13, 6, 15);
    }
    sum = (I8)all;
  }
  std::memcpy(scales, &dx, kGroups * 4);
  std::memcpy(sums, &sum, kGroups * 4);
}

#if QUIRE_WIDE_LANES == 16
// What code_groups() makes of its groups, of up to sixteen of them.
template <class Format, int kGroups>
QUIRE_INLINE void code_many_groups(const float* x, uint8_t* scales, uint8_t* sums, int8_t* numbers) {
  static_assert(kGroups % 4 == 0 && kGroups <= 16 && kWide == kHalf);
  IW magnitudes[16] = {};
  for (int g = 0; g < kGroups; ++g) magnitudes[g] = (IW)load_wide(x + g * kHalf) & 0x7fffffff;
  const FW dx = (FW)across_lanes(magnitudes, kLarger) / 127.0f;
  const FW inverse = dx > kLeastScale ? 1.0f / dx : FW{};
  alignas(64) float factors[16];
  store_wide(factors, inverse);
  const FW shifter = broadcast_wide(12582912.0f);  // 1.5 * 2^23: adding it rounds; its lowest byte is 0
  IW quads[4] = {};                                // sums of four numbers
  for (int g = 0; g < kGroups; g += 4) {
    IW rounded[4];
    for (int i = 0; i < 4; ++i) rounded[i] = (IW)(load_wide(x + (g + i) * kHalf) * factors[g + i] + shifter);
    const IW bytes = lowest_bytes(rounded);
    std::memcpy(numbers + g * kHalf, &bytes, sizeof(bytes));
    quads[g / 4] = add_products(IW{}, repeated(1), bytes);
  }
  const IW turned = across_quarters(quads[0], quads[1], quads[2], quads[3], kPlus);
  const IW total = __builtin_shufflevector(turned, turned, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  IW sum;
  if constexpr (kByteOffset < Format >> 0) {
    sum = wrapping_product(total, -kByteOffset<Format>);
  } else {
    FW all = dx * ints_to_floats(total);
    if constexpr (Format::kMinSteps == 32) {
      // The m of both halves is the same: the first has the sum of both.
      const FW next = __builtin_shufflevector(all, all, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
      const IW is_first = {-1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0};
      all = is_first ? all + next : all;
    }
    sum = (IW)all;
  }
  std::memcpy(scales, &dx, kGroups * 4);
  std::memcpy(sums, &sum, kGroups * 4);
}
#endif

// What of a format its rows depend on.
template <int kFromZero, int kSteps>
struct ByteRows {
  static constexpr bool kSigned = false;
  static constexpr int kOffset = kFromZero;
  static constexpr int kMinSteps = kSteps;
};
template <class Format>
using ByteRowsOf = ByteRows<kByteOffset<Format>, Format::kMinSteps>;

template <class Format>
void code_bytes(const float* x, int64_t k, uint8_t* row) {
  uint8_t* const sums = row + sums_offset(k);
  auto* const numbers = reinterpret_cast<int8_t*>(row + numbers_offset(k));
  int64_t i = 0;
#if QUIRE_WIDE_LANES == 16
  const auto many = [&]<int kGroups>() {
    for (; i + kGroups * kHalf <= k; i += kGroups * kHalf)
      code_many_groups<Format, kGroups>(x + i, row + i / kHalf * 4, sums + i / kHalf * 4, numbers + i);
  };
  many.template operator()<16>();
  many.template operator()<4>();
#endif
  for (; i + 64 <= k; i += 64) code_groups<Format, 4>(x + i, row + i / kHalf * 4, sums + i / kHalf * 4, numbers + i);
  if (i < k) code_groups<Format, 2>(x + i, row + i / kHalf * 4, sums + i / kHalf * 4, numbers + i);
}

template <class Format>
void code_words(const float* x, int64_t k, uint8_t* row) {
  uint8_t* const sums = row + sums_offset(k);
  auto* const numbers = reinterpret_cast<int16_t*>(row + numbers_offset(k));
  for (int64_t i = 0; i < k; i += 32) {
    F8 values[4];
    for (int v = 0; v < 4; ++v) values[v] = load(x + i + v * kLanes);
    const F8 first = scale_of(values[0], values[1], kLargestWord<Format>);
    const F8 second = scale_of(values[2], values[3], kLargestWord<Format>);
    const F8 dx = (F8)larger((I8)first, (I8)second);
    const F8 inverse = inverse_of(dx);
    I8 q[4];
    for (int v = 0; v < 4; ++v) {
      q[v] = rounded(values[v] * inverse);
      // Steps 0, 2, 1, 3 of a quad: as widen_quad() pairs the codes.
      store_narrowed(__builtin_shufflevector(q[v], q[v], 0, 2, 1, 3, 4, 6, 5, 7), numbers + i + v * kLanes);
    }
    const int64_t at = i / kHalf * 4;
    const float low = dx[0] * sum(to_float(wrapping_sum(q[0], q[1])));
    const float high = dx[0] * sum(to_float(wrapping_sum(q[2], q[3])));
    put(row + at, dx[0]);
    put(row + at + 4, dx[0]);
    put(sums + at, Format::kMinSteps == 32 ? low + high : low);
    put(sums + at + 4, high);
  }
}

// The scale that all of a group is rounded by: NaN where one of the group is. `divisor`: the same, or 1.
QUIRE_INLINE float own_scale(const OwnRounding& rounding, const float* x, int64_t count, float& divisor) {
  I8 bits{};
  for (int64_t i = 0; i < count; i += kLanes) bits = larger(bits, (I8)load(x + i) & 0x7fffffff);
  // Compared by their bits: infinite or NaN where one of them is.
  const float largest = scale_of((F8)bits, (F8)bits, 1.0f)[0];
  const float scale = rounding.scale > 0 ? rounding.scale : largest / 127.5f;
  divisor = scale > 0 ? scale : 1.0f;
  return scale + largest * 0.0f;
}

// A row of whole numbers of 8 bits as bytes or as words: with the same scale everywhere in a group.
template <class Format, bool kAsWords>
void code_own(const OwnRounding& rounding, const float* x, int64_t k, uint8_t* row) {
  uint8_t* const sums = row + sums_offset(k);
  uint8_t* const numbers = row + numbers_offset(k);
  const int64_t group = rounding.group > 0 ? rounding.group : k;
  for (int64_t begin = 0; begin < k; begin += group) {
    const int64_t end = k - begin < group ? k : begin + group;
    float divisor;
    const float dx = own_scale(rounding, x + begin, end - begin, divisor);
    for (int64_t i = begin; i < end; i += 32) {
      I8 q[4];
      for (int v = 0; v < 4; ++v) {
        F8 wanted = load(x + i + v * kLanes) / divisor;
        wanted = wanted < -128.0f ? broadcast(-128.0f) : wanted;
        q[v] = rounded(wanted > 127.0f ? broadcast(127.0f) : wanted);
        if constexpr (kAsWords) {
          store_narrowed(__builtin_shufflevector(q[v], q[v], 0, 2, 1, 3, 4, 6, 5, 7),
                         reinterpret_cast<int16_t*>(numbers) + i + v * kLanes);
        } else {
          store_narrowed(q[v], reinterpret_cast<int8_t*>(numbers) + i + v * kLanes);
        }
      }
      const float halves[2] = {sum(to_float(wrapping_sum(q[0], q[1]))), sum(to_float(wrapping_sum(q[2], q[3])))};
      for (int half = 0; half < 2; ++half) {
        const int64_t at = (i / kHalf + half) * 4;
        put(row + at, dx);
        if constexpr (!kAsWords && (kByteOffset < Format >> 0)) {
          // What the whole-number sums begin with; of a row that holds NaN anything.
          const auto start = static_cast<uint32_t>(static_cast<int64_t>(halves[half]) * -kByteOffset<Format>);
          std::memcpy(sums + at, &start, sizeof(start));
        } else {
          put(sums + at, dx * (Format::kMinSteps == 32 && half == 0 ? halves[0] + halves[1] : halves[half]));
        }
      }
    }
  }
}

// Formats whose products with 8-bit rows have room: codes with a sign have more than 6 bits, and what their sums begin
// with lies where those for minima would.
template <class Format>
constexpr bool kMeetsBytes = !Format::kSigned || (!kPairSums && Format::kMinSteps == 0);

}  // namespace

LinearKernel whole_number_linear(Activations activations, DType dtype) {
  if (activations == kWordRows) {
    return by_word_format<LinearKernel>(
        dtype, []<class Format>() -> LinearKernel { return linear_opening<Format, WordGroup, WordPlanes>; });
  }
  return by_code_format<LinearKernel>(dtype, []<class Format>() -> LinearKernel {
    if constexpr (kMeetsBytes<Format>) return linear<Format, ByteGroup>;
    return nullptr;
  });
}

CodeRowKernel whole_number_code_row(Activations activations, DType dtype) {
  if (activations == kWordRows) {
    return by_word_format<CodeRowKernel>(dtype, []<class Format>() -> CodeRowKernel { return code_words<Format>; });
  }
  return by_code_format<CodeRowKernel>(dtype, []<class Format>() -> CodeRowKernel {
    if constexpr (kMeetsBytes<Format>) return code_bytes<ByteRowsOf<Format>>;
    return nullptr;
  });
}

CodeOwnRowKernel whole_number_code_own_row(Activations activations, DType dtype) {
  return by_code_format<CodeOwnRowKernel>(dtype, [&]<class Format>() -> CodeOwnRowKernel {
    if (activations == kWordRows) return code_own<Format, true>;
    // Sums of pairs begin with pairs, which codes with an offset would want; checkpoints that round inputs have none.
    if constexpr (kMeetsBytes<Format> && !(kPairSums && (kByteOffset < Format >> 0))) return code_own<Format, false>;
    return nullptr;
  });
}

}  // namespace quire::ops::cpu::QUIRE_ISA
