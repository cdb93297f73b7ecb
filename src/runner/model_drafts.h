// A smaller model of the same vocabulary guesses what follows (docs/speculation.md). It computes on the backend of the
// model that it guesses for, between that one's steps, with weights in its own format and keys and values in a pool of
// its own: a text's are kept from one guess to the next, as far as what was guessed came true.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "ops/backend.h"
#include "types/draft_proposer.h"
#include "types/engine_config.h"

namespace quire::runner {

class HiddenStore;

// What a model that drafts takes of the memory: all 0 where there is none.
struct DraftMemory {
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t pool_bytes = 0;  // keys and values, and of a head the states that wait for it
  int64_t total() const { return weight_bytes + workspace_bytes + pool_bytes; }
};
// From headers alone. config: of the model that is guessed for. Errors: those of reading and planning a model.
Result<DraftMemory> plan_draft_memory(const EngineConfig& config, ops::Backend& backend);

class ModelDrafts : public DraftProposer {
 public:
  // config: of the model that is guessed for; its speculative_config names this one, or a head. Errors: those of
  // reading and planning a model; unimplemented for one that generates no text. The backend must outlive it.
  static Result<std::unique_ptr<ModelDrafts>> create(const EngineConfig& config, ops::Backend& backend);

  virtual int64_t vocab_size() const = 0;
  // Tokens that it guesses of a text at a time, where it has a number of its own; 0: as many as it is asked for.
  virtual int32_t most_tokens() const { return 0; }
  // Memory of its pool, which is taken as blocks are first used.
  virtual int64_t pool_bytes() const = 0;
  // The model that is guessed for is there, and will be as long as this: a head tells whose states it wants of it,
  // beside each step. nullptr: it needs nothing. Errors: invalid_argument for a model that the head was not made for.
  virtual Result<std::shared_ptr<HiddenStore>> attach(const models::Model& /*model*/) {
    return std::shared_ptr<HiddenStore>();
  }
  // Whether it computes with that model's embeddings, or its head over the vocabulary; else it may be a planned one.
  virtual bool reads_model() const { return false; }
};

// Errors: invalid_argument where the two have not the same vocabulary.
Status check_vocabulary(const ModelDrafts& drafts, const ModelConfig& model);

}  // namespace quire::runner
