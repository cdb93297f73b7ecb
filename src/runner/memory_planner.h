// Works out, from a checkpoint's headers and the configuration alone, what a model will take and how many KV blocks are
// left for it. The same numbers are printed by `quire plan` and used at start.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "models/registry.h"
#include "nn/quantization.h"
#include "nn/shard.h"
#include "ops/backend.h"
#include "runner/adapter_store.h"
#include "runner/dense_layers.h"
#include "runner/kv_layout.h"
#include "types/engine_config.h"
#include "types/memory_plan.h"
#include "types/model_config.h"

namespace quire::runner {

// kAuto is float32 here: plan_model() takes float16 unless the weights are F32 or activations are asked for in float32.
DType kv_dtype_of(KvCacheDType choice);

// Floats that a step of so many tokens takes from its workspace, seen by walking through it without computing; the
// model may be a planned one.
int64_t activation_floats(const models::Model& model, ops::Backend& backend, int64_t num_tokens);
// The same of the logits of so many rows: the gathered rows, their logits, scratch.
int64_t logit_floats(const models::Model& model, ops::Backend& backend, int64_t num_rows);
// Numbers of a row that compute_logits() or the head of scores gives: of the vocabulary, or labels; 0: there is no
// head.
int64_t num_head_outputs(const ModelConfig& config);

struct PlannedModel {
  models::Family family;
  ModelConfig config;
  DType kv_dtype = DType::kF32;  // of the layers' keys and values
  KvLayout kv_layout;
  Quantization quantization = Quantization::kNone;
  nn::Shard shard;                    // which part of the weights this is
  nn::Stage stage;                    // and of the layers
  std::optional<DType> weight_dtype;  // of weights of 16 and 32 bits; nullopt: as they are stored
  bool tells_second_text = true;      // of a pair, to a model with segments
  int64_t max_model_len = 0;
  int64_t max_num_seqs = 0;
  AdapterLimits adapters;  // most_loaded 0: there are none
  int32_t max_adapter_rank = 0;
  int32_t max_virtual_tokens = 0;
  std::optional<DType> adapter_dtype;  // of their factors; nullopt: as they are stored
  std::string swap_folder;             // of the second pool's file; empty: host memory
  int64_t workspace_floats = 0;        // of the model's own forward pass, for the largest step
  int64_t logit_rows = 0;              // that are computed and sampled at once: bounds that buffer whatever the batch
  int64_t logit_floats = 0;            // of that buffer
  // Sequences of the largest step that decodes and is recorded to be replayed; 0: none is.
  int32_t largest_recorded_step = 0;
  AcceptanceRule acceptance;                         // of guesses
  int32_t most_recorded_tokens = 0;                  // of a step with prompts in it
  std::shared_ptr<const DenseLayers> after_pooling;  // nullptr: a vector is what was pooled
  MemoryPlan memory;
};

// What each layer of the model keeps, as it is planned.
std::vector<nn::KvLayerSpec> kv_layers_of(const models::Model& model, const PlannedModel& planned);

// Of the hidden states of rows whose tokens a constraint may refuse, where tokens are chosen on the device.
int64_t masked_hidden_bytes(const PlannedModel& planned);

// What the configuration says, or the device's default.
double memory_utilization(const EngineConfig& config, ops::Backend& backend);

// free_bytes: the device's memory that may be taken; used when config.kv_cache_memory_bytes is 0:
//   blocks = (free - weights - workspace - swap and offload space in memory) * memory_utilization / block_bytes on a
//   CPU, blocks = (free * memory_utilization - weights - workspace) / block_bytes                         on a card,
// and never more than max_num_seqs sequences of max_model_len need.
// Errors: those of the family and of the checkpoint (missing, extra, wrongly shaped tensors); invalid_argument for a
// configuration that cannot hold; resource_exhausted when not a single block fits.
Result<PlannedModel> plan_model(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint,
                                ops::Backend& backend, int64_t free_bytes);
// The same of a family that is given instead of looked up.
Result<PlannedModel> plan_model(const models::Family& family, const EngineConfig& config,
                                const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, int64_t free_bytes);

}  // namespace quire::runner
