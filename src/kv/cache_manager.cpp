#include "kv/cache_manager.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace quire::kv {
namespace {
constexpr SwapSlot kNoSlot = -1;
}

CacheManager::CacheManager(const CacheConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      cache_(config.num_blocks, config.block_size, static_cast<int32_t>(config.windows.size()), config.hash_seed,
             config.hash),
      tiers_(config.prefix_caching ? config.num_offload_slots : 0, config.offload_writes, cache_) {
  if (config.tells_events) cache_.tell_events();
  for (SwapSlot slot = config.num_swap_blocks - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

// The first block of a group that a query at `position` reads.
int32_t CacheManager::first_needed(int32_t group, int32_t position) const {
  const int32_t window = config_.windows[static_cast<size_t>(group)];
  return window == 0 ? 0 : std::max(position - window + 1, 0) / config_.block_size;
}

int64_t CacheManager::most_blocks(int64_t num_tokens, int64_t max_run) const {
  int64_t sum = 0;
  for (const int32_t window : config_.windows) {
    const int64_t all = blocks_for_tokens(num_tokens, config_.block_size);
    sum += window == 0 ? all : std::min(all, blocks_for_tokens(window - 1 + max_run, config_.block_size) + 1);
  }
  return sum;
}

void CacheManager::begin_step(uint64_t step, bool free_slots) {
  step_ = step;
  if (free_slots) {
    free_slots_.insert(free_slots_.end(), freed_slots_.begin(), freed_slots_.end());
    freed_slots_.clear();
  }
  for (const BlockId block : copied_) pool_.release(block);
  copied_.clear();
}

// Blocks into fresh_, whose former contents are forgotten.
bool CacheManager::allocate(int64_t count) {
  fresh_.clear();
  if (count > pool_.num_free()) return false;
  QUIRE_CHECK(pool_.allocate(static_cast<int32_t>(count), fresh_));
  for (const BlockId block : fresh_) cache_.detach(block);
  return true;
}

// ---- prefixes ----

bool CacheManager::has(NodeId node, int32_t group, Reach reach) const {
  if (cache_.block(node, group) != kNoBlock) {
    // Layers read a state before they leave theirs: what this step is to write is not there for others of it.
    return !config_.keeps_states || cache_.step_written(node) < step_;
  }
  if (reach == Reach::kPool) return false;
  return tiers_.in_memory(node, group) || (reach == Reach::kDisk && cache_.stored(node, group) != 0);
}

bool CacheManager::has_all(NodeId node, Reach reach) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (!has(node, group, reach)) return false;
  }
  return true;
}

// Follows `tokens` down the tree from `node`, which stands for `first_block` blocks of them. The nodes found go to
// `path`; as many of them count as leave every group all the blocks that going on from there reads.
int32_t CacheManager::walk(NodeId node, std::span<const TokenId> tokens, int32_t first_block, int32_t most_blocks,
                           Reach reach, std::vector<NodeId>& path) {
  const auto size = static_cast<size_t>(config_.block_size);
  path.clear();
  int32_t usable = 0;
  std::vector<int32_t>& present_since = present_since_;  // a group each: first block of the unbroken run to here
  present_since.assign(static_cast<size_t>(num_groups()), first_block);
  for (int32_t i = first_block; i < most_blocks; ++i) {
    ++statistics_.walked_blocks;
    node = cache_.find_child(node, tokens.subspan(static_cast<size_t>(i) * size, size));
    if (node == kNoNode) break;
    path.push_back(node);
    bool complete = true;
    for (int32_t group = 0; group < num_groups(); ++group) {
      int32_t& since = present_since[static_cast<size_t>(group)];
      if (!has(node, group, reach)) since = i + 1;
      const int32_t needed = first_needed(group, (i + 1) * config_.block_size - 1);
      complete = complete && since <= std::max(needed, first_block);
      // A group that sees everything has lost the thread for good.
      if (since > first_block && config_.windows[static_cast<size_t>(group)] == 0) return usable;
    }
    if (complete) usable = i + 1 - first_block;
  }
  return usable;
}

// Of a group's table of `num_blocks` found blocks, the first that going on from there reads.
int32_t CacheManager::first_adopted(int32_t group, int32_t num_blocks) const {
  return std::min(first_needed(group, num_blocks * config_.block_size - 1), num_blocks - 1);
}

// Appends the blocks of the nodes of `path` (not empty).
void CacheManager::append_found(std::span<const NodeId> path, SequenceBlocks& blocks, std::vector<OffloadCopy>& loads) {
  const int32_t begin = blocks.num_blocks();
  const int32_t end = begin + static_cast<int32_t>(path.size());
  int64_t to_load = 0;
  blocks.tables_.resize(static_cast<size_t>(num_groups()));
  blocks.first_.resize(static_cast<size_t>(num_groups()), 0);
  // What is there is held first: taking blocks for the rest might take it away.
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<BlockId>& table = blocks.tables_[static_cast<size_t>(group)];
    const int32_t needed = first_adopted(group, end);
    for (int32_t i = begin; i < end; ++i) {
      const BlockId block = i < needed ? kNoBlock : cache_.block(path[static_cast<size_t>(i - begin)], group);
      if (block != kNoBlock) pool_.hold(block);
      if (block == kNoBlock && i >= needed) ++to_load;
      table.push_back(block);
    }
    if (begin == 0) blocks.first_[static_cast<size_t>(group)] = needed;
  }
  if (to_load > 0) {
    QUIRE_CHECK(allocate(to_load));
    auto fresh = fresh_.begin();
    for (int32_t group = 0; group < num_groups(); ++group) {
      for (int32_t i = std::max(begin, first_adopted(group, end)); i < end; ++i) {
        BlockId& block = blocks.tables_[static_cast<size_t>(group)][static_cast<size_t>(i)];
        if (block != kNoBlock) continue;
        const NodeId node = path[static_cast<size_t>(i - begin)];
        block = *fresh++;
        loads.push_back({block, tiers_.load(node, group, step_)});
        cache_.attach(node, group, block, step_);
        pool_.set_cached(block, true);
      }
    }
  }
  cache_.pin(path.back());
  cache_.unpin(blocks.node_);
  blocks.node_ = path.back();
  blocks.num_published_ = end;
  blocks.version_ = ++last_version_;
}

int64_t CacheManager::idle_blocks(std::span<const NodeId> path) const {
  const auto count = static_cast<int32_t>(path.size());
  int64_t idle = 0;
  for (int32_t group = 0; count > 0 && group < num_groups(); ++group) {
    for (int32_t i = first_adopted(group, count); i < count; ++i) {
      const BlockId block = cache_.block(path[static_cast<size_t>(i)], group);
      if (block != kNoBlock && pool_.reference_count(block) == 0) ++idle;
    }
  }
  return idle;
}

int64_t CacheManager::blocks_to_load(std::span<const NodeId> path) const {
  if (!tiers_.on()) return 0;
  const auto count = static_cast<int32_t>(path.size());
  int64_t missing = 0;
  for (int32_t group = 0; count > 0 && group < num_groups(); ++group) {
    for (int32_t i = first_adopted(group, count); i < count; ++i) {
      if (cache_.block(path[static_cast<size_t>(i)], group) == kNoBlock) ++missing;
    }
  }
  return missing;
}

// Whether the last block of a text that is found whole can be shared, its last token being computed into a copy: the
// contents must be in the pool and an earlier step's, and there must be room for the copies.
bool CacheManager::may_copy_last(std::span<const NodeId> path) const {
  return has_all(path.back(), Reach::kPool) && cache_.step_written(path.back()) < step_ &&
         pool_.num_free() - idle_blocks(path) - blocks_to_load(path) >= num_groups();
}

// The blocks of a node's text were used, the beginning last: it is worth keeping longest.
void CacheManager::touch_path(NodeId last) {
  if (!tiers_.on()) return;
  for (NodeId node = last; node != kNoNode && cache_.parent(node) != kNoNode; node = cache_.parent(node)) {
    for (int32_t group = 0; group < num_groups(); ++group) tiers_.touch(node, group);
  }
}

PrefixMatch CacheManager::look_up(const CacheContext& context, std::span<const TokenId> tokens) {
  PrefixMatch match;
  if (!config_.prefix_caching) return match;
  match.num_tokens_ = static_cast<int32_t>(tokens.size());
  match.node_ = cache_.pin_root(context);
  const int32_t most_tokens = config_.keeps_states ? match.num_tokens_ - 1 : match.num_tokens_;
  int32_t count = walk(match.node_, tokens, 0, most_tokens / config_.block_size, Reach::kMemory, match.path_);
  match.path_.resize(static_cast<size_t>(count));
  match.whole_ = count > 0 && count * config_.block_size == match.num_tokens_;
  if (match.whole_ && !may_copy_last(match.path_)) {
    match.whole_ = false;
    match.cut_ = true;
    count = walk(match.node_, tokens, 0, count - 1, Reach::kMemory, match.path_);
    match.path_.resize(static_cast<size_t>(count));
  }
  if (count > 0) {
    cache_.pin(match.path_.back());
    cache_.unpin(std::exchange(match.node_, match.path_.back()));
  }
  match.num_computed_ = match.whole_ ? match.num_tokens_ - 1 : count * config_.block_size;
  match.seen_ = cache_.num_changes();
  return match;
}

bool CacheManager::still_holds(PrefixMatch& match, std::span<const TokenId> tokens) {
  if (match.node_ == kNoNode) return true;
  if (match.whole_ && !may_copy_last(match.path_)) return false;
  if (match.seen_ == cache_.num_changes() && !match.cut_) return true;
  if (std::ranges::any_of(config_.windows, [](int32_t window) { return window > 0; })) return false;
  if (std::ranges::any_of(match.path_, [this](NodeId node) { return !has_all(node, Reach::kMemory); })) return false;
  const auto size = static_cast<size_t>(config_.block_size);
  const size_t next = match.path_.size() * size;
  if (next + size <= tokens.size()) {
    ++statistics_.walked_blocks;
    const NodeId child = cache_.find_child(match.node_, tokens.subspan(next, size));
    const Reach reach = match.cut_ ? Reach::kPool : Reach::kMemory;
    const bool found = child != kNoNode && has_all(child, reach);
    if (found && !(match.cut_ && cache_.step_written(child) >= step_)) return false;
  }
  match.seen_ = cache_.num_changes();
  return true;
}

int32_t CacheManager::adopt(PrefixMatch&& match, SequenceBlocks& blocks, std::vector<OffloadCopy>& loads) {
  QUIRE_CHECK(blocks.empty());
  if (match.node_ == kNoNode) return 0;
  statistics_.query_tokens += match.num_tokens_;
  statistics_.hit_tokens += match.num_computed_;
  blocks.node_ = std::exchange(match.node_, kNoNode);  // with its pin
  if (!match.path_.empty()) append_found(match.path_, blocks, loads);
  return match.num_computed_;
}

void CacheManager::forget(PrefixMatch& match) {
  if (match.node_ != kNoNode) cache_.unpin(match.node_);
  match = PrefixMatch();
}

int32_t CacheManager::find_prefix(const CacheContext& context, std::span<const TokenId> tokens,
                                  SequenceBlocks& blocks) {
  const int32_t num_computed = adopt(look_up(context, tokens), blocks, no_loads_);
  QUIRE_CHECK(no_loads_.empty());
  return num_computed;
}

std::vector<StoredBlockId> CacheManager::fetch_prefix(const CacheContext& context, std::span<const TokenId> tokens) {
  std::vector<StoredBlockId> wait;
  if (!tiers_.on() || !config_.offload_to_disk) return wait;
  const NodeId root = cache_.pin_root(context);
  // The last token is computed whatever is found.
  const int32_t most = (static_cast<int32_t>(tokens.size()) - 1) / config_.block_size;
  const int32_t here = walk(root, tokens, 0, most, Reach::kMemory, path_);
  const int32_t count = walk(root, tokens, 0, most, Reach::kDisk, path_);
  if (count > here) {
    const NodeId last = path_[static_cast<size_t>(count - 1)];
    cache_.pin(last);
    touch_path(last);
    const auto full = static_cast<size_t>(tiers_.most_fetched());
    for (int32_t i = 0; i < count; ++i) {
      for (int32_t group = 0; group < num_groups(); ++group) {
        const NodeId node = path_[static_cast<size_t>(i)];
        if (i < first_adopted(group, count) || has(node, group, Reach::kMemory)) continue;
        // In host memory, but not yet: the step that fills it is under way.
        if (cache_.stored(node, group) == 0) continue;
        if (wait.size() >= full || !tiers_.fetch(node, group, wait)) i = count;
        if (i == count) break;
      }
    }
    cache_.unpin(last);
  }
  cache_.unpin(root);
  return wait;
}

std::vector<uint64_t> CacheManager::send_prefix(const CacheContext& context, std::span<const TokenId> tokens,
                                                KvPrefix& prefix) {
  std::vector<uint64_t> ids;
  if (!tiers_.on()) return ids;
  const NodeId root = cache_.pin_root(context);
  const int32_t most = static_cast<int32_t>(tokens.size()) / config_.block_size;
  const int32_t found = walk(root, tokens, 0, most, Reach::kMemory, path_);
  // What is in the pool alone ends it: for groups with a window, at an earlier block whose own are all there.
  std::vector<int32_t>& present_since = present_since_;
  present_since.assign(static_cast<size_t>(num_groups()), 0);
  int32_t count = 0;
  for (int32_t i = 0; i < found; ++i) {
    bool is_whole = true;
    for (int32_t group = 0; group < num_groups(); ++group) {
      int32_t& since = present_since[static_cast<size_t>(group)];
      if (!tiers_.in_memory(path_[static_cast<size_t>(i)], group)) since = i + 1;
      is_whole = is_whole && since <= first_adopted(group, i + 1);
    }
    if (is_whole) count = i + 1;
  }
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      if (i < first_adopted(group, count)) continue;
      ids.push_back(tiers_.send(path_[static_cast<size_t>(i)], group));
      prefix.places.push_back({.index = i, .group = group});
    }
  }
  prefix.is_long = context.is_long;
  const auto end = tokens.begin() + static_cast<ptrdiff_t>(count) * config_.block_size;
  prefix.tokens.assign(tokens.begin(), end);
  if (count > 0) touch_path(path_[static_cast<size_t>(count - 1)]);
  cache_.unpin(root);
  return ids;
}

std::vector<uint64_t> CacheManager::receive_prefix(const CacheContext& context, KvPrefix prefix) {
  std::vector<uint64_t> ids;
  if (!tiers_.on() || prefix.places.empty()) return ids;
  const auto size = static_cast<size_t>(config_.block_size);
  std::vector<NodeId> path;  // pinned; a root above
  NodeId node = cache_.pin_root(context);
  const NodeId root = node;
  for (size_t begin = 0; begin + size <= prefix.tokens.size(); begin += size) {
    node = cache_.add_child(node, std::span(prefix.tokens).subspan(begin, size));
    cache_.pin(node);
    path.push_back(node);
  }
  const auto full = static_cast<size_t>(tiers_.most_fetched());
  for (size_t i = 0; i < prefix.places.size() && ids.size() < full; ++i) {
    const auto [index, group] = prefix.places[i];
    const NodeId one = path.at(static_cast<size_t>(index));
    if (has(one, group, Reach::kPool) || cache_.slot(one, group) != kNoOffloadSlot) continue;
    const uint64_t id = tiers_.receive(one, group, std::move(prefix.blocks[i]));
    if (id == 0) break;
    ids.push_back(id);
  }
  // The end first: a node that nothing keeps takes those before it along.
  for (auto one = path.rbegin(); one != path.rend(); ++one) cache_.unpin(*one);
  cache_.unpin(root);
  return ids;
}

int32_t CacheManager::extend_prefix(std::span<const TokenId> tokens, int32_t num_computed, SequenceBlocks& blocks) {
  const int32_t begin = num_computed / config_.block_size;
  if (blocks.node_ == kNoNode || num_computed % config_.block_size != 0) return num_computed;
  if (blocks.num_published_ != begin || blocks.num_blocks() != begin) return num_computed;
  const int32_t most = (static_cast<int32_t>(tokens.size()) - 1) / config_.block_size;
  const int32_t count = walk(blocks.node_, tokens, begin, most, Reach::kPool, path_);
  if (count == 0) return num_computed;
  append_found(std::span(path_).first(static_cast<size_t>(count)), blocks, no_loads_);
  statistics_.hit_tokens += int64_t{count} * config_.block_size;
  return (begin + count) * config_.block_size;
}

bool CacheManager::has_to_publish(int32_t num_computed, const SequenceBlocks& blocks) const {
  return config_.prefix_caching && blocks.num_published_ < num_computed / config_.block_size;
}

void CacheManager::publish(const CacheContext& context, std::span<const TokenId> tokens, int32_t num_computed,
                           SequenceBlocks& blocks) {
  if (!has_to_publish(num_computed, blocks)) return;
  const int32_t end = num_computed / config_.block_size;
  if (blocks.node_ == kNoNode) blocks.node_ = cache_.pin_root(context);
  const auto size = static_cast<size_t>(config_.block_size);
  for (int32_t i = blocks.num_published_; i < end; ++i) {
    const NodeId node = cache_.add_child(blocks.node_, tokens.subspan(static_cast<size_t>(i) * size, size));
    cache_.pin(node);
    cache_.unpin(blocks.node_);
    blocks.node_ = node;
    for (int32_t group = 0; group < num_groups(); ++group) {
      const BlockId block = blocks.tables_[static_cast<size_t>(group)][static_cast<size_t>(i)];
      if (block == kNoBlock || cache_.block(node, group) != kNoBlock) continue;
      cache_.attach(node, group, block, step_);
      pool_.set_cached(block, true);
      tiers_.published(block);
    }
  }
  blocks.num_published_ = end;
}

void CacheManager::reset_prefix_cache() {
  cache_.begin_clearing();
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    if (!cache_.attached(block)) continue;
    cache_.detach(block);
    pool_.set_cached(block, false);
  }
  tiers_.reset();
  cache_.end_clearing();
}

// ---- growing, sharing, giving back ----

int64_t CacheManager::copies_missing(const SequenceBlocks& blocks, int32_t num_computed) const {
  const auto writes_first = static_cast<size_t>(num_computed / config_.block_size);
  return std::ranges::count_if(blocks.tables_, [&](const std::vector<BlockId>& table) {
    // kNoBlock: swapped out.
    return writes_first < table.size() && table[writes_first] != kNoBlock && shared(table[writes_first]);
  });
}

int64_t CacheManager::blocks_missing(const SequenceBlocks& blocks, int32_t num_computed, int32_t end) const {
  const int64_t covered = blocks.num_blocks();
  const int64_t missing = std::max<int64_t>(blocks_for_tokens(end, config_.block_size) - covered, 0);
  return num_groups() * missing + copies_missing(blocks, num_computed);
}

// What a group takes for `missing` blocks more, when it has `live` that it may give back.
int64_t CacheManager::blocks_wanted_of(int32_t group, int64_t missing, int64_t live, int32_t max_run) const {
  const int32_t window = config_.windows[static_cast<size_t>(group)];
  if (window == 0) return missing;
  const int64_t most = blocks_for_tokens(int64_t{window} - 1 + max_run, config_.block_size) + 1;
  return std::min(missing, std::max<int64_t>(most - live, 0));
}

int64_t CacheManager::blocks_wanted(const SequenceBlocks& blocks, int32_t num_computed, int32_t end,
                                    int32_t max_run) const {
  const int64_t covered = blocks.num_blocks();
  const int64_t missing = std::max<int64_t>(blocks_for_tokens(end, config_.block_size) - covered, 0);
  int64_t sum = copies_missing(blocks, num_computed);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int64_t live = blocks.first_.empty() ? 0 : covered - blocks.first_[static_cast<size_t>(group)];
    sum += blocks_wanted_of(group, missing, live, max_run);
  }
  return sum;
}

int64_t CacheManager::blocks_wanted(const PrefixMatch& match, int32_t end, int32_t max_run) const {
  const auto covered = static_cast<int32_t>(match.path_.size());
  const int64_t missing = std::max<int64_t>(blocks_for_tokens(end, config_.block_size) - covered, 0);
  int64_t sum = match.whole_ ? num_groups() : 0;  // copies
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int64_t live = covered == 0 ? 0 : covered - first_adopted(group, covered);
    sum += blocks_wanted_of(group, missing, live, max_run);
  }
  return sum;
}

void CacheManager::drop_behind_windows(SequenceBlocks& blocks, int32_t position) {
  for (int32_t group = 0; group < blocks.num_groups(); ++group) {
    std::vector<BlockId>& table = blocks.tables_[static_cast<size_t>(group)];
    int32_t& first = blocks.first_[static_cast<size_t>(group)];
    const int32_t needed = std::min(first_needed(group, position), static_cast<int32_t>(table.size()));
    if (first < needed) blocks.version_ = ++last_version_;
    for (; first < needed; ++first) {
      BlockId& block = table[static_cast<size_t>(first)];
      if (block != kNoBlock) pool_.release(block);
      block = kNoBlock;
    }
  }
}

bool CacheManager::prepare(SequenceBlocks& blocks, int32_t num_computed, int32_t end, std::vector<BlockCopy>& copies) {
  QUIRE_CHECK(!blocks.swapped_out_);
  drop_behind_windows(blocks, num_computed);
  if (!allocate(blocks_missing(blocks, num_computed, end))) return false;
  blocks.tables_.resize(static_cast<size_t>(num_groups()));
  blocks.first_.resize(static_cast<size_t>(num_groups()), 0);
  if (!fresh_.empty()) blocks.version_ = ++last_version_;
  auto fresh = fresh_.begin();
  const auto writes_first = static_cast<size_t>(num_computed / config_.block_size);
  const auto wanted = static_cast<size_t>(blocks_for_tokens(end, config_.block_size));
  for (std::vector<BlockId>& table : blocks.tables_) {
    if (writes_first < table.size() && shared(table[writes_first])) {
      const BlockId source = std::exchange(table[writes_first], *fresh++);
      QUIRE_CHECK(source != kNoBlock);
      copies.push_back({source, table[writes_first]});
      // A source without another holder must not be handed out before this step has read it.
      if (pool_.reference_count(source) > 1) {
        pool_.release(source);
      } else {
        copied_.push_back(source);
      }
    }
    while (table.size() < wanted) table.push_back(*fresh++);
  }
  QUIRE_CHECK(fresh == fresh_.end());
  return true;
}

bool CacheManager::grow(SequenceBlocks& blocks, int32_t end) {
  QUIRE_CHECK(!blocks.swapped_out_ && !blocks.tables_.empty());
  const int64_t missing = std::max<int64_t>(blocks_for_tokens(end, config_.block_size) - blocks.num_blocks(), 0);
  if (missing == 0) return true;
  if (!allocate(missing * num_groups())) return false;
  blocks.version_ = ++last_version_;
  auto fresh = fresh_.begin();
  for (std::vector<BlockId>& table : blocks.tables_) {
    table.insert(table.end(), fresh, fresh + missing);
    fresh += missing;
  }
  return true;
}

void CacheManager::cut(SequenceBlocks& blocks, int32_t num_tokens) {
  const auto kept = static_cast<size_t>(blocks_for_tokens(num_tokens, config_.block_size));
  QUIRE_CHECK(!blocks.swapped_out_ && blocks.num_published_ <= static_cast<int32_t>(kept));
  if (static_cast<size_t>(blocks.num_blocks()) <= kept) return;
  blocks.version_ = ++last_version_;
  for (std::vector<BlockId>& table : blocks.tables_) {
    for (; table.size() > kept; table.pop_back()) {
      QUIRE_DCHECK(table.back() != kNoBlock && !shared(table.back()));
      pool_.release(table.back());
    }
  }
}

bool CacheManager::fork(const SequenceBlocks& parent, int32_t num_tokens, SequenceBlocks& child) {
  QUIRE_CHECK(child.empty());
  const auto count = static_cast<int32_t>(blocks_for_tokens(num_tokens, config_.block_size));
  if (parent.swapped_out_ || parent.num_blocks() < count) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (first_needed(group, num_tokens) < parent.first_[static_cast<size_t>(group)]) return false;
  }
  child.tables_.resize(static_cast<size_t>(num_groups()));
  child.first_.resize(static_cast<size_t>(num_groups()));
  for (size_t group = 0; group < child.tables_.size(); ++group) {
    const std::vector<BlockId>& table = parent.tables_[group];
    child.tables_[group].assign(table.begin(), table.begin() + count);
    child.first_[group] = std::min(parent.first_[group], count);
    for (const BlockId block : child.tables_[group]) {
      if (block != kNoBlock) pool_.hold(block);
    }
  }
  child.version_ = ++last_version_;
  if (parent.node_ == kNoNode) return true;
  child.node_ = parent.node_;
  child.num_published_ = parent.num_published_;
  for (; child.num_published_ > num_tokens / config_.block_size; --child.num_published_) {
    child.node_ = cache_.parent(child.node_);
  }
  cache_.pin(child.node_);
  return true;
}

bool CacheManager::may_fork_now(const SequenceBlocks& parent, int32_t num_tokens) const {
  if (num_tokens % config_.block_size == 0) return true;  // nothing to copy
  const auto last = static_cast<size_t>(num_tokens / config_.block_size);
  return std::ranges::none_of(parent.tables_, [&](const std::vector<BlockId>& table) {
    if (last >= table.size() || table[last] == kNoBlock) return false;
    const NodeId node = cache_.node_of(table[last]);
    return node != kNoNode && cache_.step_written(node) >= step_;
  });
}

void CacheManager::release(SequenceBlocks& blocks) {
  for (std::vector<BlockId>& table : blocks.tables_) {
    for (auto block = table.rbegin(); block != table.rend(); ++block) {
      if (*block != kNoBlock) pool_.release(*block);
    }
  }
  for (const std::vector<SwapSlot>& slots : blocks.slots_) {
    for (const SwapSlot slot : slots) {
      if (slot != kNoSlot) freed_slots_.push_back(slot);
    }
  }
  touch_path(blocks.node_);
  if (blocks.node_ != kNoNode) cache_.unpin(blocks.node_);
  blocks = SequenceBlocks();
}

// ---- swapping ----

bool CacheManager::swap_out(SequenceBlocks& blocks, std::vector<SwapCopy>& copies) {
  QUIRE_CHECK(!blocks.swapped_out_);
  const auto leaves = [&](BlockId block) { return block != kNoBlock && pool_.reference_count(block) == 1; };
  size_t wanted = 0;
  for (const std::vector<BlockId>& table : blocks.tables_) {
    wanted += static_cast<size_t>(std::ranges::count_if(table, leaves));
  }
  if (wanted > free_slots_.size()) return false;
  blocks.slots_.resize(blocks.tables_.size());
  for (size_t group = 0; group < blocks.tables_.size(); ++group) {
    std::vector<BlockId>& table = blocks.tables_[group];
    blocks.slots_[group].assign(table.size(), kNoSlot);
    for (size_t i = table.size(); i-- > 0;) {
      if (!leaves(table[i])) continue;
      blocks.slots_[group][i] = free_slots_.back();
      free_slots_.pop_back();
      copies.push_back({table[i], blocks.slots_[group][i]});
      pool_.release(table[i]);
      table[i] = kNoBlock;
    }
  }
  blocks.swapped_out_ = true;
  blocks.version_ = ++last_version_;
  return true;
}

int64_t CacheManager::blocks_to_swap_in(const SequenceBlocks& blocks) const {
  int64_t count = 0;
  for (const std::vector<SwapSlot>& slots : blocks.slots_) {
    count += std::ranges::count_if(slots, [](SwapSlot slot) { return slot != kNoSlot; });
  }
  return count;
}

bool CacheManager::swap_in(SequenceBlocks& blocks, std::vector<SwapCopy>& copies) {
  QUIRE_CHECK(blocks.swapped_out_);
  // Nodes of the published blocks, the last one first.
  path_.clear();
  NodeId node = blocks.node_;
  for (int32_t i = 0; i < blocks.num_published_; ++i, node = cache_.parent(node)) path_.push_back(node);
  const auto node_of = [&](size_t block) { return path_[path_.size() - 1 - block]; };

  // Holding what the cache has first: allocating might take it away.
  int64_t wanted = 0;
  for (size_t group = 0; group < blocks.tables_.size(); ++group) {
    for (size_t i = 0; i < blocks.tables_[group].size(); ++i) {
      if (blocks.slots_[group][i] == kNoSlot) continue;
      const BlockId kept = i < path_.size() ? cache_.block(node_of(i), static_cast<int32_t>(group)) : kNoBlock;
      if (kept == kNoBlock) {
        ++wanted;
        continue;
      }
      pool_.hold(kept);
      blocks.tables_[group][i] = kept;
    }
  }
  const bool found_room = allocate(wanted);
  auto fresh = fresh_.begin();
  for (size_t group = 0; group < blocks.tables_.size(); ++group) {
    for (size_t i = 0; i < blocks.tables_[group].size(); ++i) {
      SwapSlot& slot = blocks.slots_[group][i];
      if (slot == kNoSlot) continue;
      BlockId& block = blocks.tables_[group][i];
      if (!found_room) {
        if (block != kNoBlock) pool_.release(std::exchange(block, kNoBlock));
        continue;
      }
      if (block == kNoBlock) {
        block = *fresh++;
        copies.push_back({block, slot});
        if (i < path_.size()) {
          cache_.attach(node_of(i), static_cast<int32_t>(group), block, step_);
          pool_.set_cached(block, true);
        }
      }
      freed_slots_.push_back(std::exchange(slot, kNoSlot));
    }
  }
  if (!found_room) return false;
  blocks.slots_.clear();
  blocks.swapped_out_ = false;
  blocks.version_ = ++last_version_;
  return true;
}

// ---- looking in ----

void CacheManager::count_holders(const SequenceBlocks& blocks, std::vector<int32_t>& holders) const {
  for (const std::vector<BlockId>& table : blocks.tables_) {
    QUIRE_CHECK(table.size() == blocks.tables_.front().size());
    for (const BlockId block : table) {
      if (block != kNoBlock) ++holders[static_cast<size_t>(block)];
    }
  }
}

void CacheManager::check_invariants(std::vector<int32_t> holders) const {
  pool_.check_invariants();
  cache_.check_invariants();
  tiers_.check_invariants();
  for (const BlockId block : copied_) ++holders[static_cast<size_t>(block)];
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    QUIRE_CHECK_MSG(pool_.reference_count(block) == holders[static_cast<size_t>(block)],
                    fmt::format("block {} has {} holders, but {} are counted", block,
                                holders[static_cast<size_t>(block)], pool_.reference_count(block)));
    QUIRE_CHECK(pool_.cached(block) == cache_.attached(block));
  }
}

}  // namespace quire::kv
