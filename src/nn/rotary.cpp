#include "nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace quire::nn {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// The dimension whose wavelength makes `rotations` turns over the trained context.
double yarn_correction_dim(const RopeConfig& rope, double rotations) {
  return rope.rotary_dim * std::log(static_cast<double>(rope.original_max_position) / (rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double original = static_cast<double>(rope.original_max_position);
  const double low_wavelength = original / rope.low_freq_factor;
  const double high_wavelength = original / rope.high_freq_factor;
  for (double& frequency : frequencies) {
    const double wavelength = kTwoPi / frequency;
    if (wavelength <= high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= rope.factor;
      continue;
    }
    const double smooth =
        (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
  }
}

void scale_yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  double low = yarn_correction_dim(rope, rope.beta_fast);
  double high = yarn_correction_dim(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;  // no division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    // ramp 0: the frequency is kept (extrapolation); ramp 1: divided by factor (interpolation).
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

void scale_proportional(const RopeConfig& rope, std::vector<double>& frequencies) {
  const auto turning = static_cast<size_t>(rope.turning_share * rope.rotary_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = i < turning ? frequencies[i] / rope.factor : 0;
}

bool positive(double x) {
  return std::isfinite(x) && x > 0;
}

Status validate_longrope(const RopeConfig& rope) {
  if (rope.original_max_position < 2) {
    return invalid_argument("original_max_position_embeddings is {}, expected at least 2", rope.original_max_position);
  }
  if (!positive(rope.factor)) return invalid_argument("rope scaling factor is {}, expected more than 0", rope.factor);
  if (rope.attention_factor && !positive(*rope.attention_factor)) {
    return invalid_argument("rope scaling: attention_factor is {}, expected a positive number", *rope.attention_factor);
  }
  const auto wanted = static_cast<size_t>(rope.rotary_dim / 2);
  for (const auto& [name, factors] :
       {std::pair{"short_factor", &rope.short_factors}, std::pair{"long_factor", &rope.long_factors}}) {
    if (factors->size() != wanted) {
      return invalid_argument("rope scaling: {} has {} numbers, expected {}: half of the rotary dimension {}", name,
                              factors->size(), wanted, rope.rotary_dim);
    }
    if (!std::all_of(factors->begin(), factors->end(), positive)) {
      return invalid_argument("rope scaling: {} must hold positive numbers", name);
    }
  }
  return {};
}

}  // namespace

Status validate(const RopeConfig& rope, int32_t head_dim) {
  if (!positive(rope.theta) || rope.theta <= 1.0) {
    return invalid_argument("rope_theta is {}, expected a number greater than 1", rope.theta);
  }
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > head_dim) {
    return invalid_argument("the rotary dimension is {}, expected an even number from 2 to head_dim={}",
                            rope.rotary_dim, head_dim);
  }
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kDynamic) return {};
  if (rope.scaling == RopeScaling::kLongRope) return validate_longrope(rope);
  if (!positive(rope.factor) || rope.factor < 1.0) {
    return invalid_argument("rope scaling factor is {}, expected a number of at least 1", rope.factor);
  }
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kProportional) return {};
  if (rope.original_max_position < 1 || rope.original_max_position > (int64_t{1} << 31)) {
    return invalid_argument("original_max_position_embeddings is {}, expected a positive number",
                            rope.original_max_position);
  }
  if (rope.scaling == RopeScaling::kLlama3 && !(positive(rope.low_freq_factor) && positive(rope.high_freq_factor) &&
                                                rope.high_freq_factor >= rope.low_freq_factor)) {
    return invalid_argument("rope scaling: low_freq_factor {} and high_freq_factor {}: expected 0 < low <= high",
                            rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.scaling == RopeScaling::kYarn) {
    if (!positive(rope.beta_fast) || !positive(rope.beta_slow) || rope.beta_fast < rope.beta_slow) {
      return invalid_argument("rope scaling: beta_fast {} and beta_slow {}: expected beta_fast >= beta_slow > 0",
                              rope.beta_fast, rope.beta_slow);
    }
    if (rope.attention_factor && !positive(*rope.attention_factor)) {
      return invalid_argument("rope scaling: attention_factor is {}, expected a positive number",
                              *rope.attention_factor);
    }
    if (!std::isfinite(rope.mscale) || !std::isfinite(rope.mscale_all_dim)) {
      return invalid_argument("rope scaling: mscale must be finite");
    }
  }
  return {};
}

std::vector<double> rotary_frequencies(const RopeConfig& rope, bool long_sequence) {
  std::vector<double> frequencies(static_cast<size_t>(rope.rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
  }
  switch (rope.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeScaling::kLlama3:
      scale_llama3(rope, frequencies);
      break;
    case RopeScaling::kYarn:
      scale_yarn(rope, frequencies);
      break;
    case RopeScaling::kProportional:
      scale_proportional(rope, frequencies);
      break;
    case RopeScaling::kLongRope:
      for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] /= (long_sequence ? rope.long_factors : rope.short_factors)[i];
      }
      break;
  }
  return frequencies;
}

double rotary_attention_factor(const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLongRope) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.scaling == RopeScaling::kLongRope) {
    if (rope.factor <= 1.0) return 1.0;
    return std::sqrt(1.0 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_position)));
  }
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

Rotary::Rotary(Loader& loader, const RopeConfig& rope, int64_t num_positions, const std::vector<float>& divisors)
    : rotary_dim_(rope.rotary_dim), interleaved_(rope.interleaved), num_positions_(num_positions) {
  std::vector<double> frequencies = rotary_frequencies(rope);
  for (size_t i = 0; i < divisors.size() && i < frequencies.size(); ++i) frequencies[i] /= divisors[i];
  const double scale = rotary_attention_factor(rope);
  table_ = {loader, frequencies, scale, num_positions};
  if (rope.scaling != RopeScaling::kLongRope) return;
  has_long_table_ = true;
  trained_length_ = rope.original_max_position;
  long_table_ = {loader, rotary_frequencies(rope, /*long_sequence=*/true), scale, num_positions};
}

void Rotary::grow_queries(Loader& loader, const QueryGrowth& growth, int32_t head_dim, int64_t num_positions) {
  grown_dim_ = head_dim;
  grown_positions_ = num_positions;
  const std::vector<double> no_angles(static_cast<size_t>(head_dim / 2));
  query_table_ = {loader, no_angles, 1, num_positions, growth};
}

const float* Rotary::rows_of(const RotaryTable& table, const Batch& batch, int64_t begin, int64_t end) {
  // Where the numbers are a recorded step's, they are not the host's, nor is the table.
  const int32_t* positions = batch.positions.host;
  if (positions == nullptr || begin == end) return table.rows(0);
  return table.rows(*std::max_element(positions + begin, positions + end) + int64_t{1});
}

template <typename Body>
void Rotary::for_tables(const Batch& batch, const Body& body) const {
  const auto rows = [&](const RotaryTable& table, int64_t begin, int64_t end) {
    return rows_of(table, batch, begin, end);
  };
  if (!has_long_table_) return body(rows(table_, 0, batch.num_tokens), 0, batch.num_tokens);
  const int32_t* lengths = batch.prompt_lengths != nullptr ? batch.prompt_lengths : batch.context_lengths.host;
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    const int32_t begin = batch.query_offsets.host[s];
    const int32_t end = batch.query_offsets.host[s + 1];
    int32_t first_long = begin;
    if (lengths[s] <= trained_length_) {
      while (first_long < end && batch.positions.host[first_long] < trained_length_) ++first_long;
    }
    if (begin < first_long) body(rows(table_, begin, first_long), begin, first_long);
    if (first_long < end) body(rows(long_table_, first_long, end), first_long, end);
  }
}

void Rotary::operator()(const StepContext& step, const ops::View& heads, int32_t num_heads, int32_t head_dim) const {
  if (rotary_dim_ == 0) return;
  for_tables(step.batch, [&](const float* table, int64_t begin, int64_t end) {
    step(ops::RopeArgs{.heads = heads.rows(begin, end - begin).strided_floats(),
                       .token_stride = heads.row_stride,
                       .num_tokens = end - begin,
                       .num_heads = num_heads,
                       .head_dim = head_dim,
                       .rotary_dim = rotary_dim_,
                       .interleaved = interleaved_,
                       .positions = step.batch.positions + begin,
                       .table = table,
                       .table_positions = num_positions_});
  });
}

void Rotary::multiply_queries(const StepContext& step, const ops::View& heads, int32_t num_heads) const {
  if (grown_dim_ == 0) return;
  step(ops::RopeArgs{.heads = heads.strided_floats(),
                     .token_stride = heads.row_stride,
                     .num_tokens = heads.num_rows,
                     .num_heads = num_heads,
                     .head_dim = grown_dim_,
                     .rotary_dim = grown_dim_,
                     .positions = step.batch.positions,
                     .table = rows_of(query_table_, step.batch, 0, heads.num_rows),
                     .table_positions = grown_positions_});
}

void Rotary::prepare_heads(const StepContext& step, const ops::PrepareHeadsArgs& args) const {
  if (rotary_dim_ == 0) return step(args);
  for_tables(step.batch, [&](const float* table, int64_t begin, int64_t end) {
    ops::PrepareHeadsArgs run = args;
    run.heads += begin * args.token_stride;
    run.num_tokens = end - begin;
    run.rotary_dim = rotary_dim_;
    run.interleaved = interleaved_;
    run.positions = step.batch.positions + begin;
    run.table = table;
    run.table_positions = num_positions_;
    run.slots = args.slots + begin;
    step(run);
  });
}

}  // namespace quire::nn
