// Heads that guess what a larger model says next, out of that one's own states: what whoever runs one tells it, and
// what it tells of itself beside being a Model.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"

namespace quire::models {

// What the rows of a head's next step are of, and what came of them. Of rows whose tokens the larger model has computed
// there are that one's states, of rows behind those the head's own, or, of a head that drafts a block, none.
struct HeadRows {
  // [rows, as many floats as the states of all taps() side by side], or with are_own [rows, hidden_size of the head];
  // on the device.
  const float* given = nullptr;
  bool are_own = false;
  int64_t num_given = 0;  // of a head that drafts a block: the first rows, whose states are given; the others are it
  // Out: [rows, hidden_size], the head's own of the rows (of a block's alone), until its next step.
  ops::View states;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  // REQUIRES: `rows` is set before each step of the head; both outlive it.
  virtual void use_rows(HeadRows* rows) = 0;
  // The larger model, whose embeddings and head over the vocabulary serve where this one has none of its own. REQUIRES:
  // before the first step; outlives it. Errors: invalid_argument for a model that it was not made for.
  virtual Status use_target(const Model& target) = 0;
  // Whether it goes on reading that model, and not its configuration alone.
  virtual bool reads_target() const { return true; }
  // Where the larger model's states are taken, as nn::HiddenTaps::layers() has it. Errors: invalid_argument naming the
  // member of the head's configuration.
  virtual Result<std::vector<int32_t>> taps(const ModelConfig& target) const = 0;
  // What it reads of its checkpoint beside the weights. Errors: data_loss naming the tensor.
  virtual Status read_beside_weights(const checkpoint::Checkpoint& /*checkpoint*/) { return {}; }
};

// Whether a model's embeddings are its table's rows and its head over the vocabulary one product, without positions,
// scales or projections around them: then they are what a head reads that was made for it.
bool lends_vocabulary(const ModelConfig& target);

// The same of a model for a head of this hidden_size that has neither of its own. Errors: invalid_argument saying which
// of it does not fit.
Status check_lends_vocabulary(const ModelConfig& target, int64_t hidden_size);

// The head that this model is. REQUIRES: it is one.
DraftHead& draft_head(Model& model);

}  // namespace quire::models
