#include "kv/offload_tiers.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

OffloadTiers::OffloadTiers(int32_t num_slots, bool writes, PrefixCache& cache)
    : cache_(cache), writes_(writes), slots_(static_cast<size_t>(num_slots)) {
  for (OffloadSlot slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

OffloadStatistics OffloadTiers::statistics() const {
  OffloadStatistics statistics = statistics_;
  statistics.slots_used = static_cast<int32_t>(slots_.size() - free_.size());
  statistics.on_disk = static_cast<int64_t>(owners_.size());
  return statistics;
}

void OffloadTiers::add_stored(std::span<const StoredBlock> blocks) {
  std::unordered_map<uint64_t, NodeId> nodes;
  // Held until all are there: a node may come before the block that it is kept for.
  std::vector<NodeId> pinned;
  for (const StoredBlock& block : blocks) {
    last_stored_ = std::max(last_stored_, block.id);
    last_number_ = std::max({last_number_, block.text.node, block.text.parent});
    NodeId parent = kNoNode;
    if (block.text.parent == 0) {
      parent = cache_.pin_root({.salt = block.text.salt, .lora_id = 0, .is_long = block.text.is_long});
      pinned.push_back(parent);
    } else if (const auto found = nodes.find(block.text.parent); found != nodes.end()) {
      parent = found->second;
    } else {
      continue;  // what it goes on from is not there
    }
    const NodeId node = cache_.add_child(parent, block.text.tokens);
    if (nodes.try_emplace(block.text.node, node).second) {
      cache_.pin(node);
      pinned.push_back(node);
    }
    if (cache_.number(node) == 0) cache_.set_number(node, block.text.node);
    if (cache_.stored(node, block.text.group) != 0) continue;
    cache_.set_stored(node, block.text.group, block.id);
    owners_.emplace(block.id, std::pair(node, block.text.group));
  }
  for (const NodeId node : pinned) cache_.unpin(node);
}

// ---- slots ----

void OffloadTiers::evictable(OffloadSlot slot, bool is) {
  if (is) {
    evictable_.emplace(at(slot).used, slot);
  } else {
    evictable_.erase({at(slot).used, slot});
  }
}

// kNoOffloadSlot: all wait for something. for_disk: what a plan still reads or writes is not to be touched beside it;
// copies of a plan come in their turn.
OffloadSlot OffloadTiers::take_slot(bool for_disk) {
  if (!free_.empty() && !(for_disk && at(free_.back()).next_step > num_committed_)) {
    const OffloadSlot slot = free_.back();
    free_.pop_back();
    return slot;
  }
  for (const auto& [used, slot] : evictable_) {
    if (for_disk && at(slot).next_step > num_committed_) continue;
    const OffloadSlot taken = slot;
    evictable(taken, false);
    const auto [node, group] = std::pair(at(taken).node, at(taken).group);
    at(taken).node = kNoNode;
    at(taken).stored = 0;
    cache_.set_slot(node, group, kNoOffloadSlot);
    return taken;
  }
  return kNoOffloadSlot;
}

void OffloadTiers::make_free(OffloadSlot slot) {
  at(slot) = {.next_step = at(slot).next_step};
  free_.push_back(slot);
}

// Something with the slot is done. What nothing is under way with any more is free to be taken.
void OffloadTiers::settle(OffloadSlot slot) {
  at(slot).state = State::kReady;
  if (at(slot).writing || at(slot).sending > 0) return;
  if (at(slot).node == kNoNode) {
    make_free(slot);
  } else {
    evictable(slot, true);
  }
}

void OffloadTiers::committed(uint64_t step) {
  num_committed_ = step + 1;
  while (!filling_.empty() && filling_.front().first <= step) {
    const OffloadSlot slot = filling_.front().second;
    filling_.pop_front();
    if (at(slot).node != kNoNode && writes_ && may_be_written(at(slot).node)) {
      at(slot).state = State::kReady;
      order_write(slot);
    } else {
      settle(slot);
    }
  }
}

// ---- the pool's side ----

void OffloadTiers::published(BlockId block) {
  if (on()) published_.push_back(block);
}

void OffloadTiers::add_stores(uint64_t step, std::vector<OffloadCopy>& stores) {
  for (const BlockId block : published_) {
    const NodeId node = cache_.node_of(block);
    if (node == kNoNode) continue;  // taken away since
    const int32_t group = cache_.group_of(block);
    // What found no slot before it goes first, while the pool has it: without it this would never be reached.
    above_.clear();
    for (NodeId one = cache_.parent(node); cache_.parent(one) != kNoNode && !cache_.kept(one);
         one = cache_.parent(one)) {
      if (cache_.block(one, group) == kNoBlock || above_.size() >= slots_.size()) break;
      above_.push_back(one);
    }
    for (auto one = above_.rbegin(); one != above_.rend(); ++one) {
      store(*one, group, cache_.block(*one, group), step, stores);
    }
    store(node, group, block, step, stores);
  }
  published_.clear();
}

void OffloadTiers::store(NodeId node, int32_t group, BlockId block, uint64_t step, std::vector<OffloadCopy>& stores) {
  if (cache_.slot(node, group) != kNoOffloadSlot || cache_.stored(node, group) != 0) return;
  // A slot that this plan fills already is not evictable, so no two copies meet.
  const OffloadSlot slot = take_slot(/*for_disk=*/false);
  if (slot == kNoOffloadSlot) {
    ++statistics_.skipped_blocks;
    return;
  }
  at(slot) = {.node = node, .group = group, .state = State::kFilling, .next_step = step + 1, .used = ++ticks_};
  filling_.emplace_back(step, slot);
  cache_.set_slot(node, group, slot);
  stores.push_back({block, slot});
  ++statistics_.stored_blocks;
}

bool OffloadTiers::in_memory(NodeId node, int32_t group) const {
  const OffloadSlot slot = cache_.slot(node, group);
  return slot != kNoOffloadSlot && at(slot).state == State::kReady;
}

OffloadSlot OffloadTiers::load(NodeId node, int32_t group, uint64_t step) {
  QUIRE_CHECK(in_memory(node, group));
  const OffloadSlot slot = cache_.slot(node, group);
  at(slot).next_step = step + 1;
  ++statistics_.loaded_blocks;
  return slot;
}

void OffloadTiers::touch(NodeId node, int32_t group) {
  const OffloadSlot slot = cache_.slot(node, group);
  if (slot == kNoOffloadSlot) return;
  const bool waits = evictable_.erase({at(slot).used, slot}) > 0;
  at(slot).used = ++ticks_;
  if (waits) evictable(slot, true);
}

// ---- the disk's side ----

// An adapter's number means nothing to another process.
bool OffloadTiers::may_be_written(NodeId node) const {
  const CacheContext& context = cache_.context(node);
  return context.lora_id == 0 && context.salt.size() <= kLongestStoredSalt;
}

uint64_t OffloadTiers::number_of(NodeId node) {
  if (cache_.parent(node) == kNoNode) return 0;
  if (cache_.number(node) == 0) cache_.set_number(node, ++last_number_);
  return cache_.number(node);
}

void OffloadTiers::order_write(OffloadSlot slot) {
  const NodeId node = at(slot).node;
  const CacheContext& context = cache_.context(node);
  const std::span<const TokenId> tokens = cache_.tokens_of(node);
  const uint64_t parent = number_of(cache_.parent(node));  // less than the node's own
  at(slot).writing = true;
  at(slot).stored = ++last_stored_;
  writing_.emplace(last_stored_, slot);
  orders_.writes.push_back({.slot = slot,
                            .block = {.id = last_stored_,
                                      .text = {.node = number_of(node),
                                               .parent = parent,
                                               .salt = context.salt,
                                               .is_long = context.is_long,
                                               .group = at(slot).group,
                                               .tokens = {tokens.begin(), tokens.end()}}}});
}

bool OffloadTiers::fetch(NodeId node, int32_t group, std::vector<StoredBlockId>& wait) {
  const StoredBlockId id = cache_.stored(node, group);
  QUIRE_CHECK(id != 0);
  if (!fetching_.contains(id)) {
    cache_.pin(node);  // what is evicted for it may be all that a node before it was kept for
    const OffloadSlot slot = take_slot(/*for_disk=*/true);
    if (slot == kNoOffloadSlot) {
      cache_.unpin(node);
      return false;
    }
    at(slot) = {.node = node,
                .group = group,
                .state = State::kFetching,
                .next_step = at(slot).next_step,
                .used = ++ticks_,
                .stored = id};
    fetching_.emplace(id, slot);
    orders_.fetches.push_back({.id = id, .slot = slot});
  }
  wait.push_back(id);
  return true;
}

// ---- other instances ----

uint64_t OffloadTiers::send(NodeId node, int32_t group) {
  QUIRE_CHECK(in_memory(node, group));
  const OffloadSlot slot = cache_.slot(node, group);
  if (!at(slot).writing && at(slot).sending == 0) evictable(slot, false);
  ++at(slot).sending;
  sending_.emplace(++last_transfer_, slot);
  orders_.exports.push_back({.id = last_transfer_, .slot = slot});
  return last_transfer_;
}

uint64_t OffloadTiers::receive(NodeId node, int32_t group, std::string bytes) {
  QUIRE_CHECK(cache_.slot(node, group) == kNoOffloadSlot);
  cache_.pin(node);  // as in fetch()
  const OffloadSlot slot = take_slot(/*for_disk=*/true);
  if (slot == kNoOffloadSlot) {
    cache_.unpin(node);
    return 0;
  }
  at(slot) = {.node = node,
              .group = group,
              .state = State::kFetching,
              .receiving = ++last_transfer_,
              .next_step = at(slot).next_step,
              .used = ++ticks_};
  receiving_.emplace(last_transfer_, slot);
  orders_.imports.push_back({.id = last_transfer_, .slot = slot, .bytes = std::move(bytes)});
  return last_transfer_;
}

// A slot that was the disk's, or another instance's.
void OffloadTiers::filled(OffloadSlot slot, bool ok) {
  const auto [node, group] = std::pair(at(slot).node, at(slot).group);
  at(slot).receiving = 0;
  if (node != kNoNode && ok && cache_.slot(node, group) == kNoOffloadSlot) {
    cache_.set_slot(node, group, slot);
    settle(slot);
  } else {
    make_free(slot);
  }
  if (node != kNoNode) cache_.unpin(node);
}

void OffloadTiers::forget_stored(StoredBlockId id) {
  const auto found = owners_.find(id);
  if (found == owners_.end()) return;
  const auto [node, group] = found->second;
  owners_.erase(found);
  cache_.set_stored(node, group, 0);
}

void OffloadTiers::report(const OffloadReports& reports) {
  for (const OffloadReports::Done& done : reports.fetched) {
    const auto found = fetching_.find(done.id);
    QUIRE_CHECK(found != fetching_.end());
    const OffloadSlot slot = found->second;
    fetching_.erase(found);
    ++(done.ok ? statistics_.fetched_blocks : statistics_.failed_fetches);
    if (!done.ok) forget_stored(done.id);
    filled(slot, done.ok);
  }
  for (const uint64_t id : reports.imported) {
    const auto found = receiving_.find(id);
    QUIRE_CHECK(found != receiving_.end());
    const OffloadSlot slot = found->second;
    receiving_.erase(found);
    filled(slot, /*ok=*/true);
  }
  for (const OffloadReports::Exported& done : reports.exported) {
    const auto found = sending_.find(done.id);
    QUIRE_CHECK(found != sending_.end());
    const OffloadSlot slot = found->second;
    sending_.erase(found);
    --at(slot).sending;
    settle(slot);
  }
  for (const OffloadReports::Done& done : reports.written) {
    const auto found = writing_.find(done.id);
    QUIRE_CHECK(found != writing_.end());
    const OffloadSlot slot = found->second;
    writing_.erase(found);
    at(slot).writing = false;
    ++(done.ok ? statistics_.written_blocks : statistics_.failed_writes);
    if (done.ok && at(slot).node != kNoNode) {
      owners_.emplace(done.id, std::pair(at(slot).node, at(slot).group));
      cache_.set_stored(at(slot).node, at(slot).group, done.id);
    }
    settle(slot);
  }
  for (const StoredBlockId id : reports.dropped) forget_stored(id);
}

void OffloadTiers::reset() {
  if (!on()) return;
  published_.clear();
  for (OffloadSlot slot = 0; slot < static_cast<OffloadSlot>(slots_.size()); ++slot) {
    if (at(slot).state == State::kFree || at(slot).node == kNoNode) continue;
    const bool waits = at(slot).state == State::kFetching || at(slot).state == State::kFilling || at(slot).writing ||
                       at(slot).sending > 0;
    if (!waits) evictable(slot, false);
    const auto [node, group] = std::pair(std::exchange(at(slot).node, kNoNode), at(slot).group);
    if (at(slot).state == State::kFetching) {
      cache_.unpin(node);
    } else {
      cache_.set_slot(node, group, kNoOffloadSlot);
    }
    if (!waits) make_free(slot);
  }
  while (!owners_.empty()) forget_stored(owners_.begin()->first);
  // What nobody has taken yet is not done at all.
  OffloadReports undone;
  for (const OffloadFetch& fetch : orders_.fetches) undone.fetched.push_back({fetch.id, false});
  for (const OffloadWrite& write : orders_.writes) undone.written.push_back({write.block.id, false});
  // Blocks on their way to other instances are what they were said to be, whoever forgets them here.
  orders_ = {.clear = writes_, .exports = std::move(orders_.exports), .imports = std::move(orders_.imports)};
  report(undone);
}

void OffloadTiers::check_invariants() const {
  size_t num_free = 0;
  size_t num_evictable = 0;
  size_t num_filling = 0;
  for (OffloadSlot id = 0; id < static_cast<OffloadSlot>(slots_.size()); ++id) {
    const Slot& slot = at(id);
    num_free += slot.state == State::kFree ? 1 : 0;
    num_filling += slot.state == State::kFilling ? 1 : 0;
    const bool waits = slot.state != State::kReady || slot.writing || slot.sending > 0;
    QUIRE_CHECK(evictable_.contains({slot.used, id}) == !waits);
    num_evictable += waits ? 0 : 1;
    QUIRE_CHECK(!slot.writing || writing_.at(slot.stored) == id);
    if (slot.state == State::kFetching) {
      QUIRE_CHECK((slot.receiving != 0 ? receiving_.at(slot.receiving) : fetching_.at(slot.stored)) == id);
    }
    const bool attached = slot.node != kNoNode && slot.state != State::kFetching;
    if (attached) QUIRE_CHECK(cache_.slot(slot.node, slot.group) == id);
  }
  QUIRE_CHECK(num_free == free_.size() && num_evictable == evictable_.size() && num_filling == filling_.size());
  for (const auto& [id, owner] : owners_) QUIRE_CHECK(cache_.stored(owner.first, owner.second) == id);
}

}  // namespace quire::kv
