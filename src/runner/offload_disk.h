// The disk's side of the prefix cache: a thread that carries out orders on the slots of host memory. Reads go before
// writes; writes keep within a budget of bandwidth, so that what else uses the disk and the memory is not held up.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runner/segment_folder.h"
#include "types/kv_offload.h"

namespace quire::runner {

// Thread-safe.
class OffloadDisk {
 public:
  // Where the bytes of a slot lie, in the order in which they are written.
  using SlotParts = std::function<std::vector<iovec>(OffloadSlot)>;

  // bytes_per_second: of writes; 0: no bound. The memory of the slots must outlive this.
  OffloadDisk(std::unique_ptr<SegmentFolder> folder, SlotParts slot_parts, double bytes_per_second);
  // What waits is written if that takes no longer than kMostDraining.
  ~OffloadDisk();
  OffloadDisk(const OffloadDisk&) = delete;
  OffloadDisk& operator=(const OffloadDisk&) = delete;

  static constexpr std::chrono::seconds kMostDraining{5};

  bool writes() const { return writes_; }
  std::vector<StoredBlock> take_found();

  void order(OffloadOrders orders);
  OffloadReports take_reports();
  // Called on the thread when there is something to take, without a lock. Set before the first order.
  void on_reports(std::function<void()> notify) { notify_ = std::move(notify); }

 private:
  using Clock = std::chrono::steady_clock;

  void loop();
  bool work(std::unique_lock<std::mutex>& lock);
  void fetch(std::span<const OffloadFetch> fetches, OffloadReports& done);
  void charge(size_t bytes);

  const std::unique_ptr<SegmentFolder> folder_;  // of the thread, once it runs
  const SlotParts slot_parts_;
  const double bytes_per_second_;
  const bool writes_;
  std::vector<StoredBlock> found_;
  std::function<void()> notify_;

  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<OffloadFetch> fetches_;  // guarded by mutex_, like all below
  std::deque<OffloadWrite> queued_writes_;
  OffloadReports reports_;
  bool clear_ = false;
  bool stopping_ = false;
  Clock::time_point next_write_;
  Clock::time_point write_again_;  // after one that failed
  Clock::time_point next_look_;    // for segments that are too old
  std::thread thread_;             // last: it uses all of the above
};

}  // namespace quire::runner
