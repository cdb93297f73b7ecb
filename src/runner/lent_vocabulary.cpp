#include "runner/lent_vocabulary.h"

#include <utility>

#include "runner/memory_planner.h"
#include "runner/open_checkpoint.h"

namespace quire::runner {

Result<LentVocabulary> lend_vocabulary(const EngineConfig& config, nn::Loader::Mode mode, ops::Backend& backend) {
  LentVocabulary lent;
  QUIRE_ASSIGN_OR_RETURN(lent.checkpoint, open_checkpoint(config));
  // How the weights are read is the model's plan; whether it has room for its keys and values the workers find out.
  EngineConfig whole = config;
  whole.tensor_parallel_size = 1;
  whole.pipeline_parallel_size = 1;
  whole.enable_expert_parallel = false;
  whole.rank = 0;
  whole.enable_lora = false;
  whole.enable_prompt_adapter = false;
  whole.swap_space = 0;
  whole.kv_cache_memory_bytes = 0;
  constexpr int64_t kWhatever = int64_t{1} << 50;
  QUIRE_ASSIGN_OR_RETURN(PlannedModel planned, plan_model(whole, *lent.checkpoint, backend, kWhatever));
  nn::Loader loader(mode, *lent.checkpoint, backend, planned.quantization, planned.weight_dtype, planned.shard,
                    {.without_layers = true});
  QUIRE_ASSIGN_OR_RETURN(lent.model, planned.family.build(planned.config, planned.max_model_len, loader));
  lent.bytes = loader.bytes();
  return lent;
}

Result<int64_t> lent_bytes(const EngineConfig& config, bool reads, ops::Backend& backend) {
  if (!reads || !has_workers(config)) return 0;
  QUIRE_ASSIGN_OR_RETURN(const LentVocabulary lent, lend_vocabulary(config, nn::Loader::Mode::kPlan, backend));
  return lent.bytes;
}

}  // namespace quire::runner
