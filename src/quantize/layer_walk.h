// Goes through a model layer by layer with a text, so that no more than one layer's weights are in memory at a time:
// what calibration sees of a model that may be larger than the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "nn/batch.h"
#include "ops/backend.h"
#include "runner/kv_storage.h"
#include "runner/memory_planner.h"
#include "types/ids.h"

namespace quire::quantize {

class LayerWalk {
 public:
  // `windows`: texts that are read by themselves, at least one, none longer than the model's context. The checkpoint
  // and the backend must outlive the walk; the backend computes in host memory. Keys and values are kept in float32.
  // Errors: those of planning a model; unimplemented for models that do not generate.
  static Result<std::unique_ptr<LayerWalk>> create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                   ops::Backend& backend, std::vector<std::vector<TokenId>> windows);

  const ModelConfig& config() const { return planned_.config; }
  int32_t num_layers() const { return planned_.config.num_layers; }
  int64_t num_tokens() const;
  uint64_t hash() const;  // of the windows' tokens

  // The states before the first layer. The first call.
  Status embed();
  // Runs layer `index` over all windows from the states before it; `weights` has its weights, in the place of the
  // checkpoint's where it is not nullptr. `observer` sees the inputs of its products (nullptr: nobody does). With
  // `moves_on` the states become those behind it; else they stay, so that the layer can be run once more.
  Status run_layer(int32_t index, const checkpoint::Checkpoint* weights, const nn::RowAdapters* observer,
                   bool moves_on);
  // What the head reads of each window, [tokens, hidden size], once all layers are behind.
  Status finish(const std::function<void(const ops::ConstView&)>& see);

 private:
  // Between two layers, of one window (nn/hidden_states.h).
  struct States {
    std::vector<float> residual;  // [tokens, hidden size]
    std::vector<float> delta;     // the same, or empty: nothing is to be added
  };

  LayerWalk(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, ops::Backend& backend,
            std::vector<std::vector<TokenId>> windows, runner::PlannedModel planned, runner::KvStorage storage);
  // The model with layer `index` in memory, and what stands before the first or behind the last.
  Result<std::unique_ptr<models::Model>> load(int32_t index, const checkpoint::Checkpoint& weights);
  // Runs `body` in a step of window `index` with its states, which are taken back afterwards if `keep` says so.
  void in_step(size_t index, const nn::RowAdapters* observer, bool keep,
               const std::function<void(const nn::StepContext&, nn::HiddenStates&)>& body);

  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  ops::Backend& backend_;
  std::vector<std::vector<TokenId>> windows_;
  runner::PlannedModel planned_;
  runner::KvStorage storage_;  // of one window, which each overwrites
  std::vector<States> states_;
  std::vector<float> workspace_;
};

// Windows of `length` tokens of a text, the first of each the token that the model begins with where `begin` has one;
// at most `most_tokens` in all, and no window of less than two tokens.
std::vector<std::vector<TokenId>> cut_windows(const std::vector<TokenId>& ids, const std::vector<TokenId>& begin,
                                              int64_t length, int64_t most_tokens);

}  // namespace quire::quantize
