// Which blocks hold the keys and values of which text: a tree whose nodes are blocks' worth of tokens.
//
// A node stands for all tokens from the beginning of a text to the end of its own block_size ones, read in one context
// (salt, LoRA adapter, rotation): its parent and its tokens decide, compared one by one. The hash over both only finds
// candidates, so a collision costs time and never correctness. The blocks that hold a node's keys and values, one a
// group of layers, are attached while they exist; a node outlives them as long as it is pinned or has children, so
// that a tail stays findable when a middle was evicted and computed again.
//
// Where there are tiers beyond the pool (kv/offload_tiers.h), a node also knows its blocks' places there, in host
// memory and on disk, and lives as long as it has one.
//
// Source of the idea: automatic prefix caching (Kwon et al., 2023) with the tree of RadixAttention (Zheng et al.,
// 2024), cut at blocks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "types/ids.h"
#include "types/kv_event.h"
#include "types/kv_offload.h"

namespace quire::kv {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

// Texts of different contexts never share a block.
struct CacheContext {
  std::string salt;     // cache_salt of the request: whoever does not know it cannot probe what others asked
  int32_t lora_id = 0;  // 0: the model itself
  // The prompt is longer than the model was trained for, and so all its keys are rotated otherwise (longrope).
  bool is_long = false;
  bool operator<(const CacheContext& other) const {
    return std::tie(salt, lora_id, is_long) < std::tie(other.salt, other.lora_id, other.is_long);
  }
};

// Not for several threads at once.
class PrefixCache {
 public:
  using HashFunction = uint64_t (*)(const void* data, size_t size, uint64_t seed);

  // REQUIRES: num_blocks, block_size, num_groups >= 1. `hash` and `seed` are parameters so that a test can make
  // collisions and a server can be unpredictable.
  PrefixCache(int32_t num_blocks, int32_t block_size, int32_t num_groups, uint64_t seed, HashFunction hash);

  // The node of the empty text in a context, pinned for the caller.
  NodeId pin_root(const CacheContext& context);
  void pin(NodeId node);
  // A node that is neither pinned nor a parent nor has blocks is forgotten, and its parent if that leaves it so.
  void unpin(NodeId node);

  // The node for `parent`'s text followed by `tokens` (block_size of them); kNoNode when there is none.
  NodeId find_child(NodeId parent, std::span<const TokenId> tokens) const;
  // The same, made if need be. The caller attaches a block or pins it.
  NodeId add_child(NodeId parent, std::span<const TokenId> tokens);
  NodeId parent(NodeId node) const { return nodes_[static_cast<size_t>(node)].parent; }

  // kNoBlock when the group has none for this node.
  BlockId block(NodeId node, int32_t group) const { return blocks_[entry(node, group)]; }
  // REQUIRES: the node has no block of this group; the block belongs to no node. `step`: the first step whose kernels
  // write the contents; later ones may copy them.
  void attach(NodeId node, int32_t group, BlockId block, uint64_t step);
  // Counts every block that was attached or detached, and every place beyond the pool that was won or lost.
  uint64_t num_changes() const { return num_changes_; }
  uint64_t step_written(NodeId node) const { return nodes_[static_cast<size_t>(node)].step_written; }
  // Forgets what the block holds, if anything.
  void detach(BlockId block);
  NodeId node_of(BlockId block) const { return node_of_block_[static_cast<size_t>(block)]; }  // kNoNode: none
  int32_t group_of(BlockId block) const { return group_of_block_[static_cast<size_t>(block)]; }
  bool attached(BlockId block) const { return node_of_block_[static_cast<size_t>(block)] != kNoNode; }

  // Places beyond the pool; kNoOffloadSlot and 0: none, which is also how they are forgotten. A node that is left with
  // nothing is forgotten too.
  OffloadSlot slot(NodeId node, int32_t group) const { return slots_[entry(node, group)]; }
  StoredBlockId stored(NodeId node, int32_t group) const { return stored_[entry(node, group)]; }
  void set_slot(NodeId node, int32_t group, OffloadSlot slot);
  void set_stored(NodeId node, int32_t group, StoredBlockId stored);
  // Whether the node has anything there.
  bool kept(NodeId node) const { return nodes_[static_cast<size_t>(node)].num_kept > 0; }
  // By which stored blocks name the node's text; 0: none was given.
  uint64_t number(NodeId node) const { return nodes_[static_cast<size_t>(node)].number; }
  void set_number(NodeId node, uint64_t number) { nodes_[static_cast<size_t>(node)].number = number; }
  // The context that the node's text was read in.
  const CacheContext& context(NodeId node) const;
  std::span<const TokenId> tokens_of(NodeId node) const;  // of its own block

  // From now on every node that comes to have all its blocks in the pool, or in host memory, is told of, and every one
  // that no longer has. Blocks of one text that follow each other are one event.
  void tell_events() { tells_events_ = true; }
  bool has_events() const { return !events_.empty(); }
  std::vector<KvCacheEvent> take_events() { return std::exchange(events_, {}); }
  // What was told since the other call is one event: all is gone.
  void begin_clearing() { clears_from_ = events_.size(); }
  void end_clearing();

  int64_t num_nodes() const { return num_nodes_; }
  void check_invariants() const;

 private:
  struct Node {
    uint64_t hash = 0;
    uint64_t step_written = 0;
    NodeId parent = kNoNode;        // kNoNode: a root
    NodeId next_of_hash = kNoNode;  // others in the same bucket
    int32_t num_children = 0;
    int32_t num_pins = 0;
    int32_t num_blocks = 0;
    int32_t num_kept = 0;   // slots and stored blocks
    NodeId root = kNoNode;  // of a root: itself
    uint64_t number = 0;
    bool live = false;
  };

  size_t entry(NodeId node, int32_t group) const {
    return static_cast<size_t>(node) * static_cast<size_t>(num_groups_) + static_cast<size_t>(group);
  }
  bool has_all_blocks(NodeId node) const { return nodes_[static_cast<size_t>(node)].num_blocks == num_groups_; }
  bool has_all_slots(NodeId node) const;
  void tell_stored(NodeId node, KvCacheEvent::Medium medium);
  void tell_removed(NodeId node, KvCacheEvent::Medium medium);
  template <typename T>
  void keep(NodeId node, T& kept, T value, T none);
  NodeId new_node();
  void drop_if_unused(NodeId node);
  void remove_from_index(NodeId node);
  uint64_t hash_of(NodeId parent, std::span<const TokenId> tokens) const;

  int32_t block_size_;
  int32_t num_groups_;
  uint64_t seed_;
  HashFunction hash_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;        // [nodes, block_size]
  std::vector<BlockId> blocks_;        // [nodes, num_groups]
  std::vector<OffloadSlot> slots_;     // the same
  std::vector<StoredBlockId> stored_;  // the same
  std::vector<NodeId> free_nodes_;
  std::vector<NodeId> node_of_block_;           // [num_blocks]
  std::vector<int32_t> group_of_block_;         // [num_blocks]
  std::unordered_map<uint64_t, NodeId> index_;  // hash -> first node of it
  std::map<CacheContext, NodeId> roots_;
  std::unordered_map<NodeId, std::map<CacheContext, NodeId>::iterator> root_places_;
  int64_t num_nodes_ = 0;
  uint64_t num_changes_ = 0;
  bool tells_events_ = false;
  size_t clears_from_ = 0;
  std::vector<KvCacheEvent> events_;
};

}  // namespace quire::kv
