#include "runner/model_drafts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "models/dflash.h"
#include "models/eagle.h"
#include "models/eagle3.h"
#include "models/next_layer.h"
#include "runner/block_drafts.h"
#include "runner/draft_runner.h"
#include "runner/head_drafts.h"
#include "runner/lent_vocabulary.h"
#include "runner/medusa_drafts.h"

namespace quire::runner {
namespace {

class LocalModelDrafts final : public ModelDrafts {
 public:
  explicit LocalModelDrafts(DraftRunner runner) : runner_(std::move(runner)) {}

  int64_t vocab_size() const override { return runner_.planned().config.vocab_size; }
  int64_t pool_bytes() const override { return runner_.planned().memory.kv_bytes; }
  double seconds_per_token() const override { return runner_.seconds_per_token(); }
  double seconds_before(const DraftText& text) const override {
    return runner_.seconds_of(static_cast<int32_t>(text.tokens.size()) - runner_.num_computed(text.id));
  }
  bool computes() const override { return true; }

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    const size_t size = text.tokens.size();
    most = std::min({most, text.most_computed,
                     static_cast<int32_t>(runner_.planned().max_model_len - 1) - static_cast<int32_t>(size)});
    if (most < 1 || text.adapter != 0) return;  // with an adapter the other model says something else
    DraftRunner::Text& known = runner_.text_of(text.id);
    std::vector<TokenId>& before = computed_[text.id];
    before.resize(std::min(before.size(), static_cast<size_t>(known.num_computed)));
    const auto same = std::ranges::mismatch(before, text.tokens).in1 - before.begin();
    const auto kept = static_cast<int32_t>(std::min(static_cast<size_t>(same), size - 1));
    if (runner_.keeps_states() && kept < known.num_computed) runner_.forget(known);
    known.num_computed = std::min(kept, known.num_computed);
    if (!runner_.find_room(known, static_cast<int32_t>(size) + most - 1)) return;
    DraftRunner::Hooks none;
    runner_.guess(text, text.tokens, most, known, none, proposal);
    before.assign(text.tokens.begin(), text.tokens.end());
    before.insert(before.end(), proposal.tokens.begin(), proposal.tokens.end());
    before.resize(std::min(before.size(), static_cast<size_t>(known.num_computed)));
  }

  void ended(const DraftText& text) override {
    runner_.ended(text.id);
    computed_.erase(text.id);
  }

 private:
  DraftRunner runner_;
  std::unordered_map<SequenceId, std::vector<TokenId>> computed_;  // tokens of texts, as far as they are computed
};

}  // namespace

namespace {

// What a head of one layer is built by; nullptr: it is none, but a model of its own family.
const models::Family* head_family(const EngineConfig& config) {
  switch (config.speculative_config.method) {
    case SpeculativeMethod::kEagle:
      return &models::kEagleFamily;
    case SpeculativeMethod::kEagle3:
      return &models::kEagle3Family;
    case SpeculativeMethod::kMtp:
      return &models::kNextLayerFamily;
    case SpeculativeMethod::kDflash:
      return &models::kDflashFamily;
    case SpeculativeMethod::kNone:
    case SpeculativeMethod::kNgram:
    case SpeculativeMethod::kSuffix:
    case SpeculativeMethod::kDraftModel:
    case SpeculativeMethod::kMedusa:
      break;
  }
  return nullptr;
}

}  // namespace

namespace {

// Whether this planned head reads embeddings or the head over the vocabulary of its model.
Result<bool> reads_target(const PlannedDrafter& drafter, ops::Backend& backend) {
  const PlannedModel& head = drafter.planned;
  nn::Loader loader(nn::Loader::Mode::kPlan, *drafter.checkpoint, backend, head.quantization, head.weight_dtype);
  QUIRE_ASSIGN_OR_RETURN(const auto model, head.family.build(head.config, head.max_model_len, loader));
  return models::draft_head(*model).reads_target();
}

}  // namespace

Result<DraftMemory> plan_draft_memory(const EngineConfig& config, ops::Backend& backend) {
  if (!drafts_with_weights(config.speculative_config)) return DraftMemory();
  if (config.speculative_config.method == SpeculativeMethod::kMedusa) return plan_medusa_memory(config, backend);
  QUIRE_ASSIGN_OR_RETURN(const PlannedDrafter drafter, plan_drafter(config, backend, head_family(config)));
  const MemoryPlan& memory = drafter.planned.memory;
  DraftMemory out = {
      .weight_bytes = memory.weight_bytes, .workspace_bytes = memory.workspace_bytes, .pool_bytes = memory.kv_bytes};
  if (is_head(config.speculative_config.method)) {
    out.pool_bytes += waiting_bytes(drafter.planned.config);
    QUIRE_ASSIGN_OR_RETURN(const bool reads, reads_target(drafter, backend));
    QUIRE_ASSIGN_OR_RETURN(const int64_t lent, lent_bytes(config, reads, backend));
    out.weight_bytes += lent;
  }
  if (config.speculative_config.method == SpeculativeMethod::kDflash) {
    QUIRE_ASSIGN_OR_RETURN(const int32_t tokens, block_tokens(config.speculative_config, drafter.planned.config));
    out.workspace_bytes += block_logit_bytes(drafter.planned.config, tokens);
  }
  return out;
}

Status check_vocabulary(const ModelDrafts& drafts, const ModelConfig& model) {
  if (drafts.vocab_size() == model.vocab_size) return {};
  return invalid_argument(
      "speculative_config: the model that drafts has {} tokens, the one that it drafts for {}: both must have the same "
      "vocabulary",
      drafts.vocab_size(), model.vocab_size);
}

Result<std::unique_ptr<ModelDrafts>> ModelDrafts::create(const EngineConfig& config, ops::Backend& backend) {
  const SpeculativeConfig& speculative = config.speculative_config;
  if (speculative.method == SpeculativeMethod::kMedusa) return make_medusa_drafts(config, backend);
  const bool draws = speculative.acceptance.method == AcceptanceMethod::kRejection;
  const models::Family* const head = head_family(config);
  QUIRE_ASSIGN_OR_RETURN(PlannedDrafter drafter, plan_drafter(config, backend, head));
  const PlannedModel& planned = drafter.planned;
  if (planned.config.task != ModelTask::kGenerate) {
    return unimplemented("speculative_config: model {} generates no text", speculative.model);
  }
  nn::Loader loader(nn::Loader::Mode::kLoad, *drafter.checkpoint, backend, planned.quantization, planned.weight_dtype);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  models::Model& built = *model;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, ModelRunner::create(planned, std::move(model), backend));
  log_info("model that drafts: weights {}, workspace {}, up to {} of keys and values", format_bytes(loader.bytes()),
           format_bytes(planned.memory.workspace_bytes), format_bytes(planned.memory.kv_bytes));
  runner->record_steps();
  DraftRunner drafts(std::move(drafter), std::move(runner), draws);
  if (speculative.method == SpeculativeMethod::kDflash) {
    return make_block_drafts(speculative, std::move(drafts), built, backend);
  }
  if (head != nullptr) return make_head_drafts(std::move(drafts), built, backend);
  return std::unique_ptr<ModelDrafts>(std::make_unique<LocalModelDrafts>(std::move(drafts)));
}

}  // namespace quire::runner
