// Linear recurrences with a matrix for a state: a head's S [key_dim, value_dim] is a memory from keys to values, which
// a token lets fade, adds to, and asks. With step = log(1 + e^(decay + decay_bias)), within [least_step, most_step]:
//   S = e^(rate * step) S
//   S = S + k (most_update sigmoid(update) (v - S^T k))^T    the gated delta rule (Yang, Kautz and Hatamizadeh, 2024)
//   S = S + k (step v)^T    where there are no updates: Mamba 2 (Dao and Gu, 2024)
//   out = S^T q + skip v
// k is the key, q the query; with normalises both at length 1 (x / sqrt(|x|^2 + 1e-6)); then q times scale. Value head
// h takes key head h / (num_value_heads / num_key_heads), or with heads_in_turns h % num_key_heads. The state is that
// of all value heads, [num_value_heads, key_dim, value_dim] floats from state_offset on; behind it go the keys, values,
// updates and decays of drafts, [most_drafts, draft_size()].
#pragma once

#include <cstdint>
#include <limits>

#include "ops/state_cache.h"

namespace quire::ops {

inline constexpr int32_t kMostRecurrenceKeyDim = 256;
inline constexpr float kRecurrenceNormEps = 1e-6f;

struct RecurrenceArgs {
  StateRuns runs;
  int64_t state_offset = 0;  // floats
  int64_t num_tokens = 0;
  int32_t num_key_heads = 0;
  int32_t num_value_heads = 0;  // a multiple of it
  int32_t key_dim = 0;          // up to kMostRecurrenceKeyDim
  int32_t value_dim = 0;
  bool heads_in_turns = false;
  const float* queries = nullptr;  // [num_tokens, num_key_heads, key_dim], tokens token_stride floats apart
  const float* keys = nullptr;     // the same
  const float* values = nullptr;   // [num_tokens, num_value_heads, value_dim], the same
  int64_t token_stride = 0;
  const float* updates = nullptr;  // [num_tokens, num_value_heads], tokens gate_stride apart; nullptr: Mamba 2
  float most_update = 1.0f;        // beyond 1 what a key led to may turn around (Grazzi et al., 2025)
  const float* decays = nullptr;   // the same, always there
  int64_t gate_stride = 0;
  const float* rates = nullptr;         // [num_value_heads], below 0
  const float* decay_biases = nullptr;  // [num_value_heads]
  float least_step = 0.0f;
  float most_step = std::numeric_limits<float>::infinity();
  bool normalises = false;
  float scale = 1.0f;            // of queries
  const float* skips = nullptr;  // [num_value_heads] or nullptr: 0
  float* out = nullptr;          // [num_tokens, num_value_heads, value_dim], dense

  constexpr int64_t key_head_of(int64_t value_head) const {
    return heads_in_turns ? value_head % num_key_heads : value_head / (num_value_heads / num_key_heads);
  }
  constexpr int64_t head_size() const { return int64_t{key_dim} * value_dim; }
  constexpr int64_t key_size() const { return int64_t{num_key_heads} * key_dim; }
  constexpr int64_t value_size() const { return int64_t{num_value_heads} * value_dim; }
  constexpr int64_t heads_size() const { return num_value_heads * head_size(); }
  constexpr int64_t draft_size() const {
    return key_size() + value_size() + (updates == nullptr ? 1 : 2) * num_value_heads;
  }
  int64_t state_size() const { return heads_size() + runs.cache.most_drafts * draft_size(); }
};

// The same recurrence over what is beside a state of draft tokens. Nothing is asked: queries are keys, and no `out`.
RecurrenceArgs over_drafts(const RecurrenceArgs& args, const float* state);
// Leaves what the recurrence reads of a run's drafts beside its last state, when nobody reads of those there any more.
void leave_drafts(const RecurrenceArgs& args, const StateRun& run);

void check(const RecurrenceArgs& args);

}  // namespace quire::ops
