#include "runner/draft/proposers.h"

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "runner/draft/token_window.h"

namespace quire::runner {
namespace {

// Brings a sequence's own window up to its text.
void follow(TokenWindow& window, std::span<const TokenId> text) {
  QUIRE_CHECK(window.end() <= text.size());
  window.append(text.subspan(window.end()));
}

// ---- predictions ----

class PredictionProposer final : public DraftProposer {
 public:
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    if (text.prediction.empty()) return;
    Followed& followed = followed_.try_emplace(text.id).first->second;
    const auto answer = text.tokens.subspan(static_cast<size_t>(text.num_prompt_tokens));
    take(answer, text.prediction, followed);
    const auto rest = text.prediction.subspan(std::min(followed.at, text.prediction.size()));
    if (!followed.on_track || rest.empty()) return;
    const auto count = std::min(static_cast<size_t>(most), rest.size());
    proposal.tokens.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
    proposal.agreement.assign(count, 1.0f);
    proposal.num_matched = followed.num_matched;
    proposal.source = DraftSource::kPrediction;
  }
  void ended(const DraftText& text) override { followed_.erase(text.id); }

 private:
  struct Followed {
    size_t num_seen = 0;  // tokens of the answer
    size_t at = 0;        // of the prediction: what is expected next
    bool on_track = true;
    int32_t num_matched = 8;  // tokens in a row; at the beginning as good as many
    std::unique_ptr<TokenWindow> index;
  };

  static void take(std::span<const TokenId> answer, std::span<const TokenId> prediction, Followed& followed) {
    for (; followed.num_seen < answer.size(); ++followed.num_seen) {
      const TokenId token = answer[followed.num_seen];
      const bool as_expected = followed.on_track && followed.at < prediction.size() && prediction[followed.at] == token;
      ++followed.at;
      if (as_expected) {
        ++followed.num_matched;
      } else {
        find_again(answer.first(followed.num_seen + 1), prediction, followed);
      }
    }
  }

  // followed.at: where the answer would be by now, had it changed tokens and left out none.
  static void find_again(std::span<const TokenId> answer, std::span<const TokenId> prediction, Followed& followed) {
    constexpr int32_t kLongest = 32;
    constexpr size_t kMostPlaces = 64;
    if (followed.index == nullptr) {
      followed.index = std::make_unique<TokenWindow>(1);
      followed.index->append(prediction);
    }
    std::vector<TokenWindow::Place> places;
    followed.index->find(answer, kLongest, kMostPlaces, places);
    followed.on_track = false;
    followed.num_matched = 0;
    const auto distance = [&](const TokenWindow::Place& place) {
      return place.next > followed.at ? place.next - followed.at : followed.at - place.next;
    };
    const TokenWindow::Place* best = nullptr;
    for (const TokenWindow::Place& place : places) {
      const bool better = best == nullptr || place.length > best->length ||
                          (place.length == best->length && distance(place) < distance(*best));
      if (better) best = &place;
    }
    if (best == nullptr) return;
    followed.on_track = true;
    followed.at = best->next;
    followed.num_matched = best->length;
  }

  std::unordered_map<SequenceId, Followed> followed_;
};

// ---- n-grams ----

class NgramProposer final : public DraftProposer {
 public:
  NgramProposer(int32_t shortest, int32_t longest) : shortest_(shortest), longest_(longest) {}

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    TokenWindow& window = windows_.try_emplace(text.id, std::min(shortest_, kLongestKey)).first->second;
    follow(window, text.tokens);
    places_.clear();
    window.find(text.tokens, longest_, kMostPlaces, places_);
    const TokenWindow::Place* best = nullptr;
    for (const TokenWindow::Place& place : places_) {
      if (place.length >= shortest_ && (best == nullptr || place.length > best->length)) best = &place;
    }
    if (best == nullptr) return;
    // Behind the end of the text it goes on as it does in the guess itself.
    for (uint32_t at = best->next; proposal.tokens.size() < static_cast<size_t>(most); ++at) {
      const TokenId token = at < window.end() ? window[at] : proposal.tokens[at - window.end()];
      proposal.tokens.push_back(token);
      proposal.agreement.push_back(1.0f);
    }
    proposal.num_matched = best->length;
  }
  void ended(const DraftText& text) override { windows_.erase(text.id); }

 private:
  static constexpr int32_t kLongestKey = 4;
  static constexpr size_t kMostPlaces = 128;

  const int32_t shortest_;
  const int32_t longest_;
  std::unordered_map<SequenceId, TokenWindow> windows_;
  std::vector<TokenWindow::Place> places_;  // scratch
};

// ---- suffixes ----

class SuffixProposer final : public DraftProposer {
 public:
  explicit SuffixProposer(const SpeculativeConfig& config)
      : depth_(config.suffix_decoding_max_tree_depth),
        most_answers_(config.suffix_decoding_max_cached_requests),
        factor_(config.suffix_decoding_max_spec_factor),
        least_share_(static_cast<float>(config.suffix_decoding_min_token_prob)) {}

  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    TokenWindow& own = windows_.try_emplace(text.id, kKey).first->second;
    follow(own, text.tokens);
    voters_.clear();
    ask(own, text.tokens);
    if (const Memory* memory = find_memory(text)) ask(memory->window, text.tokens, memory->forgotten);
    if (voters_.empty()) return;
    const auto longest = std::ranges::max_element(voters_, {}, &Voter::length)->length;
    // What matched far less knows nothing that the longest does not know better.
    std::erase_if(voters_, [&](const Voter& voter) { return 2 * voter.length < longest; });
    proposal.num_matched = longest;
    const double guesses = std::clamp(factor_ * longest, 1.0, static_cast<double>(depth_));
    vote(own, std::min(most, static_cast<int32_t>(guesses)), proposal);
  }

  void ended(const DraftText& text) override {
    windows_.erase(text.id);
    const auto answer = text.tokens.subspan(static_cast<size_t>(text.num_prompt_tokens));
    if (most_answers_ == 0 || answer.size() <= static_cast<size_t>(kKey)) return;
    Memory& memory = memory_of(text);
    const uint32_t before = memory.window.end();
    memory.window.append(answer);
    memory.window.append(TokenWindow::kGap);
    if (memory.window.end() < before) {  // it began anew
      memory.lengths.clear();
      memory.forgotten = 0;
      return;
    }
    memory.lengths.push_back(memory.window.end() - before);
    if (memory.lengths.size() <= static_cast<size_t>(most_answers_)) return;
    memory.forgotten += memory.lengths.front();
    memory.lengths.pop_front();
  }

 private:
  static constexpr int32_t kKey = 2;
  static constexpr size_t kMostPlaces = 32;       // of each window
  static constexpr size_t kTokensKept = 1 << 18;  // of a memory: 4 MiB
  static constexpr size_t kMostMemories = 64;     // the least recently used go first

  using Whose = std::tuple<int32_t, std::string, int32_t>;
  // Answers to one tenant.
  struct Memory {
    explicit Memory(Whose of) : whose(std::move(of)), window(kKey, kTokensKept) {}
    Whose whose;
    TokenWindow window;
    std::deque<uint32_t> lengths;  // of the answers that count
    uint32_t forgotten = 0;        // places before it are of answers that do not
  };
  struct Voter {
    const TokenWindow* window = nullptr;
    uint32_t next = 0;
    int32_t length = 0;
  };

  static Whose whose(const DraftText& text) { return {text.tenant, std::string(text.salt), text.adapter}; }

  Memory* find_memory(const DraftText& text) {
    const auto found = by_whose_.find(whose(text));
    if (found == by_whose_.end()) return nullptr;
    memories_.splice(memories_.begin(), memories_, found->second);
    return &memories_.front();
  }
  Memory& memory_of(const DraftText& text) {
    if (Memory* found = find_memory(text)) return *found;
    memories_.emplace_front(whose(text));
    by_whose_[memories_.front().whose] = memories_.begin();
    if (memories_.size() > kMostMemories) {
      by_whose_.erase(memories_.back().whose);
      memories_.pop_back();
    }
    return memories_.front();
  }

  void ask(const TokenWindow& window, std::span<const TokenId> text, uint32_t first = 0) {
    places_.clear();
    window.find(text, depth_, kMostPlaces, places_);
    for (const TokenWindow::Place& place : places_) {
      if (place.next >= first) voters_.push_back({&window, place.next, place.length});
    }
  }

  // The token that a voter says next; kGap: it has come to an end. The text's own end goes on as the guess does.
  static TokenId next_of(const Voter& voter, const TokenWindow& own, const DraftProposal& proposal) {
    if (voter.next < voter.window->end()) return (*voter.window)[voter.next];
    return voter.window == &own ? proposal.tokens[voter.next - own.end()] : TokenWindow::kGap;
  }

  void vote(const TokenWindow& own, int32_t most, DraftProposal& proposal) {
    float share = 1;
    while (proposal.tokens.size() < static_cast<size_t>(most)) {
      float all = 0;
      votes_.clear();
      for (const Voter& voter : voters_) {
        const TokenId token = next_of(voter, own, proposal);
        const auto weight = static_cast<float>(voter.length);
        all += weight;
        if (token == TokenWindow::kGap) continue;
        const auto same = std::ranges::find(votes_, token, &std::pair<TokenId, float>::first);
        if (same == votes_.end()) {
          votes_.emplace_back(token, weight);
        } else {
          same->second += weight;
        }
      }
      // Of equals the first, whose match is the text's own or the latest.
      const auto best = std::ranges::max_element(votes_, {}, &std::pair<TokenId, float>::second);
      if (best == votes_.end()) return;
      const float agreement = best->second / all;
      share *= agreement;
      if (share < least_share_) return;
      const TokenId token = best->first;
      std::erase_if(voters_, [&](const Voter& voter) { return next_of(voter, own, proposal) != token; });
      for (Voter& voter : voters_) ++voter.next;
      proposal.tokens.push_back(token);
      proposal.agreement.push_back(agreement);
    }
  }

  const int32_t depth_;
  const int32_t most_answers_;
  const double factor_;
  const float least_share_;
  std::unordered_map<SequenceId, TokenWindow> windows_;  // the texts' own
  std::list<Memory> memories_;                           // the last used first
  std::map<Whose, std::list<Memory>::iterator> by_whose_;
  // Scratch.
  std::vector<TokenWindow::Place> places_;
  std::vector<Voter> voters_;
  std::vector<std::pair<TokenId, float>> votes_;
};

// ---- several ----

class Chain final : public DraftProposer {
 public:
  explicit Chain(std::vector<std::unique_ptr<DraftProposer>> proposers) : proposers_(std::move(proposers)) {}
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    for (const auto& one : proposers_) {
      one->propose(text, most, proposal);
      if (!proposal.tokens.empty()) return;
      proposal.clear();
    }
  }
  void ended(const DraftText& text) override {
    for (const auto& one : proposers_) one->ended(text);
  }
  double seconds_per_token() const override {
    double most = 0;
    for (const auto& one : proposers_) most = std::max(most, one->seconds_per_token());
    return most;
  }
  double seconds_before(const DraftText& text) const override {
    double most = 0;
    for (const auto& one : proposers_) most = std::max(most, one->seconds_before(text));
    return most;
  }
  double seconds_at_once() const override {
    double most = 0;
    for (const auto& one : proposers_) most = std::max(most, one->seconds_at_once());
    return most;
  }
  bool computes() const override {
    return std::ranges::any_of(proposers_, [](const auto& one) { return one->computes(); });
  }

 private:
  const std::vector<std::unique_ptr<DraftProposer>> proposers_;
};

}  // namespace

std::unique_ptr<DraftProposer> make_prediction_proposer() {
  return std::make_unique<PredictionProposer>();
}

std::unique_ptr<DraftProposer> make_ngram_proposer(const SpeculativeConfig& config) {
  constexpr int32_t kUsual = 5;
  const int32_t longest = config.prompt_lookup_max.value_or(config.prompt_lookup_min.value_or(kUsual));
  return std::make_unique<NgramProposer>(config.prompt_lookup_min.value_or(longest), longest);
}

std::unique_ptr<DraftProposer> make_suffix_proposer(const SpeculativeConfig& config) {
  return std::make_unique<SuffixProposer>(config);
}

std::unique_ptr<DraftProposer> make_chain(std::vector<std::unique_ptr<DraftProposer>> proposers) {
  return std::make_unique<Chain>(std::move(proposers));
}

std::unique_ptr<DraftProposer> make_proposer(const SpeculativeConfig& config, std::unique_ptr<DraftProposer> model) {
  std::vector<std::unique_ptr<DraftProposer>> proposers;
  proposers.push_back(make_prediction_proposer());
  switch (config.method) {
    case SpeculativeMethod::kNone:
      break;
    case SpeculativeMethod::kNgram:
      proposers.push_back(make_ngram_proposer(config));
      break;
    case SpeculativeMethod::kSuffix:
      proposers.push_back(make_suffix_proposer(config));
      break;
    case SpeculativeMethod::kDraftModel:
    case SpeculativeMethod::kEagle:
    case SpeculativeMethod::kEagle3:
    case SpeculativeMethod::kMedusa:
    case SpeculativeMethod::kDflash:
    case SpeculativeMethod::kMtp:
      break;
  }
  if (model != nullptr) proposers.push_back(std::move(model));
  return make_chain(std::move(proposers));
}

}  // namespace quire::runner
