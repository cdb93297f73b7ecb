#include "runner/head_drafts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runner/hidden_store.h"

namespace quire::runner {
namespace {

// A row of the head is of a position t of the text: the model's states there, and the token at t + 1, which is known
// by then. It guesses the token at t + 2. So of a text of n tokens, of which the last is not computed yet, there are
// n - 1 rows, and the guess of the last one is what follows the text. Rows behind those are of guessed tokens and the
// head's own states; they are made anew when the model has computed as far.
class HeadDrafts final : public StateDrafts {
 public:
  HeadDrafts(DraftRunner runner, models::DraftHead& head, ops::Backend& backend)
      : StateDrafts(std::move(runner), head, backend) {}

  double seconds_per_token() const override { return runner_.seconds_per_token(); }

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    QUIRE_CHECK(store_ != nullptr);
    const auto size = static_cast<int32_t>(text.tokens.size());
    most = std::min({most, text.most_computed, static_cast<int32_t>(runner_.planned().max_model_len - 1) - size});
    if (most < 1 || text.adapter != 0 || store_->end(text.id) < size - 1) return;
    DraftRunner::Text& known = runner_.text_of(text.id);
    const int32_t base = begin_of(text.id, size - 2, known);
    if (base > size - 2) return;  // not even the last row
    const std::span<const TokenId> tokens = text.tokens.subspan(static_cast<size_t>(base) + 1);
    const auto rows = static_cast<int32_t>(tokens.size());
    if (!runner_.find_room(known, rows + most - 1)) return;
    Rows hooks(*this, text.id, base, rows);
    runner_.guess(text, tokens, most, known, hooks, proposal);
    known.num_computed = std::min(known.num_computed, rows);
    store_->drop_before(text.id, size - 2);
  }

 private:
  // Gives the head the states of each run.
  class Rows final : public DraftRunner::Hooks {
   public:
    Rows(HeadDrafts& drafts, SequenceId id, int32_t base, int32_t rows)
        : drafts_(drafts), id_(id), base_(base), rows_(rows) {}
    void before_run(int32_t first, int32_t count) override {
      drafts_.rows_.are_own = first >= rows_;
      if (drafts_.rows_.are_own) {
        drafts_.rows_.given = drafts_.on_device(last_.data(), std::ssize(last_));
      } else {
        const HiddenStore& store = *drafts_.store_;
        drafts_.rows_.given = drafts_.on_device(store.rows(id_, base_ + first), count * store.num_floats());
      }
    }
    void after_run(int32_t count) override {
      const ops::View last = drafts_.rows_.states.rows(count - 1, 1);
      last_.resize(static_cast<size_t>(last.num_columns));
      drafts_.backend_.download(last_.data(), last.floats(), last_.size() * sizeof(float));
    }

   private:
    HeadDrafts& drafts_;
    const SequenceId id_;
    const int32_t base_;
    const int32_t rows_;
    std::vector<float> last_;
  };
};

}  // namespace

StateDrafts::StateDrafts(DraftRunner runner, models::DraftHead& head, ops::Backend& backend)
    : runner_(std::move(runner)), head_(head), backend_(backend) {
  head_.use_rows(&rows_);
}

const float* StateDrafts::on_device(const float* rows, int64_t num_floats) {
  if (backend_.computes_in_host_memory()) return rows;
  backend_.upload(given_.data(), rows, static_cast<size_t>(num_floats) * sizeof(float));
  return given_.as<float>();
}

Result<std::shared_ptr<HiddenStore>> StateDrafts::attach(const models::Model& model) {
  Status fits = head_.use_target(model);
  if (!fits.ok()) return std::move(fits).with_prefix("speculative_config: ");
  auto taps = head_.taps(model.config());
  if (!taps.ok()) return taps.status().with_prefix("speculative_config: model: ");
  store_ = std::make_shared<HiddenStore>(std::move(*taps), model.config().hidden_size, kMostWaitingRows);
  if (backend_.computes_in_host_memory()) return store_;
  const int64_t widest = std::max(store_->num_floats(), runner_.planned().config.hidden_size);
  const auto bytes = static_cast<size_t>(runner_.planned().memory.max_num_batched_tokens * widest) * sizeof(float);
  given_ = Buffer(backend_.allocator(), bytes);
  if (given_.data() != nullptr) return store_;
  return resource_exhausted("speculative_config: no memory for the states that a head is given, {}",
                            format_bytes(static_cast<int64_t>(bytes)));
}

double StateDrafts::seconds_before(const DraftText& text) const {
  return store_ == nullptr ? 0 : runner_.seconds_of(store_->end(text.id) - store_->begin(text.id));
}

void StateDrafts::ended(const DraftText& text) {
  runner_.ended(text.id);
  begins_.erase(text.id);
  if (store_ != nullptr) store_->forget(text.id);
}

int32_t StateDrafts::begin_of(SequenceId id, int32_t end, DraftRunner::Text& known) {
  int32_t& begin = begins_[id];
  const int32_t waiting = store_->begin(id);
  known.num_computed = std::min(known.num_computed, end - begin);
  if (known.num_computed <= 0 || begin + known.num_computed < waiting) {
    runner_.forget(known);
    begin = waiting;
  }
  return begin;
}

int64_t waiting_bytes(const ModelConfig& head) {
  constexpr int64_t kEagle3States = 3;
  const auto* const eagle3 = std::get_if<Eagle3Config>(&head.family);
  const auto* const dflash = std::get_if<DflashConfig>(&head.family);
  int64_t row = head.hidden_size;
  if (eagle3 != nullptr) row = kEagle3States * eagle3->target_hidden_size;
  if (dflash != nullptr) row = std::ssize(dflash->layers) * head.hidden_size;
  return kMostWaitingRows * row * static_cast<int64_t>(sizeof(float));
}

Result<std::unique_ptr<ModelDrafts>> make_head_drafts(DraftRunner runner, models::Model& model, ops::Backend& backend) {
  models::DraftHead& head = models::draft_head(model);
  Status read = head.read_beside_weights(runner.checkpoint());
  if (!read.ok()) return std::move(read).with_prefix("speculative_config: model: ");
  return std::unique_ptr<ModelDrafts>(std::make_unique<HeadDrafts>(std::move(runner), head, backend));
}

}  // namespace quire::runner
