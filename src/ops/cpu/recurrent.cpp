#include "ops/cpu/recurrent.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace quire::ops::cpu {
namespace {

// What kernels have room for is what the ops allow; their headers are apart (kernels.h).
static_assert(kMostConvKernel == kMostConvTokens && kMostRecurrenceKey == kMostRecurrenceKeyDim);

// Channels that a task has of a convolution: with the inputs before its run they fit into the first cache.
constexpr int64_t kConvChannels = 512;

// The inputs of the tokens before a run, of some channels: they are gone from the state once the run has left its own.
// Beside a state those of drafts follow: with drafts that held, the last ones count.
class InputsBefore {
 public:
  InputsBefore(const ShortConvArgs& args, const StateRun& run, int64_t first, int64_t count)
      : args_(args), first_(first), count_(count) {
    const float* before = run.before();
    for (int64_t row = 0; row < args.kernel - 1; ++row) {
      float* to = rows_.data() + row * count;
      if (before == nullptr) {
        std::fill_n(to, count, 0.0F);
      } else {
        const int64_t at = run.num_replayed() + row;
        std::memcpy(to, before + args.state_offset + at * args.num_channels + first, bytes());
      }
    }
  }

  const float* rows() const { return rows_.data(); }

  // Of a block whose tokens end before `end`, counted from the beginning of the run.
  void leave(const float* in, int64_t end, float* state) const {
    const int64_t kept = args_.kernel - 1;
    for (int64_t row = 0; row < kept; ++row) {
      const int64_t token = end - kept + row;
      const float* from = token < 0 ? rows_.data() + (kept + token) * count_ : in + token * args_.in_stride;
      std::memcpy(place(state, row), from, bytes());
    }
  }
  // Of the tokens from `begin` on, beside a state.
  void leave_drafts(const float* in, int64_t begin, int64_t count, float* state) const {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(place(state, args_.kernel - 1 + i), in + (begin + i) * args_.in_stride, bytes());
    }
  }

 private:
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(float); }
  float* place(float* state, int64_t row) const {
    return state + args_.state_offset + row * args_.num_channels + first_;
  }

  const ShortConvArgs& args_;
  int64_t first_;
  int64_t count_;
  std::array<float, (kMostConvTokens - 1) * kConvChannels> rows_;
};

void convolve_channels(const ShortConvArgs& args, const StateRun& run, int64_t first, int64_t count,
                       const Kernels& kernels) {
  const InputsBefore before(args, run, first, count);
  const float* in = args.in + run.first_token() * args.in_stride + first;
  kernels.convolve({.in = in,
                    .in_stride = args.in_stride,
                    .num_tokens = run.num_tokens(),
                    .before = before.rows(),
                    .num_channels = count,
                    .kernel = args.kernel,
                    .weight = args.weight + first,
                    .weight_stride = args.num_channels,
                    .bias = args.bias == nullptr ? nullptr : args.bias + first,
                    .silu = args.silu,
                    .out = args.out + run.first_token() * args.out_stride + first,
                    .out_stride = args.out_stride});
  run.for_each_block(
      [&](int64_t token, int64_t num_tokens, float* state) { before.leave(in, token + num_tokens, state); });
  if (run.num_drafts() > 0) before.leave_drafts(in, run.num_kept(), run.num_drafts(), run.last());
}

// The state of a head in the block where the run goes on is that of the block before, or zeros.
void begin_block(const RecurrenceArgs& args, int64_t head, const float* before, float* state) {
  const int64_t size = args.head_size();
  if (before == state) return;
  float* to = state + args.state_offset + head * size;
  if (before == nullptr) {
    std::fill_n(to, size, 0.0F);
  } else {
    std::memcpy(to, before + args.state_offset + head * size, static_cast<size_t>(size) * sizeof(float));
  }
}

// log(1 + e^x) without overflow.
float softplus(float x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

// Tokens [first, first + count) of the batch, of one value head. state: that head's.
void take_tokens(const RecurrenceArgs& args, int64_t head, int64_t first, int64_t count, float* state,
                 const Kernels& kernels) {
  const int64_t key_head = args.key_head_of(head);
  std::array<float, kRecurrenceTokens> fades;
  std::array<float, kRecurrenceTokens> gains;
  for (int64_t done = 0; done < count; done += kRecurrenceTokens) {
    const int64_t token = first + done;
    const int64_t piece = std::min(kRecurrenceTokens, count - done);
    for (int64_t t = 0; t < piece; ++t) {
      const int64_t at = (token + t) * args.gate_stride + head;
      const float step =
          std::clamp(softplus(args.decays[at] + args.decay_biases[head]), args.least_step, args.most_step);
      fades[static_cast<size_t>(t)] = std::exp(args.rates[head] * step);
      gains[static_cast<size_t>(t)] =
          args.updates == nullptr ? step : args.most_update / (1 + std::exp(-args.updates[at]));
    }
    kernels.recurrence(
        {.state = state,
         .queries = args.queries + token * args.token_stride + key_head * args.key_dim,
         .keys = args.keys + token * args.token_stride + key_head * args.key_dim,
         .values = args.values + token * args.token_stride + head * args.value_dim,
         .token_stride = args.token_stride,
         .num_tokens = piece,
         .key_dim = args.key_dim,
         .value_dim = args.value_dim,
         .fades = fades.data(),
         .gains = gains.data(),
         .corrects = args.updates != nullptr,
         .normalises = args.normalises,
         .norm_eps = kRecurrenceNormEps,
         .scale = args.scale,
         .skip = args.skips == nullptr ? 0 : args.skips[head],
         .out = args.out == nullptr ? nullptr : args.out + (token * args.num_value_heads + head) * args.value_dim,
         .out_stride = int64_t{args.num_value_heads} * args.value_dim});
  }
}

}  // namespace

void convolve(const ShortConvArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int64_t pieces = (args.num_channels + kConvChannels - 1) / kConvChannels;
  pool.parallel_for(args.runs.num_sequences * pieces, [&](int64_t task, int) {
    const int64_t first = task % pieces * kConvChannels;
    convolve_channels(args, StateRun(args.runs, task / pieces), first,
                      std::min(kConvChannels, args.num_channels - first), kernels);
  });
}

void apply_recurrence(const RecurrenceArgs& args, const Kernels& kernels, ThreadPool& pool) {
  pool.parallel_for(args.runs.num_sequences * args.num_value_heads, [&](int64_t task, int) {
    const StateRun run(args.runs, task / args.num_value_heads);
    const int64_t head = task % args.num_value_heads;
    const int64_t offset = args.state_offset + head * args.head_size();
    const float* before = run.before();
    run.for_each_block([&](int64_t token, int64_t count, float* state) {
      begin_block(args, head, before, state);
      if (token == 0 && run.num_replayed() > 0) {
        take_tokens(over_drafts(args, run.before()), head, 0, run.num_replayed(), state + offset, kernels);
      }
      take_tokens(args, head, run.first_token() + token, count, state + offset, kernels);
      before = state;
    });
    if (run.num_drafts() == 0) return;
    std::vector<float> state(before + offset, before + offset + args.head_size());
    take_tokens(args, head, run.first_token() + run.num_kept(), run.num_drafts(), state.data(), kernels);
  });
  // Heads share keys, so what is replayed is read by several.
  if (args.runs.num_drafts.host == nullptr) return;
  pool.parallel_for(args.runs.num_sequences, [&](int64_t s, int) { leave_drafts(args, StateRun(args.runs, s)); });
}

}  // namespace quire::ops::cpu
