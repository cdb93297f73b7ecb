// A token out of what is known of a row of logits, by one block (choose_tokens.cu).
//
// Weights are whole numbers, so sums are the same in whatever order threads come.
#pragma once

#include <cmath>

#include "ops/choose_tokens.h"
#include "ops/cuda/device.cuh"

namespace quire::ops::cuda::token_draw {

using Mass = unsigned long long;  // as CUDA's atomics name 64 bits

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTogether = 32;  // numbers of a thread that are loaded together
constexpr int kBins = 2048;
constexpr int kBinsOfThread = kBins / kThreads;
constexpr int kMostPieces = 64;  // of a row
constexpr int kMostStretches = kMostPieces * kWarps;
constexpr int kMostListed = 2048;
constexpr int kMostPlaces = kMostStretches + kMostStretches / kWarps;
constexpr int32_t kNone = 0x7fffffff;

// Where a stretch's sums are in shared memory: lanes that go over sixteen each, beside each other, meet in no bank.
__device__ inline int place_of(int stretch) {
  return stretch + stretch / kWarps;
}

// The order of numbers as that of whole ones; 0 and -0 are the same.
__device__ inline uint32_t order_of(float value) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t order) {
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

// The largest number so far, the lowest index that has it where that is asked for, and whether a number that no choice
// may meet was seen.
struct Best {
  float value;
  int32_t index;
  int32_t spoilt;

  __device__ void meet(float other, int32_t at) {
    if (other > value || (other == value && at < index)) {
      value = other;
      index = at;
    }
  }
  __device__ void meet(const Best& other) {
    meet(other.value, other.index);
    spoilt |= other.spoilt;
  }
  __device__ void meet_lanes() {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      meet(__shfl_xor_sync(kAllLanes, value, offset), __shfl_xor_sync(kAllLanes, index, offset));
      spoilt |= __shfl_xor_sync(kAllLanes, spoilt, offset);
    }
  }
};
__device__ inline Best nothing_seen() {
  return {-INFINITY, kNone, 0};
}

struct Shared {
  union {
    uint32_t sums[kBins][2];  // lower and upper halves
    uint32_t counts[kBins];
    Mass weights[kMostListed];
  };
  float values[kMostListed];  // of the list, in any order
  int32_t indices[kMostListed];
  Mass masses[kMostPlaces];  // of stretches, at place_of()
  uint32_t equals[kMostPlaces];
  Best bests[kWarps];
  float sums_of_warps[kWarps][2];
  float places[2];
  uint32_t digit;
  int32_t num_listed;
  int32_t first_place;
  uint32_t turn;
  bool is_last;
  Mass left;
};

__device__ inline Mass lanes_sum(Mass value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ inline Mass least_of(Mass a, Mass b) {
  return a < b ? a : b;
}

// Weights of up to 2^40 as whole numbers, the nearest ones (of two the even one): high * 2^20 + low, both small enough
// for the sum of some thousands. Conversions to integers are slow, those to 64 bits slower, so by additions to a large
// float, whose bits then count from those of kRounder.
struct Parts {
  static constexpr float kRounder = 0x1.8p23f;
  static constexpr uint32_t kBitsOfRounder = 0x4b400000;
  uint32_t high;
  uint32_t low;

  __device__ static Parts of(float scaled) {
    const float high = fmaf(scaled, 0x1p-20f, kRounder);
    const float low = fmaf(high - kRounder, -0x1p20f, scaled) + kRounder;
    return {__float_as_uint(high), __float_as_uint(low)};
  }
  __device__ static Parts none() { return {kBitsOfRounder, kBitsOfRounder}; }
};

// The sum of what are kCount parts when it is asked for.
template <int kCount>
struct PartsSum {
  uint32_t high = 0;
  uint32_t low = 0;

  __device__ void add(const Parts& parts) {
    high += parts.high;
    low += parts.low;
  }
  __device__ Mass whole() const {
    constexpr uint32_t kNothing = Parts::kBitsOfRounder * static_cast<uint32_t>(kCount);
    const auto signed_high = static_cast<int32_t>(high - kNothing);
    const auto signed_low = static_cast<int32_t>(low - kNothing);
    return static_cast<Mass>((static_cast<long long>(signed_high) << 20) + signed_low);
  }
};

// One row, in a block.
struct Row {
  const float* values;
  int32_t size;
  TokenChoice choice;
  int32_t stretch;  // numbers of a warp's, beside each other; a multiple of 128
  int num_stretches;
  int warp;
  int lane;
  float best = 0;
  float power = 0;  // weights are powers of two of this times what a number is below the best
  float least_weight = 0;
  uint32_t least = 0;  // order of the least number that top_k leaves

  __device__ Row(const ChooseTokensArgs& args, int64_t index, int num_pieces)
      : values(args.in + index * args.size),
        size(static_cast<int32_t>(args.size)),
        choice(args.choices.device[index]),
        num_stretches(num_pieces * kWarps),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp) {
    constexpr int kUnit = 4 * kWarp;
    stretch = ((size + num_stretches - 1) / num_stretches + kUnit - 1) / kUnit * kUnit;
  }

  __device__ void set_best(float value) {
    best = value;
    power = fminf(choice.inverse_temperature, 1e30f) * 1.44269504f;
    least_weight = 0;
    least_weight = fminf(choice.min_p * kWeightOne, scaled_weight(value));
  }

  // Times 2^40, not yet rounded; 0: min_p drops it.
  __device__ float scaled_weight(float value) const {
#ifdef __CUDACC__
    const float scaled = fast_exp2(fmaf(value - best, power, 40.0f));
#else
    const float scaled = expf((value - best) * choice.inverse_temperature) * kWeightOne;
#endif
    return scaled < least_weight ? 0 : scaled;
  }
  // 0: min_p or top_k drops it.
  __device__ Mass weight(float value) const {
    if (order_of(value) < least) return 0;
    PartsSum<1> sum;
    sum.add(Parts::of(scaled_weight(value)));
    return sum.whole();
  }

  __device__ int32_t begin_of(int number) const {
    return static_cast<int32_t>(min(int64_t{number} * stretch, int64_t{size}));
  }
  // Numbers of a lane: kCount of those that a warp has from `first` on, before `end`; -inf where there is none.
  // REQUIRES: first is a stretch's begin or batches of kCount * kWarp after it.
  template <int kCount>
  struct Batch {
    float of[kCount];
    int32_t first;  // what the lane has first
    bool has_quads;

    __device__ int32_t index(int j) const {
      return has_quads ? first + j / 4 * (4 * kWarp) + j % 4 : first + j * kWarp;
    }
  };
  template <int kCount>
  __device__ Batch<kCount> load(int64_t first, int32_t end) const {
    Batch<kCount> batch;
    batch.has_quads = reinterpret_cast<uintptr_t>(values) % sizeof(float4) == 0;
    batch.first = static_cast<int32_t>(first) + lane * (batch.has_quads ? 4 : 1);
    const float* at = values + batch.first;
    if (batch.has_quads && first + kCount * kWarp <= end) {
#pragma unroll
      for (int j = 0; j < kCount; j += 4) {
        const float4 quad = *reinterpret_cast<const float4*>(at + j * kWarp);
        batch.of[j] = quad.x;
        batch.of[j + 1] = quad.y;
        batch.of[j + 2] = quad.z;
        batch.of[j + 3] = quad.w;
      }
    } else if (first + kCount * kWarp <= end) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) batch.of[j] = at[j * kWarp];
    } else {
      const auto left = static_cast<int32_t>(end - first);  // may be below 0
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int32_t i = batch.index(j);
        batch.of[j] = i - static_cast<int32_t>(first) < left ? values[i] : -INFINITY;
      }
    }
    return batch;
  }
  // The numbers of a lane that are loaded first of a stretch, most often all; -inf where there is none.
  __device__ Batch<kTogether> begin_stretch(int number) const {
    return load<kTogether>(begin_of(number), begin_of(number + 1));
  }
  // body(batch) of a lane's numbers of a stretch, of which `batch` are the first.
  template <typename Body>
  __device__ void for_stretch(int number, Batch<kTogether> batch, const Body& body) const {
    const int32_t end = begin_of(number + 1);
    for (int64_t first = begin_of(number);;) {
      body(batch);
      first += kWarp * kTogether;
      if (first >= end) return;
      batch = load<kTogether>(first, end);
    }
  }
};

// Numbers that a block goes over: a row, or the list of one.
struct Numbers {
  const float* values;
  int32_t size;

  // body(value, i) of a thread's.
  template <typename Body>
  __device__ void for_all(const Body& body) const {
    constexpr int kAtOnce = 8;
    for (int64_t first = threadIdx.x; first < size; first += kThreads * kAtOnce) {
      float some[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int64_t i = first + j * kThreads;
        some[j] = values[i < size ? i : first];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int64_t i = first + j * kThreads;
        if (i < size) body(some[j], static_cast<int32_t>(i));
      }
    }
  }
};

// Sums by bins, in shared memory. Of 64 bits that has no additions, only a loop of comparisons and exchanges, in which
// the lanes that share a bin wait for each other: so by additions of 32 bits and a carry.
__device__ inline void clear_bins(Shared& shared) {
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads)
    shared.sums[bin][0] = shared.sums[bin][1] = 0;
}
__device__ inline void add_to(uint32_t (&sum)[2], Mass amount) {
  const auto low = static_cast<uint32_t>(amount);
  const uint32_t before = atomicAdd(&sum[0], low);
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + (before + low < low ? 1u : 0u);
  if (high != 0) atomicAdd(&sum[1], high);
}
__device__ inline Mass sum_of_bin(const Shared& shared, int bin) {
  return Mass{shared.sums[bin][1]} << 32 | shared.sums[bin][0];
}

// The highest bin that, with those above it, reaches `wanted`, which shared.digit becomes, and what those above leave
// of it; kBins: none does. In all threads, which meet before and afterwards; each has bins beside each other,
// the first thread the highest.
__device__ inline void find_digit(Shared& shared, Mass wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int highest = kBins - 1 - thread * kBinsOfThread;
  Mass mine = 0;
#pragma unroll
  for (int k = 0; k < kBinsOfThread; ++k) mine += sum_of_bin(shared, highest - k);
  const Mass of_warp = sum_up_to_lane(mine, lane);
  if (lane == kWarp - 1) shared.masses[warp] = of_warp;
  if (thread == 0) shared.digit = kBins;
  __syncthreads();
  Mass above = lanes_sum(lane < warp ? shared.masses[lane] : 0) + of_warp - mine;
  if (above < wanted && above + mine >= wanted) {
    int bin = highest;
    while (above + sum_of_bin(shared, bin) < wanted) above += sum_of_bin(shared, bin--);
    shared.digit = static_cast<uint32_t>(bin);
    shared.left = wanted - above;
  }
  __syncthreads();
}

// In all threads.
__device__ inline Mass block_sum(Shared& shared, Mass mine) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  mine = lanes_sum(mine);
  if (lane == 0) shared.masses[warp] = mine;
  __syncthreads();
  const Mass sum = lanes_sum(lane < kWarps ? shared.masses[lane] : 0);
  __syncthreads();
  return sum;
}

// The largest order such that the numbers of this order and above reach `wanted` together, each counting what
// `worth(value)` says, found digit by digit; `left` becomes what those above it leave of it. 0: all of them do not.
// REQUIRES: wanted > 0.
template <typename Worth>
__device__ uint32_t threshold(Shared& shared, const Numbers& numbers, Mass wanted, const Worth& worth, Mass& left) {
  uint32_t found = 0;
  left = wanted;
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    const int width = round == 2 ? 10 : 11;
    clear_bins(shared);
    __syncthreads();
    numbers.for_all([&](float value, int32_t) {
      const uint32_t order = order_of(value);
      if (shift < 21 && order >> (shift + width) != found >> (shift + width)) return;
      const Mass amount = worth(value);
      if (amount > 0) add_to(shared.sums[order >> shift & ((1u << width) - 1)], amount);
    });
    __syncthreads();
    find_digit(shared, left);
    const uint32_t digit = shared.digit;
    left = shared.left;
    __syncthreads();
    if (digit == kBins) return 0;
    found |= digit << shift;
  }
  return found;
}

// What is drawn from: numbers above `order`, and the first `equals` of those that are of it.
struct Kept {
  uint32_t order;
  Mass equals;
};

__device__ inline Mass total_of(Shared& shared, const Row& row, const Numbers& numbers) {
  Mass mine = 0;
  numbers.for_all([&](float value, int32_t) { mine += row.weight(value); });
  return block_sum(shared, mine);
}

// REQUIRES: sum > 0.
__device__ inline Mass wanted_of(float top_p, Mass sum) {
  const auto wanted = static_cast<Mass>(ceil(static_cast<double>(top_p) * static_cast<double>(sum)));
  return wanted == 0 ? 1 : wanted;
}

// Of numbers that together with what is left out reach `wanted` of weight; order 0: all of them do not.
__device__ inline Kept kept_of(Shared& shared, const Row& row, const Numbers& numbers, Mass wanted) {
  Mass left = 0;
  const uint32_t order = threshold(
      shared, numbers, wanted, [&](float value) { return row.weight(value); }, left);
  if (order == 0) return {0, 0};
  const Mass each = row.weight(value_of(order));
  return {order, (left + each - 1) / each};
}

__device__ inline Mass target_of(const Row& row, Mass total) {
  return least_of(static_cast<Mass>(row.choice.u * static_cast<double>(total)), total - 1);
}

// Out of a list that has all that is kept: by whoever has the token's number.
__device__ inline void draw_of_list(Shared& shared, const Row& row, const Numbers& list, const Kept& kept,
                                    int32_t& token) {
  Mass* weights = shared.weights;
  const int32_t* indices = shared.indices;
  Mass mine = 0;
  list.for_all([&](float value, int32_t i) {
    const uint32_t order = order_of(value);
    Mass equals_before = 0;
    if (kept.equals > 0 && order == kept.order) {
      for (int32_t j = 0; j < list.size; ++j)
        equals_before += order_of(list.values[j]) == order && indices[j] < indices[i];
    }
    const bool is_kept = order > kept.order || (order == kept.order && equals_before < kept.equals);
    weights[i] = is_kept ? row.weight(value) : 0;
    mine += weights[i];
  });
  const Mass target = target_of(row, block_sum(shared, mine));
  list.for_all([&](float, int32_t i) {
    if (weights[i] == 0) return;
    Mass before = 0;
    for (int32_t j = 0; j < list.size; ++j) before += indices[j] < indices[i] ? weights[j] : 0;
    if (before <= target && target < before + weights[i]) token = indices[i];
  });
}

// The first number of [begin, end) at which the sum exceeds target, `equals` of kept.order being before it.
__device__ inline int32_t find_token(const Row& row, const Kept& kept, Mass each, Mass target, Mass equals,
                                     int32_t begin, int32_t end) {
  constexpr int kPieces = 4;  // of the warp's width, gone over at once where the sum does not pass within them
  Mass before = 0;
  for (int32_t first = begin; first < end; first += kWarp * kPieces) {
    float some[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) some[j] = row.values[min(first + j * kWarp + row.lane, end - 1)];
    Mass mine[kPieces];
    Mass of_lane = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const bool there = first + j * kWarp + row.lane < end;
      const uint32_t order = order_of(some[j]);
      const bool equal = there && order == kept.order;
      const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
      mine[j] = there && order > kept.order ? row.weight(some[j]) : 0;
      if (equal && equals + static_cast<Mass>(__popc(equal_lanes & ((1u << row.lane) - 1))) < kept.equals)
        mine[j] = each;
      equals += static_cast<Mass>(__popc(equal_lanes));
      of_lane += mine[j];
    }
    const Mass of_all = lanes_sum(of_lane);
    if (before + of_all <= target) {
      before += of_all;
      continue;
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Mass sum = before + sum_up_to_lane(mine[j], row.lane);
      const unsigned passed = __ballot_sync(kAllLanes, sum > target);
      if (passed != 0) return first + j * kWarp + __ffs(static_cast<int>(passed)) - 1;
      before = __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
  }
  return -1;  // not reached: the sums are exact
}

// The stretch in which the sum passes is found by one warp, from shared.masses (of numbers above kept.order) and
// shared.equals (of those that are of it), a lane for the stretches beside each other.
__device__ inline void draw_of_stretches(Shared& shared, const Row& row, const Kept& kept, int32_t& token) {
  if (row.warp != 0) return;
  const Mass each = kept.equals > 0 ? row.weight(value_of(kept.order)) : 0;
  const int of_lane = (row.num_stretches + kWarp - 1) / kWarp;
  const int begin = min(row.lane * of_lane, row.num_stretches);
  const int end = min(begin + of_lane, row.num_stretches);
  Mass count = 0;
  for (int s = begin; s < end; ++s) count += shared.equals[place_of(s)];
  Mass equals = sum_up_to_lane(count, row.lane) - count;
  const auto mass_of = [&](int s) {
    const Mass taken = equals < kept.equals ? least_of(kept.equals - equals, shared.equals[place_of(s)]) : 0;
    return shared.masses[place_of(s)] + taken * each;
  };
  const Mass equals_before = equals;
  Mass mine = 0;
  for (int s = begin; s < end; ++s) {
    mine += mass_of(s);
    equals += shared.equals[place_of(s)];
  }
  const Mass sum = sum_up_to_lane(mine, row.lane);
  const Mass target = target_of(row, __shfl_sync(kAllLanes, sum, kWarp - 1));
  const int chosen = __ffs(static_cast<int>(__ballot_sync(kAllLanes, sum > target))) - 1;
  Mass before = sum - mine;
  equals = equals_before;
  int stretch = begin;
  if (row.lane == chosen) {
    while (before + mass_of(stretch) <= target) {
      before += mass_of(stretch);
      equals += shared.equals[place_of(stretch++)];
    }
  }
  stretch = __shfl_sync(kAllLanes, stretch, chosen);
  const int32_t drawn =
      find_token(row, kept, each, target - __shfl_sync(kAllLanes, before, chosen),
                 __shfl_sync(kAllLanes, equals, chosen), row.begin_of(stretch), row.begin_of(stretch + 1));
  if (row.lane == 0) token = drawn;
}

// A warp for every stretch in its turn.
__device__ inline void weigh_stretches(Shared& shared, const Row& row, const Kept& kept) {
  for (int s = row.warp; s < row.num_stretches; s += kWarps) {
    Mass mass = 0;
    uint32_t equals = 0;
    row.for_stretch(s, row.begin_stretch(s), [&](const auto& batch) {
#pragma unroll
      for (const float value : batch.of) {
        const uint32_t order = order_of(value);
        if (order > kept.order) mass += row.weight(value);
        if (order == kept.order) ++equals;
      }
    });
    mass = lanes_sum(mass);
    equals = static_cast<uint32_t>(lanes_sum(equals));
    if (row.lane == 0) {
      shared.masses[place_of(s)] = mass;
      shared.equals[place_of(s)] = equals;
    }
  }
}

// What the list adds to the stretches of what is above it.
__device__ inline void add_list(Shared& shared, const Row& row, const Numbers& list, const Kept& kept) {
  clear_bins(shared);
  __syncthreads();
  list.for_all([&](float value, int32_t i) {
    const int s = shared.indices[i] / row.stretch;
    const uint32_t order = order_of(value);
    if (order > kept.order) add_to(shared.sums[s], row.weight(value));
    if (order == kept.order) atomicAdd(&shared.equals[place_of(s)], 1u);
  });
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < row.num_stretches; s += kThreads)
    shared.masses[place_of(s)] += sum_of_bin(shared, s);
}
static_assert(kMostStretches <= kBins);

}  // namespace quire::ops::cuda::token_draw
