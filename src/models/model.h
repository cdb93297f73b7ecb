// What every family offers the runner.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "nn/hidden_states.h"
#include "nn/kv_layer.h"
#include "nn/loader.h"
#include "nn/step_context.h"
#include "types/model_config.h"

namespace quire::models {

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // What each layer of forward() caches, in their order, with keys and values stored as `dtype`.
  virtual std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const = 0;
  // Which of those are these layers'; nullopt: they are others', too, or not told apart.
  virtual std::optional<nn::Range> caches_of(const nn::Range& layers) const;
  // All of the model but the head. Returns hidden states after the last norm, [num_tokens, hidden_size], in the
  // workspace.
  ops::View forward(const nn::StepContext& step) const;

  // What it is made of, for a stage of a pipeline to run a part. The batch has all layers' caches in any case.
  virtual void embed(const nn::StepContext& step, nn::HiddenStates& states) const = 0;
  // Layers [begin, end).
  virtual void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const = 0;
  // The same, and gives the step's taps, where it has some, what stands before each of these layers, and behind the
  // last layer of all. REQUIRES: begin < end.
  void run_tapped_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const;
  // finish(), and what the taps want of it.
  ops::View finish_tapped(const nn::StepContext& step, nn::HiddenStates& states) const;
  // What the head reads, in the workspace.
  virtual ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const = 0;

  // hidden: [rows, hidden_size] -> out: [rows, vocab_size], dense. The step says which tokens the rows are of; its
  // batch may be a later one. REQUIRES: a head over the vocabulary, which encoders do not have.
  virtual void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const;

  // The numbers of a classifying head: pooled hidden states [rows, hidden_size], which may be written to -> out
  // [rows, num_labels], dense. REQUIRES: config().pooling.num_labels > 0.
  virtual void scores(const nn::StepContext& step, const ops::View& pooled, const ops::View& out) const;
};

// Whether what the model is served for needs its head over the vocabulary.
inline bool uses_vocabulary_head(const ModelConfig& config) {
  return config.task == ModelTask::kGenerate || (config.task == ModelTask::kClassify && config.pooling.num_labels == 0);
}

// What a family's checkpoints hold behind their last layer.
enum class FamilyRole : uint8_t {
  kGenerates,   // a head over the vocabulary
  kStates,      // nothing: what they give are hidden states
  kClassifies,  // a head over some classes
};

// A family: how its configuration is read and how its model is built. Building with a planning
// loader declares the parameters and gives a model that can be measured but not run.
struct Family {
  // `config` is config.json's object, `generation` generation_config.json's. Errors: invalid_argument or unimplemented
  // naming the field.
  Result<ModelConfig> (*read_config)(const boost::json::object& config, const boost::json::object& generation);
  // num_positions: how many positions the rotary table must hold.
  Result<std::unique_ptr<Model>> (*build)(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
  // The configuration of a GGUF file; nullptr: there are none of this family. REQUIRES: checkpoint.gguf(). Errors:
  // invalid_argument or unimplemented naming the key; data_loss for a key that is missing or of the wrong type.
  Result<ModelConfig> (*read_gguf)(const checkpoint::Checkpoint& checkpoint) = nullptr;
  FamilyRole role = FamilyRole::kGenerates;
};

}  // namespace quire::models
