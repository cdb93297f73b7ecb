// Ops of recurrent layers: a thread, or a few, have a part of a state, and take the tokens of a run one after the
// other.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/recurrent.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxGrid = 65535;  // of y and z

// The run of a sequence (ops/state_cache.h).
struct DeviceRun {
  StateCacheView cache;
  const BlockId* table;
  int64_t first;  // token of the batch
  int64_t count;
  int64_t begin;  // position of the first

  __device__ DeviceRun(const StateRuns& runs, int64_t sequence)
      : cache(runs.cache),
        table(runs.block_tables.device + sequence * runs.block_table_stride),
        first(runs.query_offsets.device[sequence]),
        count(runs.query_offsets.device[sequence + 1] - first),
        begin(runs.context_lengths.device[sequence] - count) {}

  __device__ float* state_at(int64_t position) const {
    return reinterpret_cast<float*>(static_cast<char*>(cache.states) +
                                    int64_t{table[position / cache.block_size]} * cache.stride);
  }
  // Whether a state is left behind token t of the run.
  __device__ bool leaves(int64_t t) const { return t + 1 == count || (begin + t + 1) % cache.block_size == 0; }
};

// kKernel: what the convolution's is, or more: the tokens that it does not see have weights of 0.
template <int kKernel>
__global__ void convolve_kernel(ShortConvArgs args) {
  begin_kernel();
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= args.num_channels) return;
  const int unseen = kKernel - args.kernel;
  float weights[kKernel];
#pragma unroll
  for (int j = 0; j < kKernel; ++j) weights[j] = j < unseen ? 0.0f : args.weight[(j - unseen) * args.num_channels + c];
  for (int64_t s = blockIdx.y; s < args.runs.num_sequences; s += gridDim.y) {
    const DeviceRun run(args.runs, s);
    float inputs[kKernel] = {};
    if (run.begin > 0) {
      const float* before = run.state_at(run.begin - 1) + args.state_offset + c;
#pragma unroll
      for (int j = 0; j < kKernel - 1; ++j) {
        if (j >= unseen) inputs[j] = before[(j - unseen) * args.num_channels];
      }
    }
    for (int64_t t = 0; t < run.count; ++t) {
      inputs[kKernel - 1] = args.in[(run.first + t) * args.in_stride + c];
      float sum = args.bias == nullptr ? 0.0f : args.bias[c];
#pragma unroll
      for (int j = 0; j < kKernel; ++j) sum = fmaf(weights[j], inputs[j], sum);
#pragma unroll
      for (int j = 0; j < kKernel - 1; ++j) inputs[j] = inputs[j + 1];
      args.out[(run.first + t) * args.out_stride + c] = args.silu ? sum / (1.0f + expf(-sum)) : sum;
      if (!run.leaves(t)) continue;
      float* state = run.state_at(run.begin + t) + args.state_offset + c;
#pragma unroll
      for (int j = 0; j < kKernel - 1; ++j) {
        if (j >= unseen) state[(j - unseen) * args.num_channels] = inputs[j];
      }
    }
  }
}

// Rows of a head's state are dealt out to neighbouring threads, which have one column together.
constexpr int kParts = 4;
constexpr int kColumns = kThreads / kParts;

__device__ float sum_of_parts(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// scale / |x|, or scale, the same in all threads.
__device__ float factor_of(const float* x, int size, bool normalises, float scale) {
  if (!normalises) return scale;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < size; i += kWarp) squares = fmaf(x[i], x[i], squares);
  for (int away = kWarp / 2; away > 0; away /= 2) squares += __shfl_xor_sync(kAllLanes, squares, away);
  return scale / sqrtf(squares + kRecurrenceNormEps);
}

__device__ float softplus(float x) {
  return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

// A block has kColumns columns of the state of one head of one sequence; kRows: of a thread, at most.
template <int kRows>
__global__ void recurrence_kernel(RecurrenceArgs args) {
  __shared__ float vectors[2][2][kRows * kParts];  // of the tokens in turn: key, query
  begin_kernel();
  const int part = static_cast<int>(threadIdx.x) % kParts;
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x / kParts;
  const bool has_column = column < args.value_dim;
  const int64_t head = blockIdx.y;
  const int64_t key_head = args.key_head_of(head);
  const int64_t head_state = args.state_offset + head * args.head_size() + column;
  for (int64_t s = blockIdx.z; s < args.runs.num_sequences; s += gridDim.z) {
    const DeviceRun run(args.runs, s);
    float state[kRows] = {};
    if (run.begin > 0 && has_column) {
      const float* before = run.state_at(run.begin - 1) + head_state;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = r * kParts + part;
        if (i < args.key_dim) state[r] = before[int64_t{i} * args.value_dim];
      }
    }
    for (int64_t t = 0; t < run.count; ++t) {
      const int64_t token = run.first + t;
      float* key = vectors[t % 2][0];
      float* query = vectors[t % 2][1];
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kParts; i += kThreads) {
        const int64_t at = token * args.token_stride + key_head * args.key_dim + i;
        key[i] = i < args.key_dim ? args.keys[at] : 0.0f;
        query[i] = i < args.key_dim ? args.queries[at] : 0.0f;
      }
      __syncthreads();
      const float key_factor = factor_of(key, args.key_dim, args.normalises, 1.0f);
      const float query_factor = factor_of(query, args.key_dim, args.normalises, args.scale);
      const float decay = args.decays[token * args.gate_stride + head] + args.decay_biases[head];
      const float step = fminf(fmaxf(softplus(decay), args.least_step), args.most_step);
      const float fade = expf(args.rates[head] * step);
      float remembered = 0;
      if (args.updates != nullptr) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) remembered = fmaf(state[r], key[r * kParts + part] * key_factor, remembered);
        remembered = sum_of_parts(remembered) * fade;
      }
      const float value = has_column ? args.values[token * args.token_stride + head * args.value_dim + column] : 0.0f;
      const float gain = args.updates == nullptr
                             ? step
                             : args.most_update / (1.0f + expf(-args.updates[token * args.gate_stride + head]));
      const float correction = gain * (value - remembered);
      float out = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r] = fmaf(key[r * kParts + part] * key_factor, correction, state[r] * fade);
        out = fmaf(state[r], query[r * kParts + part] * query_factor, out);
      }
      out = sum_of_parts(out) + (args.skips == nullptr ? 0.0f : args.skips[head] * value);
      if (part == 0 && has_column) args.out[(token * args.num_value_heads + head) * args.value_dim + column] = out;
      if (!run.leaves(t) || !has_column) continue;
      float* left = run.state_at(run.begin + t) + head_state;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = r * kParts + part;
        if (i < args.key_dim) left[int64_t{i} * args.value_dim] = state[r];
      }
    }
    __syncthreads();  // the next sequence writes its first vectors
  }
}

}  // namespace

void convolve(const ShortConvArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  const auto sequences = static_cast<unsigned>(std::min<int64_t>(args.runs.num_sequences, kMaxGrid));
  launch(args.kernel <= 4 ? convolve_kernel<4> : convolve_kernel<kMostConvTokens>,
         {ceil_div(args.num_channels, kThreads), sequences}, kThreads, 0, stream, args);
}

void apply_recurrence(const RecurrenceArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  const auto sequences = static_cast<unsigned>(std::min<int64_t>(args.runs.num_sequences, kMaxGrid));
  constexpr int kFewRows = 128 / kParts;
  launch(args.key_dim <= 128 ? recurrence_kernel<kFewRows> : recurrence_kernel<kMostRecurrenceKeyDim / kParts>,
         {ceil_div(args.value_dim, kColumns), static_cast<unsigned>(args.num_value_heads), sequences}, kThreads, 0,
         stream, args);
}

}  // namespace quire::ops::cuda
