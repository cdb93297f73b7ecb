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
  int64_t kept;   // tokens, the first; the others are drafts
  int64_t num_replayed;

  __device__ DeviceRun(const StateRuns& runs, int64_t sequence)
      : cache(runs.cache),
        table(runs.block_tables.device + sequence * runs.block_table_stride),
        first(runs.query_offsets.device[sequence]),
        count(runs.query_offsets.device[sequence + 1] - first),
        begin(runs.context_lengths.device[sequence] - count),
        kept(count - (runs.num_drafts.device == nullptr ? 0 : runs.num_drafts.device[sequence])),
        num_replayed(runs.num_replayed.device == nullptr ? 0 : runs.num_replayed.device[sequence]) {}

  __device__ float* state_at(int64_t position) const {
    return reinterpret_cast<float*>(static_cast<char*>(cache.states) +
                                    int64_t{table[position / cache.block_size]} * cache.stride);
  }
  // Whether a state is left behind token t of the run.
  __device__ bool leaves(int64_t t) const {
    return t + 1 == kept || (t < kept && (begin + t + 1) % cache.block_size == 0);
  }
  // Behind the last token that is kept.
  __device__ float* last() const { return state_at(begin + kept - 1); }
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
      // Beside a state the inputs of drafts follow: with some that held, the last ones count.
      const float* before = run.state_at(run.begin - 1) + args.state_offset + run.num_replayed * args.num_channels + c;
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
      if (t >= run.kept) {
        run.last()[args.state_offset + (args.kernel - 1 + t - run.kept) * args.num_channels + c] = inputs[kKernel - 2];
      }
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

// Where the recurrence reads what it takes of a token: of the batch, or beside a state.
struct TokenInputs {
  const float* keys;
  const float* queries;
  const float* values;
  const float* updates;
  const float* decays;

  __device__ static TokenInputs of_batch(const RecurrenceArgs& args, int64_t token) {
    const int64_t at = token * args.token_stride;
    const int64_t gate = token * args.gate_stride;
    return {args.keys + at, args.queries + at, args.values + at,
            args.updates == nullptr ? nullptr : args.updates + gate, args.decays + gate};
  }
  // drafts: their inputs beside a state. Nothing is asked.
  __device__ static TokenInputs of_draft(const RecurrenceArgs& args, const float* drafts, int64_t draft) {
    const float* keys = drafts + draft * args.draft_size();
    const float* values = keys + args.key_size();
    const float* decays = values + args.value_size();
    return {keys, keys, values, args.updates == nullptr ? nullptr : decays + args.num_value_heads, decays};
  }
};

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
    const float* drafts =
        run.num_replayed == 0 ? nullptr : run.state_at(run.begin - 1) + args.state_offset + args.heads_size();
    for (int64_t t = -run.num_replayed; t < run.count; ++t) {
      const int64_t token = run.first + t;
      const TokenInputs in =
          t < 0 ? TokenInputs::of_draft(args, drafts, t + run.num_replayed) : TokenInputs::of_batch(args, token);
      float* key = vectors[t & 1][0];
      float* query = vectors[t & 1][1];
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kParts; i += kThreads) {
        const int64_t at = key_head * args.key_dim + i;
        key[i] = i < args.key_dim ? in.keys[at] : 0.0f;
        query[i] = i < args.key_dim ? in.queries[at] : 0.0f;
      }
      __syncthreads();
      const float key_factor = factor_of(key, args.key_dim, args.normalises, 1.0f);
      const float query_factor = factor_of(query, args.key_dim, args.normalises, args.scale);
      const float decay = in.decays[head] + args.decay_biases[head];
      const float step = fminf(fmaxf(softplus(decay), args.least_step), args.most_step);
      const float fade = expf(args.rates[head] * step);
      float remembered = 0;
      if (args.updates != nullptr) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) remembered = fmaf(state[r], key[r * kParts + part] * key_factor, remembered);
        remembered = sum_of_parts(remembered) * fade;
      }
      const float value = has_column ? in.values[head * args.value_dim + column] : 0.0f;
      const float gain = args.updates == nullptr ? step : args.most_update / (1.0f + expf(-in.updates[head]));
      const float correction = gain * (value - remembered);
      float out = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r] = fmaf(key[r * kParts + part] * key_factor, correction, state[r] * fade);
        out = fmaf(state[r], query[r * kParts + part] * query_factor, out);
      }
      out = sum_of_parts(out) + (args.skips == nullptr ? 0.0f : args.skips[head] * value);
      if (t >= 0 && part == 0 && has_column)
        args.out[(token * args.num_value_heads + head) * args.value_dim + column] = out;
      if (t < 0 || !run.leaves(t) || !has_column) continue;
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

// Behind the recurrence, which reads what is overwritten here. A block has a run.
__global__ void leave_drafts_kernel(RecurrenceArgs args) {
  begin_kernel();
  const int64_t size = args.draft_size();
  for (int64_t s = blockIdx.x; s < args.runs.num_sequences; s += gridDim.x) {
    const DeviceRun run(args.runs, s);
    for (int64_t t = run.kept; t < run.count; ++t) {
      const TokenInputs in = TokenInputs::of_batch(args, run.first + t);
      float* to = run.last() + args.state_offset + args.heads_size() + (t - run.kept) * size;
      for (int64_t i = threadIdx.x; i < args.key_size(); i += kThreads) to[i] = in.keys[i];
      to += args.key_size();
      for (int64_t i = threadIdx.x; i < args.value_size(); i += kThreads) to[i] = in.values[i];
      to += args.value_size();
      for (int64_t i = threadIdx.x; i < args.num_value_heads; i += kThreads) {
        to[i] = in.decays[i];
        if (args.updates != nullptr) to[args.num_value_heads + i] = in.updates[i];
      }
    }
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
  if (args.runs.num_drafts.device != nullptr) launch(leave_drafts_kernel, {sequences}, kThreads, 0, stream, args);
}

}  // namespace quire::ops::cuda
