// Blocks between the slots of host memory and other instances: a thread that copies their bytes beside the steps.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "types/kv_offload.h"

namespace quire::runner {

// Thread-safe.
class SlotCopier {
 public:
  // Where the bytes of a slot lie, one piece after the other.
  using SlotParts = std::function<std::vector<std::span<uint8_t>>(OffloadSlot)>;

  // The memory of the slots must outlive this.
  explicit SlotCopier(SlotParts slot_parts);
  ~SlotCopier();  // what waits is not done
  SlotCopier(const SlotCopier&) = delete;
  SlotCopier& operator=(const SlotCopier&) = delete;

  // REQUIRES: an import has as many bytes as a slot.
  void order(std::vector<OffloadExport> exports, std::vector<OffloadImport> imports);
  // Adds what is done since the last call.
  void take_reports(OffloadReports& reports);
  // Called on the thread when there is something to take, without a lock. Set before the first order.
  void on_reports(std::function<void()> notify) { notify_ = std::move(notify); }

 private:
  void loop();
  void carry_out(const OffloadExport& order, OffloadReports& done) const;
  void carry_out(const OffloadImport& order, OffloadReports& done) const;

  const SlotParts slot_parts_;
  std::function<void()> notify_;
  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<OffloadExport> exports_;  // guarded by mutex_, like all below
  std::deque<OffloadImport> imports_;
  OffloadReports reports_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace quire::runner
