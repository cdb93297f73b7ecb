// What stands in for the disk of the prefix cache: carries out a scheduler's orders on the slots of a PagedMemory,
// late, in part and sometimes not at all, and loses blocks now and then. A block that is read back is what was written.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <vector>

#include "tests/sched/paged_memory.h"
#include "types/kv_offload.h"

namespace quire::sched::testing_support {

class FakeDisk {
 public:
  explicit FakeDisk(unsigned seed) : random_(seed) {}

  // A share of what is asked for that fails.
  double failing = 0.1;

  void take(OffloadOrders orders) {
    if (orders.clear) {
      blocks_.clear();
      for (const OffloadWrite& write : writes_) reports_.written.push_back({write.block.id, false});
      writes_.clear();
    }
    for (const OffloadFetch& fetch : orders.fetches) fetches_.push_back(fetch);
    for (OffloadWrite& write : orders.writes) writes_.push_back(std::move(write));
  }

  // One of those that wait; false: none does.
  bool work(PagedMemory& memory) {
    const size_t waiting = fetches_.size() + writes_.size();
    if (waiting == 0) return false;
    if (chance(static_cast<double>(fetches_.size()) / static_cast<double>(waiting))) {
      read(memory);
    } else {
      write(memory);
    }
    return true;
  }

  // A block leaves to make room.
  void lose_one() {
    if (blocks_.empty()) return;
    auto place = blocks_.begin();
    std::advance(place, random_() % blocks_.size());
    reports_.dropped.push_back(place->first);
    blocks_.erase(place);
  }

  // The process ends: what waits is not done.
  void restart() {
    fetches_.clear();
    writes_.clear();
    reports_ = {};
  }
  // What is found at a start, each text behind those that it goes on from.
  std::vector<StoredBlock> index() const {
    std::vector<StoredBlock> all;
    for (const auto& [id, block] : blocks_) all.push_back({id, block.text});
    std::ranges::sort(all, {}, [](const StoredBlock& one) { return one.text.node; });
    return all;
  }

  OffloadReports take_reports() { return std::exchange(reports_, {}); }
  size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    StoredText text;
    std::vector<uint64_t> cells;
  };

  bool chance(double share) { return std::uniform_real_distribution<double>(0, 1)(random_) < share; }

  void read(PagedMemory& memory) {
    const size_t at = random_() % fetches_.size();
    const OffloadFetch fetch = fetches_[at];
    fetches_.erase(fetches_.begin() + static_cast<ptrdiff_t>(at));
    const auto found = blocks_.find(fetch.id);
    const bool ok = found != blocks_.end() && !chance(failing);
    const std::span<uint64_t> cells = memory.offload_cells(fetch.slot);
    if (ok) {
      std::ranges::copy(found->second.cells, cells.begin());
    } else {
      std::ranges::fill(cells, 0xbad);  // a read that failed leaves anything
      if (found != blocks_.end()) blocks_.erase(found);
    }
    reports_.fetched.push_back({fetch.id, ok});
  }

  void write(PagedMemory& memory) {
    OffloadWrite write = std::move(writes_.front());
    writes_.pop_front();
    const bool ok = !chance(failing);
    if (ok) {
      const std::span<uint64_t> cells = memory.offload_cells(write.slot);
      blocks_[write.block.id] = {std::move(write.block.text), {cells.begin(), cells.end()}};
    }
    reports_.written.push_back({write.block.id, ok});
  }

  std::mt19937 random_;
  std::map<StoredBlockId, Block> blocks_;
  std::vector<OffloadFetch> fetches_;
  std::deque<OffloadWrite> writes_;
  OffloadReports reports_;
};

}  // namespace quire::sched::testing_support
