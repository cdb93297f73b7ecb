// The router of a mixture of experts. A warp a token chooses; then pairs of token and expert are laid out by expert:
// tokens are cut into tiles, a block counts the pairs of each expert in its tile, one block makes the counts of all
// tiles first rows, and a block a tile hands these out in the order of tokens, of which each of its warps has some. The
// few tokens of one block need no second launch, those of one tile but one.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kTile = 64;          // tokens
constexpr int kMaxTokenWarps = 8;  // of a block
constexpr int64_t kSharedBytes = 48 << 10;
constexpr int kScanThreads = 512;

__device__ float not_a_number() {
  return __uint_as_float(0x7fc00000u);
}
__device__ float minus_infinity() {
  return __uint_as_float(0xff800000u);
}

// --- the choice of one token, by one warp; NaN is what may not be chosen

// The place of the largest of values that are numbers, the first of equals: the same in all lanes. REQUIRES: one is.
__device__ int32_t best_of(const float* values, int32_t count, int lane) {
  float best = minus_infinity();
  int32_t place = count;
  for (int32_t i = lane; i < count; i += kWarp) {
    if (values[i] > best || (values[i] == best && place == count)) {
      best = values[i];
      place = i;
    }
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, offset);
    const int32_t other_place = __shfl_xor_sync(kAllLanes, place, offset);
    if (other > best || (other == best && other_place < place)) {
      best = other;
      place = other_place;
    }
  }
  return place;
}

__device__ float group_score(const float* choice, int32_t size, GroupScore how) {
  float best = minus_infinity();
  float second = minus_infinity();
  for (int32_t i = 0; i < size; ++i) {
    if (choice[i] > best) {
      second = best;
      best = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  const float sum = best + second;
  return how == GroupScore::kBest || size == 1 || sum != sum ? best : sum;
}

// Leaves the experts of the best groups alone. `groups`: scratch of num_groups.
__device__ void keep_best_groups(const MoeRoutingArgs& args, float* choice, float* groups, int lane) {
  const int32_t size = args.num_experts / args.num_groups;
  for (int32_t g = lane; g < args.num_groups; g += kWarp)
    groups[g] = group_score(choice + int64_t{g} * size, size, args.group_score);
  __syncwarp();
  for (int32_t i = 0; i < args.groups_per_token; ++i) {
    const int32_t best = best_of(groups, args.num_groups, lane);
    __syncwarp();
    if (lane == 0) groups[best] = not_a_number();  // kept
    __syncwarp();
  }
  for (int32_t e = lane; e < args.num_experts; e += kWarp) {
    const float group = groups[e / size];
    if (group == group) choice[e] = not_a_number();
  }
  __syncwarp();
}

// values := their softmax.
__device__ void softmax(float* values, int32_t count, int lane) {
  float highest = minus_infinity();
  for (int32_t i = lane; i < count; i += kWarp) highest = fmaxf(highest, values[i]);
  highest = warp_max(highest);
  float total = 0;
  for (int32_t i = lane; i < count; i += kWarp) total += values[i] = expf(values[i] - highest);
  total = warp_sum(total);
  for (int32_t i = lane; i < count; i += kWarp) values[i] /= total;
  __syncwarp();
}

// Writes the token's experts to its `rows`, and its weights. `scratch`: 3 * num_experts.
__device__ void choose(const MoeRoutingArgs& args, int64_t token, float* scratch, int lane) {
  float* scores = scratch;
  float* choice = scratch + args.num_experts;
  const float* logits = args.logits + token * args.num_experts;
  for (int32_t e = lane; e < args.num_experts; e += kWarp) scores[e] = logits[e];
  __syncwarp();
  if (args.score == RouterScore::kSoftmax) softmax(scores, args.num_experts, lane);
  for (int32_t e = lane; e < args.num_experts; e += kWarp) {
    if (args.score == RouterScore::kSigmoid) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
    const float value = args.correction_bias == nullptr ? scores[e] : scores[e] + args.correction_bias[e];
    choice[e] = value == value ? value : minus_infinity();
  }
  __syncwarp();
  if (args.groups_per_token < args.num_groups) keep_best_groups(args, choice, choice + args.num_experts, lane);

  const int32_t count = args.experts_per_token;
  float* weights = args.weights + token * count;
  for (int32_t r = 0; r < count; ++r) {
    const int32_t best = best_of(choice, args.num_experts, lane);
    __syncwarp();
    if (lane == 0) {
      args.rows[token * count + r] = best;
      weights[r] = scores[best];
      choice[best] = not_a_number();
    }
    __syncwarp();
  }
  if (args.score == RouterScore::kSoftmaxOfChosen) softmax(weights, count, lane);
  float total = 1.0f;
  if (args.normalise) {
    total = 0;
    for (int32_t r = lane; r < count; r += kWarp) total += weights[r];
    total = warp_sum(total) + args.sum_offset;
  }
  __syncwarp();
  for (int32_t r = lane; r < count; r += kWarp) {
    const int32_t expert = args.rows[token * count + r];
    const bool here = expert >= args.first_expert && expert < args.end_expert;
    weights[r] = here ? weights[r] / total * args.scale : 0.0f;
    if (args.expert_scales != nullptr) weights[r] *= args.expert_scales[expert];
  }
}

// --- the layout of a tile's pairs, by a block: each warp has some of the tokens, one after the other

struct Layout {
  int64_t first_token;
  int64_t end_token;
  int32_t* ids;     // shared memory, [tokens, experts_per_token]: the experts
  int32_t* counts;  // shared memory, [warps, num_experts]
  int warp;
  int warps;
  int lane;

  // A warp's tokens.
  __device__ int64_t each() const { return (end_token - first_token + warps - 1) / warps; }
  __device__ int64_t first() const { return min(end_token, first_token + warp * each()); }
  __device__ int64_t end() const { return min(end_token, first() + each()); }
};

__host__ __device__ constexpr int64_t layout_numbers(int64_t tokens, int32_t experts_per_token, int64_t warps,
                                                     int32_t num_experts) {
  return tokens * experts_per_token + warps * num_experts;
}

// In the block's dynamic shared memory, from `numbers` on.
__device__ Layout layout_of(const MoeRoutingArgs& args, int64_t first_token, int32_t* numbers) {
  Layout layout;
  layout.first_token = first_token;
  layout.end_token = min(first_token + kTile, args.num_tokens);
  layout.ids = numbers;
  layout.counts = numbers + (layout.end_token - first_token) * args.experts_per_token;
  layout.warp = static_cast<int>(threadIdx.x) / kWarp;
  layout.warps = static_cast<int>(blockDim.x) / kWarp;
  layout.lane = static_cast<int>(threadIdx.x) % kWarp;
  return layout;
}

// ids and counts. The experts come to shared memory together: one by one each would be waited for.
__device__ void count_pairs(const MoeRoutingArgs& args, const Layout& layout) {
  const int32_t count = args.experts_per_token;
  const auto pairs = static_cast<int32_t>((layout.end_token - layout.first_token) * count);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pairs; i += static_cast<int32_t>(blockDim.x))
    layout.ids[i] = args.rows[layout.first_token * count + i];
  int32_t* own = layout.counts + layout.warp * args.num_experts;
  for (int32_t e = layout.lane; e < args.num_experts; e += kWarp) own[e] = 0;
  __syncthreads();
  // Lanes are the pairs of one token, whose experts are all different: no two of them meet at a counter.
  for (int64_t t = layout.first(); t < layout.end(); ++t) {
    const int32_t* ids = layout.ids + (t - layout.first_token) * count;
    for (int32_t r = layout.lane; r < count; r += kWarp) ++own[ids[r]];
    __syncwarp();
  }
  __syncthreads();
}

// Counts of an expert -> where each warp's pairs of it begin, from `next` on; the sum of all is returned.
__device__ int32_t sum_warps(const MoeRoutingArgs& args, const Layout& layout, int32_t expert, int32_t next) {
  for (int w = 0; w < layout.warps; ++w) {
    int32_t& count = layout.counts[w * args.num_experts + expert];
    const int32_t own = count;
    count = next;
    next += own;
  }
  return next;
}

// Pairs get their rows: counts[warp, e] is the row of the warp's next pair of expert e.
__device__ void hand_out_rows(const MoeRoutingArgs& args, const Layout& layout) {
  const int32_t count = args.experts_per_token;
  int32_t* next = layout.counts + layout.warp * args.num_experts;
  for (int64_t t = layout.first(); t < layout.end(); ++t) {
    const int32_t* ids = layout.ids + (t - layout.first_token) * count;
    for (int32_t r = layout.lane; r < count; r += kWarp) {
      const int32_t row = next[ids[r]]++;
      args.tokens[row] = static_cast<int32_t>(t);
      args.rows[t * count + r] = row;
    }
    __syncwarp();
  }
}

// counts := the sums of those before; `offsets` gets these and the sum of all. One warp.
__device__ void sum_counts(int32_t* counts, int32_t num_experts, int32_t* offsets, int lane) {
  int32_t before = 0;
  for (int32_t first = 0; first < num_experts; first += kWarp) {
    const int32_t e = first + lane;
    const int32_t own = e < num_experts ? counts[e] : 0;
    const int32_t sum = sum_up_to_lane(own, lane);
    if (e < num_experts) {
      counts[e] = before + sum - own;
      offsets[e] = before + sum - own;
    }
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  if (lane == 0) offsets[num_experts] = before;
  __syncwarp();
}

// Of all tokens, which one tile has. `numbers`: layout_numbers() and num_experts more.
__device__ void lay_out_one_tile(const MoeRoutingArgs& args, int32_t* numbers) {
  const Layout layout = layout_of(args, 0, numbers + args.num_experts);
  count_pairs(args, layout);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  for (int32_t e = thread; e < args.num_experts; e += threads) numbers[e] = sum_warps(args, layout, e, 0);
  __syncthreads();
  if (layout.warp == 0) sum_counts(numbers, args.num_experts, args.offsets, layout.lane);
  __syncthreads();
  int32_t* own = layout.counts + layout.warp * args.num_experts;
  for (int32_t e = layout.lane; e < args.num_experts; e += kWarp) own[e] += numbers[e];
  __syncwarp();
  hand_out_rows(args, layout);
}

// --- kernels

// A warp a token; where one block has all of them it lays them out as well.
__global__ void choose_kernel(MoeRoutingArgs args) {
  begin_kernel();
  auto* shared = dynamic_shared<float>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t token = int64_t{blockIdx.x} * warps + warp;
  if (token < args.num_tokens) choose(args, token, shared + int64_t{warp} * 3 * args.num_experts, lane);
  if (gridDim.x > 1) return;
  __syncthreads();
  lay_out_one_tile(args, dynamic_shared<int32_t>());
}

__global__ void lay_out_kernel(MoeRoutingArgs args) {
  begin_kernel();
  lay_out_one_tile(args, dynamic_shared<int32_t>());
}

// counts: [tiles, num_experts].
__global__ void count_kernel(MoeRoutingArgs args, int32_t* counts) {
  begin_kernel();
  const Layout layout = layout_of(args, int64_t{blockIdx.x} * kTile, dynamic_shared<int32_t>());
  count_pairs(args, layout);
  for (auto e = static_cast<int32_t>(threadIdx.x); e < args.num_experts; e += static_cast<int32_t>(blockDim.x))
    counts[int64_t{blockIdx.x} * args.num_experts + e] = sum_warps(args, layout, e, 0);
}

// counts := the first row of each expert in each tile.
__global__ void sum_kernel(MoeRoutingArgs args, int32_t* counts, int32_t num_tiles) {
  begin_kernel();
  auto* totals = dynamic_shared<int32_t>();
  const int32_t experts = args.num_experts;
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kScanThreads) {
    int32_t sum = 0;
#pragma unroll 8
    for (int32_t tile = 0; tile < num_tiles; ++tile) sum += counts[int64_t{tile} * experts + e];
    totals[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) sum_counts(totals, experts, args.offsets, static_cast<int>(threadIdx.x));
  __syncthreads();
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kScanThreads) {
    int32_t next = totals[e];
#pragma unroll 8
    for (int32_t tile = 0; tile < num_tiles; ++tile) {
      int32_t& count = counts[int64_t{tile} * experts + e];
      const int32_t own = count;
      count = next;
      next += own;
    }
  }
}

__global__ void hand_out_kernel(MoeRoutingArgs args, const int32_t* first_rows) {
  begin_kernel();
  const Layout layout = layout_of(args, int64_t{blockIdx.x} * kTile, dynamic_shared<int32_t>());
  count_pairs(args, layout);
  for (auto e = static_cast<int32_t>(threadIdx.x); e < args.num_experts; e += static_cast<int32_t>(blockDim.x))
    sum_warps(args, layout, e, first_rows[int64_t{blockIdx.x} * args.num_experts + e]);
  __syncthreads();
  hand_out_rows(args, layout);
}

}  // namespace

int64_t route_scratch_bytes(int64_t num_tokens, int32_t num_experts, int32_t /*experts_per_token*/) {
  return num_tokens <= kTile ? 0 : int64_t{ceil_div(num_tokens, kTile)} * num_experts * int64_t{sizeof(int32_t)};
}

void route(const MoeRoutingArgs& args, void* scratch, cudaStream_t stream) {
  const int64_t warp_bytes = int64_t{args.num_experts} * 3 * int64_t{sizeof(float)};
  const int64_t warps = std::clamp(kSharedBytes / warp_bytes, int64_t{1}, int64_t{kMaxTokenWarps});
  const unsigned blocks = std::max(1u, ceil_div(args.num_tokens, warps));
  launch(choose_kernel, blocks, static_cast<unsigned>(warps * kWarp), static_cast<size_t>(warps * warp_bytes), stream,
         args);
  if (blocks == 1) return;
  // As many warps of a tile as there is room for.
  const int64_t tokens = std::min<int64_t>(args.num_tokens, kTile);
  const int64_t room = kSharedBytes / int64_t{sizeof(int32_t)} - args.num_experts;
  int64_t layout_warps = kMaxTokenWarps;
  while (layout_warps > 1 && layout_numbers(tokens, args.experts_per_token, layout_warps, args.num_experts) > room)
    --layout_warps;
  const auto threads = static_cast<unsigned>(layout_warps * kWarp);
  const auto bytes =
      sizeof(int32_t) * static_cast<size_t>(args.num_experts + layout_numbers(tokens, args.experts_per_token,
                                                                              layout_warps, args.num_experts));
  if (args.num_tokens <= kTile) {
    launch(lay_out_kernel, 1, threads, bytes, stream, args);
    return;
  }
  auto* counts = static_cast<int32_t*>(scratch);
  const unsigned tiles = ceil_div(args.num_tokens, kTile);
  launch(count_kernel, tiles, threads, bytes, stream, args, counts);
  launch(sum_kernel, 1, kScanThreads, sizeof(int32_t) * static_cast<size_t>(args.num_experts), stream, args, counts,
         static_cast<int32_t>(tiles));
  launch(hand_out_kernel, tiles, threads, bytes, stream, args, counts);
}

}  // namespace quire::ops::cuda
