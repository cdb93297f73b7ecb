#include "runner/medusa_drafts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "models/medusa.h"
#include "nn/loader.h"
#include "nn/weight_dtype.h"
#include "runner/hidden_store.h"
#include "runner/lent_vocabulary.h"
#include "tensor/tensor.h"
#include "types/memory_plan.h"

namespace quire::runner {
namespace {

// A head's folder, opened and read, and the heads as they are planned or loaded.
struct OpenedMedusa {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::unique_ptr<models::MedusaHeads> heads;
  int64_t weight_bytes = 0;
};

Result<OpenedMedusa> open_medusa(const EngineConfig& config, ops::Backend& backend, nn::Loader::Mode mode) {
  OpenedMedusa out;
  QUIRE_ASSIGN_OR_RETURN(out.checkpoint,
                         checkpoint::Checkpoint::open(config.speculative_config.model, config.load_format));
  QUIRE_ASSIGN_OR_RETURN(const models::MedusaConfig sizes, models::read_medusa_config(*out.checkpoint));
  const Quantization rounded = config.speculative_config.quantization;
  using enum Quantization;
  if (rounded != kNone && rounded != kInt8 && rounded != kInt4 && rounded != kFp8) {
    return invalid_argument(
        "quantization is {}, but heads of Medusa are stored in plain numbers; int8, int4 and fp8 round them",
        name(rounded));
  }
  nn::Loader loader(mode, *out.checkpoint, backend, rounded, nn::wanted_dtype(config.dtype));
  QUIRE_ASSIGN_OR_RETURN(out.heads, models::MedusaHeads::build(sizes, *out.checkpoint, loader));
  out.weight_bytes = loader.bytes();
  return out;
}

Result<OpenedMedusa> open_named(const EngineConfig& config, ops::Backend& backend, nn::Loader::Mode mode) {
  auto opened = open_medusa(config, backend, mode);
  if (!opened.ok()) return opened.status().with_prefix("speculative_config: model: ");
  return opened;
}

// One row of no text's batch.
template <typename Use>
auto with_step(ops::Backend& backend, nn::Workspace& workspace, Use use) {
  const nn::Batch batch{.num_tokens = 1};
  return use(nn::StepContext{
      .backend = backend, .batch = batch, .workspace = workspace, .rows = {nn::RowTokens::Kind::kNone}});
}

int64_t workspace_floats(const models::MedusaHeads& heads, ops::Backend& backend) {
  nn::Workspace workspace;
  const ops::View state = workspace.take(1, heads.config().hidden_size);
  with_step(backend, workspace, [&](const nn::StepContext& step) { return heads.logits(step, 0, state); });
  return workspace.most_used();
}

int64_t waiting_medusa_bytes(const models::MedusaHeads& heads) {
  return kMostWaitingRows * heads.config().hidden_size * static_cast<int64_t>(sizeof(float));
}

// The state of position t has the token at t + 1 drawn from it, and head i guesses the one at t + 2 + i: of a text of n
// tokens, of which the last is not computed yet, the row of n - 2 is all that is read.
class MedusaDrafts final : public ModelDrafts {
 public:
  MedusaDrafts(OpenedMedusa opened, ops::Backend& backend)
      : opened_(std::move(opened)),
        backend_(backend),
        floats_(workspace_floats(*opened_.heads, backend)),
        memory_(backend.allocator(), static_cast<size_t>(floats_) * sizeof(float)) {}

  int64_t vocab_size() const override { return opened_.heads->config().vocab_size; }
  int64_t pool_bytes() const override { return waiting_medusa_bytes(*opened_.heads); }
  double seconds_per_token() const override { return seconds_per_token_; }
  bool computes() const override { return true; }
  bool reads_model() const override { return opened_.heads->reads_target(); }

  Result<std::shared_ptr<HiddenStore>> attach(const models::Model& model) override {
    Status fits = opened_.heads->use_target(model);
    if (!fits.ok()) return std::move(fits).with_prefix("speculative_config: ");
    store_ = std::make_shared<HiddenStore>(std::vector<int32_t>{model.config().num_layers + 1},
                                           model.config().hidden_size, kMostWaitingRows);
    return store_;
  }

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    QUIRE_CHECK(store_ != nullptr);
    const auto row = static_cast<int32_t>(text.tokens.size()) - 2;
    most = std::min({most, text.most_computed, opened_.heads->config().num_heads});
    if (most < 1 || text.adapter != 0 || row < store_->begin(text.id) || row >= store_->end(text.id)) return;
    const auto start = std::chrono::steady_clock::now();
    const std::vector<float> state(store_->rows(text.id, row), store_->rows(text.id, row) + store_->num_floats());
    for (int32_t head = 0; head < most; ++head) guess(state, head, proposal);
    proposal.source = DraftSource::kModel;
    store_->drop_before(text.id, row);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / most;
    seconds_per_token_ = seconds_per_token_ == 0 ? seconds : seconds_per_token_ + (seconds - seconds_per_token_) / 8;
  }

  void ended(const DraftText& text) override {
    if (store_ != nullptr) store_->forget(text.id);
  }

 private:
  // The likeliest token, and how likely it is.
  void guess(const std::vector<float>& state, int32_t head, DraftProposal& proposal) {
    nn::Workspace workspace(memory_.as<float>(), floats_);
    const ops::View there = workspace.take(1, std::ssize(state));
    backend_.upload(there.data, state.data(), state.size() * sizeof(float));
    const ops::View logits = with_step(
        backend_, workspace, [&](const nn::StepContext& step) { return opened_.heads->logits(step, head, there); });
    logits_.resize(static_cast<size_t>(logits.num_columns));
    backend_.download(logits_.data(), logits.floats(), logits_.size() * sizeof(float));
    const float* const begin = logits_.data();
    const float* const end = begin + logits_.size();
    const float* const best = std::max_element(begin, end);
    const double scale = opened_.heads->config().logits_scale;
    double sum = 0;
    for (const float* one = begin; one != end; ++one) sum += std::exp(scale * static_cast<double>(*one - *best));
    proposal.tokens.push_back(opened_.heads->token(best - begin));
    proposal.agreement.push_back(std::clamp(static_cast<float>(1 / sum), 1e-3f, 1.0f));
  }

  OpenedMedusa opened_;
  ops::Backend& backend_;
  int64_t floats_;
  Buffer memory_;
  std::shared_ptr<HiddenStore> store_;  // once it is attached
  std::vector<float> logits_;
  double seconds_per_token_ = 0;
};

}  // namespace

Result<DraftMemory> plan_medusa_memory(const EngineConfig& config, ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const OpenedMedusa opened, open_named(config, backend, nn::Loader::Mode::kPlan));
  QUIRE_ASSIGN_OR_RETURN(const int64_t lent, lent_bytes(config, opened.heads->reads_target(), backend));
  return DraftMemory{.weight_bytes = opened.weight_bytes + lent,
                     .workspace_bytes = workspace_floats(*opened.heads, backend) * static_cast<int64_t>(sizeof(float)),
                     .pool_bytes = waiting_medusa_bytes(*opened.heads)};
}

Result<std::unique_ptr<ModelDrafts>> make_medusa_drafts(const EngineConfig& config, ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(OpenedMedusa opened, open_named(config, backend, nn::Loader::Mode::kLoad));
  log_info("{} heads that draft: weights {}", opened.heads->config().num_heads, format_bytes(opened.weight_bytes));
  return std::unique_ptr<ModelDrafts>(std::make_unique<MedusaDrafts>(std::move(opened), backend));
}

}  // namespace quire::runner
