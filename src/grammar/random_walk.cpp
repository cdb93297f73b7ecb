#include "grammar/random_walk.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace quire::grammar {

namespace {

constexpr size_t kMaskWordBits = 32;

class Walker {
 public:
  Walker(const GrammarVocabulary& vocabulary, const text::Tokenizer& tokenizer, uint64_t seed)
      : vocabulary_(vocabulary), random_(seed), mask_((static_cast<size_t>(vocabulary.vocab_size()) + 31) / 32) {
    for (size_t i = 0; i < kClosing.size(); ++i) {
      for (TokenId id = 0; id < std::min(vocabulary.vocab_size(), tokenizer.vocab_size()); ++id) {
        if (!tokenizer.is_special(id) && tokenizer.token_bytes(id) == kClosing[i]) closing_.push_back(id);
      }
    }
  }

  // A token that is allowed and accepted. -1: there is none.
  TokenId next(TokenConstraint::State& state, int32_t step) {
    if (!state.allowed(mask_)) std::ranges::fill(mask_, ~uint32_t{0});
    TokenId id = draw(step);
    while (id >= 0 && !state.accept(id)) {
      mask_[static_cast<size_t>(id) / kMaskWordBits] &= ~(uint32_t{1} << (static_cast<size_t>(id) % kMaskWordBits));
      id = draw(step);
    }
    return id;
  }

 private:
  TokenId draw(int32_t step) {
    const auto is_allowed = [&](TokenId id) {
      return (mask_[static_cast<size_t>(id) / kMaskWordBits] >> (static_cast<size_t>(id) % kMaskWordBits) & 1) != 0;
    };
    for (const TokenId id : vocabulary_.end_ids()) {
      if (is_allowed(id) && chance(step < 60 ? 0.4 : 0.95)) return id;
    }
    if (chance(std::min(0.95, 0.1 + step / 150.0))) {
      for (const TokenId id : closing_) {
        if (is_allowed(id)) return id;
      }
    }
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < vocabulary_.vocab_size(); ++id) {
      if (is_allowed(id)) allowed.push_back(id);
    }
    if (allowed.empty()) return -1;
    return allowed[std::uniform_int_distribution<size_t>(0, allowed.size() - 1)(random_)];
  }

  static constexpr std::array<std::string_view, 3> kClosing = {"}", "]", "\""};

  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }

  const GrammarVocabulary& vocabulary_;
  std::mt19937_64 random_;
  std::vector<uint32_t> mask_;
  std::vector<TokenId> closing_;  // the most welcome first
};

}  // namespace

Result<std::optional<std::string>> random_walk(const TokenConstraint& constraint, const GrammarVocabulary& vocabulary,
                                               const text::Tokenizer& tokenizer, const RandomWalk& walk) {
  Walker walker(vocabulary, tokenizer, walk.seed);
  const auto state = constraint.start();
  std::vector<TokenId> ids;
  for (int32_t step = 0; step < walk.max_tokens; ++step) {
    const TokenId id = walker.next(*state, step);
    if (id < 0) return internal_error("no token is allowed after \"{}\"", tokenizer.decode(ids, true));
    if (std::ranges::find(vocabulary.end_ids(), id) != vocabulary.end_ids().end()) {
      return std::optional(tokenizer.decode(ids, true));
    }
    ids.push_back(id);
  }
  return std::optional<std::string>();
}

}  // namespace quire::grammar
