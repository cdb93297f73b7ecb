#include "runner/remote_masks.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/log.h"

namespace quire::runner {
namespace {

// More than any vocabulary: what else comes is no question of ours.
constexpr uint32_t kMostWords = 1u << 24;

// Who is asked, and a number for each answer.
struct Channel {
  AskForMasks ask;
  mutable std::atomic<uint64_t> last_answer{0};

  Result<MaskAnswer> operator()(const MaskQuestion& question) const {
    QUIRE_ASSIGN_OR_RETURN(const std::string answer, ask(encode(question)));
    return decode_answer(answer);
  }
};

class RemoteState final : public TokenMasks::State {
 public:
  RemoteState(std::shared_ptr<const Channel> channel, ConstraintId constraint, std::vector<TokenId> tokens = {})
      : channel_(std::move(channel)),
        question_{.constraint = constraint, .answer = ++channel_->last_answer, .tokens = std::move(tokens)} {}
  ~RemoteState() override {
    if (!asked_) return;
    const auto told = (*channel_)({.answer = question_.answer, .forget = true});
    if (!told.ok()) log_warning("the engine was not told of the end of an answer: {}", told.status().message());
  }

  std::unique_ptr<State> clone() const override {
    auto copy = std::make_unique<RemoteState>(channel_, question_.constraint, question_.tokens);
    copy->trouble_ = trouble_;
    return copy;
  }

  bool allowed(std::span<uint32_t> mask) override {
    question_.num_words = static_cast<uint32_t>(mask.size());
    const std::optional<MaskAnswer> answer = ask();
    question_.num_words = 0;
    // Without an answer nothing may follow, and trouble() says why.
    if (!answer) {
      std::ranges::fill(mask, 0U);
      return true;
    }
    if (!answer->restricts) return false;
    std::ranges::copy(answer->mask, mask.begin());
    return true;
  }

  bool accept(TokenId token) override {
    question_.tokens.push_back(token);
    const std::optional<MaskAnswer> answer = ask();
    const bool accepted = answer && answer->num_accepted == question_.tokens.size();
    if (!accepted) question_.tokens.pop_back();
    return accepted;
  }

  Status trouble() const override { return trouble_; }

 private:
  // Of the question as it is. Nothing: trouble() says why.
  std::optional<MaskAnswer> ask() {
    asked_ = true;
    Result<MaskAnswer> answer = (*channel_)(question_);
    if (!answer.ok()) {
      trouble_ = answer.status();
    } else if (!answer->found) {
      trouble_ = internal_error("constraint {} is unknown to the engine", question_.constraint);
    } else if (answer->restricts && answer->mask.size() != question_.num_words) {
      trouble_ =
          internal_error("a mask of {} words came where {} were asked for", answer->mask.size(), question_.num_words);
    } else {
      trouble_ = answer->trouble;
      return std::move(*answer);
    }
    return std::nullopt;
  }

  const std::shared_ptr<const Channel> channel_;
  MaskQuestion question_;  // its tokens are those that were accepted
  bool asked_ = false;
  Status trouble_;
};

class RemoteMasks final : public TokenMasks {
 public:
  RemoteMasks(std::shared_ptr<const Channel> channel, ConstraintId constraint)
      : channel_(std::move(channel)), constraint_(constraint) {}
  std::unique_ptr<State> start() const override { return std::make_unique<RemoteState>(channel_, constraint_); }

 private:
  const std::shared_ptr<const Channel> channel_;
  const ConstraintId constraint_;
};

class RemoteConstraints final : public ConstraintSource {
 public:
  explicit RemoteConstraints(AskForMasks ask) : channel_(std::make_shared<Channel>(std::move(ask))) {}
  std::shared_ptr<const TokenMasks> find(ConstraintId id) const override {
    const auto answer = (*channel_)({.constraint = id});
    if (!answer.ok()) log_error("constraint {} cannot be asked for: {}", id, answer.status().message());
    if (!answer.ok() || !answer->found) return nullptr;
    return std::make_shared<const RemoteMasks>(channel_, id);
  }

 private:
  const std::shared_ptr<const Channel> channel_;
};

}  // namespace

Result<std::string> MaskServer::answer(std::string_view question) {
  QUIRE_ASSIGN_OR_RETURN(const MaskQuestion asked, decode_question(question));
  if (asked.num_words > kMostWords) return data_loss("a mask of {} words is asked for", asked.num_words);
  return encode(answer(asked));
}

size_t MaskServer::num_answers() const {
  const std::lock_guard lock(mutex_);
  return answers_.size();
}

// Its state so far, if it is one of a beginning of these tokens; else that of none.
MaskServer::Answer MaskServer::take(const MaskQuestion& question) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto place = answers_.find(question.answer); place != answers_.end()) {
      Answer known = std::move(place->second);
      answers_.erase(place);
      const bool begins = known.tokens.size() <= question.tokens.size() &&
                          std::equal(known.tokens.begin(), known.tokens.end(), question.tokens.begin());
      if (known.constraint == question.constraint && begins) return known;
    }
  }
  const auto masks = constraints_ == nullptr ? nullptr : constraints_->find(question.constraint);
  return {.constraint = question.constraint, .tokens = {}, .state = masks == nullptr ? nullptr : masks->start()};
}

MaskAnswer MaskServer::answer(const MaskQuestion& question) {
  MaskAnswer told;
  Answer known = question.forget || question.answer == 0 ? Answer() : take(question);
  if (question.forget) {
    const std::lock_guard lock(mutex_);
    answers_.erase(question.answer);
    return told;
  }
  if (question.answer == 0) {  // only whether there is such a constraint
    told.found = constraints_ != nullptr && constraints_->find(question.constraint) != nullptr;
    return told;
  }
  if (known.state == nullptr) return told;
  told.found = true;
  while (known.tokens.size() < question.tokens.size() && known.state->accept(question.tokens[known.tokens.size()])) {
    known.tokens.push_back(question.tokens[known.tokens.size()]);
  }
  told.num_accepted = known.tokens.size();
  if (question.num_words > 0 && told.num_accepted == question.tokens.size()) {
    told.mask.resize(question.num_words);
    told.restricts = known.state->allowed(told.mask);
    if (!told.restricts) told.mask.clear();
  }
  told.trouble = known.state->trouble();
  const std::lock_guard lock(mutex_);
  answers_.insert_or_assign(question.answer, std::move(known));
  return told;
}

std::shared_ptr<const ConstraintSource> make_remote_constraints(AskForMasks ask) {
  return std::make_shared<const RemoteConstraints>(std::move(ask));
}

}  // namespace quire::runner
