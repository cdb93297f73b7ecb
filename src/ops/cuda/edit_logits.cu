// What is done to logits that stay on the card: masks and changes of single ones, and log-probabilities of the
// likeliest.
#include "ops/edit_logits.h"

#include <cfloat>
#include <cmath>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 1024;  // a row's
constexpr int kWarps = kThreads / kWarp;

// Grid: (pieces of kThreads logits, rows).
__global__ void mask_kernel(EditLogitsArgs args) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.size) return;
  const RowEdits row = args.rows.device[blockIdx.y];
  bool allowed = true;
  if (row.mask >= 0) allowed = (args.masks.device[row.mask * args.mask_words + i / 32] >> (i % 32) & 1u) != 0;
  const int64_t at = blockIdx.y * args.size + i;
  args.out[at] = allowed ? args.in[at] : -INFINITY;
}

__device__ void add_bias(float& logit, float bias) {
  if (bias == kBanned) {
    logit = kBanned;
  } else if (bias != 0) {
    logit = __fadd_rn(logit, bias);
  }
}

__device__ void penalise(float& logit, int32_t output_count, const RowEdits& row) {
  const float repeated = logit > 0 ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
  float penalised = fabsf(logit) <= FLT_MAX ? fminf(repeated, FLT_MAX) : repeated;
  if (output_count > 0) {
    penalised = __fsub_rn(penalised, __fmul_rn(row.frequency, static_cast<float>(output_count)));
    penalised = __fsub_rn(penalised, row.presence);
  }
  logit = penalised;
}

// A block a row, whose edits, biases and seen tokens are each of different tokens. Its new token is looked for while
// the seen ones are gone through.
__global__ void edit_kernel(EditLogitsArgs args) {
  begin_kernel();
  __shared__ int new_is_known;
  const RowEdits row = args.rows.device[blockIdx.x];
  float* logits = args.out + blockIdx.x * args.size;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < row.num_edits; i += kThreads) {
    const LogitEdit edit = args.edits.device[row.first_edit + i];
    add_bias(logits[edit.token], edit.bias);
  }
  if (row.list < 0) return;
  ListedToken* list = args.lists + row.list;
  const ListedToken counts = list[0];
  if (thread == 0) new_is_known = 0;
  __syncthreads();
  for (int i = thread; i < counts.value; i += kThreads) {
    const ListedToken bias = list[1 + i];
    add_bias(logits[bias.token], __int_as_float(bias.value));
  }
  __syncthreads();
  const int32_t token = row.new_drawn >= 0 ? args.drawn[row.new_drawn] : row.new_token;
  ListedToken* seen = list + 1 + counts.value;
  for (int i = thread; i < counts.token; i += kThreads) {
    ListedToken one = seen[i];
    if (one.token == token) {
      seen[i].value = ++one.value;
      new_is_known = 1;
    }
    penalise(logits[one.token], one.value, row);
  }
  __syncthreads();
  if (thread != 0 || token < 0 || new_is_known != 0 || 1 + counts.value + counts.token >= row.list_room) return;
  seen[counts.token] = {token, 1};
  list[0].token = counts.token + 1;
  penalise(logits[token], 1, row);
}

// A logit with its place: those that come before others are larger, or equal and of a lower index.
struct Candidate {
  float value;
  int32_t token;
  __device__ bool before(const Candidate& other) const {
    return value > other.value || (value == other.value && token < other.token);
  }
};

template <typename T, typename Fold>
__device__ T block_fold(T value, T (&of_warps)[kWarps], const Fold& fold) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fold(value, offset);
  __syncthreads();  // what was folded before has been read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[threadIdx.x % kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fold(value, offset);
  return value;
}

__device__ Candidate first_of_lanes(Candidate one, int offset) {
  const Candidate other = {__shfl_xor_sync(kAllLanes, one.value, offset),
                           __shfl_xor_sync(kAllLanes, one.token, offset)};
  return other.before(one) ? other : one;
}
template <typename T>
__device__ T sum_of_lanes(T one, int offset) {
  return one + __shfl_xor_sync(kAllLanes, one, offset);
}

// The logits of one row in the threads of its block: thread t has those at t, t + kThreads and so on.
struct Row {
  const float* values;
  int32_t size;

  // The first behind `last` of every `stride`-th logit from `begin` on; there may be none.
  __device__ Candidate first_behind(const Candidate& last, int32_t begin, int32_t stride) const {
    Candidate best = {-INFINITY, 0x7fffffff};
    for (int64_t i = begin; i < size; i += stride) {
      const Candidate one = {values[i], static_cast<int32_t>(i)};
      if (last.before(one) && one.before(best)) best = one;
    }
    return best;
  }
  // Of the logits that thread `owner` of this warp has, by all lanes.
  __device__ Candidate next_of(int owner, const Candidate& last) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Candidate best = first_behind(last, owner + lane * kThreads, kWarp * kThreads);
    for (int offset = kWarp / 2; offset > 0; offset /= 2) best = first_of_lanes(best, offset);
    return best;
  }
};

// A block a row. Each thread keeps the first of its own logits; the first of those is the likeliest, and only who had
// it has to look for another.
__global__ void __launch_bounds__(kThreads) top_logprobs_kernel(TopLogprobsArgs args) {
  begin_kernel();
  __shared__ Candidate candidates[kWarps];
  __shared__ float sums[kWarps];
  __shared__ int32_t counts[kWarps];
  const RowLogprobs asked = args.rows.device[blockIdx.x];
  if (asked.num_top < 0) return;
  const Row row = {args.in + blockIdx.x * args.size, static_cast<int32_t>(args.size)};
  RankedToken* out = args.out + asked.first_rank;
  const auto thread = static_cast<int>(threadIdx.x);
  Candidate mine = row.first_behind({INFINITY, -1}, thread, kThreads);
  Candidate last = block_fold(mine, candidates, first_of_lanes);
  const float largest = last.value;

  const int32_t token = asked.token < 0 ? args.chosen[blockIdx.x] : asked.token;
  const float of_token = token < 0 ? INFINITY : row.values[token];
  float sum = 0;  // NaN where there is no distribution: of NaN, of +inf less itself, of -inf less itself
  int32_t larger = 0;
  for (int64_t i = thread; i < args.size; i += kThreads) {
    sum += expf(row.values[i] - largest);
    larger += row.values[i] > of_token ? 1 : 0;
  }
  sum = block_fold(sum, sums, sum_of_lanes<float>);
  larger = block_fold(larger, counts, sum_of_lanes<int32_t>);
  const float log_sum = logf(sum);
  const bool any = sum >= 0;
  const auto ranked = [&](const Candidate& one, int32_t rank) {
    return RankedToken{one.token, rank, one.value - largest - log_sum};
  };
  if (thread == 0) out[0] = any && token >= 0 ? ranked({of_token, token}, 1 + larger) : RankedToken{-1, 0, 0};

  int32_t rank = 1;
  for (int32_t n = 0; n < asked.num_top; ++n) {
    const bool there = any && last.value > -INFINITY;
    if (thread == 0) out[1 + n] = there ? ranked(last, rank) : RankedToken{-1, 0, 0};
    if (!there || n + 1 == asked.num_top) continue;
    const int owner = last.token % kThreads;
    if (thread / kWarp == owner / kWarp) {
      const Candidate next = row.next_of(owner, last);
      if (thread == owner) mine = next;
    }
    const float value = last.value;
    last = block_fold(mine, candidates, first_of_lanes);
    if (last.value != value) rank = n + 2;
  }
}

}  // namespace

void edit_logits(const EditLogitsArgs& args, bool any_mask, bool any_edit, cudaStream_t stream) {
  if (args.num_rows == 0) return;
  const auto rows = static_cast<unsigned>(args.num_rows);
  if (any_mask || args.in != args.out)
    launch(mask_kernel, dim3(ceil_div(args.size, kThreads), rows), kThreads, 0, stream, args);
  if (any_edit) launch(edit_kernel, rows, kThreads, 0, stream, args);
}

void top_logprobs(const TopLogprobsArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0) return;
  launch(top_logprobs_kernel, static_cast<unsigned>(args.num_rows), kThreads, 0, stream, args);
}

}  // namespace quire::ops::cuda
