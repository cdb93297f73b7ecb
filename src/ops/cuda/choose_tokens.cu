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
constexpr int kTogether = 8;  // numbers of a thread that are loaded together
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
  uint32_t sums[kBins][2];  // lower and upper halves
  float values[kWarps];
  int32_t indices[kWarps];
  int32_t spoilt[kWarps];
  uint64_t masses[kWarps];
  uint32_t counts[kWarps];
  uint32_t digit;
  uint64_t left;  // of what is wanted, beyond the bins above
};

// body(value, i) of every kStride-th number of [begin, end), several of which are under way together.
template <int kStride, int kTogether, typename Body>
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

  // body(value, i) of a thread's numbers.
  template <typename Body>
  __device__ void for_all(const Body& body) const {
    for_values<kThreads, kTogether>(values, static_cast<int32_t>(threadIdx.x), size, body);
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
    for_all([&](float value, int32_t) { sum += weight(value); });
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
      for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads)
        shared->sums[bin][0] = shared->sums[bin][1] = 0;
      __syncthreads();
      for_all([&](float value, int32_t) {
        const uint32_t order = order_of(value);
        if (shift < 21 && order >> (shift + width) != found >> (shift + width)) return;
        const uint64_t amount = worth(value);
        if (amount > 0) add_to_bin(order >> shift & ((1u << width) - 1), amount);
      });
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

  // By additions of 32 bits and a carry: of 64 bits shared memory has none, only a loop of comparisons and exchanges,
  // in which the lanes that share a bin wait for each other.
  __device__ void add_to_bin(uint32_t bin, uint64_t amount) const {
    const auto low = static_cast<uint32_t>(amount);
    const uint32_t before = atomicAdd(&shared->sums[bin][0], low);
    const uint32_t high = static_cast<uint32_t>(amount >> 32) + (before + low < low ? 1u : 0u);
    if (high != 0) atomicAdd(&shared->sums[bin][1], high);
  }
  __device__ uint64_t sum_of(int bin) const {
    return static_cast<uint64_t>(shared->sums[bin][1]) << 32 | shared->sums[bin][0];
  }

  // The highest bin that, with those above it, reaches `wanted`; kBins: none does. By one warp, a lane for the bins
  // beside each other.
  __device__ void find_digit(uint64_t wanted) const {
    const int highest = kBins - 1 - lane * kBinsOfLane;
    uint64_t mine = 0;
    for (int k = 0; k < kBinsOfLane; ++k) mine += sum_of(highest - k);
    const uint64_t sum = sum_up_to_lane(mine, lane);
    const unsigned reached = __ballot_sync(kAllLanes, sum >= wanted);
    if (reached == 0) {
      if (lane == 0) shared->digit = kBins;
      return;
    }
    if (lane != __ffs(static_cast<int>(reached)) - 1) return;
    uint64_t above = sum - mine;
    int bin = highest;
    while (above + sum_of(bin) < wanted) above += sum_of(bin--);
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
    for_values<kWarp, kTogether>(values, begin + lane, end, [&](float value, int32_t) {
      const uint32_t order = order_of(value);
      if (order > kept.order) mass += weight(value);
      if (order == kept.order) ++equals;
    });
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
    constexpr int kPieces = 4;  // of the warp's width, gone over at once where the sum does not pass within them
    uint64_t before = 0;
    for (int32_t first = begin; first < end; first += kWarp * kPieces) {
      float some[kPieces];
#pragma unroll
      for (int j = 0; j < kPieces; ++j) some[j] = values[min(first + j * kWarp + lane, end - 1)];
      uint64_t mine[kPieces];
      uint64_t of_lane = 0;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const bool there = first + j * kWarp + lane < end;
        const uint32_t order = order_of(some[j]);
        const bool equal = there && order == kept.order;
        const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
        mine[j] = there && order > kept.order ? weight(some[j]) : 0;
        if (equal && equals + static_cast<uint64_t>(__popc(equal_lanes & ((1u << lane) - 1))) < kept.equals)
          mine[j] = each;
        equals += static_cast<uint64_t>(__popc(equal_lanes));
        of_lane += mine[j];
      }
      const uint64_t of_all = lanes_sum(of_lane);
      if (before + of_all <= target) {
        before += of_all;
        continue;
      }
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const uint64_t sum = before + sum_up_to_lane(mine[j], lane);
        const unsigned passed = __ballot_sync(kAllLanes, sum > target);
        if (passed != 0) return first + j * kWarp + __ffs(static_cast<int>(passed)) - 1;
        before = __shfl_sync(kAllLanes, sum, kWarp - 1);
      }
    }
    return -1;  // not reached: the sums are exact
  }

  static __device__ uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
  }
};

// In all threads.
__device__ Best largest_of(const float* row, int32_t size, Shared& shared) {
  Best best{-INFINITY, kNone, 0};
  for_values<kThreads, kTogether>(row, static_cast<int32_t>(threadIdx.x), size, [&](float value, int32_t i) {
    best.spoilt |= !(value < INFINITY);
    if (value > -INFINITY) best.meet(value, i);
  });
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
