// What is done to logits that stay on the card: masks and changes of single ones, and log-probabilities of the
// likeliest.
#include "ops/edit_logits.h"

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

// A block a row, whose edits are of different tokens.
__global__ void edit_kernel(EditLogitsArgs args) {
  begin_kernel();
  const RowEdits row = args.rows.device[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < row.num_edits; i += kThreads) {
    const LogitEdit edit = args.edits.device[row.first_edit + i];
    float& logit = args.out[blockIdx.x * args.size + edit.token];
    const float scaled = logit > 0 ? __fdiv_rn(logit, edit.divisor) : __fmul_rn(logit, edit.divisor);
    logit = __fadd_rn(scaled, edit.added);
  }
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

// A block a row. The likeliest are found one after the other, each the first behind the last in a pass over the row,
// which lies in the second cache: there are few of them.
__global__ void __launch_bounds__(kThreads) top_logprobs_kernel(TopLogprobsArgs args) {
  begin_kernel();
  __shared__ Candidate candidates[kWarps];
  __shared__ float sums[kWarps];
  __shared__ int32_t counts[kWarps];
  const float* row = args.in + blockIdx.x * args.size;
  TokenLogprob* out = args.out + int64_t{blockIdx.x} * (1 + args.num_top);
  // The first behind `last`; of token -1 where there is none.
  const auto next = [&](const Candidate& last) {
    Candidate best = {-INFINITY, 0x7fffffff};
    for (int64_t i = threadIdx.x; i < args.size; i += kThreads) {
      const Candidate one = {row[i], static_cast<int32_t>(i)};
      if (last.before(one) && one.before(best)) best = one;
    }
    return block_fold(best, candidates, first_of_lanes);
  };
  Candidate last = next({INFINITY, -1});
  const float largest = last.value;

  const int32_t chosen = args.chosen[blockIdx.x];
  const float of_chosen = chosen < 0 ? INFINITY : row[chosen];
  float sum = 0;
  int32_t count = 0;
  for (int64_t i = threadIdx.x; i < args.size; i += kThreads) {
    sum += expf(row[i] - largest);
    count += row[i] >= of_chosen ? 1 : 0;
  }
  sum = block_fold(sum, sums, sum_of_lanes<float>);
  count = block_fold(count, counts, sum_of_lanes<int32_t>);
  const float log_sum = logf(sum);
  const bool writes = threadIdx.x == 0;
  if (writes) {
    out[0] = chosen < 0 ? TokenLogprob{-1, 0} : TokenLogprob{chosen, of_chosen - largest - log_sum};
    args.ranks[blockIdx.x] = chosen < 0 ? 0 : count;
  }
  for (int32_t n = 0; n < args.num_top; ++n) {
    const bool there = n < args.size && last.token < args.size;
    if (writes) out[1 + n] = there ? TokenLogprob{last.token, last.value - largest - log_sum} : TokenLogprob{-1, 0};
    if (n + 1 < args.num_top) last = next(last);
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
