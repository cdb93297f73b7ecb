// A token out of each row of logits. Several blocks share a row, and go over it in turns, a launch each:
//   1. its largest number and its smallest;
//   2. top_k or top_p: how many numbers, or how much weight, lies in each of 2,048 bins between the two (of less than
//   the
//      smallest weight that counts, top_p sees nothing); neither: the weight of each stretch of the row;
//   3. the bin in which the threshold lies is known: its numbers are listed (of top_k all above it as well), and what
//      lies above is weighed by stretches;
//   4. a block alone finds the threshold in the list, and the stretch, then the token, at which the sum of weights
//   passes
//      the number that was drawn.
// Where the list is too long, which equal logits bring about, the fourth goes over the row itself. Weights are whole
// numbers, so sums are the same in whatever order threads come.
#include "ops/choose_tokens.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

using Mass = unsigned long long;  // as CUDA's atomics name 64 bits

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTogether = 8;  // numbers of a thread that are loaded together
constexpr int kBins = 2048;
constexpr int kBinsOfThread = kBins / kThreads;
constexpr int kMostBlocks = kWarp;  // of a row: a lane for each
constexpr int kMostStretches = kMostBlocks * kWarps;
constexpr int kMostListed = 1024;
constexpr int kMostPlaces = kMostStretches + kMostStretches / kWarps;
constexpr int64_t kBlocksWanted = 528;     // four for each of an H100's processors
constexpr float kWeightlessAfter = 28.5f;  // exp(-28.5) * 2^40 rounds to 0
constexpr int64_t kMostRows = 65535;       // of a grid
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

// The largest number so far, the lowest index that has it, the smallest above -inf, and whether a number that no choice
// may meet was seen.
struct Best {
  float value;
  float smallest;
  int32_t index;
  int32_t spoilt;

  __device__ void meet(float other, int32_t at) {
    if (other > value || (other == value && at < index)) {
      value = other;
      index = at;
    }
  }
  __device__ void meet_lanes() {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      meet(__shfl_xor_sync(kAllLanes, value, offset), __shfl_xor_sync(kAllLanes, index, offset));
      smallest = fminf(smallest, __shfl_xor_sync(kAllLanes, smallest, offset));
      spoilt |= __shfl_xor_sync(kAllLanes, spoilt, offset);
    }
  }
};
__device__ inline Best nothing_seen() {
  return {-INFINITY, INFINITY, kNone, 0};
}

// What the launches leave each other of a row.
struct RowState {
  Mass bins[kBins];
  Mass masses[kMostStretches];
  float values[kMostListed];  // of the list, in any order
  int32_t indices[kMostListed];
  Best bests[kMostBlocks];
  Mass left;            // of what is wanted, beyond the bins above the threshold's
  Mass num_candidates;  // top_k: numbers in that bin and above
  int32_t num_listed;   // may be more than there is room for
};

struct Shared {
  uint32_t sums[kBins][2];  // lower and upper halves
  Best bests[kWarps];
  uint32_t digit;
  Mass left;
  Mass above;
  Mass masses[kMostPlaces];  // of stretches, at place_of()
  uint32_t counts[kMostPlaces];
  int32_t indices[kMostListed];
};

__device__ inline Mass lanes_sum(Mass value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ inline Mass least_of(Mass a, Mass b) {
  return a < b ? a : b;
}

// Of a number in [0, 2^40]. Conversions to 64 bits are a quarter as fast as those to 32 and needed by few.
__device__ inline Mass nearest_whole(float x) {
  if (x < 0x1p32f) return static_cast<Mass>(__float2uint_rn(x));
  return static_cast<Mass>(llrintf(x));
}

// body(value, i) of every kStride-th number of [begin, end), several of which are under way together.
template <int kStride, typename Body>
__device__ void for_values(const float* values, int32_t begin, int32_t end, const Body& body) {
  for (int32_t first = begin; first < end; first += kStride * kTogether) {
    float some[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int32_t i = first + j * kStride;
      some[j] = values[i < end ? i : first];
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int32_t i = first + j * kStride;
      if (i < end) body(some[j], i);
    }
  }
}

// Numbers that a block goes over: a row, or the list of one.
struct Numbers {
  const float* values;
  int32_t size;

  // body(value, i) of a thread's.
  template <typename Body>
  __device__ void for_all(const Body& body) const {
    for_values<kThreads>(values, static_cast<int32_t>(threadIdx.x), size, body);
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
// of it and have; kBins: none does. In all threads, which meet before and afterwards; each has bins beside each other,
// the first thread the highest.
__device__ void find_digit(Shared& shared, Mass wanted) {
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
    shared.above = above;
  }
  __syncthreads();
}

// In all threads.
__device__ Mass block_sum(Shared& shared, Mass mine) {
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

enum class Asks : int { kNoDraw, kTemperature, kTopP, kTopK };

// One row, in the threads of one of its blocks.
struct Row {
  const float* values;
  int32_t size;
  TokenChoice choice;
  RowState* state;
  int32_t stretch;  // numbers of a warp's, beside each other
  int num_stretches;
  int warp;
  int lane;
  Best best;
  uint32_t least = 0;  // order of the least number that top_k leaves

  __device__ Row(const ChooseTokensArgs& args, RowState* states, int num_blocks)
      : values(args.in + int64_t{blockIdx.y} * args.size),
        size(static_cast<int32_t>(args.size)),
        choice(args.choices.device[blockIdx.y]),
        state(states + blockIdx.y),
        num_stretches(num_blocks * kWarps),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        best(nothing_seen()) {
    stretch = ((size + num_stretches - 1) / num_stretches + kWarp - 1) / kWarp * kWarp;
  }

  // What the first launch found.
  __device__ void take_best(int num_blocks) {
    if (lane < num_blocks) best = state->bests[lane];
    best.meet_lanes();
  }

  __device__ Asks asks() const {
    if (best.spoilt != 0 || best.index == kNone || choice.inverse_temperature == 0) return Asks::kNoDraw;
    if (choice.top_k > 0 && choice.top_k < size) return Asks::kTopK;
    return choice.top_p < 1 ? Asks::kTopP : Asks::kTemperature;
  }

  // 0: min_p or top_k drops it.
  __device__ Mass weight(float value) const {
    if (order_of(value) < least) return 0;
    const float share = expf((value - best.value) * choice.inverse_temperature);
    return share < choice.min_p ? 0 : nearest_whole(share * kWeightOne);
  }

  // Bins in a unit of the numbers. Whatever it is, no larger number is in a lower bin.
  __device__ float bins_of_unit() const {
    float range = best.value - best.smallest;
    if (asks() == Asks::kTopP) range = fminf(range, kWeightlessAfter / choice.inverse_temperature);
    return range > 0 ? static_cast<float>(kBins) / range : 0.0f;
  }
  __device__ int bin_of(float value, float of_unit) const {
    const float below = value == best.value ? 0.0f : (best.value - value) * of_unit;  // not inf times 0
    return kBins - 1 - static_cast<int>(fminf(below, static_cast<float>(kBins - 1)));
  }

  __device__ int32_t begin_of(int number) const { return min(number * stretch, size); }
  // body(value, i) of the numbers of a lane of the warp's own stretch.
  template <typename Body>
  __device__ void for_stretch(const Body& body) const {
    const int mine = static_cast<int>(blockIdx.x) * kWarps + warp;
    for_values<kWarp>(values, begin_of(mine) + lane, begin_of(mine + 1), body);
  }
  __device__ void leave_mass(Mass mass) const {
    mass = lanes_sum(mass);
    if (lane == 0) state->masses[static_cast<int>(blockIdx.x) * kWarps + warp] = mass;
  }
};

// --- 1

// grid: blocks of a row, rows; and so of all launches but the last
__global__ void __launch_bounds__(kThreads) find_largest(ChooseTokensArgs args, RowState* states) {
  begin_kernel();
  __shared__ Best bests[kWarps];
  const auto num_blocks = static_cast<int>(gridDim.x);
  const Row row(args, states, num_blocks);
  Best best = nothing_seen();
  row.for_stretch([&](float value, int32_t i) {
    best.spoilt |= !(value < INFINITY);
    if (value > -INFINITY) {
      best.meet(value, i);
      best.smallest = fminf(best.smallest, value);
    }
  });
  best.meet_lanes();
  if (row.lane == 0) bests[row.warp] = best;
  const int step = num_blocks * kThreads;
  for (int bin = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); bin < kBins; bin += step)
    row.state->bins[bin] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) row.state->num_listed = 0;
  __syncthreads();
  if (row.warp != 0) return;
  best = row.lane < kWarps ? bests[row.lane] : nothing_seen();
  best.meet_lanes();
  if (row.lane == 0) row.state->bests[blockIdx.x] = best;
}

// --- 2

__global__ void __launch_bounds__(kThreads) add_to_bins(ChooseTokensArgs args, RowState* states) {
  begin_kernel();
  __shared__ Shared shared;
  Row row(args, states, static_cast<int>(gridDim.x));
  row.take_best(static_cast<int>(gridDim.x));
  const Asks asks = row.asks();
  if (asks == Asks::kNoDraw) {
    const Best& best = row.best;
    if (blockIdx.x == 0 && threadIdx.x == 0)
      args.tokens[blockIdx.y] = best.spoilt != 0 || best.index == kNone ? -1 : best.index;
    return;
  }
  if (asks == Asks::kTemperature) {
    Mass mass = 0;
    row.for_stretch([&](float value, int32_t) { mass += row.weight(value); });
    row.leave_mass(mass);
    return;
  }
  clear_bins(shared);
  __syncthreads();
  const float of_unit = row.bins_of_unit();
  const bool counts = asks == Asks::kTopK;
  row.for_stretch([&](float value, int32_t) {
    const Mass amount = counts ? 1 : row.weight(value);
    if (amount > 0) add_to(shared.sums[row.bin_of(value, of_unit)], amount);
  });
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
    const Mass amount = sum_of_bin(shared, bin);
    if (amount > 0) atomicAdd(&row.state->bins[bin], amount);
  }
}

// --- 3

// REQUIRES: sum > 0.
__device__ Mass wanted_of(float top_p, Mass sum) {
  const auto wanted = static_cast<Mass>(ceil(static_cast<double>(top_p) * static_cast<double>(sum)));
  return wanted == 0 ? 1 : wanted;
}

__global__ void __launch_bounds__(kThreads) list_candidates(ChooseTokensArgs args, RowState* states) {
  begin_kernel();
  __shared__ Shared shared;
  Row row(args, states, static_cast<int>(gridDim.x));
  row.take_best(static_cast<int>(gridDim.x));
  const Asks asks = row.asks();
  if (asks != Asks::kTopK && asks != Asks::kTopP) return;
  RowState& state = *row.state;
  Mass mine = 0;
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
    const Mass amount = state.bins[bin];
    shared.sums[bin][0] = static_cast<uint32_t>(amount);
    shared.sums[bin][1] = static_cast<uint32_t>(amount >> 32);
    mine += amount;
  }
  const Mass sum = block_sum(shared, mine);
  const Mass wanted = asks == Asks::kTopK ? static_cast<Mass>(row.choice.top_k) : wanted_of(row.choice.top_p, sum);
  find_digit(shared, wanted);
  // Where rounding wants more than there is, all is kept: nothing is in the list and everything above it.
  const int digit = shared.digit == kBins ? -1 : static_cast<int>(shared.digit);
  const Mass num_candidates = digit < 0 || asks == Asks::kTopP ? 0 : shared.above + sum_of_bin(shared, digit);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    state.left = digit < 0 ? 0 : shared.left;
    state.num_candidates = num_candidates;
  }
  if (num_candidates > kMostListed) return;

  const float of_unit = row.bins_of_unit();
  Mass mass = 0;
  row.for_stretch([&](float value, int32_t i) {
    const int bin = row.bin_of(value, of_unit);
    const bool listed = asks == Asks::kTopK ? bin >= digit : bin == digit;
    if (listed) {
      const int32_t place = atomicAdd(&state.num_listed, 1);
      if (place < kMostListed) {
        state.values[place] = value;
        state.indices[place] = i;
      }
    } else if (asks == Asks::kTopP && bin > digit) {
      mass += row.weight(value);
    }
  });
  if (asks == Asks::kTopP) row.leave_mass(mass);
}

// --- 4

__device__ Mass total_of(Shared& shared, const Row& row, const Numbers& numbers) {
  Mass mine = 0;
  numbers.for_all([&](float value, int32_t) { mine += row.weight(value); });
  return block_sum(shared, mine);
}

// Of numbers that together with what is left out reach `wanted` of weight.
__device__ Kept kept_of(Shared& shared, const Row& row, const Numbers& numbers, Mass wanted) {
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
__device__ void draw_of_list(Shared& shared, const Row& row, const Numbers& list, const Kept& kept, int32_t& token) {
  auto* weights = reinterpret_cast<Mass*>(shared.sums);
  static_assert(sizeof(shared.sums) >= kMostListed * sizeof(Mass));
  const int32_t* indices = row.state->indices;
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
    shared.indices[i] = indices[i];
    mine += weights[i];
  });
  const Mass target = target_of(row, block_sum(shared, mine));
  list.for_all([&](float, int32_t i) {
    if (weights[i] == 0) return;
    Mass before = 0;
    for (int32_t j = 0; j < list.size; ++j) before += shared.indices[j] < shared.indices[i] ? weights[j] : 0;
    if (before <= target && target < before + weights[i]) token = shared.indices[i];
  });
}

// The first number of [begin, end) at which the sum exceeds target, `equals` of kept.order being before it.
__device__ int32_t find_token(const Row& row, const Kept& kept, Mass each, Mass target, Mass equals, int32_t begin,
                              int32_t end) {
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
// shared.counts (of those that are of it), a lane for the stretches beside each other.
__device__ void draw_of_stretches(Shared& shared, const Row& row, const Kept& kept, int32_t& token) {
  if (row.warp != 0) return;
  const Mass each = kept.equals > 0 ? row.weight(value_of(kept.order)) : 0;
  const int of_lane = (row.num_stretches + kWarp - 1) / kWarp;
  const int begin = min(row.lane * of_lane, row.num_stretches);
  const int end = min(begin + of_lane, row.num_stretches);
  Mass count = 0;
  for (int s = begin; s < end; ++s) count += shared.counts[place_of(s)];
  Mass equals = sum_up_to_lane(count, row.lane) - count;
  const auto mass_of = [&](int s) {
    const Mass taken = equals < kept.equals ? least_of(kept.equals - equals, shared.counts[place_of(s)]) : 0;
    return shared.masses[place_of(s)] + taken * each;
  };
  const Mass equals_before = equals;
  Mass mine = 0;
  for (int s = begin; s < end; ++s) {
    mine += mass_of(s);
    equals += shared.counts[place_of(s)];
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
      equals += shared.counts[place_of(stretch++)];
    }
  }
  stretch = __shfl_sync(kAllLanes, stretch, chosen);
  const int32_t drawn =
      find_token(row, kept, each, target - __shfl_sync(kAllLanes, before, chosen),
                 __shfl_sync(kAllLanes, equals, chosen), row.begin_of(stretch), row.begin_of(stretch + 1));
  if (row.lane == 0) token = drawn;
}

// A warp for every stretch in its turn.
__device__ void weigh_stretches(Shared& shared, const Row& row, const Kept& kept) {
  for (int s = row.warp; s < row.num_stretches; s += kWarps) {
    Mass mass = 0;
    uint32_t equals = 0;
    for_values<kWarp>(row.values, row.begin_of(s) + row.lane, row.begin_of(s + 1), [&](float value, int32_t) {
      const uint32_t order = order_of(value);
      if (order > kept.order) mass += row.weight(value);
      if (order == kept.order) ++equals;
    });
    mass = lanes_sum(mass);
    equals = static_cast<uint32_t>(lanes_sum(equals));
    if (row.lane == 0) {
      shared.masses[place_of(s)] = mass;
      shared.counts[place_of(s)] = equals;
    }
  }
}

// What the list adds to the stretches of what is above it.
__device__ void add_list(Shared& shared, const Row& row, const Numbers& list, const Kept& kept) {
  clear_bins(shared);
  __syncthreads();
  list.for_all([&](float value, int32_t i) {
    const int s = row.state->indices[i] / row.stretch;
    const uint32_t order = order_of(value);
    if (order > kept.order) add_to(shared.sums[s], row.weight(value));
    if (order == kept.order) atomicAdd(&shared.counts[place_of(s)], 1u);
  });
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < row.num_stretches; s += kThreads)
    shared.masses[place_of(s)] += sum_of_bin(shared, s);
}
static_assert(kMostStretches <= kBins);

// grid: 1, rows
__global__ void __launch_bounds__(kThreads) draw_tokens(ChooseTokensArgs args, RowState* states, int num_blocks) {
  begin_kernel();
  __shared__ Shared shared;
  Row row(args, states, num_blocks);
  row.take_best(num_blocks);
  const Asks asks = row.asks();
  if (asks == Asks::kNoDraw) return;
  int32_t& token = args.tokens[blockIdx.y];
  const RowState& state = *row.state;
  const Numbers whole{row.values, row.size};
  const Numbers list{state.values, state.num_listed};
  Kept kept{0, 0};
  bool is_weighed = true;  // state.masses are of what is above the list
  if (asks == Asks::kTopK) {
    const bool fits = state.num_candidates > 0 && state.num_candidates <= kMostListed;
    const Numbers& numbers = fits ? list : whole;
    Mass left = 0;
    row.least = threshold(
        shared, numbers, static_cast<Mass>(row.choice.top_k), [](float) { return Mass{1}; }, left);
    if (row.choice.top_p < 1) {
      kept = kept_of(shared, row, numbers, wanted_of(row.choice.top_p, total_of(shared, row, numbers)));
    }
    if (fits) return draw_of_list(shared, row, list, kept, token);
    is_weighed = false;
  } else if (asks == Asks::kTopP && state.left > 0) {
    if (list.size > kMostListed) {
      kept = kept_of(shared, row, whole, wanted_of(row.choice.top_p, total_of(shared, row, whole)));
      is_weighed = false;
    } else {
      kept = kept_of(shared, row, list, state.left);
    }
  }
  if (is_weighed) {
    for (int s = static_cast<int>(threadIdx.x); s < row.num_stretches; s += kThreads) {
      shared.masses[place_of(s)] = state.masses[s];
      shared.counts[place_of(s)] = 0;
    }
    __syncthreads();
    if (kept.order != 0) add_list(shared, row, list, kept);
  } else {
    weigh_stretches(shared, row, kept);
  }
  __syncthreads();
  draw_of_stretches(shared, row, kept, token);
}

}  // namespace

void choose_tokens(const ChooseTokensArgs& args, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const int64_t most = std::min(scratch_bytes / int64_t{sizeof(RowState)}, kMostRows);
  QUIRE_CHECK(most > 0);
  auto* states = static_cast<RowState*>(scratch);
  for (int64_t first = 0; first < args.num_rows; first += most) {
    ChooseTokensArgs some = args;
    some.in += first * args.size;
    some.num_rows = std::min(most, args.num_rows - first);
    some.choices = args.choices + first;
    some.tokens += first;
    bool draws = false;
    bool filters = false;
    for (int64_t i = 0; i < some.num_rows; ++i) {
      const TokenChoice& choice = some.choices.host[i];
      draws |= choice.inverse_temperature != 0;
      filters |= choice.inverse_temperature != 0 && (choice.top_p < 1 || choice.top_k > 0);
    }
    const auto num_blocks =
        static_cast<unsigned>(std::clamp(kBlocksWanted / some.num_rows, int64_t{1}, int64_t{kMostBlocks}));
    const dim3 grid(num_blocks, static_cast<unsigned>(some.num_rows));
    launch(find_largest, grid, dim3(kThreads), 0, stream, some, states);
    launch(add_to_bins, grid, dim3(kThreads), 0, stream, some, states);
    if (filters) launch(list_candidates, grid, dim3(kThreads), 0, stream, some, states);
    if (draws)
      launch(draw_tokens, dim3(1, grid.y), dim3(kThreads), 0, stream, some, states, static_cast<int>(num_blocks));
  }
}

}  // namespace quire::ops::cuda
