#include "engine/breaker_sets.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace quire::engine {
namespace {

// No two lists have the same.
std::string key_of(const std::vector<std::string>& texts) {
  std::string key;
  for (const std::string& text : texts) {
    key += fmt::format("{}:", text.size());
    key += text;
  }
  return key;
}

}  // namespace

VocabularyText::VocabularyText(const text::Tokenizer& tokenizer) {
  const auto size = static_cast<size_t>(tokenizer.vocab_size());
  ends_.reserve(size);
  for (size_t id = 0; id < size; ++id) {
    const std::string bytes = tokenizer.token_bytes(static_cast<TokenId>(id));
    bytes_ += bytes;
    longest_ = std::max(longest_, bytes.size());
    ends_.push_back(bytes_.size());
  }
  bytes_.shrink_to_fit();
}

void VocabularyText::mark_containing(std::string_view part, std::vector<uint64_t>& tokens) const {
  if (part.size() > longest_) return;
  const std::string_view all = bytes_;
  size_t token = 0;
  size_t from = 0;
  while (true) {
    const size_t found = all.find(part, from);
    if (found == std::string_view::npos) return;
    while (ends_[token] <= found) ++token;
    if (found + part.size() <= ends_[token]) {
      tokens[token / 64] |= uint64_t{1} << (token % 64);
      from = ends_[token];
    } else {  // it reaches into the next token: no token's own
      from = found + 1;
    }
  }
}

BreakerSets::BreakerSets(const text::Tokenizer& tokenizer, Limits limits) : tokenizer_(tokenizer), limits_(limits) {}

std::shared_ptr<const DryBreakers> BreakerSets::get(const std::vector<std::string>& texts) {
  std::vector<std::string> list = texts;
  std::ranges::sort(list);
  const auto repeated = std::ranges::unique(list);
  list.erase(repeated.begin(), repeated.end());
  std::string key = key_of(list);
  {
    const std::lock_guard lock(mutex_);
    if (auto kept = find_locked(key)) return kept;
  }
  std::shared_ptr<const DryBreakers> made = make(list);  // others need not wait for it
  const std::lock_guard lock(mutex_);
  if (auto kept = find_locked(key)) return kept;  // another was quicker
  ++num_made_;
  const int64_t bytes = made->heap_bytes() + static_cast<int64_t>(key.capacity() + sizeof(Entry));
  if (bytes > limits_.max_bytes || limits_.max_sets == 0) return made;
  entries_.push_front({std::move(key), made, bytes});
  by_key_.emplace(entries_.front().key, entries_.begin());
  bytes_ += bytes;
  while (entries_.size() > limits_.max_sets || bytes_ > limits_.max_bytes) drop_least_used_locked();
  return made;
}

std::shared_ptr<const DryBreakers> BreakerSets::make(const std::vector<std::string>& texts) {
  std::call_once(read_, [this] { vocabulary_ = std::make_unique<const VocabularyText>(tokenizer_); });
  std::vector<uint64_t> tokens(vocabulary_->num_words());
  std::vector<std::vector<TokenId>> longer;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    vocabulary_->mark_containing(text, tokens);
    std::vector<TokenId> ids = tokenizer_.encode(text, /*add_special_tokens=*/false);
    if (ids.size() > 1) longer.push_back(std::move(ids));
  }
  return std::make_shared<const DryBreakers>(std::move(tokens), longer);
}

std::shared_ptr<const DryBreakers> BreakerSets::find_locked(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->breakers;
}

void BreakerSets::drop_least_used_locked() {
  bytes_ -= entries_.back().bytes;
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
}

size_t BreakerSets::num_sets() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

int64_t BreakerSets::heap_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t BreakerSets::num_made() const {
  const std::lock_guard lock(mutex_);
  return num_made_;
}

}  // namespace quire::engine
