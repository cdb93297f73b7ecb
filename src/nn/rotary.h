// Rotary position embedding: the table of cosines and sines, stretched as the model's configuration
// says.
#pragma once

#include <vector>

#include "base/status.h"
#include "nn/rotary_table.h"
#include "nn/step_context.h"
#include "types/model_config.h"

namespace quire::nn {

// Angular frequency of each rotating pair, [rotary_dim / 2], after scaling:
//   linear: all divided by factor (position interpolation, Chen et al., 2023);
//   llama3: long wavelengths divided by factor, short ones kept, smooth between (Llama 3.1);
//   yarn:   by dimension between interpolation and extrapolation (Peng et al., 2023);
//   longrope: each divided by a factor of its own, one list for sequences within the trained context and one for
//             those beyond it (`long_sequence`; Ding et al., 2024);
//   proportional: all divided by factor, and of the pairs but the first turning_share stand still (Gemma 4).
std::vector<double> rotary_frequencies(const RopeConfig& rope, bool long_sequence = false);
// What cos and sin are multiplied with (1 but for yarn and longrope).
double rotary_attention_factor(const RopeConfig& rope);
// Ranges of every number. Errors: invalid_argument naming the field.
Status validate(const RopeConfig& rope, int32_t head_dim);

class Rotary {
 public:
  Rotary() = default;
  // Positions [0, num_positions). `divisors`: the checkpoint's own divisor of each frequency
  // (GGUF's rope_freqs.weight), empty when it has none. Longrope takes its long factors for all tokens of a prompt that
  // is longer than the trained length, and for tokens at positions behind it; else the short ones. So a token is
  // rotated by its position and its prompt's length alone, whenever it is computed, again or in pieces.
  Rotary(Loader& loader, const RopeConfig& rope, int64_t num_positions, const std::vector<float>& divisors);

  // What multiply_queries() does, to heads of this size; else nothing.
  void grow_queries(Loader& loader, const QueryGrowth& growth, int32_t head_dim, int64_t num_positions);

  // heads: [num_tokens, num_heads * head_dim] of the batch, rotated in place; of the last head what rotates is enough.
  void operator()(const StepContext& step, const ops::View& heads, int32_t num_heads, int32_t head_dim) const;

  // Queries [num_tokens, num_heads * head_dim] of the batch, rotated, by what their positions say.
  void multiply_queries(const StepContext& step, const ops::View& heads, int32_t num_heads) const;

  // Runs the op with its rotation filled in: args is of all the batch's tokens, without one.
  void prepare_heads(const StepContext& step, const ops::PrepareHeadsArgs& args) const;

 private:
  static const float* rows_of(const RotaryTable& table, const Batch& batch, int64_t begin, int64_t end);
  // body(rows, begin, end) of every run of tokens with the rows of the table that rotates them.
  template <typename Body>
  void for_tables(const Batch& batch, const Body& body) const;

  int32_t rotary_dim_ = 0;  // 0: nothing rotates
  bool interleaved_ = false;
  int64_t num_positions_ = 0;
  bool has_long_table_ = false;
  int64_t trained_length_ = 0;  // longrope: what goes beyond it uses long_table_
  RotaryTable table_;
  RotaryTable long_table_;
  // A rotation by no angle of all of a head, by cosines that grow; or none.
  RotaryTable query_table_;
  int32_t grown_dim_ = 0;
  int64_t grown_positions_ = 0;
};

}  // namespace quire::nn
