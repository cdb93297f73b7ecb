#include "runner/offload_disk.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace quire::runner {
namespace {

constexpr std::chrono::seconds kAfterAFailure{1};
constexpr std::chrono::seconds kLookEvery{60};
constexpr size_t kMostFetches = 64;  // at once: a prefix of 1,000 tokens; what is ordered meanwhile is seen behind them

}  // namespace

OffloadDisk::OffloadDisk(std::unique_ptr<SegmentFolder> folder, SlotParts slot_parts, double bytes_per_second)
    : folder_(std::move(folder)),
      slot_parts_(std::move(slot_parts)),
      bytes_per_second_(bytes_per_second),
      writes_(folder_->writes()),
      found_(folder_->take_found()),
      next_look_(Clock::now() + kLookEvery),
      thread_([this] { loop(); }) {}

OffloadDisk::~OffloadDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    bell_.notify_all();
  }
  thread_.join();
}

std::vector<StoredBlock> OffloadDisk::take_found() {
  return std::exchange(found_, {});
}

void OffloadDisk::order(OffloadOrders orders) {
  const std::lock_guard lock(mutex_);
  if (orders.clear) {
    QUIRE_CHECK(writes_);
    clear_ = true;
    for (const OffloadWrite& write : queued_writes_) reports_.written.push_back({write.block.id, false});
    queued_writes_.clear();
  }
  fetches_.insert(fetches_.end(), orders.fetches.begin(), orders.fetches.end());
  QUIRE_CHECK(writes_ || orders.writes.empty());
  std::ranges::move(orders.writes, std::back_inserter(queued_writes_));
  bell_.notify_all();
}

OffloadReports OffloadDisk::take_reports() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

void OffloadDisk::loop() {
  std::unique_lock lock(mutex_);
  Clock::time_point stop_at = Clock::time_point::max();
  while (true) {
    if (stopping_ && stop_at == Clock::time_point::max()) stop_at = Clock::now() + kMostDraining;
    if (stopping_ && (queued_writes_.empty() || Clock::now() >= stop_at)) return;
    if (work(lock)) continue;
    const Clock::time_point until = queued_writes_.empty() ? next_look_ : std::min(next_look_, next_write_);
    bell_.wait_until(lock, until);
  }
}

void OffloadDisk::fetch(std::span<const OffloadFetch> fetches, OffloadReports& done) {
  std::vector<SegmentFolder::Wanted> wanted;
  for (const OffloadFetch& fetch : fetches) wanted.push_back({fetch.id, slot_parts_(fetch.slot)});
  const std::vector<bool> good = folder_->read(wanted);
  for (size_t i = 0; i < fetches.size(); ++i) done.fetched.push_back({fetches[i].id, good[i]});
  if (const auto bad = std::ranges::count(good, false); bad > 0) {
    log_warning("kv offload: {} of {} blocks on disk are damaged or gone; they are computed again", bad, good.size());
  }
}

// One thing that is due; false: nothing is.
bool OffloadDisk::work(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point time = Clock::now();
  OffloadReports done;
  if (std::exchange(clear_, false)) {
    lock.unlock();
    folder_->clear();
  } else if (!fetches_.empty()) {
    const auto end = fetches_.begin() + static_cast<std::ptrdiff_t>(std::min(fetches_.size(), kMostFetches));
    const std::vector<OffloadFetch> fetches(fetches_.begin(), end);
    fetches_.erase(fetches_.begin(), end);
    lock.unlock();
    fetch(fetches, done);
  } else if (!queued_writes_.empty() && (stopping_ || time >= next_write_)) {
    const OffloadWrite write = std::move(queued_writes_.front());
    queued_writes_.pop_front();
    const bool may_try = time >= write_again_;
    lock.unlock();
    const std::vector<iovec> parts = slot_parts_(write.slot);
    const bool ok = may_try && folder_->write(write.block, parts);
    if (may_try && !ok) log_warning("kv offload: a block could not be written; is the disk full?");
    done.written.push_back({write.block.id, ok});
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    if (may_try) {
      charge(ok ? bytes : 0);
      if (!ok) write_again_ = time + kAfterAFailure;
    }
  } else if (time >= next_look_) {
    next_look_ = time + kLookEvery;
    lock.unlock();
    folder_->drop_old();
  } else {
    return false;
  }
  done.dropped = folder_->take_dropped();
  lock.lock();
  // The thread alone forgets and clears: blocks that a later clear() is to forget are told of once more, harmlessly.
  const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  add(reports_.fetched, done.fetched);
  add(reports_.written, done.written);
  add(reports_.dropped, done.dropped);
  if (!reports_.empty() && fetches_.empty() && notify_) {
    lock.unlock();
    notify_();
    lock.lock();
  }
  return true;
}

void OffloadDisk::charge(size_t bytes) {
  if (bytes_per_second_ <= 0) return;
  // Blocks that a step brings all at once are written one by one.
  const auto time = std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second_);
  next_write_ = std::max(next_write_, Clock::now() - std::chrono::milliseconds(100)) +
                std::chrono::duration_cast<Clock::duration>(time);
}

}  // namespace quire::runner
