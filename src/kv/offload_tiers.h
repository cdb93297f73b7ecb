// The tiers behind the pool, as ids: which blocks of the prefix cache have a copy in host memory (a slot) or on disk (a
// stored block), and what is to be copied, written, read and forgotten. The tree is the prefix cache's, so whatever is
// found there is found by its tokens and its context; nothing here compares a hash.
//
//   published -> a slot, by the plan that computes the block (stores) -> when that step is done, a write to the disk
//   found     -> from a slot, by the plan that needs it (loads)
//   found on disk alone -> fetched into a slot beside the steps, then as above
//
// Who has the memory and the files does as it is told, in the order of the plans, and reports what became of the disk's
// part. A slot that the disk reads or writes is nobody else's until that is reported. What is lost costs time only.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/prefix_cache.h"
#include "types/ids.h"
#include "types/kv_offload.h"

namespace quire::kv {

struct OffloadStatistics {
  int64_t stored_blocks = 0;   // copied to host memory
  int64_t loaded_blocks = 0;   // from there to the pool
  int64_t fetched_blocks = 0;  // from the disk to host memory
  int64_t written_blocks = 0;  // to the disk
  int64_t failed_fetches = 0;  // the block was damaged, or could not be read
  int64_t failed_writes = 0;
  int64_t skipped_blocks = 0;  // published and not kept: every slot was waiting for the disk
  int32_t slots_used = 0;      // of host memory
  int64_t on_disk = 0;         // blocks
};

// Not for several threads at once.
class OffloadTiers {
 public:
  // num_slots 0: there are no tiers. `writes`: what is in host memory is to be written to disk too. The cache must
  // outlive the tiers.
  OffloadTiers(int32_t num_slots, bool writes, PrefixCache& cache);

  bool on() const { return !slots_.empty(); }
  OffloadStatistics statistics() const;

  // What lay on disk before, a block's text behind that of its parent. REQUIRES: nothing was published yet.
  void add_stored(std::span<const StoredBlock> blocks);

  // All steps up to this one are done.
  void committed(uint64_t step);

  // The block was attached to its node, its contents are there when the next plan's step is done.
  void published(BlockId block);
  // The copies of what was published, behind all that the plan of this step computes. The last thing of a plan.
  void add_stores(uint64_t step, std::vector<OffloadCopy>& stores);

  // Whether a plan may load the node's block from host memory.
  bool in_memory(NodeId node, int32_t group) const;
  // The slot, which the plan of this step reads.
  OffloadSlot load(NodeId node, int32_t group, uint64_t step);
  // It was used, and is to be kept longer than what was not.
  void touch(NodeId node, int32_t group);

  // Has the node's block read from the disk; `wait` gets what to wait for. False: there is no slot for it now.
  // REQUIRES: it is stored, and neither in the pool nor in_memory().
  bool fetch(NodeId node, int32_t group, std::vector<StoredBlockId>& wait);
  bool is_fetching(StoredBlockId id) const { return fetching_.contains(id); }
  // Slots that fetches may take at most.
  int64_t most_fetched() const { return static_cast<int64_t>(slots_.size()) / 2; }

  // For another instance: the bytes of the node's slot, which stay as they are until they are reported. Returns the
  // order's id. REQUIRES: in_memory().
  uint64_t send(NodeId node, int32_t group);
  // From another instance: bytes for the node, which has them when that is reported. 0: there is no slot for it now.
  // REQUIRES: the node has no slot.
  uint64_t receive(NodeId node, int32_t group, std::string bytes);

  OffloadOrders take_orders() { return std::exchange(orders_, {}); }
  bool has_orders() const { return !orders_.empty(); }
  void report(const OffloadReports& reports);

  // Forgets all of it, on disk too.
  void reset();

  void check_invariants() const;

 private:
  enum class State : uint8_t {
    kFree,
    kFilling,   // by a step that is not done
    kReady,     // evictable, unless it is being written
    kFetching,  // the disk's, or another instance's
  };
  struct Slot {
    NodeId node = kNoNode;  // kNoNode: of nobody any more, and free as soon as nothing uses it
    int32_t group = 0;
    State state = State::kFree;
    bool writing = false;
    int32_t sending = 0;     // orders that read it for other instances
    uint64_t receiving = 0;  // the order that fills it, from another instance
    uint64_t next_step = 0;  // the first that may use it for something else than a store: those before it read or write
    uint64_t used = 0;       // when, by ticks_
    StoredBlockId stored = 0;  // that is written or fetched
  };

  Slot& at(OffloadSlot slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(OffloadSlot slot) const { return slots_[static_cast<size_t>(slot)]; }
  OffloadSlot take_slot(bool for_disk);
  void make_free(OffloadSlot slot);
  void settle(OffloadSlot slot);
  void filled(OffloadSlot slot, bool ok);
  void evictable(OffloadSlot slot, bool is);
  void store(NodeId node, int32_t group, BlockId block, uint64_t step, std::vector<OffloadCopy>& stores);
  bool may_be_written(NodeId node) const;
  void order_write(OffloadSlot slot);
  uint64_t number_of(NodeId node);
  void forget_stored(StoredBlockId id);

  PrefixCache& cache_;
  const bool writes_;
  std::vector<Slot> slots_;
  std::vector<OffloadSlot> free_;
  std::set<std::pair<uint64_t, OffloadSlot>> evictable_;  // by the time of their last use
  std::deque<std::pair<uint64_t, OffloadSlot>> filling_;  // by the step that fills them
  std::vector<BlockId> published_;
  std::vector<NodeId> above_;  // scratch
  std::unordered_map<StoredBlockId, OffloadSlot> fetching_;
  std::unordered_map<StoredBlockId, OffloadSlot> writing_;
  std::unordered_map<uint64_t, OffloadSlot> sending_;                     // by the order
  std::unordered_map<uint64_t, OffloadSlot> receiving_;                   // the same
  std::unordered_map<StoredBlockId, std::pair<NodeId, int32_t>> owners_;  // of what is on disk
  OffloadOrders orders_;
  OffloadStatistics statistics_;
  uint64_t num_committed_ = 0;  // steps
  uint64_t ticks_ = 0;
  uint64_t last_number_ = 0;
  uint64_t last_transfer_ = 0;
  StoredBlockId last_stored_ = 0;
};

}  // namespace quire::kv
