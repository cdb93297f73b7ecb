// The KV cache as sequences use it: block tables that grow, share, split, are given back, swapped out and found again.
// Ids only; the copies that a step must make are handed out as data.
//
// Layers of one kind form a group with a block table of its own: a group with a window gives back the blocks behind it.
// All groups draw from one pool, a block of which holds block_size tokens of one group's layers.
// A group of recurrent layers is one with a window, of which a block holds the state behind its last computed token:
// who goes on from a position needs the block before it, and cannot compute a token of that block once more.
//
// A block that somebody else can see (held twice, or published in the prefix cache) is never written: whoever must
// write into it gets a copy first (copy-on-write). That copy is made before anything of its step is computed, so only
// what an earlier step wrote can be copied.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/hashing.h"
#include "kv/block_pool.h"
#include "kv/offload_tiers.h"
#include "kv/prefix_cache.h"
#include "types/ids.h"
#include "types/kv_transfer.h"
#include "types/step_plan.h"

namespace quire::kv {

struct CacheConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;             // tokens
  std::vector<int32_t> windows = {0};  // a group each: positions its layers see, their own included; 0: all before them
  // Some groups hold states: texts are found up to the end of a block that an earlier step has written, which is what
  // the states of all blocks but the last are of, and never whole.
  bool keeps_states = false;
  bool prefix_caching = true;
  int32_t num_swap_blocks = 0;    // slots of the second pool
  int32_t num_offload_slots = 0;  // of the prefix cache in host memory; 0: its blocks live in the pool alone
  bool offload_to_disk = false;   // those that lie on disk are read from there, by orders
  bool offload_writes = false;    // and those in host memory are written there
  bool tells_events = false;      // of what comes and goes: take_events()
  uint64_t hash_seed = 0;
  PrefixCache::HashFunction hash = hash_bytes;
};

// What one sequence holds. Filled and emptied by the manager alone; must be empty when it is dropped.
class SequenceBlocks {
 public:
  SequenceBlocks() = default;
  SequenceBlocks(SequenceBlocks&&) noexcept = default;
  SequenceBlocks& operator=(SequenceBlocks&&) noexcept = default;
  SequenceBlocks(const SequenceBlocks&) = delete;
  SequenceBlocks& operator=(const SequenceBlocks&) = delete;

  // Logical blocks from position 0 on; token t lies in table(g)[t / block_size]. kNoBlock: behind the window, or
  // swapped out.
  int32_t num_blocks() const { return tables_.empty() ? 0 : static_cast<int32_t>(tables_.front().size()); }
  int32_t num_groups() const { return static_cast<int32_t>(tables_.size()); }
  std::span<const BlockId> table(int32_t group) const { return tables_[static_cast<size_t>(group)]; }
  bool empty() const { return num_blocks() == 0 && node_ == kNoNode; }
  bool swapped_out() const { return swapped_out_; }
  // Never the same for two different tables.
  uint64_t version() const { return version_; }

 private:
  friend class CacheManager;
  std::vector<std::vector<BlockId>> tables_;  // a group each, all of one length
  std::vector<std::vector<SwapSlot>> slots_;  // while swapped out: of the blocks that are not resident
  std::vector<int32_t> first_;                // a group each: blocks before it are behind the window
  bool swapped_out_ = false;
  uint64_t version_ = 0;
  NodeId node_ = kNoNode;      // pinned: of the last block published, or the root
  int32_t num_published_ = 0;  // blocks
};

// A beginning of a text whose blocks exist, found and not held. It pins what makes it cheap to tell whether that is
// still so. Filled and emptied by the manager alone: whatever look_up() gave goes to adopt() or forget().
class PrefixMatch {
 public:
  PrefixMatch() = default;
  PrefixMatch(PrefixMatch&&) noexcept = default;
  PrefixMatch& operator=(PrefixMatch&&) noexcept = default;
  PrefixMatch(const PrefixMatch&) = delete;
  PrefixMatch& operator=(const PrefixMatch&) = delete;

  int32_t num_computed() const { return num_computed_; }  // tokens that need no computing

 private:
  friend class CacheManager;
  NodeId node_ = kNoNode;     // pinned: the last of path_, or the root; kNoNode: nothing was looked up
  std::vector<NodeId> path_;  // a block of tokens each
  int32_t num_tokens_ = 0;    // of the text
  int32_t num_computed_ = 0;
  bool whole_ = false;  // all of the text: the last block is to be copied, its last token computed again
  bool cut_ = false;    // the same, without the last block, which could not be copied then
  uint64_t seen_ = 0;   // PrefixCache::num_changes()
};

struct CacheStatistics {
  int64_t query_tokens = 0;   // of texts that were admitted, each once an admission
  int64_t hit_tokens = 0;     // of those, found
  int64_t walked_blocks = 0;  // that looking for beginnings has compared, found or not
};

// Not for several threads at once.
class CacheManager {
 public:
  // REQUIRES: num_blocks, block_size >= 1; at least one group.
  explicit CacheManager(const CacheConfig& config);
  CacheManager(const CacheManager&) = delete;
  CacheManager& operator=(const CacheManager&) = delete;

  const CacheConfig& config() const { return config_; }
  const BlockPool& pool() const { return pool_; }
  const CacheStatistics& statistics() const { return statistics_; }
  // Blocks beyond the pool: orders, reports, what is there.
  OffloadTiers& tiers() { return tiers_; }
  const OffloadTiers& tiers() const { return tiers_; }
  int32_t num_swap_slots_used() const {
    return config_.num_swap_blocks - static_cast<int32_t>(free_slots_.size() + freed_slots_.size());
  }

  // Blocks that a sequence of `num_tokens` tokens, computed in runs of at most `max_run`, holds at most.
  int64_t most_blocks(int64_t num_tokens, int64_t max_run) const;

  // A new step is being planned: everything attached before is written by the time its kernels run. free_slots: the
  // copies out of all slots given back so far are in plans before it.
  void begin_step(uint64_t step, bool free_slots);

  // Looks for the longest beginning of `tokens` (all of a sequence's) whose blocks exist, in the pool or in host
  // memory. At least the last token is left to compute; if all of its block is found in the pool, that block is shared
  // too, to be copied on write. With prefix caching off: nothing.
  PrefixMatch look_up(const CacheContext& context, std::span<const TokenId> tokens);
  // Whether look_up() of the same tokens would find the same; of layers without windows at the cost of one block's
  // comparison. May say no though it would.
  bool still_holds(PrefixMatch& match, std::span<const TokenId> tokens);
  // Blocks of the match that nobody holds: adopt() takes them from the free ones.
  int64_t idle_blocks(const PrefixMatch& match) const { return idle_blocks(match.path_); }
  // Blocks of the match that are not in the pool: adopt() takes as many free ones for them.
  int64_t blocks_to_load(const PrefixMatch& match) const { return blocks_to_load(match.path_); }
  // Makes the blocks found an empty sequence's, counts them in statistics(), and returns num_computed(). Appends what
  // the step must load first. REQUIRES: still_holds(); blocks.empty(); room for idle_blocks() and blocks_to_load().
  int32_t adopt(PrefixMatch&& match, SequenceBlocks& blocks, std::vector<OffloadCopy>& loads);
  void forget(PrefixMatch& match);

  // look_up() and adopt(), of what is in the pool. REQUIRES: no tiers beyond it.
  int32_t find_prefix(const CacheContext& context, std::span<const TokenId> tokens, SequenceBlocks& blocks);

  // Has those blocks read from the disk that make a longer beginning of `tokens` than look_up() would find, as many as
  // there is room for in host memory. Returns what to wait for: while OffloadTiers::is_fetching(), it is not there.
  std::vector<StoredBlockId> fetch_prefix(const CacheContext& context, std::span<const TokenId> tokens);

  // For another instance: has copied what there is in host memory of the longest beginning of `tokens`. prefix has all
  // but the bytes, which come in reports, by the ids that are returned: [prefix.places].
  std::vector<uint64_t> send_prefix(const CacheContext& context, std::span<const TokenId> tokens, KvPrefix& prefix);
  // From another instance: takes into host memory what of `prefix` is not there yet, as much as there is room for.
  // Returns what to wait for. REQUIRES: whole blocks of tokens; places are of them and of groups that there are.
  std::vector<uint64_t> receive_prefix(const CacheContext& context, KvPrefix prefix);

  // The same for a sequence under way: whole blocks behind its first `num_computed` tokens that somebody else has
  // published meanwhile. Returns the tokens computed now.
  int32_t extend_prefix(std::span<const TokenId> tokens, int32_t num_computed, SequenceBlocks& blocks);

  // Blocks that prepare() would take from the pool.
  int64_t blocks_missing(const SequenceBlocks& blocks, int32_t num_computed, int32_t end) const;
  // Blocks that going on to `end` in runs of at most `max_run` tokens adds to those held, at most: groups with a window
  // give back what lies behind it.
  int64_t blocks_wanted(const SequenceBlocks& blocks, int32_t num_computed, int32_t end, int32_t max_run) const;
  // The same behind a match, once it is adopted.
  int64_t blocks_wanted(const PrefixMatch& match, int32_t end, int32_t max_run) const;

  // Makes the blocks of positions [num_computed, end) present and this sequence's alone, and drops what lies behind
  // the windows. Appends the copies that the step must make first. All or nothing: false, and no change beyond the
  // windows, when the pool has too few blocks.
  bool prepare(SequenceBlocks& blocks, int32_t num_computed, int32_t end, std::vector<BlockCopy>& copies);

  // Further blocks behind those of a sequence that prepare() has made ready in this step, for the positions up to
  // `end`. False, and no change, when the pool has too few.
  bool grow(SequenceBlocks& blocks, int32_t end);
  // Gives back the blocks behind those of the first `num_tokens` tokens. REQUIRES: nobody else has them, and nothing in
  // them was published.
  void cut(SequenceBlocks& blocks, int32_t num_tokens);

  // Whether publish() would do anything: then it wants to see the tokens.
  bool has_to_publish(int32_t num_computed, const SequenceBlocks& blocks) const;
  // Publishes the full blocks among the first `num_computed` tokens, `tokens` their ids (at least so many). Called
  // when the step that computes them is planned, so that others planned with it find them.
  void publish(const CacheContext& context, std::span<const TokenId> tokens, int32_t num_computed,
               SequenceBlocks& blocks);

  // Shares the first `num_tokens` tokens of a sequence with an empty one. Where states are kept these must be all that
  // the parent has computed. False, and no change, when windows have
  // dropped something that is needed to go on from there. REQUIRES: the parent's step that computed them is planned;
  // the child computes in a later one, or may_fork_now().
  bool fork(const SequenceBlocks& parent, int32_t num_tokens, SequenceBlocks& child);

  // Whether a fork of the first `num_tokens` tokens may compute in the step being planned: what it would copy must not
  // be a block that this step itself fills, be it for another sequence.
  bool may_fork_now(const SequenceBlocks& parent, int32_t num_tokens) const;

  // Gives everything back, the last block first: the beginning of a text is worth keeping longest.
  void release(SequenceBlocks& blocks);

  // Blocks that only this sequence holds go to slots of the second pool; what others hold too stays where it is. False,
  // and no change, when slots are too few. REQUIRES: no step in flight uses the sequence.
  bool swap_out(SequenceBlocks& blocks, std::vector<SwapCopy>& copies);
  int64_t blocks_to_swap_in(const SequenceBlocks& blocks) const;
  // Back again, taking blocks that the prefix cache still has instead of copies. False, and no change, when the pool
  // has too few blocks.
  bool swap_in(SequenceBlocks& blocks, std::vector<SwapCopy>& copies);

  // What came and went in the prefix cache since the last call, where config().tells_events.
  std::vector<KvCacheEvent> take_events() { return cache_.take_events(); }
  bool has_events() const { return cache_.has_events(); }

  // Forgets all contents, beyond the pool too; who holds blocks keeps them.
  void reset_prefix_cache();

  // Adds this sequence's references to `holders` [num_blocks].
  void count_holders(const SequenceBlocks& blocks, std::vector<int32_t>& holders) const;
  // Checks pool, tree and that `holders` (of all sequences) are the pool's reference counts; ends the process if not.
  void check_invariants(std::vector<int32_t> holders) const;

 private:
  int32_t num_groups() const { return static_cast<int32_t>(config_.windows.size()); }
  int32_t first_needed(int32_t group, int32_t position) const;
  bool shared(BlockId block) const { return pool_.reference_count(block) > 1 || pool_.cached(block); }
  int64_t copies_missing(const SequenceBlocks& blocks, int32_t num_computed) const;
  bool allocate(int64_t count);
  void drop_behind_windows(SequenceBlocks& blocks, int32_t position);
  enum class Reach { kPool, kMemory, kDisk };  // where blocks count as there, each with those before it
  bool has(NodeId node, int32_t group, Reach reach) const;
  bool has_all(NodeId node, Reach reach) const;
  int32_t walk(NodeId node, std::span<const TokenId> tokens, int32_t first_block, int32_t most_blocks, Reach reach,
               std::vector<NodeId>& path);
  bool may_copy_last(std::span<const NodeId> path) const;
  int64_t idle_blocks(std::span<const NodeId> path) const;
  int64_t blocks_to_load(std::span<const NodeId> path) const;
  int32_t first_adopted(int32_t group, int32_t num_blocks) const;
  int64_t blocks_wanted_of(int32_t group, int64_t missing, int64_t live, int32_t max_run) const;
  void append_found(std::span<const NodeId> path, SequenceBlocks& blocks, std::vector<OffloadCopy>& loads);
  void touch_path(NodeId last);

  CacheConfig config_;
  BlockPool pool_;
  PrefixCache cache_;
  OffloadTiers tiers_;
  CacheStatistics statistics_;
  uint64_t step_ = 0;
  uint64_t last_version_ = 0;
  std::vector<SwapSlot> free_slots_;
  std::vector<SwapSlot> freed_slots_;  // read by the step being planned: free from the next on
  std::vector<BlockId> copied_;        // held for the copies of the step being planned
  // Scratch.
  std::vector<BlockId> fresh_;
  std::vector<NodeId> path_;
  std::vector<int32_t> present_since_;
  std::vector<OffloadCopy> no_loads_;
};

}  // namespace quire::kv
