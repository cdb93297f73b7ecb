// EAGLE-3 (Li et al., "EAGLE-3: scaling up inference acceleration of large language models via training-time test",
// 2025): one layer that guesses what a larger model says next, out of that one's states and the tokens that followed
// them. Tensors are named as in published heads ("fc", "midlayer", "norm", "lm_head", "d2t").
#pragma once

#include <vector>

#include "models/model.h"

namespace quire::models {

// What the rows of its next step are of, and what came of them. Of rows whose tokens the larger model has computed
// there are that one's states after three of its layers, side by side; of rows behind those the head's own.
struct Eagle3Rows {
  const float* given = nullptr;  // [rows, 3 * target_hidden_size], or with are_own [rows, hidden_size]
  bool are_own = false;
  ops::View states;  // out: [rows, hidden_size], the head's own of the rows, until its next step
};

class Eagle3Head {
 public:
  virtual ~Eagle3Head() = default;
  // REQUIRES: `rows` is set before each step of the model; both outlive it.
  virtual void use_rows(Eagle3Rows* rows) = 0;
  // Whose embeddings it reads, where it has none of its own. REQUIRES: outlives it.
  virtual void use_embeddings(const Model* model) = 0;
  virtual bool has_embeddings() const = 0;
  // Of each of its own tokens which of the larger vocabulary it is.
  virtual void use_vocabulary(std::vector<TokenId> ids) = 0;
};

// The model of `config` that read_config() gave; what it is beside a Model. REQUIRES: built by kEagle3Family.
Eagle3Head& eagle3_head(Model& model);

// The layers before which the larger model's states are taken (from 0 on; num_layers: behind the last): those that the
// head's configuration names, else the usual three. Errors: invalid_argument naming the member.
Result<std::vector<int32_t>> eagle3_layers(const ModelConfig& head, int32_t num_layers);

// Of a checkpoint whose head has fewer tokens; empty: they are those of the larger vocabulary. Errors: data_loss naming
// the tensor.
Result<std::vector<TokenId>> read_eagle3_vocabulary(const checkpoint::Checkpoint& checkpoint,
                                                    const ModelConfig& config);

Result<ModelConfig> read_eagle3_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_eagle3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kEagle3Family = {read_eagle3_config, build_eagle3};

}  // namespace quire::models
