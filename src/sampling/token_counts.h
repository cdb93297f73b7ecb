// How often the tokens that penalties touch have been seen. Copies share what was counted before the last few tokens,
// so that a copy costs the same however long the text is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire::sampling {

class TokenCounts {
 public:
  struct Count {
    TokenId id = kNoToken;
    int32_t output_count = 0;  // 0: in the prompt alone
  };

  TokenCounts() = default;
  // prompt: the tokens that count as seen before the answer, in any order.
  explicit TokenCounts(std::span<const TokenId> prompt);

  // Of the answer.
  void add(TokenId token);

  // At least as many as have been seen, and few more.
  size_t most() const { return shared().size() + recent_.size(); }

  // Of every token that has been seen, rising.
  template <typename F>
  void for_each(F&& f) const {
    const std::span<const Count> counted = shared();
    size_t recent = 0;
    for (const Count& count : counted) {
      for (; recent < recent_.size() && recent_[recent].id < count.id; ++recent) f(recent_[recent]);
      if (recent < recent_.size() && recent_[recent].id == count.id) {
        f(Count{count.id, count.output_count + recent_[recent++].output_count});
      } else {
        f(count);
      }
    }
    for (; recent < recent_.size(); ++recent) f(recent_[recent]);
  }

 private:
  static constexpr size_t kMostRecent = 64;  // different tokens

  std::span<const Count> shared() const {
    return counted_ ? std::span<const Count>(*counted_) : std::span<const Count>();
  }

  std::shared_ptr<const std::vector<Count>> counted_;  // by id; nullptr: none
  std::vector<Count> recent_;                          // by id: what came since, to be added
};

}  // namespace quire::sampling
