// A token out of each row of logits. A block a row: its largest, then the thresholds of top_k and top_p, found digit by
// digit of the numbers' order, then the token at which the sum of weights passes the number that was drawn. Weights are
// whole numbers, so sums are the same in whatever order threads come.
#include "ops/choose_tokens.h"

#include <cmath>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 1024;  // a row's: there are few rows, and each is long
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = 2048;
constexpr int kBinsOfLane = kBins / kWarp;
constexpr int32_t kNone = 0x7fffffff;

// The order of numbers as that of whole ones; 0 and -0 are the same.
__device__ inline uint32_t order_of(float value) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The largest number so far, the lowest index that has it, and whether a number that no choice may meet was seen.
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
  __device__ Best across(int offset) const {
    return {__shfl_xor_sync(kAllLanes, value, offset), __shfl_xor_sync(kAllLanes, index, offset),
            __shfl_xor_sync(kAllLanes, spoilt, offset)};
  }
  __device__ void meet_lanes() {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Best other = across(offset);
      meet(other.value, other.index);
      spoilt |= other.spoilt;
    }
  }
};

struct Shared {
  uint64_t sums[kBins];
  float values[kWarps];
  int32_t indices[kWarps];
  int32_t spoilt[kWarps];
  uint64_t masses[kWarps];
  uint32_t counts[kWarps];
  uint32_t digit;
  uint64_t left;  // of what is wanted, beyond the bins above
};

__device__ inline uint64_t lanes_sum(uint64_t value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// One row, in the threads of its block.
struct Row {
  const float* values;
  int32_t size;
  TokenChoice choice;
  float largest;
  uint32_t least;  // order of the least number that top_k leaves
  Shared* shared;
  int warp;
  int lane;

  // 0: min_p or top_k drops it.
  __device__ uint64_t weight(float value) const {
    if (order_of(value) < least) return 0;
    const float share = expf((value - largest) * choice.inverse_temperature);
    return share < choice.min_p ? 0 : static_cast<uint64_t>(llrintf(share * kWeightOne));
  }

  // In all threads: warps hand in theirs.
  __device__ uint64_t block_sum(uint64_t mine) const {
    mine = lanes_sum(mine);
    if (lane == 0) shared->masses[warp] = mine;
    __syncthreads();
    const uint64_t sum = lanes_sum(shared->masses[lane]);
    __syncthreads();
    return sum;
  }

  __device__ uint64_t total() const {
    uint64_t sum = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += kThreads) sum += weight(values[i]);
    return block_sum(sum);
  }

  // The largest order such that the numbers of this order and above reach `wanted` together, each counting what
  // `worth(value)` says; `left` becomes what those above it leave of it. 0: all of them do not. REQUIRES: wanted > 0.
  template <typename Worth>
  __device__ uint32_t threshold(uint64_t wanted, const Worth& worth, uint64_t& left) const {
    uint32_t found = 0;
    left = wanted;
    for (int round = 0; round < 3; ++round) {
      const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
      const int width = round == 2 ? 10 : 11;
      for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) shared->sums[bin] = 0;
      __syncthreads();
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += kThreads) {
        const uint32_t order = order_of(values[i]);
        if (shift < 21 && order >> (shift + width) != found >> (shift + width)) continue;
        const uint64_t amount = worth(values[i]);
        if (amount == 0) continue;
        auto* sum = reinterpret_cast<unsigned long long*>(&shared->sums[order >> shift & ((1u << width) - 1)]);
        atomicAdd(sum, static_cast<unsigned long long>(amount));
      }
      __syncthreads();
      if (warp == 0) find_digit(left);
      __syncthreads();
      const uint32_t digit = shared->digit;
      left = shared->left;
      __syncthreads();
      if (digit == kBins) return 0;
      found |= digit << shift;
    }
    return found;
  }

  // The highest bin that, with those above it, reaches `wanted`; kBins: none does. By one warp, a lane for the bins
  // beside each other.
  __device__ void find_digit(uint64_t wanted) const {
    const int highest = kBins - 1 - lane * kBinsOfLane;
    uint64_t mine = 0;
    for (int k = 0; k < kBinsOfLane; ++k) mine += shared->sums[highest - k];
    const uint64_t sum = sum_up_to_lane(mine, lane);
    const unsigned reached = __ballot_sync(kAllLanes, sum >= wanted);
    if (reached == 0) {
      if (lane == 0) shared->digit = kBins;
      return;
    }
    if (lane != __ffs(static_cast<int>(reached)) - 1) return;
    uint64_t above = sum - mine;
    int bin = highest;
    while (above + shared->sums[bin] < wanted) above += shared->sums[bin--];
    shared->digit = static_cast<uint32_t>(bin);
    shared->left = wanted - above;
  }

  // What is drawn from: numbers above `order`, and the first `equals` of those that are of it.
  struct Kept {
    uint32_t order;
    uint64_t equals;
  };

  __device__ Kept nucleus(uint64_t total) const {
    if (!(choice.top_p < 1)) return {0, 0};
    auto wanted = static_cast<uint64_t>(ceil(static_cast<double>(choice.top_p) * static_cast<double>(total)));
    if (wanted == 0) wanted = 1;
    uint64_t left = 0;
    const uint32_t order = threshold(
        wanted, [this](float value) { return weight(value); }, left);
    if (order == 0) return {0, 0};
    const uint64_t each = weight(value_of(order));
    return {order, (left + each - 1) / each};
  }
  static __device__ float value_of(uint32_t order) {
    return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
  }

  // Warps have stretches of the row beside each other, so that sums by index are sums by warp and then by lane.
  __device__ int32_t draw(const Kept& kept) const {
    const int32_t stretch = (size + kWarps - 1) / kWarps;
    const int32_t begin = min(warp * stretch, size);
    const int32_t end = min(begin + stretch, size);
    const uint64_t each = kept.equals > 0 ? weight(value_of(kept.order)) : 0;
    uint64_t mass = 0;
    uint64_t equals = 0;
    for (int32_t i = begin + lane; i < end; i += kWarp) {
      const uint32_t order = order_of(values[i]);
      if (order > kept.order) mass += weight(values[i]);
      if (order == kept.order) ++equals;
    }
    mass = lanes_sum(mass);
    equals = lanes_sum(equals);
    if (lane == 0) {
      shared->masses[warp] = mass;
      shared->counts[warp] = static_cast<uint32_t>(equals);
    }
    __syncthreads();
    // Every warp adds up the warps, a lane for each.
    const uint64_t count = shared->counts[lane];
    const uint64_t equals_before = sum_up_to_lane(count, lane) - count;
    const uint64_t taken = equals_before < kept.equals ? least_of(kept.equals - equals_before, count) : 0;
    const uint64_t of_warp = shared->masses[lane] + taken * each;
    const uint64_t sum = sum_up_to_lane(of_warp, lane);
    const uint64_t total = __shfl_sync(kAllLanes, sum, kWarp - 1);
    const uint64_t target = least_of(static_cast<uint64_t>(choice.u * static_cast<double>(total)), total - 1);
    const int chosen = __ffs(static_cast<int>(__ballot_sync(kAllLanes, sum > target))) - 1;
    if (chosen != warp) return -1;
    return find_token(kept, each, target - __shfl_sync(kAllLanes, sum - of_warp, chosen),
                      __shfl_sync(kAllLanes, equals_before, chosen), begin, end);
  }

  // The first of [begin, end) at which the sum exceeds target.
  __device__ int32_t find_token(const Kept& kept, uint64_t each, uint64_t target, uint64_t equals, int32_t begin,
                                int32_t end) const {
    uint64_t before = 0;
    for (int32_t first = begin; first < end; first += kWarp) {
      const int32_t i = first + lane;
      const uint32_t order = i < end ? order_of(values[i]) : 0;
      const bool equal = i < end && order == kept.order;
      const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
      uint64_t mine = 0;
      if (i < end && order > kept.order) mine = weight(values[i]);
      if (equal && equals + static_cast<uint64_t>(__popc(equal_lanes & ((1u << lane) - 1))) < kept.equals) mine = each;
      equals += static_cast<uint64_t>(__popc(equal_lanes));
      const uint64_t sum = before + sum_up_to_lane(mine, lane);
      const unsigned passed = __ballot_sync(kAllLanes, sum > target);
      if (passed != 0) return first + __ffs(static_cast<int>(passed)) - 1;
      before = __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    return -1;  // not reached: the sums are exact
  }

  static __device__ uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
};

// In all threads.
__device__ Best largest_of(const float* row, int32_t size, Shared& shared) {
  Best best{-INFINITY, kNone, 0};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += kThreads) {
    const float value = row[i];
    best.spoilt |= !(value < INFINITY);
    if (value > -INFINITY) best.meet(value, i);
  }
  best.meet_lanes();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) {
    shared.values[warp] = best.value;
    shared.indices[warp] = best.index;
    shared.spoilt[warp] = best.spoilt;
  }
  __syncthreads();
  best = {shared.values[lane], shared.indices[lane], shared.spoilt[lane]};
  best.meet_lanes();
  return best;
}

__global__ void __launch_bounds__(kThreads) choose_tokens_kernel(ChooseTokensArgs args) {
  begin_kernel();
  __shared__ Shared shared;
  const float* values = args.in + int64_t{blockIdx.x} * args.size;
  int32_t& token = args.tokens[blockIdx.x];
  const TokenChoice choice = args.choices.device[blockIdx.x];
  const auto size = static_cast<int32_t>(args.size);
  const Best best = largest_of(values, size, shared);
  if (best.spoilt != 0 || best.index == kNone || choice.inverse_temperature == 0) {
    if (threadIdx.x == 0) token = best.spoilt != 0 || best.index == kNone ? -1 : best.index;
    return;
  }
  Row row{values,
          size,
          choice,
          best.value,
          0,
          &shared,
          static_cast<int>(threadIdx.x) / kWarp,
          static_cast<int>(threadIdx.x) % kWarp};
  uint64_t left = 0;
  if (choice.top_k > 0 && choice.top_k < size) {
    row.least = row.threshold(
        static_cast<uint64_t>(choice.top_k), [](float) { return uint64_t{1}; }, left);
  }
  const int32_t drawn = row.draw(row.nucleus(choice.top_p < 1 ? row.total() : 0));
  if (drawn >= 0 && row.lane == 0) token = drawn;
}

}  // namespace

void choose_tokens(const ChooseTokensArgs& args, cudaStream_t stream) {
  static_assert(kWarps == kWarp, "sums over warps have a lane for each");
  launch(choose_tokens_kernel, dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), 0, stream, args);
}

}  // namespace quire::ops::cuda
