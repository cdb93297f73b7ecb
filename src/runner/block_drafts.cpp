#include "runner/block_drafts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/dflash.h"
#include "runner/head_drafts.h"
#include "runner/hidden_store.h"
#include "sampling/sequence_sampler.h"
#include "tensor/tensor.h"
#include "types/memory_plan.h"

namespace quire::runner {
namespace {

int64_t block_logit_floats(const ModelConfig& head, int32_t tokens) {
  return nn::Workspace::rounded(int64_t{tokens} * head.vocab_size);
}

// Of a text of n tokens, of which the last is not computed yet, the head has a row for each position but the last, made
// of the model's states there. Behind them stands the block: the last token, and mask tokens in the place of those to
// come. A pass is of the rows that are new and of the block, whose own keys and values the next pass writes over. It
// takes the same time for any number of guesses, so all are made, however few were asked for: which of them are worth
// a row of the model's is decided by what each is likely to be.
class BlockDrafts final : public StateDrafts {
 public:
  // draws: guesses by the rule of rejection would be drawn; those of blocks are certain.
  BlockDrafts(DraftRunner runner, models::Model& head, int32_t num_tokens, bool draws, ops::Backend& backend,
              Buffer logits)
      : StateDrafts(std::move(runner), models::draft_head(head), backend),
        model_(head),
        mask_token_(models::dflash_config(head.config()).mask_token),
        num_tokens_(num_tokens),
        draws_(draws),
        memory_(std::move(logits)) {}

  int32_t most_tokens() const override { return num_tokens_; }
  double seconds_at_once() const override { return seconds_; }

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    QUIRE_CHECK(store_ != nullptr);
    const auto size = static_cast<int32_t>(text.tokens.size());
    if (std::min(most, text.most_computed) < 1 || text.adapter != 0 || store_->end(text.id) < size - 1) return;
    const auto start = std::chrono::steady_clock::now();
    DraftRunner::Text& known = runner_.text_of(text.id);
    const int32_t begin = begin_of(text.id, size - 1, known);
    const int32_t context = size - 1 - begin;
    const int32_t block = std::min(num_tokens_ + 1, static_cast<int32_t>(runner_.planned().max_model_len) - context);
    if (context < 1 || block < 2) return;
    tokens_.assign(text.tokens.begin() + begin, text.tokens.end());
    tokens_.resize(static_cast<size_t>(context + block), mask_token_);
    const int32_t fresh = context - known.num_computed;
    if (!runner_.find_room(known, context + block)) return;
    Rows rows(*this, text.id, begin, context);
    if (!runner_.compute(tokens_, block, known, rows)) return runner_.forget(known);
    known.num_computed = context;
    store_->drop_before(text.id, size - 1);
    guess(text, std::min(most, block - 1), proposal);
    if (fresh > num_tokens_ + 1) return;  // a prompt says nothing of what the next guesses take
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds_ = seconds_ == 0 ? seconds : seconds_ + (seconds - seconds_) / 8;
  }

  void ended(const DraftText& text) override {
    StateDrafts::ended(text);
    tables_.erase(text.id);
  }

 private:
  // Gives the head the states of each run's rows, as far as they are not the block's.
  class Rows final : public DraftRunner::Hooks {
   public:
    Rows(BlockDrafts& drafts, SequenceId id, int32_t begin, int32_t context)
        : drafts_(drafts), id_(id), begin_(begin), context_(context) {}
    void before_run(int32_t first, int32_t count) override {
      const int32_t given = std::clamp(context_ - first, 0, count);
      drafts_.rows_.num_given = given;
      drafts_.rows_.given = nullptr;
      if (given == 0) return;
      const HiddenStore& store = *drafts_.store_;
      drafts_.rows_.given = drafts_.on_device(store.rows(id_, begin_ + first), given * store.num_floats());
    }

   private:
    BlockDrafts& drafts_;
    const SequenceId id_;
    const int32_t begin_;
    const int32_t context_;
  };

  // Of the last run's block a token at each of the first places behind the text's last token, and how likely it is. It
  // is the likeliest, or, for a request that draws, what that would draw from these logits with its own numbers: where
  // head and model agree, so do the draws, while the likeliest token would be right as often as it is drawn.
  void guess(const DraftText& text, int32_t count, DraftProposal& proposal) {
    nn::Workspace workspace(memory_.as<float>(), block_logit_floats(model_.config(), num_tokens_));
    const nn::Batch batch{.num_tokens = count};
    const nn::StepContext step{
        .backend = backend_, .batch = batch, .workspace = workspace, .rows = {nn::RowTokens::Kind::kNone}};
    const ops::View logits = workspace.take(count, model_.config().vocab_size);
    model_.logits(step, rows_.states.rows(1, count), logits);
    logits_.resize(static_cast<size_t>(count * logits.num_columns));
    backend_.download(logits_.data(), logits.floats(), logits_.size() * sizeof(float));
    std::optional<sampling::SequenceSampler> sampler = sampler_of(text);
    proposal.source = DraftSource::kModel;
    for (int32_t place = 0; place < count; ++place) {
      const auto size = static_cast<size_t>(logits.num_columns);
      const std::span<float> row = std::span(logits_).subspan(static_cast<size_t>(place) * size, size);
      const auto likeliest = std::ranges::max_element(row) - row.begin();
      const double most = static_cast<double>(row[static_cast<size_t>(likeliest)]);
      double sum = 0;
      for (const float one : row) sum += std::exp(static_cast<double>(one) - most);
      auto token = static_cast<TokenId>(likeliest);
      double logit = most;
      if (sampler) {
        row_.assign(row.begin(), row.end());
        const auto drawn = sampler->sample(row, scratch_);
        if (!drawn.ok()) return;  // its lists forbid all that there is
        token = drawn->id;
        logit = static_cast<double>(row_[static_cast<size_t>(token)]);
      }
      proposal.tokens.push_back(token);
      proposal.agreement.push_back(std::clamp(static_cast<float>(std::exp(logit - most) / sum), 1e-3f, 1.0f));
    }
  }

  // Nothing: the likeliest is guessed, as where guesses are drawn by numbers of their own, and Mirostat has a state
  // that is not known here.
  std::optional<sampling::SequenceSampler> sampler_of(const DraftText& text) {
    if (draws_ || text.params == nullptr || text.params->greedy() || text.params->mirostat != 0) return std::nullopt;
    std::shared_ptr<const sampling::SamplerTables>& tables = tables_[text.id];
    if (tables == nullptr) {
      SamplingParams own = *text.params;
      own.logprobs.reset();
      own.structured_output.reset();
      tables =
          std::make_shared<const sampling::SamplerTables>(std::make_shared<const SamplingParams>(std::move(own)),
                                                          std::vector<TokenId>(), model_.config().vocab_size, nullptr);
    }
    const auto prompt = static_cast<size_t>(text.num_prompt_tokens);
    return sampling::SequenceSampler(tables, text.tokens.first(prompt), text.seed, text.tokens.subspan(prompt));
  }

  models::Model& model_;  // the head, the runner's
  const TokenId mask_token_;
  const int32_t num_tokens_;
  const bool draws_;
  Buffer memory_;                                                                          // of logits
  std::unordered_map<SequenceId, std::shared_ptr<const sampling::SamplerTables>> tables_;  // of requests that draw
  // Scratch.
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
  std::vector<float> row_;
  sampling::SamplingScratch scratch_;
  double seconds_ = 0;  // of a pass
};

}  // namespace

Result<int32_t> block_tokens(const SpeculativeConfig& config, const ModelConfig& head) {
  const int32_t block = models::dflash_config(head).block_size;
  if (config.num_speculative_tokens >= block) {
    return invalid_argument(
        "speculative_config: num_speculative_tokens is {}, and the head's blocks have {} tokens, of which the first is "
        "the text's last: at most {} can be guessed",
        config.num_speculative_tokens, block, block - 1);
  }
  return config.num_speculative_tokens > 0 ? config.num_speculative_tokens
                                           : std::min(block - 1, kMostSpeculativeTokens);
}

int64_t block_logit_bytes(const ModelConfig& head, int32_t tokens) {
  return block_logit_floats(head, tokens) * static_cast<int64_t>(sizeof(float));
}

Result<std::unique_ptr<ModelDrafts>> make_block_drafts(const SpeculativeConfig& config, DraftRunner runner,
                                                       models::Model& model, ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const int32_t tokens, block_tokens(config, model.config()));
  const int64_t bytes = block_logit_bytes(model.config(), tokens);
  const bool draws = config.acceptance.method == AcceptanceMethod::kRejection;
  Buffer logits(backend.allocator(), static_cast<size_t>(bytes));
  if (logits.data() == nullptr) {
    return resource_exhausted(
        "speculative_config: no memory for the logits of {} guesses, {}. Set num_speculative_tokens lower.", tokens,
        format_bytes(bytes));
  }
  return std::unique_ptr<ModelDrafts>(
      std::make_unique<BlockDrafts>(std::move(runner), model, tokens, draws, backend, std::move(logits)));
}

}  // namespace quire::runner
