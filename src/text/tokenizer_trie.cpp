#include "text/tokenizer_trie.h"

#include <algorithm>
#include <deque>

namespace quire::text {
namespace {

constexpr uint32_t kBlock = 256;
constexpr int kTries = 32;  // places looked at before a node gets a block of its own

struct Pending {
  uint32_t node;
  size_t begin, end;  // of the sorted keys that pass through it
  size_t depth;
};

}  // namespace

void ByteTrie::add_block() {
  const auto begin = static_cast<uint32_t>(units_.size());
  units_.resize(begin + kBlock);
  next_free_.resize(begin + kBlock);
  previous_free_.resize(begin + kBlock);
  for (uint32_t unit = begin; unit < begin + kBlock; ++unit) {
    next_free_[unit] = unit + 1 < begin + kBlock ? unit + 1 : begin;
    previous_free_[unit] = unit > begin ? unit - 1 : begin + kBlock - 1;
  }
  if (first_free_ != kFree) {
    const uint32_t last = previous_free_[first_free_];
    const uint32_t new_last = begin + kBlock - 1;
    next_free_[last] = begin;
    previous_free_[begin] = last;
    next_free_[new_last] = first_free_;
    previous_free_[first_free_] = new_last;
  }
  first_free_ = begin;  // the newest block has the most room
}

void ByteTrie::take(uint32_t unit, uint32_t parent) {
  units_[unit].parent = parent;
  if (next_free_[unit] == unit) {
    first_free_ = kFree;
    return;
  }
  next_free_[previous_free_[unit]] = next_free_[unit];
  previous_free_[next_free_[unit]] = previous_free_[unit];
  if (first_free_ == unit) first_free_ = next_free_[unit];
}

uint32_t ByteTrie::base_for(const std::vector<unsigned char>& labels) {
  uint32_t unit = first_free_;
  for (int i = 0; i < kTries && unit != kFree; ++i) {
    const uint32_t base = unit ^ labels[0];
    const bool fits = std::all_of(labels.begin(), labels.end(),
                                  [&](unsigned char label) { return units_[base ^ label].parent == kFree; });
    if (fits) return base;
    unit = next_free_[unit];
    if (unit == first_free_) break;
  }
  const auto begin = static_cast<uint32_t>(units_.size());
  add_block();
  return begin;
}

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::erase_if(entries, [](const Entry& entry) { return entry.key.empty(); });
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  entries.erase(
      std::unique(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key == b.key; }),
      entries.end());
  empty_ = entries.empty();
  add_block();
  take(kRoot, kRoot);  // its own parent: no byte but 0 could lead back to it, and base 256 keeps that one away, too
  add_block();
  units_[kRoot].base = kBlock;
  std::deque<Pending> pending;
  if (!entries.empty()) pending.push_back({kRoot, 0, entries.size(), 0});
  std::vector<unsigned char> labels;
  std::vector<size_t> begins;
  while (!pending.empty()) {
    const Pending here = pending.front();
    pending.pop_front();
    size_t i = here.begin;
    if (entries[i].key.size() == here.depth) units_[here.node].value = entries[i++].value;
    labels.clear();
    begins.clear();
    for (; i < here.end; ++i) {
      const auto label = static_cast<unsigned char>(entries[i].key[here.depth]);
      if (labels.empty() || labels.back() != label) {
        labels.push_back(label);
        begins.push_back(i);
      }
    }
    if (labels.empty()) continue;
    const uint32_t base = here.node == kRoot ? kBlock : base_for(labels);
    units_[here.node].base = base;
    begins.push_back(here.end);
    for (size_t k = 0; k < labels.size(); ++k) {
      const uint32_t child = base ^ labels[k];
      take(child, here.node);
      pending.push_back({child, begins[k], begins[k + 1], here.depth + 1});
    }
  }
  next_free_ = {};
  previous_free_ = {};
}

int32_t ByteTrie::find(std::string_view key) const {
  uint32_t node = kRoot;
  for (const char byte : key) {
    if (!step(node, byte)) return kNoValue;
  }
  return value(node);
}

ByteTrie::Match ByteTrie::longest(std::string_view text) const {
  Match match;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size() && step(node, text[i]); ++i) {
    if (value(node) != kNoValue) match = {i + 1, value(node)};
  }
  return match;
}

}  // namespace quire::text
