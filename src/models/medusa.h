// Medusa (Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2024): heads
// of a few residual blocks over a larger model's state behind its last norm, each of which guesses the token at a place
// of its own. Read as those who made it store them ("0.0.linear.weight", "0.1.weight") and as vLLM does
// ("blocks.0.layers.0.weight", "lm_heads.0.weight", "token_map").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "nn/linear.h"
#include "nn/loader.h"
#include "nn/step_context.h"

namespace quire::models {

struct MedusaConfig {
  int32_t num_heads = 0;
  int32_t num_blocks = 0;  // of a head
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;        // of the larger model
  int64_t draft_vocab_size = 0;  // tokens that can be guessed
  bool shares_head = false;      // one head over the vocabulary for all; where there is none it is the larger model's
  double logits_scale = 1;
};

// Sizes that config.json leaves out are those of the tensors. Errors: data_loss for a checkpoint that holds no such
// heads; invalid_argument naming the member of config.json.
Result<MedusaConfig> read_medusa_config(const checkpoint::Checkpoint& checkpoint);

class MedusaHeads {
 public:
  // Declares the parameters. The checkpoint is the loader's. Errors: data_loss naming tensors that are missing or have
  // other shapes.
  static Result<std::unique_ptr<MedusaHeads>> build(const MedusaConfig& config,
                                                    const checkpoint::Checkpoint& checkpoint, nn::Loader& loader);

  const MedusaConfig& config() const { return config_; }
  // The larger model, whose head over the vocabulary serves where there is none. REQUIRES: outlives this. Errors:
  // invalid_argument for a model that they were not made for.
  Status use_target(const Model& target);
  bool reads_target() const { return heads_.empty(); }

  // What head `index` says of the token `index` + 2 places behind the one whose state this is: state [1, hidden_size]
  // -> in the workspace [1, draft_vocab_size].
  ops::View logits(const nn::StepContext& step, int32_t index, const ops::ConstView& state) const;
  // Which of the larger vocabulary one of the guessed tokens is.
  TokenId token(int64_t guessed) const {
    return ids_.empty() ? static_cast<TokenId>(guessed) : ids_[static_cast<size_t>(guessed)];
  }

 private:
  explicit MedusaHeads(const MedusaConfig& config) : config_(config) {}

  const MedusaConfig config_;
  std::vector<std::vector<nn::Linear>> blocks_;  // [num_heads][num_blocks]
  std::vector<nn::Linear> heads_;                // of each; one: of all; none: the larger model's
  std::vector<TokenId> ids_;                     // [draft_vocab_size]; empty: of the larger vocabulary
  const Model* target_ = nullptr;
};

}  // namespace quire::models
