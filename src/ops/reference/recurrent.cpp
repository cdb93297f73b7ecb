#include "ops/reference/recurrent.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace quire::ops::reference {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// What a run goes on from: with drafts that held, from what is before those.
std::vector<float> state_before(const StateRun& run, int64_t offset, int64_t size) {
  const float* before = run.before();
  if (before == nullptr) return std::vector<float>(static_cast<size_t>(size));
  return {before + offset, before + offset + size};
}

// A key or a query as the rule takes it.
std::vector<double> vector_of(const RecurrenceArgs& args, const float* x, int64_t size) {
  if (!args.normalises) return {x, x + size};
  double squares = kRecurrenceNormEps;
  for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  std::vector<double> out(x, x + size);
  for (double& value : out) value /= std::sqrt(squares);
  return out;
}

// One token of one value head: reads and changes its state, [key_dim, value_dim].
void take_token(const RecurrenceArgs& args, int64_t token, int64_t head, float* state) {
  const int64_t key_head = args.key_head_of(head);
  const std::vector<double> key =
      vector_of(args, args.keys + token * args.token_stride + key_head * args.key_dim, args.key_dim);
  const std::vector<double> query =
      vector_of(args, args.queries + token * args.token_stride + key_head * args.key_dim, args.key_dim);
  const float* value = args.values + token * args.token_stride + head * args.value_dim;
  const double decay = args.decays[token * args.gate_stride + head] + args.decay_biases[head];
  const double step = std::clamp<double>(std::log1p(std::exp(decay)), args.least_step, args.most_step);
  const double fade = std::exp(args.rates[head] * step);
  const double gain =
      args.updates == nullptr ? step : args.most_update * sigmoid(args.updates[token * args.gate_stride + head]);
  const double skip = args.skips == nullptr ? 0 : args.skips[head];
  float* out = args.out == nullptr ? nullptr : args.out + (token * args.num_value_heads + head) * args.value_dim;
  for (int64_t column = 0; column < args.value_dim; ++column) {
    double remembered = 0;
    for (int64_t i = 0; i < args.key_dim && args.updates != nullptr; ++i)
      remembered += fade * state[i * args.value_dim + column] * key[static_cast<size_t>(i)];
    const double correction = gain * (value[column] - remembered);
    double sum = skip * value[column];
    for (int64_t i = 0; i < args.key_dim; ++i) {
      float& number = state[i * args.value_dim + column];
      number = static_cast<float>(fade * number + key[static_cast<size_t>(i)] * correction);
      sum += number * query[static_cast<size_t>(i)] * args.scale;
    }
    if (out != nullptr) out[column] = static_cast<float>(sum);
  }
}

}  // namespace

void convolve(const ShortConvArgs& args) {
  const int64_t kept = args.kernel - 1;
  for (int64_t s = 0; s < args.runs.num_sequences; ++s) {
    const StateRun run(args.runs, s);
    // The inputs from `kept` tokens before the run on: beside a state those of drafts that held follow.
    std::vector<float> inputs =
        state_before(run, args.state_offset + run.num_replayed() * args.num_channels, kept * args.num_channels);
    for (int64_t t = 0; t < run.num_tokens(); ++t) {
      const float* row = args.in + (run.first_token() + t) * args.in_stride;
      inputs.insert(inputs.end(), row, row + args.num_channels);
    }
    for (int64_t t = 0; t < run.num_tokens(); ++t) {
      for (int64_t c = 0; c < args.num_channels; ++c) {
        double sum = args.bias == nullptr ? 0 : args.bias[c];
        for (int64_t j = 0; j < args.kernel; ++j) {
          sum += static_cast<double>(args.weight[j * args.num_channels + c]) *
                 inputs[static_cast<size_t>((t + j) * args.num_channels + c)];
        }
        args.out[(run.first_token() + t) * args.out_stride + c] =
            static_cast<float>(args.silu ? sum * sigmoid(sum) : sum);
      }
    }
    run.for_each_block([&](int64_t first, int64_t count, float* state) {
      const auto begin = inputs.begin() + (first + count) * args.num_channels;
      std::copy(begin, begin + kept * args.num_channels, state + args.state_offset);
    });
    if (run.num_drafts() == 0) continue;
    const auto drafts = inputs.begin() + (kept + run.num_kept()) * args.num_channels;
    std::copy(drafts, inputs.end(), run.last() + args.state_offset + kept * args.num_channels);
  }
}

void apply_recurrence(const RecurrenceArgs& args) {
  for (int64_t s = 0; s < args.runs.num_sequences; ++s) {
    const StateRun run(args.runs, s);
    std::vector<float> states = state_before(run, args.state_offset, args.heads_size());
    const auto take = [&states](const RecurrenceArgs& of, int64_t first, int64_t count) {
      for (int64_t t = first; t < first + count; ++t) {
        for (int64_t head = 0; head < of.num_value_heads; ++head) {
          take_token(of, t, head, states.data() + head * of.head_size());
        }
      }
    };
    if (run.num_replayed() > 0) take(over_drafts(args, run.before()), 0, run.num_replayed());
    run.for_each_block([&](int64_t first, int64_t count, float* state) {
      take(args, run.first_token() + first, count);
      std::copy(states.begin(), states.end(), state + args.state_offset);
    });
    take(args, run.first_token() + run.num_kept(), run.num_drafts());
    leave_drafts(args, run);
  }
}

}  // namespace quire::ops::reference
