// Of a vocabulary's tokens, how far each goes within a set of characters: what bounds on a run's length leave of a
// mask.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grammar/recogniser.h"
#include "grammar/regex.h"
#include "types/ids.h"

namespace quire::grammar {

class RunTable {
 public:
  // tokens: their bytes; empty ones are never text.
  RunTable(const std::vector<std::string>& tokens, const CodePoints& set);

  // Sets the bits of the tokens with more than `most` characters (-1: no bound) of the set before another, and of those
  // with fewer than `least` before another one comes; with `outside`, also of those that begin with another.
  void mark(int64_t least, int64_t most, bool outside, std::span<uint32_t> bits) const;
  // Would that be none, for want of tokens so long?
  bool allows_all(int64_t least, int64_t most) const { return least <= 0 && (most < 0 || most >= longest_); }

 private:
  // By how many characters: those of n begin at begins[n].
  struct BySpan {
    std::vector<TokenId> ids;
    std::vector<size_t> begins;
  };
  static BySpan sorted(std::vector<std::pair<int64_t, TokenId>> spans);

  BySpan all_;      // with any character of the set in front
  BySpan leaving_;  // and another behind; span 0: tokens that begin with another
  int64_t longest_ = 0;
};

// The tables of one vocabulary, each made once as long as there are not too many. Any thread.
class RunTables {
 public:
  std::shared_ptr<const RunTable> table(const std::vector<std::string>& tokens, const CodePoints& set);

 private:
  std::mutex mutex_;
  std::vector<std::pair<CodePoints, std::shared_ptr<const RunTable>>> tables_;
};

}  // namespace quire::grammar
