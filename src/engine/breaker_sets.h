// DRY's sequence breakers as tokens, made once for each list of texts and kept for the requests that come with it
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"
#include "types/dry_breakers.h"

namespace quire::engine {

// What all tokens stand for, one after the other: which of them contain a text is found by one look through it.
class VocabularyText {
 public:
  explicit VocabularyText(const text::Tokenizer& tokenizer);

  // Sets bit t % 64 of word t / 64 of every token t whose bytes contain `part`, which is not empty. tokens:
  // [ceil(vocab_size / 64)]. Linear in the vocabulary's bytes; nothing is done for what is longer than any token.
  void mark_containing(std::string_view part, std::vector<uint64_t>& tokens) const;

  size_t num_words() const { return (ends_.size() + 63) / 64; }
  int64_t heap_bytes() const { return static_cast<int64_t>(bytes_.capacity() + ends_.capacity() * sizeof(size_t)); }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;  // of each token's bytes
  size_t longest_ = 0;
};

// One a model; any thread may use it. The least recently used sets go when the bounds are reached; those that requests
// hold live on with them.
class BreakerSets {
 public:
  struct Limits {
    size_t max_sets = 256;
    int64_t max_bytes = 8 << 20;  // of the sets and the texts that they are found by
  };

  // The tokenizer must outlive it.
  explicit BreakerSets(const text::Tokenizer& tokenizer) : BreakerSets(tokenizer, Limits()) {}
  BreakerSets(const text::Tokenizer& tokenizer, Limits limits);

  // texts: in any order, repeated or not. The same list gives the same set as long as it is kept.
  std::shared_ptr<const DryBreakers> get(const std::vector<std::string>& texts);

  size_t num_sets() const;
  int64_t heap_bytes() const;  // of what the bounds are for; the vocabulary's text is beside that
  int64_t num_made() const;    // since the start

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const DryBreakers> breakers;
    int64_t bytes = 0;
  };

  std::shared_ptr<const DryBreakers> make(const std::vector<std::string>& texts);
  std::shared_ptr<const DryBreakers> find_locked(const std::string& key);
  void drop_least_used_locked();

  const text::Tokenizer& tokenizer_;
  const Limits limits_;
  std::once_flag read_;
  std::unique_ptr<const VocabularyText> vocabulary_;  // read when it is first asked for
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first; guarded by mutex_, like all below
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  int64_t bytes_ = 0;
  int64_t num_made_ = 0;
};

}  // namespace quire::engine
