#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

PrefixCache::PrefixCache(int32_t num_blocks, int32_t block_size, int32_t num_groups, uint64_t seed, HashFunction hash)
    : block_size_(block_size), num_groups_(num_groups), seed_(seed), hash_(hash) {
  QUIRE_CHECK(num_blocks >= 1 && block_size >= 1 && num_groups >= 1);
  node_of_block_.assign(static_cast<size_t>(num_blocks), kNoNode);
  group_of_block_.assign(static_cast<size_t>(num_blocks), 0);
}

std::span<const TokenId> PrefixCache::tokens_of(NodeId node) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(tokens_).subspan(static_cast<size_t>(node) * size, size);
}

// Chained: the parent's hash covers all that stands before, down to the context at the root.
uint64_t PrefixCache::hash_of(NodeId parent, std::span<const TokenId> tokens) const {
  const uint64_t above = nodes_[static_cast<size_t>(parent)].hash;
  return hash_(tokens.data(), tokens.size_bytes(), above ^ seed_);
}

NodeId PrefixCache::new_node() {
  NodeId node = kNoNode;
  if (!free_nodes_.empty()) {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  } else {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + static_cast<size_t>(block_size_));
    blocks_.resize(blocks_.size() + static_cast<size_t>(num_groups_), kNoBlock);
    slots_.resize(blocks_.size(), kNoOffloadSlot);
    stored_.resize(blocks_.size(), 0);
  }
  nodes_[static_cast<size_t>(node)] = Node{.live = true};
  ++num_nodes_;
  return node;
}

NodeId PrefixCache::pin_root(const CacheContext& context) {
  const auto [place, is_new] = roots_.try_emplace(context, kNoNode);
  if (is_new) {
    place->second = new_node();
    root_places_.emplace(place->second, place);
    const int32_t computed_as[] = {context.lora_id, context.is_long ? 1 : 0};
    const uint64_t above = hash_(computed_as, sizeof(computed_as), seed_);
    nodes_[static_cast<size_t>(place->second)].hash = hash_(context.salt.data(), context.salt.size(), above);
    nodes_[static_cast<size_t>(place->second)].root = place->second;
  }
  pin(place->second);
  return place->second;
}

void PrefixCache::pin(NodeId node) {
  ++nodes_[static_cast<size_t>(node)].num_pins;
}

void PrefixCache::unpin(NodeId node) {
  QUIRE_CHECK(nodes_[static_cast<size_t>(node)].num_pins > 0);
  --nodes_[static_cast<size_t>(node)].num_pins;
  drop_if_unused(node);
}

void PrefixCache::drop_if_unused(NodeId node) {
  while (node != kNoNode) {
    Node& state = nodes_[static_cast<size_t>(node)];
    if (state.num_pins > 0 || state.num_children > 0 || state.num_blocks > 0 || state.num_kept > 0) return;
    const NodeId above = state.parent;
    if (above == kNoNode) {
      const auto place = root_places_.find(node);
      roots_.erase(place->second);
      root_places_.erase(place);
    } else {
      remove_from_index(node);
      --nodes_[static_cast<size_t>(above)].num_children;
    }
    state = Node{};
    free_nodes_.push_back(node);
    --num_nodes_;
    node = above;
  }
}

void PrefixCache::remove_from_index(NodeId node) {
  const Node& state = nodes_[static_cast<size_t>(node)];
  const auto place = index_.find(state.hash);
  QUIRE_CHECK(place != index_.end());
  if (place->second == node) {
    if (state.next_of_hash == kNoNode) {
      index_.erase(place);
    } else {
      place->second = state.next_of_hash;
    }
    return;
  }
  NodeId before = place->second;
  while (nodes_[static_cast<size_t>(before)].next_of_hash != node) {
    before = nodes_[static_cast<size_t>(before)].next_of_hash;
    QUIRE_CHECK(before != kNoNode);
  }
  nodes_[static_cast<size_t>(before)].next_of_hash = state.next_of_hash;
}

NodeId PrefixCache::find_child(NodeId parent, std::span<const TokenId> tokens) const {
  QUIRE_DCHECK(tokens.size() == static_cast<size_t>(block_size_));
  const auto place = index_.find(hash_of(parent, tokens));
  if (place == index_.end()) return kNoNode;
  for (NodeId node = place->second; node != kNoNode; node = nodes_[static_cast<size_t>(node)].next_of_hash) {
    if (nodes_[static_cast<size_t>(node)].parent == parent && std::ranges::equal(tokens_of(node), tokens)) return node;
  }
  return kNoNode;
}

NodeId PrefixCache::add_child(NodeId parent, std::span<const TokenId> tokens) {
  const NodeId found = find_child(parent, tokens);
  if (found != kNoNode) return found;
  const uint64_t hash = hash_of(parent, tokens);
  const NodeId node = new_node();
  Node& state = nodes_[static_cast<size_t>(node)];
  state.hash = hash;
  state.parent = parent;
  state.root = nodes_[static_cast<size_t>(parent)].root;
  ++nodes_[static_cast<size_t>(parent)].num_children;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(node) * block_size_);
  const auto [place, is_new] = index_.try_emplace(hash, node);
  if (!is_new) {
    state.next_of_hash = place->second;
    place->second = node;
  }
  return node;
}

void PrefixCache::attach(NodeId node, int32_t group, BlockId block, uint64_t step) {
  QUIRE_CHECK(!attached(block) && this->block(node, group) == kNoBlock);
  Node& state = nodes_[static_cast<size_t>(node)];
  blocks_[entry(node, group)] = block;
  ++state.num_blocks;
  ++num_changes_;
  state.step_written = step;
  node_of_block_[static_cast<size_t>(block)] = node;
  group_of_block_[static_cast<size_t>(block)] = group;
  if (has_all_blocks(node)) tell_stored(node, KvCacheEvent::Medium::kPool);
}

void PrefixCache::detach(BlockId block) {
  const NodeId node = node_of_block_[static_cast<size_t>(block)];
  if (node == kNoNode) return;
  if (has_all_blocks(node)) tell_removed(node, KvCacheEvent::Medium::kPool);
  blocks_[entry(node, group_of_block_[static_cast<size_t>(block)])] = kNoBlock;
  node_of_block_[static_cast<size_t>(block)] = kNoNode;
  --nodes_[static_cast<size_t>(node)].num_blocks;
  ++num_changes_;
  drop_if_unused(node);
}

template <typename T>
void PrefixCache::keep(NodeId node, T& kept, T value, T none) {
  if (kept == value) return;
  nodes_[static_cast<size_t>(node)].num_kept += (value == none ? 0 : 1) - (kept == none ? 0 : 1);
  kept = value;
  ++num_changes_;
  drop_if_unused(node);
}

void PrefixCache::set_slot(NodeId node, int32_t group, OffloadSlot slot) {
  if (!tells_events_) return keep(node, slots_[entry(node, group)], slot, kNoOffloadSlot);
  if (slot == kNoOffloadSlot && has_all_slots(node)) tell_removed(node, KvCacheEvent::Medium::kHostMemory);
  keep(node, slots_[entry(node, group)], slot, kNoOffloadSlot);
  if (slot != kNoOffloadSlot && has_all_slots(node)) tell_stored(node, KvCacheEvent::Medium::kHostMemory);
}

bool PrefixCache::has_all_slots(NodeId node) const {
  for (int32_t group = 0; group < num_groups_; ++group) {
    if (slot(node, group) == kNoOffloadSlot) return false;
  }
  return true;
}

void PrefixCache::tell_stored(NodeId node, KvCacheEvent::Medium medium) {
  if (!tells_events_) return;
  const Node& state = nodes_[static_cast<size_t>(node)];
  const Node& above = nodes_[static_cast<size_t>(state.parent)];
  const bool begins = above.parent == kNoNode;
  const std::span<const TokenId> tokens = tokens_of(node);
  KvCacheEvent* last = events_.empty() ? nullptr : &events_.back();
  const bool follows = last != nullptr && events_.size() > clears_from_ && !begins &&
                       last->kind == KvCacheEvent::Kind::kStored && last->medium == medium &&
                       last->hashes.back() == above.hash;
  if (!follows) {
    const CacheContext& context = this->context(node);
    last = &events_.emplace_back();
    last->medium = medium;
    if (!begins) last->parent = above.hash;
    last->adapter = context.lora_id;
    last->salt = context.salt;
  }
  last->hashes.push_back(state.hash);
  last->tokens.insert(last->tokens.end(), tokens.begin(), tokens.end());
}

void PrefixCache::tell_removed(NodeId node, KvCacheEvent::Medium medium) {
  if (!tells_events_) return;
  const uint64_t hash = nodes_[static_cast<size_t>(node)].hash;
  if (!events_.empty() && events_.back().kind == KvCacheEvent::Kind::kRemoved && events_.back().medium == medium) {
    events_.back().hashes.push_back(hash);
  } else {
    events_.push_back({.kind = KvCacheEvent::Kind::kRemoved, .medium = medium, .hashes = {hash}});
  }
}

void PrefixCache::end_clearing() {
  if (!tells_events_) return;
  events_.resize(clears_from_);
  clears_from_ = 0;
  events_.push_back({.kind = KvCacheEvent::Kind::kCleared});
}

void PrefixCache::set_stored(NodeId node, int32_t group, StoredBlockId stored) {
  keep(node, stored_[entry(node, group)], stored, StoredBlockId{0});
}

const CacheContext& PrefixCache::context(NodeId node) const {
  return root_places_.at(nodes_[static_cast<size_t>(node)].root)->first;
}

void PrefixCache::check_invariants() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  std::vector<int32_t> blocks(nodes_.size(), 0);
  int64_t live = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.live) continue;
    ++live;
    QUIRE_CHECK(node.num_pins > 0 || node.num_children > 0 || node.num_blocks > 0 || node.num_kept > 0);
    int32_t num_kept = 0;
    for (int32_t group = 0; group < num_groups_; ++group) {
      const auto id = static_cast<NodeId>(i);
      num_kept += (slot(id, group) == kNoOffloadSlot ? 0 : 1) + (stored(id, group) == 0 ? 0 : 1);
    }
    QUIRE_CHECK(node.num_kept == num_kept);
    if (node.parent == kNoNode) continue;
    QUIRE_CHECK(nodes_[static_cast<size_t>(node.parent)].live);
    ++children[static_cast<size_t>(node.parent)];
    QUIRE_CHECK(find_child(node.parent, tokens_of(static_cast<NodeId>(i))) == static_cast<NodeId>(i));
  }
  QUIRE_CHECK(live == num_nodes_);
  for (size_t block = 0; block < node_of_block_.size(); ++block) {
    const NodeId node = node_of_block_[block];
    if (node == kNoNode) continue;
    ++blocks[static_cast<size_t>(node)];
    QUIRE_CHECK(this->block(node, group_of_block_[block]) == static_cast<BlockId>(block));
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    QUIRE_CHECK(nodes_[i].num_children == children[i] && nodes_[i].num_blocks == blocks[i]);
  }
}

}  // namespace quire::kv
